//! Binding admission, pure: the moment the scheduler has chosen a node, the pod carries that node's
//! cap and rails. The API server merges a Binding's annotations into the pod.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use siding_crds::names;
use siding_crds::plan::NodePlan;

/// A Binding that is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid; none where an old scheduler leaves it out.
    pub uid: Option<String>,
    /// The node.
    pub node: String,
    /// The annotations that it already carries.
    annotations: Option<Map<String, Value>>,
}

impl Binding {
    /// From `AdmissionReview.request`; none where it is no binding of a pod to a node.
    #[must_use]
    pub fn of_request(request: &Value) -> Option<Self> {
        let resource = request["resource"]["resource"].as_str()?;
        let is_binding = match resource {
            "pods" => request["subResource"] == "binding",
            "bindings" => true,
            _ => false,
        };
        let object = &request["object"];
        let kind = object["target"]["kind"].as_str().unwrap_or("Node");
        let node = object["target"]["name"].as_str()?;
        if !is_binding || request["operation"] != "CREATE" || node.is_empty() || kind != "Node" {
            return None;
        }
        let text = |value: &Value| {
            value
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        let metadata = &object["metadata"];
        Some(Self {
            namespace: text(&request["namespace"]).or_else(|| text(&metadata["namespace"]))?,
            pod: text(&request["name"]).or_else(|| text(&metadata["name"]))?,
            uid: text(&metadata["uid"]),
            node: node.to_owned(),
            annotations: metadata["annotations"].as_object().cloned(),
        })
    }

    /// The JSON patch that puts a plan on it.
    ///
    /// # Errors
    /// A plan that has no JSON form, which no plan is.
    pub fn patch(&self, plan: &NodePlan) -> Result<Value, serde_json::Error> {
        let plan_text = serde_json::to_string(plan)?;
        let mut operations = Vec::new();
        if self.annotations.is_none() {
            operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
        }
        for (name, value) in [(names::PLAN, plan_text), (names::CAP, plan.cap.to_string())] {
            let path = format!("/metadata/annotations/{}", name.replace('/', "~1"));
            operations.push(json!({"op": "add", "path": path, "value": value}));
        }
        Ok(Value::Array(operations))
    }
}

/// The answer to a review of a binding: allowed, whatever happens, with a patch where there is one.
#[must_use]
pub fn answer(uid: &Value, patch: Option<&Value>) -> Value {
    let mut response = json!({"uid": uid, "allowed": true});
    if let Some(patch) = patch {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(patch.to_string()));
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn request(resource: &str, sub: &str, metadata: Value) -> Value {
        json!({
            "operation": "CREATE", "namespace": "team-a", "name": "engine-0",
            "resource": {"group": "", "version": "v1", "resource": resource}, "subResource": sub,
            "object": {"metadata": metadata, "target": {"kind": "Node", "name": "node-1"}},
        })
    }

    fn plan() -> NodePlan {
        serde_json::from_value(json!({
            "version": 1, "source": "Node", "node": "node-1", "cap": 23, "capReason": "r",
        }))
        .unwrap()
    }

    fn patched(request: &Value) -> Value {
        let patch = Binding::of_request(request)
            .unwrap()
            .patch(&plan())
            .unwrap();
        let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
        let mut object = request["object"].clone();
        json_patch::patch(&mut object, &patch).unwrap();
        object
    }

    #[test]
    fn both_forms_of_a_binding_carry_the_plan_and_the_cap() {
        for (resource, sub) in [("pods", "binding"), ("bindings", "")] {
            let object = patched(&request(resource, sub, json!({"uid": "u"})));
            let annotations = &object["metadata"]["annotations"];
            assert_eq!(annotations["siding.dev/cap"], "23");
            let text = annotations["siding.dev/plan"].as_str().unwrap();
            assert_eq!(NodePlan::parse(text).unwrap(), plan());
        }
    }

    #[test]
    fn what_others_wrote_on_it_stays() {
        let object = patched(&request(
            "pods",
            "binding",
            json!({"annotations": {"other": "x"}}),
        ));
        assert_eq!(object["metadata"]["annotations"]["other"], "x");
        assert_eq!(object["target"]["name"], "node-1");
    }

    #[test]
    fn what_is_no_binding_to_a_node_is_left_alone() {
        for (path, value) in [
            ("/subResource", json!("eviction")),
            ("/operation", json!("UPDATE")),
            ("/object/target/name", json!("")),
            ("/object/target/kind", json!("Pod")),
            ("/object", json!(null)),
        ] {
            let mut request = request("pods", "binding", json!({}));
            *request.pointer_mut(path).unwrap() = value;
            assert_eq!(Binding::of_request(&request), None, "{path}");
        }
    }

    #[test]
    fn the_name_and_the_namespace_come_from_the_request() {
        let binding =
            Binding::of_request(&request("pods", "binding", json!({"uid": "u"}))).unwrap();
        assert_eq!(
            (
                binding.namespace.as_str(),
                binding.pod.as_str(),
                binding.uid.as_deref()
            ),
            ("team-a", "engine-0", Some("u"))
        );
    }
}

//! An admission request: what is read of it.

use serde_json::Value;
use siding_crds::quoted;

use super::pod::Pod;

/// The creation of a pod, as the API server asks about it.
#[derive(Debug)]
pub struct Asked<'a> {
    /// The namespace: the request's, since the pod's own may be empty.
    pub namespace: &'a str,
    /// The pod as it was sent.
    pub object: &'a Value,
    /// Nothing will be kept.
    pub dry_run: bool,
    /// The request's own identifier, another for each pod.
    pub(super) uid: &'a str,
    pub(super) pod: Pod<'a>,
}

impl<'a> Asked<'a> {
    /// Reads a request; `None` where it is not the creation of a pod.
    pub(super) fn read(request: &'a Value) -> Result<Option<Self>, String> {
        if !request.is_object() {
            return Err("the review has no request".to_owned());
        }
        if !is_pod_creation(request) {
            return Ok(None);
        }
        let text = |field: &str| {
            request
                .get(field)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let namespace = text("namespace");
        if namespace.is_empty() {
            return Err("the request has no namespace".to_owned());
        }
        let object = request.get("object").unwrap_or(&Value::Null);
        Ok(Some(Self {
            namespace,
            object,
            dry_run: request.get("dryRun").and_then(Value::as_bool) == Some(true),
            uid: text("uid"),
            pod: Pod::read(object)?,
        }))
    }

    /// The pod as messages call it: its name may not be known yet.
    pub(super) fn pod_name(&self) -> String {
        match (self.pod.name(), self.pod.generate_name()) {
            ("", "") => "the pod".to_owned(),
            ("", prefix) => format!("pod {}", quoted(&format!("{prefix}…"))),
            (name, _) => format!("pod {}", quoted(name)),
        }
    }
}

/// A subresource (`pods/ephemeralcontainers`, `pods/resize`) is none, nor is an UPDATE.
fn is_pod_creation(request: &Value) -> bool {
    let text = |pointer: &str| request.pointer(pointer).and_then(Value::as_str);
    let is_core = text("/resource/group").unwrap_or_default().is_empty();
    text("/operation") == Some("CREATE")
        && text("/resource/resource") == Some("pods")
        && is_core
        && text("/subResource").unwrap_or_default().is_empty()
}

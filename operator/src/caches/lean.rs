//! Pods as the caches read them: what is not used is skipped while the JSON is read. A list of 50,000 is
//! most of what a restart waits for.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Deserializer};

/// A pod.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct LeanPod {
    /// Name, namespace, uid, resource version, labels and annotations; the rest is left out.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// What it is to be.
    #[serde(default)]
    pub spec: Option<LeanPodSpec>,
    /// What it is.
    #[serde(default)]
    pub status: Option<LeanPodStatus>,
}

/// A part of a pod's specification.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeanPodSpec {
    /// Its node, once it is bound.
    pub node_name: Option<String>,
}

/// A part of a pod's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeanPodStatus {
    /// Where it stands.
    pub phase: Option<String>,
    /// Of its containers.
    pub container_statuses: Option<Vec<ContainerStatus>>,
    /// Of its init containers, sidecars among them.
    pub init_container_statuses: Option<Vec<ContainerStatus>>,
}

impl Resource for LeanPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Read {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
    }
    let read = Read::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        labels: read.labels,
        annotations: read.annotations,
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_used_is_read_and_the_rest_is_skipped() {
        let pod: LeanPod = serde_json::from_value(json!({
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"l": "1"},
                "annotations": {"a": "2"}, "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
                "ownerReferences": [{"name": "o"}],
            },
            "spec": {"nodeName": "node-1", "containers": "of a later release"},
            "status": {"phase": "Running", "conditions": 1},
        }))
        .unwrap();
        let expected = ObjectMeta {
            name: Some("p".to_owned()),
            namespace: Some("n".to_owned()),
            uid: Some("u".to_owned()),
            resource_version: Some("7".to_owned()),
            labels: Some(BTreeMap::from([("l".to_owned(), "1".to_owned())])),
            annotations: Some(BTreeMap::from([("a".to_owned(), "2".to_owned())])),
            ..ObjectMeta::default()
        };
        assert_eq!(pod.metadata, expected);
        assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("node-1"));
        assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Running"));
    }

    #[test]
    fn it_is_asked_for_as_pods_are() {
        assert_eq!(
            LeanPod::url_path(&(), Some("n")),
            Pod::url_path(&(), Some("n"))
        );
    }
}

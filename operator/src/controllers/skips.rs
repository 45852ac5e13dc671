//! Pods that got no sidecar: the webhook has no side effects, so that their owners are told here.

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use siding_crds::names;
use siding_crds::reasons::Skip;

use super::tell::News;

/// What the pod's controller is to hear (or the pod itself, where it has none). Nothing of what its
/// user asked for, and of labels that are not ours.
#[must_use]
pub fn news(pod: &PartialObjectMeta<Pod>) -> Option<News> {
    let word = pod.labels().get(names::SKIP)?;
    let reason = Skip::ALL.iter().find(|skip| skip.as_str() == word)?;
    if matches!(reason, Skip::OptedOut | Skip::AlreadyInjected) {
        return None;
    }
    let words = pod.annotations().get(names::SKIPPED)?;
    let words = words
        .strip_prefix(&format!("{reason}: "))
        .unwrap_or(words.as_str());
    let namespace = pod.namespace();
    let owner = pod
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true));
    let (regarding, note) = match owner {
        Some(owner) => (
            ObjectReference {
                api_version: Some(owner.api_version.clone()),
                kind: Some(owner.kind.clone()),
                name: Some(owner.name.clone()),
                uid: Some(owner.uid.clone()),
                namespace,
                ..ObjectReference::default()
            },
            format!("its pods get no sidecar: {words}"),
        ),
        None => (
            ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod.name_any()),
                uid: pod.uid(),
                namespace,
                ..ObjectReference::default()
            },
            format!("it gets no sidecar: {words}"),
        ),
    };
    Some(News {
        regarding,
        reason: reason.as_str(),
        note,
        action: "Inject",
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(skip: &str, owners: Value) -> PartialObjectMeta<Pod> {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "engine-0", "namespace": "models", "uid": "u1", "ownerReferences": owners,
                "labels": {"siding.dev/skip": skip},
                "annotations": {"siding.dev/skipped": format!("{skip}: no StorePool selects it")},
            },
        }))
        .unwrap()
    }

    #[test]
    fn the_controller_is_told_or_the_pod_without_one() {
        let owners = json!([
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "c1"},
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "engine", "uid": "r1", "controller": true},
        ]);
        let told = news(&pod("NoPool", owners)).unwrap();
        assert_eq!(
            (
                told.regarding.kind.as_deref(),
                told.regarding.uid.as_deref(),
                told.reason
            ),
            (Some("ReplicaSet"), Some("r1"), "NoPool")
        );
        assert_eq!(
            told.note,
            "its pods get no sidecar: no StorePool selects it"
        );
        let told = news(&pod("NoPool", json!([]))).unwrap();
        assert_eq!(told.regarding.uid.as_deref(), Some("u1"));
        assert_eq!(told.note, "it gets no sidecar: no StorePool selects it");
    }

    #[test]
    fn what_was_asked_for_and_what_is_not_ours_is_not_told() {
        for word in ["OptedOut", "AlreadyInjected", "Whatever"] {
            assert_eq!(news(&pod(word, json!([]))), None, "{word}");
        }
    }
}

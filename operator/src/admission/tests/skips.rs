//! Pods that get no sidecar, and why.

use super::*;

fn reason(scene: &Scene, changes: Value) -> (Skip, String) {
    scene.skipped(&pod(changes))
}

#[test]
fn the_pod_stands_in_the_way() {
    let cases = [
        (
            json!({"metadata": {"labels": {"siding.dev/inject": "disabled"}}}),
            Skip::OptedOut,
        ),
        (
            json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}),
            Skip::MirrorPod,
        ),
        (json!({"spec": {"os": {"name": "windows"}}}), Skip::Windows),
        (
            json!({"spec": {"nodeSelector": {"kubernetes.io/os": "windows"}}}),
            Skip::Windows,
        ),
        (
            json!({"spec": {"containers": [{"name": "siding", "image": "x"}]}}),
            Skip::ContainerNameTaken,
        ),
        (
            json!({"spec": {"initContainers": [{"name": "siding", "image": "x"}]}}),
            Skip::ContainerNameTaken,
        ),
        (
            json!({"spec": {"volumes": [{"name": "siding-storage", "emptyDir": {}}]}}),
            Skip::VolumeNameTaken,
        ),
        (
            json!({"spec": {"volumes": [{"name": "siding-hugepages-2mi", "emptyDir": {}}]}}),
            Skip::VolumeNameTaken,
        ),
        (
            json!({"spec": {"resources": {"limits": {"memory": "1Gi"}}}}),
            Skip::PodLevelResources,
        ),
        (
            json!({"metadata": {"annotations": {"big": "x".repeat(230 << 10)}}}),
            Skip::AnnotationsFull,
        ),
    ];
    for (changes, expected) in cases {
        assert_eq!(reason(&Scene::with(json!({})), changes).0, expected);
    }
    let linux = json!({"spec": {"os": {"name": "linux"}, "nodeSelector": {"kubernetes.io/os": "linux"}, "resources": {}}});
    Scene::with(json!({})).injected(&pod(linux));
}

#[test]
fn annotations_that_are_full_are_not_made_fuller() {
    let full = pod(json!({"metadata": {"annotations": {"big": "x".repeat((256 << 10) - 50)}}}));
    let Verdict::Skip { reason, patch, .. } = Scene::with(json!({})).judge(&full) else {
        panic!("not skipped");
    };
    assert_eq!((reason, patch.len()), (Skip::AnnotationsFull, 0));
}

#[test]
fn no_pool() {
    let (reason_none, message) = reason(&Scene::of(Vec::new()), json!({}));
    assert_eq!(
        (reason_none, message.as_str()),
        (Skip::NoPool, "namespace 'ml' has no StorePool")
    );
    let other = Scene::with(json!({"podSelector": {"matchLabels": {"app": "sglang"}}}));
    let (other, message) = reason(&other, json!({}));
    assert_eq!(other, Skip::NoPool);
    assert!(
        message.starts_with("no StorePool of namespace 'ml' selects it"),
        "{message}"
    );
    let mut deleted = pool("kv", json!({})).as_ref().clone();
    deleted.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    assert_eq!(
        reason(&Scene::of(vec![Arc::new(deleted)]), json!({})).0,
        Skip::NoPool
    );
}

#[test]
fn selectors() {
    let cases = [
        (json!({}), true),
        (json!({"matchLabels": {"app": "vllm"}}), true),
        (
            json!({"matchLabels": {"app": "vllm", "tier": "gold"}}),
            false,
        ),
        (
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "vllm"]}]}),
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["vllm"]}]}),
            false,
        ),
        (
            json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]}),
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}),
            false,
        ),
        (
            json!({"matchLabels": {"app": "vllm"}, "matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}),
            true,
        ),
    ];
    for (selector, selects) in cases {
        let mut spec = json!({"segments": [{"name": "kv", "size": "1Gi"}]});
        spec["podSelector"] = selector.clone();
        let verdict = Scene::with(spec).judge(&pod(json!({})));
        assert_eq!(
            matches!(verdict, Verdict::Patch { .. }),
            selects,
            "{selector}"
        );
    }
}

#[test]
fn several_pools_are_named() {
    let pools = ["b", "a"].map(|name| pool(name, json!({})));
    let (conflict, message) = reason(&Scene::of(pools.to_vec()), json!({}));
    assert_eq!(conflict, Skip::ConflictingPools);
    assert_eq!(
        message,
        "StorePools 'a', 'b' of namespace 'ml' select it; change their spec.podSelector so that one does"
    );
    let many = (0..9).map(|n| pool(&format!("p{n}"), json!({}))).collect();
    let (_, message) = reason(&Scene::of(many), json!({}));
    assert!(
        message.starts_with("StorePools 'p0', 'p1', 'p2', 'p3' and 5 more"),
        "{message}"
    );
}

#[test]
fn pools_that_can_not_work() {
    let segment = |name: &str, size: Value| json!({"segments": [{"name": name, "size": size}]});
    let cases = [
        (segment("kv", json!("1Gb")), "'1Gb' is not a quantity"),
        (
            segment("kv", json!("3Mi")),
            "spec.segments[kv].size: '3Mi' is not a whole number of pages of 2Mi",
        ),
        (segment("kv", json!("0")), "spec.segments[kv].size"),
        (segment("KV", json!("2Mi")), "'KV' is not a segment's name"),
        (json!({"segments": []}), "it declares none"),
        (
            json!({"segments": [{"name": "a", "size": "2Mi"}, {"name": "a", "size": "2Mi"}]}),
            "spec.segments[a]: two have this name",
        ),
        (
            json!({"segments": [{"name": "a", "size": "7Ei", "pageSize": "1Gi"}, {"name": "b", "size": "7Ei", "pageSize": "1Gi"}]}),
            "too large together",
        ),
        (
            json!({"segments": [{"name": "a", "size": "9223372036854771712", "pageSize": "4Ki"}]}),
            "too large together",
        ),
        (
            json!({"sidecar": {"cpu": "lots"}}),
            "spec.sidecar.cpu: 'lots'",
        ),
        (json!({"sidecar": {"cpu": "0"}}), "spec.sidecar.cpu: '0'"),
        (
            json!({"sidecar": {"httpPort": 0}}),
            "spec.sidecar.httpPort: 0",
        ),
        (
            json!({"sidecar": {"runAsUser": -1}}),
            "spec.sidecar.runAsUser",
        ),
        (
            json!({"sidecar": {"image": " x"}}),
            "spec.sidecar.image: ' x'",
        ),
        (
            json!({"deviceAccess": {"mode": "DevicePlugin", "resource": "efa"}}),
            "spec.deviceAccess: 1 of 'efa'",
        ),
        (
            json!({"deviceAccess": {"mode": "DevicePlugin", "resource": "a.b/c", "count": 0}}),
            "0 of 'a.b/c'",
        ),
        (
            json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
            "spec.podSelector of StorePool 'kv' can't be used",
        ),
    ];
    for (spec, expected) in cases {
        let (invalid, message) = reason(&Scene::with(spec.clone()), json!({}));
        assert_eq!(invalid, Skip::InvalidPool, "{spec}");
        assert!(
            message.contains(expected) && message.contains("StorePool 'kv'"),
            "{message}"
        );
    }
    let long = Scene::of(vec![pool(&"p".repeat(64), json!({}))]);
    assert_eq!(reason(&long, json!({})).0, Skip::InvalidPool);
}

#[test]
fn a_label_that_means_nothing_is_told() {
    let misspelt = pod(json!({"metadata": {"labels": {"siding.dev/inject": "true"}}}));
    assert_eq!(
        Scene::with(json!({})).warnings(&misspelt),
        [
            "siding: label siding.dev/inject of pod 'vllm-7d9f-…' is 'true', which means nothing; write 'enabled' or 'disabled'"
        ]
    );
}

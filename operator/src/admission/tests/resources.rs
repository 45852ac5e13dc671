//! Requests, limits, probes.

use super::*;

#[test]
fn huge_pages_are_request_and_limit() {
    let patched = Scene::with(json!({})).injected(&pod(json!({})));
    assert_eq!(
        sidecar(&patched)["resources"],
        json!({
            "requests": {"cpu": "100m", "memory": "71Mi", "hugepages-2Mi": "1Gi"},
            "limits": {"memory": "71Mi", "hugepages-2Mi": "1Gi"},
        })
    );
}

#[test]
fn two_page_sizes_have_a_volume_and_a_limit_each() {
    let segments = json!([
        {"name": "a", "size": "1Gi", "pageSize": "1Gi"},
        {"name": "b", "size": "6Mi"},
        {"name": "c", "size": "2Mi"},
    ]);
    let patched = Scene::with(json!({"segments": segments})).injected(&pod(json!({})));
    let limits = &sidecar(&patched)["resources"]["limits"];
    assert_eq!(limits["hugepages-1Gi"], "1Gi");
    assert_eq!(limits["hugepages-2Mi"], "8Mi");
    for (name, medium) in [
        ("siding-hugepages-2mi", "HugePages-2Mi"),
        ("siding-hugepages-1gi", "HugePages-1Gi"),
    ] {
        assert_eq!(
            volume(&patched, name).unwrap()["emptyDir"]["medium"],
            medium
        );
    }
}

#[test]
fn segments_without_huge_pages_count_as_memory() {
    let segments = json!([{"name": "a", "size": "1Gi", "pageSize": "4Ki"}, {"name": "b", "size": "1Gi", "pageSize": "Transparent"}]);
    let patched = Scene::with(json!({"segments": segments})).injected(&pod(json!({})));
    let resources = &sidecar(&patched)["resources"];
    // 2 GiB, 64 MiB, 4 of page tables, 12 of pins and a quarter of rings.
    assert_eq!(resources["limits"]["memory"], "2129Mi");
    assert_eq!(resources["limits"].as_object().unwrap().len(), 1);
    let storage = &volume(&patched, "siding-storage").unwrap()["emptyDir"];
    assert_eq!(storage["sizeLimit"], "2064Mi");
    assert!(volume(&patched, "siding-hugepages-2mi").is_none());
}

#[test]
fn a_pod_with_huge_pages_of_its_own() {
    let engine = json!([{
        "name": "engine", "image": "x",
        "resources": {"requests": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}, "limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}},
    }]);
    let own = |medium: &str| {
        pod(
            json!({"spec": {"containers": engine, "volumes": [{"name": "own", "emptyDir": {"medium": medium}}]}}),
        )
    };
    for medium in ["HugePages-2Mi", "HugePages"] {
        let pod = own(medium);
        let patched = Scene::with(json!({})).injected(&pod);
        assert_kept(&pod, &patched, "");
    }
    // The kubelet mounts a volume that says no size only where there is one size.
    let gigantic =
        Scene::with(json!({"segments": [{"name": "a", "size": "1Gi", "pageSize": "1Gi"}]}));
    gigantic.injected(&own("HugePages-2Mi"));
    let (reason, message) = gigantic.skipped(&own("HugePages"));
    assert_eq!(reason, Skip::AmbiguousHugePages);
    assert_eq!(
        message,
        "its volume 'own' is of medium HugePages, which is ambiguous beside the sidecar's 1Gi pages; \
         write medium: HugePages-2Mi"
    );
}

#[test]
fn a_guaranteed_pod_stays_guaranteed() {
    let container =
        |name: &str, resources: Value| json!({"name": name, "image": "x", "resources": resources});
    let full = json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2000m", "memory": "1024Mi"}});
    let limits_only = json!({"limits": {"cpu": 2, "memory": "1Gi"}});
    let cases = [
        (vec![full.clone()], vec![], true),
        (
            vec![full.clone(), limits_only.clone()],
            vec![limits_only.clone()],
            true,
        ),
        (
            vec![json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}})],
            vec![],
            false,
        ),
        (
            vec![json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}})],
            vec![],
            false,
        ),
        (vec![full.clone(), json!({})], vec![], false),
        (vec![full], vec![json!({})], false),
        (
            vec![json!({"limits": {"cpu": "0", "memory": "1Gi"}})],
            vec![],
            false,
        ),
    ];
    for (ordinary, init, is_guaranteed) in cases {
        let named = |list: &[Value]| -> Vec<Value> {
            list.iter()
                .cloned()
                .map(|each| container("c", each))
                .collect()
        };
        let pod =
            pod(json!({"spec": {"containers": named(&ordinary), "initContainers": named(&init)}}));
        let patched = Scene::with(json!({"sidecar": {"cpu": "250m"}})).injected(&pod);
        let resources = &sidecar(&patched)["resources"];
        assert_eq!(resources["requests"]["cpu"], "250m");
        assert_eq!(
            resources["requests"]["memory"],
            resources["limits"]["memory"]
        );
        let limit = resources["limits"].get("cpu");
        assert_eq!(
            limit,
            is_guaranteed.then_some(&json!("250m")),
            "{ordinary:?} {init:?}"
        );
    }
}

#[test]
fn to_degrade_is_to_start_whatever_the_mount_does() {
    let patched = Scene::with(json!({})).injected(&pod(json!({})));
    let sidecar = sidecar(&patched);
    let startup = &sidecar["startupProbe"];
    assert_eq!(
        startup["httpGet"],
        json!({"path": "/healthz", "port": "siding-http"})
    );
    assert_eq!(sidecar.get("readinessProbe"), None);
}

#[test]
fn to_block_is_to_wait_as_long_as_the_segments_may_take() {
    let scene = |size: &str| {
        Scene::with(json!({"onFailure": "Block", "segments": [{"name": "a", "size": size}]}))
    };
    for (size, seconds) in [("2Mi", 61), ("1Gi", 61), ("100Gi", 160), ("2Ti", 60 + 2048)] {
        let patched = scene(size).injected(&pod(json!({})));
        let startup = &sidecar(&patched)["startupProbe"];
        assert_eq!(startup["httpGet"]["path"], "/startupz");
        let budget = startup["periodSeconds"].as_u64().unwrap()
            * startup["failureThreshold"].as_u64().unwrap();
        assert_eq!(budget, seconds, "{size}");
        assert_eq!(
            sidecar(&patched)["readinessProbe"]["httpGet"]["path"],
            "/readyz"
        );
    }
}

#[test]
fn image_and_pull_policy() {
    let patched =
        Scene::with(json!({"sidecar": {"image": "own:2", "imagePullPolicy": "IfNotPresent"}}))
            .injected(&pod(json!({})));
    assert_eq!(sidecar(&patched)["image"], "own:2");
    assert_eq!(sidecar(&patched)["imagePullPolicy"], "IfNotPresent");
    let plain = Scene::with(json!({})).injected(&pod(json!({})));
    assert_eq!(sidecar(&plain).get("imagePullPolicy"), None);
}

//! Ways to NICs.

use siding_crds::plan::Devices;

use super::*;

fn devices(scene: &Scene, pod: &Value) -> (Devices, Value) {
    let Verdict::Patch {
        operations,
        injection,
        ..
    } = scene.judge(pod)
    else {
        panic!("no sidecar");
    };
    let patched = apply(pod, &operations);
    (injection.devices, sidecar(&patched)["resources"].clone())
}

#[test]
fn the_pods_own_claims_are_shared() {
    let pod = pod(json!({"spec": {"resourceClaims": [
        {"name": "nics", "resourceClaimTemplateName": "all-nics"},
        {"name": "gpus", "resourceClaimName": "gpus"},
    ]}}));
    let (kind, resources) = devices(&Scene::with(json!({})), &pod);
    assert_eq!(kind, Devices::Claims);
    assert_eq!(
        resources["claims"],
        json!([{"name": "nics"}, {"name": "gpus"}])
    );
    let none = Scene::with(json!({"deviceAccess": {"mode": "None"}}));
    let (kind, resources) = devices(&none, &pod);
    assert_eq!((kind, resources.get("claims")), (Devices::None, None));
}

#[test]
fn without_any_there_is_none() {
    let (kind, resources) = devices(&Scene::with(json!({})), &pod(json!({})));
    assert_eq!((kind, resources.get("claims")), (Devices::None, None));
}

/// With `Auto`, an engine that has every NIC of a node by a device plugin still schedules.
#[test]
fn auto_asks_for_no_device() {
    let engine = json!([{"name": "engine", "image": "x", "resources": {"limits": {"vpc.amazonaws.com/efa": 32}}}]);
    let pod = pod(json!({"spec": {"containers": engine}}));
    let (_, resources) = devices(&Scene::with(json!({})), &pod);
    assert_eq!(resources["limits"].get("vpc.amazonaws.com/efa"), None);
}

#[test]
fn devices_of_its_own() {
    let access = json!({"mode": "DevicePlugin", "resource": "vpc.amazonaws.com/efa", "count": 2});
    let (kind, resources) = devices(
        &Scene::with(json!({"deviceAccess": access})),
        &pod(json!({})),
    );
    assert_eq!(kind, Devices::DevicePlugin);
    for side in ["requests", "limits"] {
        assert_eq!(resources[side]["vpc.amazonaws.com/efa"], "2");
    }
}

//! PodSecurity levels.

use super::*;

fn context(scene: &Scene, pod: &Value) -> Value {
    sidecar(&scene.injected(pod))["securityContext"].clone()
}

/// What the levels `baseline` and `restricted` refuse of a container and its volumes, as
/// k8s.io/pod-security-admission checks it.
fn refused_by(level: &str, before: &Value, after: &Value) -> Vec<String> {
    let context = &sidecar(after)["securityContext"];
    let mut refused = Vec::new();
    let mut check = |is_right: bool, what: &str| {
        if !is_right {
            refused.push(what.to_owned());
        }
    };
    check(context["privileged"] != true, "privileged");
    check(
        context["capabilities"].get("add").is_none(),
        "added capabilities",
    );
    let old = before["spec"]["volumes"].as_array().unwrap().len();
    let added = &after["spec"]["volumes"].as_array().unwrap()[old..];
    check(
        added.iter().all(|volume| volume.get("hostPath").is_none()),
        "hostPath",
    );
    if level == "restricted" {
        check(context["allowPrivilegeEscalation"] == false, "escalation");
        check(
            context["capabilities"]["drop"] == json!(["ALL"]),
            "capabilities",
        );
        check(
            context["runAsNonRoot"] == true && context["runAsUser"] != 0,
            "root",
        );
        check(
            context["seccompProfile"]["type"] == "RuntimeDefault",
            "seccomp",
        );
        let known = ["emptyDir", "downwardAPI"];
        let is_known = |volume: &Value| known.iter().any(|kind| volume.get(kind).is_some());
        check(added.iter().all(is_known), "volume types");
    }
    refused
}

#[test]
fn root_with_ipc_lock_where_nothing_is_refused() {
    let expected = json!({
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
        "runAsUser": 0,
        "runAsGroup": 0,
        "runAsNonRoot": false,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    assert_eq!(context(&Scene::with(json!({})), &pod(json!({}))), expected);
    assert_eq!(
        context(&Scene::with(json!({})).level("privileged"), &pod(json!({}))),
        expected
    );
    // Labels that only warn change nothing.
    let mut warned = Scene::with(json!({}));
    for mode in ["warn", "audit"] {
        warned = warned.label(&format!("pod-security.kubernetes.io/{mode}"), "restricted");
    }
    assert_eq!(context(&warned, &pod(json!({}))), expected);
}

#[test]
fn nobody_without_a_capability_where_something_is() {
    for level in ["baseline", "restricted", "Restricted", "strict", ""] {
        let pod = pod(json!({}));
        let patched = Scene::with(json!({})).level(level).injected(&pod);
        let context = &sidecar(&patched)["securityContext"];
        assert_eq!(context["runAsUser"], 65532, "{level}");
        assert_eq!(context["runAsNonRoot"], true);
        assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
        let level = if level == "baseline" {
            level
        } else {
            "restricted"
        };
        assert_eq!(refused_by(level, &pod, &patched), [""; 0]);
        // For hugetlbfs, whose root only root can write to.
        assert_eq!(
            patched["spec"]["securityContext"],
            json!({"fsGroup": 65532})
        );
    }
}

#[test]
fn the_clusters_own_default_is_the_operators_to_say() {
    let mut scene = Scene::with(json!({}));
    scene.defaults.pod_security = Level::Restricted;
    assert_eq!(context(&scene, &pod(json!({})))["runAsUser"], 65532);
    assert_eq!(
        context(&scene.level("privileged"), &pod(json!({})))["runAsUser"],
        0
    );
}

#[test]
fn a_user_of_the_pools() {
    let scene = || Scene::with(json!({"sidecar": {"runAsUser": 1000}}));
    for scene in [
        scene(),
        scene().level("baseline"),
        scene().level("restricted"),
    ] {
        let context = context(&scene, &pod(json!({})));
        assert_eq!(context["runAsUser"], 1000);
        // Kubernetes has no ambient capabilities: it would have no effect.
        assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
    }
    let root = || Scene::with(json!({"sidecar": {"runAsUser": 0}}));
    let baseline = context(&root().level("baseline"), &pod(json!({})));
    assert_eq!(
        (&baseline["runAsUser"], &baseline["capabilities"]),
        (&json!(0), &json!({"drop": ["ALL"]}))
    );
    let (reason, message) = root().level("restricted").skipped(&pod(json!({})));
    assert_eq!(reason, Skip::PodSecurity);
    assert!(
        message.contains("spec.sidecar.runAsUser: 0") && message.contains("65532"),
        "{message}"
    );
}

#[test]
fn a_group_for_huge_pages_only_where_it_changes_nothing_else() {
    let with = |volume: Value| pod(json!({"spec": {"volumes": [volume]}}));
    let restricted = || Scene::with(json!({})).level("restricted");
    let claim = with(json!({"name": "model", "persistentVolumeClaim": {"claimName": "model"}}));
    let key = with(
        json!({"name": "key", "secret": {"secretName": "k", "items": [{"key": "k", "path": "k", "mode": 0o400}]}}),
    );
    for storage in [&claim, &key] {
        let (reason, message) = restricted().skipped(storage);
        assert_eq!(reason, Skip::FsGroupNeeded);
        assert!(
            message.ends_with("set spec.securityContext.fsGroup in the pod"),
            "{message}"
        );
        // Baseline lets root through, which needs no group, and no capability.
        let patched = Scene::with(json!({})).level("baseline").injected(storage);
        assert_eq!(sidecar(&patched)["securityContext"]["runAsUser"], 0);
        assert_eq!(refused_by("baseline", storage, &patched), [""; 0]);
        assert_eq!(patched["spec"]["securityContext"], json!({}));
        // As the pool's own user it can't be.
        let own = Scene::with(json!({"sidecar": {"runAsUser": 7}})).skipped(storage);
        assert_eq!(own.0, Skip::FsGroupNeeded);
        assert!(
            own.1
                .ends_with("or spec.sidecar.runAsUser: 0 in the StorePool"),
            "{}",
            own.1
        );
    }
    let mut grouped = claim.clone();
    grouped["spec"]["securityContext"] = json!({"fsGroup": 2000});
    let patched = restricted().injected(&grouped);
    assert_eq!(patched["spec"]["securityContext"], json!({"fsGroup": 2000}));
    // tmpfs can be written to by all.
    let base = Scene::with(json!({"segments": [{"name": "a", "size": "1Gi", "pageSize": "4Ki"}]}));
    let patched = base.level("restricted").injected(&claim);
    assert_eq!(patched["spec"]["securityContext"], json!({}));
}

#[test]
fn the_nodes_devices_need_a_privileged_container() {
    let scene = || Scene::with(json!({"deviceAccess": {"mode": "HostPath"}}));
    let patched = scene().injected(&pod(json!({})));
    let context = &sidecar(&patched)["securityContext"];
    assert_eq!(context["privileged"], true);
    // The API server refuses these beside it.
    assert_eq!(context.get("allowPrivilegeEscalation"), None);
    assert_eq!(context.get("capabilities"), None);
    assert_eq!(
        volume(&patched, "siding-devices").unwrap()["hostPath"]["path"],
        "/dev/infiniband"
    );
    for level in ["baseline", "restricted", "odd"] {
        let (reason, message) = scene().level(level).skipped(&pod(json!({})));
        assert_eq!(reason, Skip::DeviceAccessRefused);
        assert!(
            message.contains("spec.deviceAccess.mode: HostPath"),
            "{message}"
        );
    }
}

#[test]
fn where_the_labels_can_not_be_had_what_passes_everywhere_is_injected_and_it_is_said() {
    let unknown = Scene::with(json!({})).of_unknown_labels();
    let pod = pod(json!({}));
    assert_eq!(
        refused_by("restricted", &pod, &unknown.injected(&pod)),
        [""; 0]
    );
    let told = "the labels of its namespace can't be had at the moment, so that its PodSecurity level is taken for 'restricted'";
    assert_eq!(unknown.warnings(&pod), [format!("siding: {told}")]);
    let devices = Scene::with(json!({"deviceAccess": {"mode": "HostPath"}})).of_unknown_labels();
    let (reason, message) = devices.skipped(&pod);
    assert_eq!(reason, Skip::DeviceAccessRefused);
    assert!(message.starts_with(told), "{message}");
}

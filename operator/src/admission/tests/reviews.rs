//! The envelope.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

fn body(request: &Value) -> Vec<u8> {
    let review =
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request});
    serde_json::to_vec(&review).unwrap()
}

fn response(scene: &Scene, request: &Value) -> (Value, Reviewed) {
    let reviewed = review(&body(request), |_| scene.world()).unwrap();
    let answer: Value = serde_json::from_slice(&reviewed.body).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(answer["response"]["uid"], request["uid"]);
    assert_eq!(answer["response"]["allowed"], true);
    (answer["response"].clone(), reviewed)
}

#[test]
fn a_patch_in_base64() {
    let (scene, pod) = (Scene::with(json!({})), pod(json!({})));
    let (response, reviewed) = response(&scene, &request(&pod));
    assert_eq!(response["patchType"], "JSONPatch");
    let patch = STANDARD
        .decode(response["patch"].as_str().unwrap())
        .unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    assert_eq!(patched, scene.injected(&pod));
    assert_eq!(
        (reviewed.namespace.as_str(), reviewed.dry_run),
        ("ml", false)
    );
}

#[test]
fn the_world_is_asked_for_by_namespace_and_pod() {
    let (scene, pod) = (Scene::with(json!({})), pod(json!({})));
    let mut dry = request(&pod);
    dry["dryRun"] = json!(true);
    let reviewed = review(&body(&dry), |asked| {
        assert_eq!(
            (asked.namespace, asked.object, asked.dry_run),
            ("ml", &pod, true)
        );
        World {
            pools: Cow::Owned(scene.pools.clone()),
            ..scene.world()
        }
    });
    assert!(reviewed.unwrap().dry_run);
}

#[test]
fn nothing_is_ever_refused() {
    let scene = Scene::of(Vec::new());
    let (skipped, _) = response(&scene, &request(&pod(json!({}))));
    assert_eq!(
        skipped["warnings"],
        json!(["siding: no sidecar: NoPool: namespace 'ml' has no StorePool"])
    );
    let (opted_out, _) = response(
        &scene,
        &request(&pod(
            json!({"metadata": {"labels": {"siding.dev/inject": "disabled"}}}),
        )),
    );
    assert_eq!(opted_out.get("warnings"), None);
    assert!(opted_out.get("patch").is_some());
    let (malformed, _) = response(&scene, &request(&json!("pod")));
    assert_eq!(
        malformed["warnings"],
        json!(["siding: no sidecar: the pod's metadata is not an object"])
    );
    let mut update = request(&pod(json!({})));
    update["operation"] = json!("UPDATE");
    let reviewed = review(&body(&update), |_| panic!("nobody needs to know")).unwrap();
    assert_eq!(reviewed.verdict, Verdict::Untouched);
    let (untouched, _) = response(&scene, &update);
    assert_eq!(untouched.as_object().unwrap().len(), 2);
}

#[test]
fn what_is_no_review() {
    let bad = |body: &[u8]| {
        review(body, |_| panic!("nobody needs to know"))
            .unwrap_err()
            .to_string()
    };
    assert!(bad(b"").starts_with("the body is not JSON: "));
    assert!(bad(b"{\"kind\":").starts_with("the body is not JSON: "));
    assert_eq!(
        bad(br#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"x"}}"#),
        "the body is not an AdmissionReview of admission.k8s.io/v1: \
         its kind is 'AdmissionReview' of 'admission.k8s.io/v1beta1'"
    );
    assert!(bad(b"[]").contains("its kind is '' of ''"));
    assert!(bad(&body(&json!(null))).ends_with("it has no request"));
    assert!(bad(&body(&json!({}))).ends_with("its request has no uid"));
}

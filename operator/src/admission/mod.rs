//! Admission, pure: from a request as the API server sent it to a JSON patch that only adds.

use serde_json::{Value, json};

/// The answer to a review: allowed, whatever happens, with a patch where there is one.
#[must_use]
pub fn response(uid: &Value, patch: Option<&Value>) -> Value {
    let mut response = json!({"uid": uid, "allowed": true});
    if let Some(patch) = patch {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(k8s_openapi::ByteString(patch.to_string().into_bytes()));
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

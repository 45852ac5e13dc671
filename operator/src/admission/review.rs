//! The envelope: `admission.k8s.io/v1` AdmissionReview in and out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use siding_crds::reasons::Skip;

use super::Verdict;
use super::asked::Asked;
use super::patch::PatchOperation;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Not a review: answered by HTTP 400, whereupon the API server goes on as if nobody had been asked
/// (`failurePolicy: Ignore`).
#[derive(Debug, thiserror::Error)]
pub enum BadReview {
    /// It is not JSON.
    #[error("the body is not JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// It is another object.
    #[error("the body is not an {KIND} of {API_VERSION}: {0}")]
    NotAReview(String),
    /// The answer can't be written.
    #[error("the answer can't be written: {0}")]
    Unwritable(#[source] serde_json::Error),
}

/// A review.
#[derive(Debug)]
pub struct Review(Value);

/// An answered review.
#[derive(Clone, Debug, PartialEq)]
pub struct Reviewed {
    /// The answer, JSON.
    pub body: Vec<u8>,
    /// What it says.
    pub verdict: Verdict,
    /// The namespace of the request; empty where there is none.
    pub namespace: String,
    /// Nothing will come of it: no Event, please.
    pub dry_run: bool,
}

impl Review {
    /// Reads one.
    ///
    /// # Errors
    /// [`BadReview`], where there is nothing to answer to.
    pub fn read(body: &[u8]) -> Result<Self, BadReview> {
        let review: Value = serde_json::from_slice(body).map_err(BadReview::NotJson)?;
        request_of(&review)?;
        Ok(Self(review))
    }

    /// The creation of a pod that it asks about.
    ///
    /// # Errors
    /// The verdict, where it asks about none.
    pub fn asked(&self) -> Result<Asked<'_>, Verdict> {
        match Asked::read(&self.0["request"]) {
            Ok(Some(asked)) => Ok(asked),
            Ok(None) => Err(Verdict::Untouched),
            Err(what) => Err(Verdict::Malformed(what)),
        }
    }

    /// The answer. It always lets the pod through.
    ///
    /// # Errors
    /// [`BadReview::Unwritable`].
    pub fn answer(&self, verdict: Verdict) -> Result<Reviewed, BadReview> {
        let (request, uid) = request_of(&self.0)?;
        let namespace = request["namespace"].as_str().unwrap_or_default();
        Ok(Reviewed {
            body: answer(uid, &verdict).map_err(BadReview::Unwritable)?,
            verdict,
            namespace: namespace.to_owned(),
            dry_run: request["dryRun"] == true,
        })
    }
}

fn request_of(review: &Value) -> Result<(&Value, &str), BadReview> {
    let text = |field: &str| {
        review
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let not = |what: String| BadReview::NotAReview(what);
    let (version, kind) = (text("apiVersion"), text("kind"));
    if version != API_VERSION || kind != KIND {
        let (version, kind) = (siding_crds::quoted(version), siding_crds::quoted(kind));
        return Err(not(format!("its kind is {kind} of {version}")));
    }
    let request = review.get("request").filter(|request| request.is_object());
    let request = request.ok_or_else(|| not("it has no request".to_owned()))?;
    match request.get("uid").and_then(Value::as_str) {
        Some(uid) if !uid.is_empty() => Ok((request, uid)),
        _ => Err(not("its request has no uid".to_owned())),
    }
}

fn answer(uid: &str, verdict: &Verdict) -> Result<Vec<u8>, serde_json::Error> {
    let mut response = serde_json::Map::new();
    response.insert("uid".to_owned(), json!(uid));
    response.insert("allowed".to_owned(), json!(true));
    let patch = verdict.operations();
    if !patch.is_empty() {
        let patch = STANDARD.encode(serde_json::to_vec(patch)?);
        response.insert("patchType".to_owned(), json!("JSONPatch"));
        response.insert("patch".to_owned(), json!(patch));
    }
    let warnings = verdict.warnings();
    if !warnings.is_empty() {
        response.insert("warnings".to_owned(), json!(warnings));
    }
    serde_json::to_vec(&json!({"apiVersion": API_VERSION, "kind": KIND, "response": response}))
}

impl Verdict {
    /// What is added to the object.
    #[must_use]
    pub fn operations(&self) -> &[PatchOperation] {
        match self {
            Self::Patch { operations, .. } => operations,
            Self::Skip { patch, .. } => patch,
            Self::Untouched | Self::Malformed(_) => &[],
        }
    }

    /// Why the pod gets no sidecar, where it gets none.
    #[must_use]
    pub fn skip(&self) -> Option<Skip> {
        match self {
            Self::Skip { reason, .. } => Some(*reason),
            Self::Patch { .. } | Self::Untouched | Self::Malformed(_) => None,
        }
    }

    /// What whoever creates the pod is told: nothing where it is as they asked for.
    fn warnings(&self) -> Vec<String> {
        match self {
            Self::Patch { warnings, .. } => warnings.clone(),
            Self::Skip {
                reason: Skip::AlreadyInjected | Skip::OptedOut | Skip::MirrorPod,
                ..
            }
            | Self::Untouched => Vec::new(),
            Self::Skip {
                reason, message, ..
            } => vec![format!("siding: no sidecar: {reason}: {message}")],
            Self::Malformed(what) => vec![format!("siding: no sidecar: {what}")],
        }
    }
}

//! Admission, pure: from a request as the API server sent it to a JSON patch that only adds.
//!
//! A pod is raw JSON on its way in and a list of `add` operations on its way out, so that fields
//! newer than this release pass untouched. A pod is never refused: what can't be done is a
//! [`Verdict::Skip`] with its reason on the pod.

mod amount;
mod asked;
mod config;
mod container;
mod devices;
mod engine;
mod inject;
mod memory;
mod patch;
mod pod;
mod port;
mod probes;
mod review;
mod room;
mod security;
mod seed;
mod select;
mod skip;
#[cfg(test)]
mod tests;
mod volumes;
mod wish;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use serde_json::Value;
use siding_crds::api::{PullPolicy, StorePool};
use siding_crds::plan::Injection;
use siding_crds::reasons::Skip;
use siding_topology::factor::{DEFAULT_FACTOR, Factor};

pub use asked::Asked;
pub use memory::{Footprint, memory_bytes};
pub use patch::{Op, PatchOperation};
pub use port::DYNAMIC_PORTS;
pub use probes::mount_budget_seconds;
pub use review::{BadReview, Review, Reviewed};
pub use room::{LimitRange, Quota, Room};
pub use security::Level;
pub use wish::Demand;

/// What the caller's caches know of a request's namespace and of the nodes.
#[derive(Clone, Debug)]
pub struct World<'a> {
    /// The pools of the namespace.
    pub pools: Cow<'a, [Arc<StorePool>]>,
    /// The labels of the namespace; `None` where they can't be had.
    pub namespace_labels: Option<Cow<'a, BTreeMap<String, String>>>,
    /// The limits of the namespace.
    pub room: Room,
    /// What the operator was told.
    pub defaults: &'a Defaults,
    /// Hardware threads of the smallest node that the pod may land on; `None` where unknown.
    pub fewest_cores: Option<NonZeroUsize>,
    /// GPUs of that of these nodes which has most; `None` where unknown.
    pub most_gpus: Option<u32>,
}

/// What the operator was told at its start.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// The sidecar's image, where a pool names none.
    pub image: String,
    /// When it is pulled, where a pool does not tell.
    pub image_pull_policy: Option<PullPolicy>,
    /// The PodSecurity level that the API server enforces where a namespace has no label.
    pub pod_security: Level,
    /// The planner's factor.
    pub factor: Factor,
}

impl Defaults {
    /// Kubernetes' and the planner's own defaults, with this image.
    #[must_use]
    pub fn new(image: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            image_pull_policy: None,
            pod_security: Level::Privileged,
            factor: DEFAULT_FACTOR,
        }
    }
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The pod gets its sidecar.
    Patch {
        /// What is added.
        operations: Vec<PatchOperation>,
        /// The same in brief, as it is on the pod.
        injection: Box<Injection>,
        /// What whoever creates the pod should know.
        warnings: Vec<String>,
    },
    /// The pod gets none.
    Skip {
        /// Why.
        reason: Skip,
        /// Why, in words.
        message: String,
        /// The annotation that tells it; empty where it is there already.
        patch: Vec<PatchOperation>,
    },
    /// Not the creation of a pod.
    Untouched,
    /// Not what the API server sends; what is wrong with it.
    Malformed(String),
}

/// Judges an admission request (`AdmissionReview.request`). A dry run is no different: nothing here
/// has a side effect.
#[must_use]
pub fn admit_pod(request: &Value, world: &World<'_>) -> Verdict {
    match Asked::read(request) {
        Ok(Some(asked)) => judge(&asked, world),
        Ok(None) => Verdict::Untouched,
        Err(what) => Verdict::Malformed(what),
    }
}

/// Judges the creation of a pod.
#[must_use]
pub fn judge(asked: &Asked<'_>, world: &World<'_>) -> Verdict {
    match inject::inject(asked, world) {
        Ok(injected) => Verdict::Patch {
            operations: injected.operations,
            injection: Box::new(injected.injection),
            warnings: injected.warnings,
        },
        Err(skipped) => skipped.into_verdict(&asked.pod),
    }
}

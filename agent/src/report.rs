//! What a sidecar says in `/v1/status`, as far as it is relayed.
//!
//! A pod can put anything there: what is missing is unknown, and what is read is bounded before it
//! goes further ([`crate::mount`]).

use serde::Deserialize;
use siding_crds::plan::PlanSource;

/// The whole.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SidecarReport {
    /// Where it stands.
    pub state: ReportedState,
    /// Why mounting failed.
    pub failure: Option<ReportedFailure>,
    /// The node's plan for it.
    pub plan: Option<ReportedPlan>,
    /// How it registers.
    pub registration: Option<ReportedRegistration>,
    /// Its segments.
    pub segments: Vec<ReportedSegment>,
}

/// Where it stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReportedState {
    /// It mounts.
    #[default]
    Mounting,
    /// All is mounted.
    Ready,
    /// It failed.
    Failed,
    /// It takes everything down.
    Stopping,
    /// A word of a later release.
    #[serde(other)]
    Unknown,
}

/// Why mounting failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReportedFailure {
    /// One word.
    pub reason: String,
    /// In words.
    pub message: String,
}

/// The plan that it follows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedPlan {
    /// Where its numbers come from: a word, which a later release may have more of.
    pub source: Option<String>,
    /// How its cap came about.
    pub cap_reason: Option<String>,
    /// The GPUs that it was told.
    pub gpus: Option<Vec<String>>,
    /// NICs of its rails.
    pub nics: Vec<String>,
    /// What does not go together.
    pub findings: Vec<String>,
}

impl ReportedPlan {
    /// Where its numbers come from; none where it has no plan, or one of a later release.
    #[must_use]
    pub fn source(&self) -> Option<PlanSource> {
        let all = [PlanSource::Node, PlanSource::Catalogue, PlanSource::Seed];
        let word = self.source.as_ref()?;
        all.into_iter()
            .find(|source| format!("{source:?}") == *word)
    }
}

/// How it registers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedRegistration {
    /// The back end.
    pub backend: String,
    /// Why this one.
    pub reason: String,
    /// The cap in force; none where unbounded.
    pub cap: Option<u64>,
    /// Where that comes from.
    pub cap_reason: String,
}

/// One segment.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedSegment {
    /// Its name.
    pub name: String,
    /// Its length.
    pub size_bytes: u64,
    /// Its pages.
    pub page: Option<String>,
    /// What it does now.
    pub state: String,
    /// Seconds of each phase.
    pub seconds: ReportedSeconds,
    /// Bytes that are present.
    pub touched_bytes: u64,
    /// Bytes that are registered.
    pub registered_bytes: u64,
    /// What was left out of registration.
    pub left_out: Option<String>,
}

/// Seconds of each phase that ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReportedSeconds {
    /// Mapping.
    pub map: Option<f64>,
    /// Touching.
    pub touch: Option<f64>,
    /// Registering.
    pub register: Option<f64>,
}

//! What status tells of the plan.

use serde::Serialize;
use siding_crds::plan::{GpuRail, PlanSource};
use utoipa::ToSchema;

use super::Known;
use super::narrow::narrow;

/// The node's plan for this pod; what is unknown is null.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// Where its numbers come from: `Node`, `Catalogue` or `Seed`; null where there is no plan.
    #[schema(value_type = Option<String>)]
    pub source: Option<PlanSource>,
    /// Registrations in flight of one rank, as planned. In force is `registration.cap`.
    pub cap: Option<u32>,
    /// How the planned cap came about.
    pub cap_reason: Option<String>,
    /// The node.
    pub node: Option<String>,
    /// Ranks that the node is planned for.
    pub ranks: Option<u32>,
    /// The node's hardware threads.
    pub cores: Option<u32>,
    /// The GPUs that the pod got, as the node's agent told.
    pub gpus: Option<Vec<String>>,
    /// The rails of these GPUs; of all that the node has while the pod's are not known.
    pub rails: Option<Vec<RailStatus>>,
    /// The NICs of these rails, each once.
    pub nics: Vec<String>,
    /// What could not be read or does not go together.
    pub findings: Vec<String>,
}

/// The NICs of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RailStatus {
    /// The GPU's PCI address.
    pub gpu: String,
    /// Its UUID, where it is known.
    pub uuid: Option<String>,
    /// Its NICs.
    pub nics: Vec<String>,
    /// What says that they are near.
    pub evidence: String,
}

impl From<GpuRail> for RailStatus {
    fn from(rail: GpuRail) -> Self {
        let GpuRail {
            gpu,
            uuid,
            nics,
            evidence,
        } = rail;
        Self {
            gpu,
            uuid,
            nics,
            evidence,
        }
    }
}

impl PlanStatus {
    /// What is known, in the form that is told.
    #[must_use]
    pub fn of(known: &Known) -> Self {
        let mut told = Self {
            gpus: known.gpus.clone(),
            findings: known.trouble.iter().cloned().collect(),
            ..Self::default()
        };
        let Some(plan) = &known.plan else {
            return told;
        };
        told.source = Some(plan.source);
        told.cap = Some(plan.cap.get());
        told.cap_reason = Some(plan.cap_reason.clone());
        told.node.clone_from(&plan.node);
        told.ranks = plan.ranks.map(Into::into);
        told.cores = plan.cores.map(Into::into);
        if let Some(table) = &plan.rails {
            let narrowed = narrow(table, known.gpus.as_deref());
            told.rails = Some(narrowed.rails.into_iter().map(RailStatus::from).collect());
            told.nics = narrowed.nics;
            told.findings.extend(narrowed.findings);
        }
        told
    }
}

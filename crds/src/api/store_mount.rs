//! `StoreMount`: what became of one pod's segments.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::PlanSource;

/// One pod's mount; of the pod's name, and owned by it.
#[derive(CustomResource, JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siding.dev",
    version = "v1alpha1",
    kind = "StoreMount",
    namespaced,
    status = "StoreMountStatus",
    derive = "PartialEq",
    shortname = "smount",
    category = "siding",
    selectable = ".spec.node",
    doc = "What became of one pod's segments: the plan in force, and the seconds that each segment took. Of the pod's name, made and removed with it.",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.node"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Cap",
        type_ = "integer",
        json_path = ".status.cap",
        description = "Registrations in flight of one rank"
    ),
    printcolumn(
        name = "Register",
        type_ = "string",
        json_path = ".status.registrationSummary",
        description = "Seconds that registering took"
    ),
    printcolumn(
        name = "Summary",
        type_ = "string",
        json_path = ".status.summary",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct StoreMountSpec {
    /// The pool.
    #[schemars(length(max = 253))]
    pub pool: String,
    /// The pool's `metadata.generation` at the pod's creation.
    pub pool_generation: i64,
    /// The pod's uid: a later pod of the same name is another.
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// The node.
    #[schemars(length(max = 253))]
    pub node: String,
}

/// What became of it.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreMountStatus {
    /// Where it stands.
    #[serde(default)]
    pub phase: MountPhase,
    /// Why it is not as declared, one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// All of it in a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Registrations in flight of one rank, in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<u32>,
    /// How the cap came about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_reason: Option<String>,
    /// Where the plan's numbers come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_source: Option<PlanSource>,
    /// NICs that memory is registered on, or would be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub nics: Vec<String>,
    /// What pins memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The segments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub segments: Vec<MountedSegment>,
    /// Seconds that registering took over all segments, in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration_summary: Option<String>,
    /// Conditions: `PlanWritten` (on the pod) and `SidecarRunning` by the operator; `Planned` (in
    /// force), `Mounted` and `Registered` by the node's agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Where a mount stands.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountPhase {
    /// The sidecar has not told.
    #[default]
    Pending,
    /// It maps, touches or registers.
    Mounting,
    /// As declared.
    Ready,
    /// With less than was declared.
    Degraded,
    /// It failed.
    Failed,
}

/// One segment.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountedSegment {
    /// Its name.
    pub name: String,
    /// What it does now, e.g. `touch` or `ready`.
    pub phase: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its bytes that are registered.
    pub registered_bytes: u64,
    /// The size of the pages that it got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_size: Option<String>,
    /// Seconds of each phase.
    #[serde(default)]
    pub seconds: PhaseSeconds,
    /// All of it in a line.
    pub summary: String,
}

/// Seconds of each phase; what has not ended is left out.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseSeconds {
    /// Mapping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<f64>,
    /// Touching.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touch: Option<f64>,
    /// Registering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub register: Option<f64>,
}

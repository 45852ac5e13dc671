//! The custom resources of group `siding.dev`, version `v1alpha1`.
#![allow(clippy::duplicated_attributes)] // printcolumn after printcolumn, each with its type

mod auto;
mod node_topology;
mod rules;
mod size;
mod store_mount;
mod store_pool;
#[cfg(test)]
mod tests;

pub use auto::AutoOr;
pub use node_topology::{
    CoresFrom, CoresStatus, GpuStatus, HugePagePool, NicStatus, NodeTopology, NodeTopologySpec,
    NodeTopologyStatus, NumaStatus, RailStatus,
};
pub use size::Size;
pub use store_mount::{
    MountPhase, MountedSegment, PhaseSeconds, StoreMount, StoreMountSpec, StoreMountStatus,
};
pub use store_pool::{
    Backend, DeviceAccess, DeviceAccessMode, Engine, EngineVariables, FailureCount, Mooncake,
    NicPolicy, NumaPolicy, OnFailure, Order, PageSize, PodCounts, PoolNode, PullPolicy,
    Registration, SegmentSpec, Sidecar, SlowestRegistration, StorePool, StorePoolSpec,
    StorePoolStatus,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The definitions, as `crdgen` writes them.
#[must_use]
pub fn definitions() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("storepools.siding.dev.yaml", StorePool::crd()),
        ("nodetopologies.siding.dev.yaml", NodeTopology::crd()),
        ("storemounts.siding.dev.yaml", StoreMount::crd()),
    ]
}

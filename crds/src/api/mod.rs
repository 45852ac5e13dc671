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

use kube::CustomResourceExt;
use serde_json::Value;

/// The definitions, as `crdgen` writes them.
///
/// # Errors
/// A definition that JSON can't hold, which none is.
pub fn definitions() -> Result<Vec<(&'static str, Value)>, serde_json::Error> {
    [
        ("storepools.siding.dev.yaml", StorePool::crd()),
        ("nodetopologies.siding.dev.yaml", NodeTopology::crd()),
        ("storemounts.siding.dev.yaml", StoreMount::crd()),
    ]
    .into_iter()
    .map(|(name, definition)| {
        let mut definition = serde_json::to_value(definition)?;
        drop_unsigned_formats(&mut definition);
        Ok((name, definition))
    })
    .collect()
}

/// The API server knows no `uint32` and warns of each; `minimum: 0` says the same.
fn drop_unsigned_formats(schema: &mut Value) {
    if let Value::Object(fields) = schema
        && fields
            .get("format")
            .and_then(Value::as_str)
            .is_some_and(|format| format.starts_with("uint"))
    {
        fields.remove("format");
    }
    match schema {
        Value::Object(fields) => fields.values_mut().for_each(drop_unsigned_formats),
        Value::Array(items) => items.iter_mut().for_each(drop_unsigned_formats),
        _ => {}
    }
}

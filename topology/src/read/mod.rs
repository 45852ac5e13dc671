//! A whole [`Node`], read.

mod cores;
mod gpus;
mod instance;
mod nics;
mod pci;

pub use instance::is_type_name;

use std::collections::HashSet;
use std::num::NonZeroUsize;

use crate::hugepages;
use crate::node::{Gpu, Nic, Node};
use crate::numa;
use crate::root::{Finding, Root};
use crate::size::count;

/// A tree with more gaps than these has one cause.
const MAX_FINDINGS: usize = 500;

/// What is known of a node that its files do not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The CPUs that the kubelet says pods may allocate.
    pub allocatable_cores: Option<NonZeroUsize>,
    /// Whether software devices (`rdma_rxe`, `siw`) count as usable.
    pub allow_soft_rdma: bool,
    /// The cloud's name for the node's type, as on the node's label.
    pub instance_type: Option<String>,
}

/// Reads what a node has. What is missing is a finding, and nothing that is missing is fatal.
#[must_use]
pub fn read_node(root: &Root, options: &ReadOptions) -> Node {
    let root = &root.for_one_reading();
    let mut findings = Vec::new();
    let given = options.instance_type.as_deref();
    let instance_type = instance::instance_type(root, given, &mut findings);
    let cores = cores::node_cores(root, options.allocatable_cores, &mut findings);
    let (numa, missing) = numa::nodes(root);
    findings.extend(missing);
    let gpus = gpus::gpus(root, &mut findings);
    let nics = nics::nics(root, options.allow_soft_rdma, &mut findings);
    let (pools, missing) = hugepages::pools(root);
    findings.extend(missing);
    if numa.as_ref().is_some_and(|numa| numa.len() > 1) {
        let gpus = gpus.as_deref().unwrap_or_default();
        let nics = nics.as_deref().unwrap_or_default();
        findings.extend(without_numa(root, gpus, nics));
    }
    let mut node = Node {
        instance_type,
        cores,
        numa,
        gpus,
        nics,
        pools,
        findings,
    };
    let of_a_device = node.numa_of_devices().next();
    if let (Some([]), Some(id)) = (node.numa.as_deref(), of_a_device) {
        let reason = format!("devices are on NUMA node {id}: which nodes there are is unknown");
        node.findings.push(root.finding(numa::NODES, reason));
        node.numa = None;
    }
    node.findings.extend(root.left_out());
    node.findings = bounded(root, node.findings);
    node
}

/// That devices are on no NUMA node where there are several.
fn without_numa(root: &Root, gpus: &[Gpu], nics: &[Nic]) -> Option<Finding> {
    let gpus = gpus.iter().filter(|gpu| gpu.place.numa.is_none()).count();
    let places = nics.iter().filter_map(|nic| nic.place.as_ref());
    let nics = places.filter(|place| place.numa.is_none()).count();
    let (some_gpus, some_nics) = (count(gpus, "GPU"), count(nics, "NIC"));
    let reason = format!("{some_gpus} and {some_nics} are on no NUMA node that the kernel tells");
    (gpus + nics > 0).then(|| root.finding(pci::DEVICES, reason))
}

/// Each finding once, and no more than anybody reads.
fn bounded(root: &Root, findings: Vec<Finding>) -> Vec<Finding> {
    let mut seen = HashSet::with_capacity(findings.len());
    let is_new: Vec<bool> = findings
        .iter()
        .map(|finding| seen.insert(finding))
        .collect();
    let more = seen.len().saturating_sub(MAX_FINDINGS);
    let kept = findings.into_iter().zip(is_new);
    let kept = kept.filter_map(|(finding, is_new)| is_new.then_some(finding));
    let mut kept: Vec<Finding> = kept.take(MAX_FINDINGS).collect();
    if more > 0 {
        let reason = format!("{} left out", count(more, "more finding"));
        kept.push(root.finding("", reason));
    }
    kept
}

//! From what was read of the node to the status of its NodeTopology: pure.

use std::path::Path;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use siding_crds::api::{
    CoresFrom, CoresStatus, GpuStatus, HugePagePool, NicStatus, NodeTopologyStatus, NumaStatus,
    RailStatus,
};
use siding_crds::reasons::Reason;
use siding_topology::Finding;
use siding_topology::hugepages::Pool;
use siding_topology::node::{CoreSource, Gpu, Nic, Node};
use siding_topology::numa::NumaNode;
use siding_topology::rails::{GpuRails, Rails};
use siding_topology::size::{count, page_name};

use crate::conditions::{Moment, Truth};
use crate::text::cut;

/// As many as the definition of NodeTopology allows.
const MOST_NUMA: usize = 128;
const MOST_GPUS: usize = 64;
const MOST_NICS: usize = 128;
const MOST_POOLS: usize = 16;
const MOST_FINDINGS: usize = 64;
const FINDING_CHARS: usize = 512;

/// The status to publish. `host_root` is where the node's files were read: what is said names them
/// as the node does.
#[must_use]
pub fn status_of(
    node: &Node,
    rails: &Rails,
    host_root: &Path,
    moment: Moment<'_>,
) -> NodeTopologyStatus {
    let findings = node.findings.iter().chain(&rails.findings);
    let pools = node.pools.as_deref().unwrap_or_default();
    let usable = node
        .nics
        .as_ref()
        .map(|nics| nics.iter().filter(|nic| nic.is_usable()).count());
    NodeTopologyStatus {
        instance_type: node.instance_type.clone(),
        cores: node.cores.and_then(|cores| {
            Some(CoresStatus {
                count: u32::try_from(cores.count.get()).ok()?.min(65_535),
                source: match cores.source {
                    CoreSource::Allocatable => CoresFrom::Allocatable,
                    CoreSource::KubepodsCpuset => CoresFrom::KubepodsCpuset,
                    CoreSource::Online => CoresFrom::Online,
                },
            })
        }),
        numa: node
            .numa
            .iter()
            .flatten()
            .take(MOST_NUMA)
            .map(numa)
            .collect(),
        gpus: node.known_gpus().iter().take(MOST_GPUS).map(gpu).collect(),
        gpu_count: (node.gpus.as_ref()).and_then(|gpus| u32::try_from(gpus.len()).ok()),
        nics: node.known_nics().iter().take(MOST_NICS).map(nic).collect(),
        usable_nic_count: usable.and_then(|usable| u32::try_from(usable).ok()),
        rails: rails.gpus.iter().take(MOST_GPUS).map(rail).collect(),
        rail_summary: rail_summary(&rails.gpus),
        huge_pages: pools.iter().take(MOST_POOLS).map(pool).collect(),
        huge_page_summary: huge_page_summary(pools),
        findings: findings
            .take(MOST_FINDINGS)
            .map(|finding| words(finding, host_root))
            .collect(),
        conditions: vec![ready(node, usable, moment)],
    }
}

fn ready(node: &Node, usable: Option<usize>, moment: Moment<'_>) -> Condition {
    let Some(cores) = node.cores else {
        let words = "the node's cores are unknown: see findings";
        return moment.condition("Ready", Truth::False, Reason::Other, words);
    };
    let cores = count(cores.count.get(), "core");
    let gpus = match &node.gpus {
        Some(gpus) => count(gpus.len(), "GPU"),
        None => "GPUs unknown: see findings".to_owned(),
    };
    let nics = match (node.known_nics().len(), usable) {
        (_, None) => "NICs unknown: see findings".to_owned(),
        (all, Some(usable)) if all == usable => count(all, "NIC"),
        (all, Some(usable)) => format!("{usable} of {} usable", count(all, "NIC")),
    };
    let unusable: Vec<String> = node
        .known_nics()
        .iter()
        .filter_map(|nic| {
            let why = nic.unusable?;
            Some(format!("{} is {}", nic.name, why.as_str()))
        })
        .collect();
    let mut words = format!("{cores}, {gpus}, {nics}");
    if !unusable.is_empty() {
        words = format!("{words} ({})", unusable.join(", "));
    }
    moment.condition("Ready", Truth::True, Reason::AsDeclared, &words)
}

fn words(finding: &Finding, host_root: &Path) -> String {
    let path = match finding.path.strip_prefix(host_root) {
        Ok(path) => Path::new("/").join(path),
        Err(_) => finding.path.clone(),
    };
    cut(
        &format!("{}: {}", path.display(), finding.reason),
        FINDING_CHARS,
    )
}

fn numa(node: &NumaNode) -> NumaStatus {
    let shown = match &node.cpus {
        None => "CPUs unknown".to_owned(),
        Some(cpus) if cpus.is_empty() => "no CPU".to_owned(),
        Some(cpus) => format!("{} ({cpus})", count(cpus.len(), "CPU")),
    };
    let memory = node.memory_total_bytes.map(gibibytes);
    NumaStatus {
        name: format!("node{}", node.id),
        summary: format!("{shown}, {} of memory", memory.unwrap_or_else(unknown)),
        cpus: node.cpus.as_ref().map(ToString::to_string),
    }
}

/// To a tenth: what the firmware keeps makes no memory a round number.
fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1_u64 << 30) as f64)
}

fn unknown() -> String {
    "an unknown amount".to_owned()
}

fn on_numa(numa: Option<u32>) -> String {
    numa.map_or_else(
        || "NUMA node unknown".to_owned(),
        |numa| format!("NUMA node {numa}"),
    )
}

fn gpu(gpu: &Gpu) -> GpuStatus {
    let name = gpu.place.address.to_string();
    let uuid = gpu.uuid.clone();
    let mut summary = format!(
        "{name}: {:04x}:{}, {}",
        gpu.vendor,
        gpu.device
            .map_or_else(|| "????".to_owned(), |device| format!("{device:04x}")),
        on_numa(gpu.place.numa)
    );
    if let Some(uuid) = &uuid {
        summary = format!("{summary}, {uuid}");
    }
    GpuStatus {
        name,
        uuid,
        numa: gpu.place.numa,
        summary,
    }
}

fn nic(nic: &Nic) -> NicStatus {
    let address = nic.place.as_ref().map(|place| place.address.to_string());
    let numa = nic.place.as_ref().and_then(|place| place.numa);
    let mut parts = Vec::new();
    parts.push(
        nic.port_state
            .clone()
            .unwrap_or_else(|| "state unknown".to_owned()),
    );
    parts.extend(
        nic.link_layer
            .clone()
            .filter(|layer| layer != "Unspecified"),
    );
    parts.extend(nic.rate_gbps.map(|rate| format!("{rate} Gbit/s")));
    parts.extend(nic.driver.clone());
    parts.extend(address.clone());
    parts.push(on_numa(numa));
    if let Some(why) = nic.unusable {
        parts.push(format!("can't be used: {}", why.as_str()));
    }
    NicStatus {
        summary: format!("{}: {}", nic.name, parts.join(", ")),
        name: nic.name.clone(),
        address,
        numa,
        state: nic.port_state.clone(),
        link_layer: nic.link_layer.clone(),
        usable: nic.is_usable(),
        reason: nic.unusable.map(|why| why.as_str().to_owned()),
    }
}

fn rail(rail: &GpuRails) -> RailStatus {
    let name = rail.gpu.to_string();
    let nics = match rail.nics.as_slice() {
        [] => "no NIC that can be used".to_owned(),
        nics => nics.join(", "),
    };
    RailStatus {
        summary: format!("{name}: {nics} ({})", rail.evidence.as_str()),
        name,
        nics: rail.nics.iter().take(MOST_NICS).cloned().collect(),
        evidence: rail.evidence.as_str().to_owned(),
    }
}

/// `4 a GPU (SameSwitch)`; where GPUs differ `1-4 a GPU (SameSwitch, SameNuma)`.
fn rail_summary(rails: &[GpuRails]) -> Option<String> {
    let counts = rails.iter().map(|rail| rail.nics.len());
    let (least, most) = (counts.clone().min()?, counts.max()?);
    let mut evidence: Vec<&str> = Vec::new();
    for rail in rails {
        if !evidence.contains(&rail.evidence.as_str()) {
            evidence.push(rail.evidence.as_str());
        }
    }
    let range = if least == most {
        least.to_string()
    } else {
        format!("{least}-{most}")
    };
    Some(format!("{range} a GPU ({})", evidence.join(", ")))
}

fn pool(pool: &Pool) -> HugePagePool {
    let name = page_name(pool.page_bytes);
    let mut summary = format!("{name}: {} of {} free", pool.free, pool.total);
    if pool.reserved > 0 {
        summary = format!("{summary}, {} promised", pool.reserved);
    }
    if pool.nodes.len() > 1 {
        let by_node: Vec<String> = pool
            .nodes
            .iter()
            .map(|node| format!("node{} {} of {}", node.node, node.free, node.total))
            .collect();
        summary = format!("{summary}; {}", by_node.join(", "));
    }
    HugePagePool {
        name,
        total_pages: pool.total,
        free_pages: pool.free,
        summary,
    }
}

fn huge_page_summary(pools: &[Pool]) -> Option<String> {
    let filled: Vec<String> = pools
        .iter()
        .filter(|pool| pool.total > 0)
        .map(|pool| {
            format!(
                "{}: {}/{}",
                page_name(pool.page_bytes),
                pool.free,
                pool.total
            )
        })
        .collect();
    match (pools, filled.as_slice()) {
        ([], _) => None,
        (_, []) => Some("none".to_owned()),
        (_, filled) => Some(filled.join(", ")),
    }
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;

//! `NodeTopology`: what a node's agent read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a node has, as its agent read it; of the node's name.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siding.dev",
    version = "v1alpha1",
    kind = "NodeTopology",
    plural = "nodetopologies",
    status = "NodeTopologyStatus",
    derive = "PartialEq",
    shortname = "ntopo",
    category = "siding",
    doc = "What a node has, as Siding's agent read it: cores, NUMA nodes, GPUs, NICs, rails, huge pages. Named as the node.",
    printcolumn(
        name = "Type",
        type_ = "string",
        json_path = ".status.instanceType",
        description = "The cloud's name for the node's type"
    ),
    printcolumn(
        name = "Cores",
        type_ = "integer",
        json_path = ".status.cores.count",
        description = "Hardware threads that pods may use"
    ),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.gpuCount"),
    printcolumn(
        name = "NICs",
        type_ = "integer",
        json_path = ".status.usableNicCount",
        description = "NICs that can be used"
    ),
    printcolumn(
        name = "Rails",
        type_ = "string",
        json_path = ".status.railSummary",
        description = "NICs of a GPU, and the evidence"
    ),
    printcolumn(
        name = "HugePages",
        type_ = "string",
        json_path = ".status.hugePageSummary",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NodeTopologySpec {}

/// What was read.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeTopologyStatus {
    /// The cloud's name for the node's type, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Hardware threads; unknown where nothing tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<CoresStatus>,
    /// NUMA nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub numa: Vec<NumaStatus>,
    /// GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub gpus: Vec<GpuStatus>,
    /// How many GPUs; unknown is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<u32>,
    /// NICs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub nics: Vec<NicStatus>,
    /// How many NICs can be used; unknown is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable_nic_count: Option<u32>,
    /// The rails of each GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub rails: Vec<RailStatus>,
    /// The rails in a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail_summary: Option<String>,
    /// Pools of huge pages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub huge_pages: Vec<HugePagePool>,
    /// The pools in a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_page_summary: Option<String>,
    /// What could not be read, is odd, or contradicts the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub findings: Vec<String>,
    /// Conditions: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Hardware threads.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CoresStatus {
    /// How many, at least 1.
    #[schemars(range(min = 1, max = 65535))]
    pub count: u32,
    /// What they were read from.
    pub source: CoresFrom,
}

/// What a number of hardware threads was read from.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoresFrom {
    /// What the kubelet lets pods allocate.
    Allocatable,
    /// The cpuset of the kubepods cgroup.
    KubepodsCpuset,
    /// The CPUs that are online.
    Online,
}

/// A NUMA node.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaStatus {
    /// `node` and its number.
    pub name: String,
    /// Its CPUs as a list of ranges: empty on a node of memory alone; unknown is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// CPUs and memory in a line.
    pub summary: String,
}

/// A GPU.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuStatus {
    /// Its PCI address.
    pub name: String,
    /// Its UUID, where the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Its NUMA node; unknown is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// All of it in a line.
    pub summary: String,
}

/// A NIC.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NicStatus {
    /// Its name, e.g. rdmap79s0 or mlx5_0.
    pub name: String,
    /// Its PCI address, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Its NUMA node; unknown is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// State of its port, e.g. ACTIVE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Link layer of its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<String>,
    /// Whether memory can be registered on it.
    pub usable: bool,
    /// Why it can't be used, one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// All of it in a line.
    pub summary: String,
}

/// The rails of a GPU.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RailStatus {
    /// The GPU's PCI address.
    pub name: String,
    /// Its NICs.
    #[schemars(length(max = 128))]
    pub nics: Vec<String>,
    /// What says that they are near: SameSwitch, SameRoot, Catalogue, SameNuma, AllNics.
    pub evidence: String,
    /// Both in a line.
    pub summary: String,
}

/// A pool of huge pages.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HugePagePool {
    /// The size of a page, e.g. 2Mi.
    pub name: String,
    /// Pages in the pool.
    pub total_pages: u64,
    /// Pages that nothing uses.
    pub free_pages: u64,
    /// Both in a line, by NUMA node where there are several.
    pub summary: String,
}

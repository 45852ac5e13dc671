//! What a node has, as read: the plain data that rails and plans are computed from.

mod written;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::hugepages::Pool;
use crate::numa::NumaNode;
use crate::pci::{HostBridge, PciAddress};
use crate::root::Finding;

/// As many GPUs as one node is believed to have.
pub const MOST_GPUS: usize = 256;
/// As many NICs as one node is believed to have.
pub const MOST_NICS: usize = 1024;

/// As many hardware threads as one node is believed to have.
pub const MOST_CORES: usize = 65_535;

/// One node. What is deserialized is refused where it has a key that none of these has, a device
/// twice, or more devices than a node is believed to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "written::Written")]
pub struct Node {
    /// The cloud's name for its type, where it is known (`p5.48xlarge`).
    pub instance_type: Option<String>,
    /// The node's hardware threads, never the reader's own cgroup; unknown where nothing tells.
    pub cores: Option<NodeCores>,
    /// NUMA nodes, ascending; empty where the kernel has none, `None` where it is unknown which there
    /// are.
    pub numa: Option<Vec<NumaNode>>,
    /// GPUs by PCI address; `None` where it is unknown which there are, or how many.
    pub gpus: Option<Vec<Gpu>>,
    /// NICs by name, numbers in names ordered as numbers; `None` where it is unknown which there
    /// are.
    pub nics: Option<Vec<Nic>>,
    /// Huge-page pools, smallest page first; empty where the kernel has none, `None` where it is
    /// unknown which there are.
    pub pools: Option<Vec<Pool>>,
    /// What could not be read, is odd, or contradicts the rest.
    pub findings: Vec<Finding>,
}

impl Node {
    /// The numbers of the NUMA nodes, ascending: those that are listed, and those that devices are
    /// on; `None` where it is unknown which there are. All memory of a kernel without NUMA is node 0's.
    #[must_use]
    pub fn numa_ids(&self) -> Option<BTreeSet<u32>> {
        let listed = self.numa.as_ref()?.iter().map(|node| node.id);
        let mut ids: BTreeSet<u32> = listed.chain(self.numa_of_devices()).collect();
        if ids.is_empty() {
            ids.insert(0);
        }
        Some(ids)
    }

    /// The NUMA nodes that devices are on, one for each device that is on one.
    pub(crate) fn numa_of_devices(&self) -> impl Iterator<Item = u32> + '_ {
        let gpus = self.known_gpus().iter().map(|gpu| &gpu.place);
        let nics = self.known_nics().iter();
        let places = gpus.chain(nics.filter_map(|nic| nic.place.as_ref()));
        places.filter_map(|place| place.numa)
    }

    /// The GPUs as far as they are known: none where it is unknown which there are.
    #[must_use]
    pub fn known_gpus(&self) -> &[Gpu] {
        self.gpus.as_deref().unwrap_or_default()
    }

    /// The NICs as far as they are known: none where it is unknown which there are.
    #[must_use]
    pub fn known_nics(&self) -> &[Nic] {
        self.nics.as_deref().unwrap_or_default()
    }
}

/// The hardware threads that pods of the node may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "the cores: an object with count and source"
)]
pub struct NodeCores {
    /// How many.
    #[serde(deserialize_with = "written::cores")]
    pub count: NonZeroUsize,
    /// Where the number comes from.
    pub source: CoreSource,
}

/// Where a node's number of cores comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoreSource {
    /// Given: what the kubelet says pods may allocate.
    Allocatable,
    /// The cpuset of the kubepods cgroup.
    KubepodsCpuset,
    /// The CPUs that are online.
    Online,
}

/// Where a device hangs in the PCI tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PciPlace {
    /// The device.
    pub address: PciAddress,
    /// Its host bridge.
    pub root: HostBridge,
    /// The bridges from the host bridge down to the device, the device left out.
    pub bridges: Vec<PciAddress>,
    /// Its NUMA node; `None` where the kernel says -1 or nothing.
    pub numa: Option<u32>,
}

impl PciPlace {
    /// Whether the tree shows its host bridge.
    #[must_use]
    pub fn has_known_root(&self) -> bool {
        matches!(self.root, HostBridge::At { .. })
    }
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gpu {
    /// Where it is.
    pub place: PciPlace,
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id, where it can be read.
    pub device: Option<u16>,
    /// The driver's UUID, where `/proc/driver/nvidia` tells.
    pub uuid: Option<String>,
}

/// A NIC: a device of `/sys/class/infiniband`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Nic {
    /// Its name (`rdmap79s0`, `mlx5_0`).
    pub name: String,
    /// Where it is: of a soft device, where its parent network device is; unknown for one that hangs nowhere.
    pub place: Option<PciPlace>,
    /// PCI vendor and device id, where it is (or its parent is) a PCI device.
    pub ids: Option<(u16, u16)>,
    /// The driver (`efa`, `mlx5_core`, `rdma_rxe`).
    pub driver: Option<String>,
    /// The port that the following is told of: its first active one, else its first.
    #[serde(default)]
    pub port: Option<u32>,
    /// State of that port (`ACTIVE`, `DOWN`).
    pub port_state: Option<String>,
    /// Its link layer (`InfiniBand`, `Ethernet`, `Unspecified`).
    pub link_layer: Option<String>,
    /// Its rate, Gbit/s; 0 is never written for unknown.
    #[serde(default, deserialize_with = "written::rate")]
    pub rate_gbps: Option<u32>,
    /// Its network device, where it has one.
    pub netdev: Option<String>,
    /// Its device in `/dev/infiniband` (`uverbs0`).
    pub uverbs: Option<String>,
    /// Why it can't be used; `None` where it can.
    pub unusable: Option<Unusable>,
}

impl Nic {
    /// Whether memory can be registered on it.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.unusable.is_none()
    }
}

/// Why a NIC can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unusable {
    /// None of its ports is active.
    Down,
    /// A virtual function's or another virtual device that pods do not get.
    Virtual,
    /// A software device (`rdma_rxe`, `siw`), and those were not allowed.
    SoftRdma,
    /// It has no uverbs device.
    NoUverbs,
    /// An NVLink controller that poses as an InfiniBand port.
    NvlinkController,
}

impl Unusable {
    /// The reason as one word, for conditions and metric labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Down => "Down",
            Self::Virtual => "Virtual",
            Self::SoftRdma => "SoftRdma",
            Self::NoUverbs => "NoUverbs",
            Self::NvlinkController => "NvlinkController",
        }
    }
}

//! Rails: the NICs that are near each GPU, and near the memory of a host segment.
//!
//! A GPU's NICs are those that hang with it on the lowest bridge that it shares with any; where it
//! shares none, those of its host bridge; then those that the catalogue names; then those of its
//! NUMA node; then all. GPUs that are equally near to the same NICs divide them. What is answered
//! does not depend on the order in which devices were found.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::catalogue::{CatalogueEntry, Layout};
use crate::node::{Gpu, Nic, Node, PciPlace, Unusable};
use crate::pci::{HostBridge, PciAddress};
use crate::root::Finding;
use crate::size::count;
use crate::split::shares;

const PCI_DEVICES: &str = "/sys/bus/pci/devices";
const RDMA_DEVICES: &str = "/sys/class/infiniband";

/// What the memory of one NUMA node moves at best, Gbit/s: eight channels of DDR4-3200, 204.8
/// GB/s, as on the sockets of P5. NICs beyond this rate could not be fed. It is an upper bound and
/// unmeasured: newer sockets have more, and no catalogued node has NICs for more than it.
pub const NUMA_MEMORY_GBPS: u32 = 1638;

/// What says that NICs are near, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Evidence {
    /// They hang below one bridge.
    SameSwitch,
    /// They hang below one host bridge.
    SameRoot,
    /// The instance catalogue names them.
    Catalogue,
    /// They are on one NUMA node.
    SameNuma,
    /// Nothing: these are all that there are.
    AllNics,
}

impl Evidence {
    /// The evidence as one word, for conditions and metric labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameSwitch => "SameSwitch",
            Self::SameRoot => "SameRoot",
            Self::Catalogue => "Catalogue",
            Self::SameNuma => "SameNuma",
            Self::AllNics => "AllNics",
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The rails of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rails {
    /// Each GPU, by PCI address.
    pub gpus: Vec<GpuRails>,
    /// Where the node and the catalogue contradict each other, and what is lost to broken NICs.
    pub findings: Vec<Finding>,
}

/// The NICs of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuRails {
    /// The GPU.
    pub gpu: PciAddress,
    /// Its UUID, where it is known.
    pub uuid: Option<String>,
    /// Its NUMA node, where it is known.
    pub numa: Option<u32>,
    /// Names of its NICs by PCI address; none only where the node has none that can be used.
    pub nics: Vec<String>,
    /// What says that they are near.
    pub evidence: Evidence,
    /// The same in words.
    pub reason: String,
}

/// The NICs of a host segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostRails {
    /// Their names by PCI address.
    pub nics: Vec<String>,
    /// What they move together, Gbit/s; `None` where a rate is unknown or there is no NIC.
    pub gbps: Option<u32>,
    /// What says that they are near.
    pub evidence: Evidence,
    /// The same in words.
    pub reason: String,
}

/// The NICs of each GPU of a node. What is attached beats what the catalogue says.
#[must_use]
pub fn rails(node: &Node, entry: Option<&CatalogueEntry>) -> Rails {
    let mut search = Search::new(node, entry);
    search.by_tree();
    search.by_catalogue();
    search.by_numa();
    search.with_all();
    search.findings.extend(broken(&search));
    search.findings.extend(contradictions(node, &search));
    search.rails()
}

/// The NICs of several GPUs together, each once, in the order of the GPUs.
#[must_use]
pub fn union<'a>(rails: impl IntoIterator<Item = &'a GpuRails>) -> Vec<String> {
    let mut seen = HashSet::new();
    let nics = rails.into_iter().flat_map(|rails| &rails.nics);
    nics.filter(|nic| seen.insert(nic.as_str()))
        .cloned()
        .collect()
}

/// The NICs for memory on a NUMA node (`None`: on all of them, or unknown): those of the node, as
/// many as its memory can feed, taken from each host bridge in turn.
#[must_use]
pub fn host_rails(node: &Node, numa: Option<u32>) -> HostRails {
    let all = usable(node);
    let total = count(all.len(), "usable NIC");
    let on_node: Vec<&Nic> = match numa {
        Some(_) => all
            .iter()
            .copied()
            .filter(|nic| numa_of(nic) == numa)
            .collect(),
        None => Vec::new(),
    };
    let (nics, evidence, reason) = match numa {
        _ if all.is_empty() => (
            all,
            Evidence::AllNics,
            "the node has no usable NIC".to_owned(),
        ),
        None => {
            let reason = format!("the memory is on no single NUMA node: {total}");
            (all, Evidence::AllNics, reason)
        }
        Some(numa) if on_node.is_empty() => {
            let reason = format!("no usable NIC is known to be on NUMA node {numa}: all {total}");
            (all, Evidence::AllNics, reason)
        }
        Some(numa) => {
            let (nics, reason) = as_fed(on_node, numa);
            (nics, Evidence::SameNuma, reason)
        }
    };
    HostRails {
        gbps: rate(&nics).filter(|_| !nics.is_empty()),
        nics: nics.iter().map(|nic| nic.name.clone()).collect(),
        evidence,
        reason,
    }
}

/// As many NICs of a NUMA node as its memory can feed; all where a rate is unknown.
fn as_fed(nics: Vec<&Nic>, numa: u32) -> (Vec<&Nic>, String) {
    let of_node = format!("{} of NUMA node {numa}", count(nics.len(), "usable NIC"));
    let Some(gbps) = rate(&nics) else {
        return (
            nics,
            format!("the {of_node}; a rate is unknown, so none is spared"),
        );
    };
    if gbps <= NUMA_MEMORY_GBPS {
        return (nics, format!("the {of_node}: {gbps} Gbit/s"));
    }
    let mut taken: Vec<&Nic> = Vec::new();
    for nic in in_turn(&nics) {
        if rate(&taken).is_some_and(|gbps| gbps >= NUMA_MEMORY_GBPS) {
            break;
        }
        taken.push(nic);
    }
    taken.sort_by_key(|nic| order(nic));
    let reason = format!(
        "{} of the {of_node}: they saturate its memory ({NUMA_MEMORY_GBPS} Gbit/s)",
        taken.len()
    );
    (taken, reason)
}

/// One NIC of each host bridge, then the next of each, and so on.
fn in_turn<'a>(nics: &[&'a Nic]) -> Vec<&'a Nic> {
    let mut seen: BTreeMap<Option<HostBridge>, usize> = BTreeMap::new();
    let mut turns: Vec<(usize, &Nic)> = Vec::new();
    for nic in nics {
        let root = nic.place.as_ref().map(|place| place.root);
        let turn = seen.entry(root).or_default();
        turns.push((*turn, nic));
        *turn += 1;
    }
    // Stable: within a turn the order stays.
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, nic)| nic).collect()
}

/// What NICs move together; `None` where one's rate is unknown.
fn rate(nics: &[&Nic]) -> Option<u32> {
    nics.iter()
        .try_fold(0_u32, |sum, nic| Some(sum.saturating_add(nic.rate_gbps?)))
}

fn numa_of(nic: &Nic) -> Option<u32> {
    nic.place.as_ref()?.numa
}

fn usable(node: &Node) -> Vec<&Nic> {
    let mut nics: Vec<&Nic> = node
        .known_nics()
        .iter()
        .filter(|nic| nic.is_usable())
        .collect();
    nics.sort_by_key(|nic| order(nic));
    nics
}

/// By PCI address, those without one last; then by name, `rxe2` before `rxe10`.
fn order(nic: &Nic) -> (bool, Option<PciAddress>, usize, &str) {
    let address = nic.place.as_ref().map(|place| place.address);
    (address.is_none(), address, nic.name.len(), &nic.name)
}

/// What was found for one GPU: its NICs by their index.
struct Found {
    nics: Vec<usize>,
    evidence: Evidence,
    reason: String,
}

/// Devices in their order, and what was found so far.
struct Search<'a> {
    entry: Option<&'a CatalogueEntry>,
    gpus: Vec<&'a Gpu>,
    /// How many bridges each GPU shares at most with any usable NIC; `None` where not even its host
    /// bridge.
    depths: Vec<Option<usize>>,
    /// The usable ones.
    nics: Vec<&'a Nic>,
    /// Those that can't be used until something is mended.
    broken: Vec<(&'a Nic, Unusable)>,
    /// NICs that some GPU has on stronger evidence.
    claimed: BTreeSet<usize>,
    found: BTreeMap<usize, Found>,
    findings: Vec<Finding>,
}

impl<'a> Search<'a> {
    fn new(node: &'a Node, entry: Option<&'a CatalogueEntry>) -> Self {
        let mut gpus: Vec<&Gpu> = node.known_gpus().iter().collect();
        gpus.sort_by_key(|gpu| (gpu.place.address, gpu.uuid.as_deref()));
        let mut broken: Vec<_> = node.known_nics().iter().filter_map(mendable).collect();
        broken.sort_by_key(|(nic, _)| order(nic));
        let nics = usable(node);
        let depths = gpus.iter().map(|gpu| depth(&gpu.place, &nics)).collect();
        Self {
            entry,
            gpus,
            depths,
            nics,
            broken,
            claimed: BTreeSet::new(),
            found: BTreeMap::new(),
            findings: Vec::new(),
        }
    }

    fn depth(&self, gpu: usize) -> Option<usize> {
        self.depths.get(gpu).copied().flatten()
    }

    /// GPUs for which nothing was found yet, grouped by what a key says of each.
    fn groups<K: Ord>(&self, key: impl Fn(usize, &'a Gpu) -> Option<K>) -> BTreeMap<K, Vec<usize>> {
        let mut groups: BTreeMap<K, Vec<usize>> = BTreeMap::new();
        for (index, gpu) in self.gpus.iter().enumerate() {
            if !self.found.contains_key(&index)
                && let Some(key) = key(index, gpu)
            {
                groups.entry(key).or_default().push(index);
            }
        }
        groups
    }

    fn nics_where(&self, is_near: impl Fn(&PciPlace) -> bool) -> Vec<usize> {
        let places = self.nics.iter().enumerate();
        places
            .filter(|(_, nic)| nic.place.as_ref().is_some_and(&is_near))
            .map(|(index, _)| index)
            .collect()
    }

    /// Divides NICs that are equally near to some GPUs among them. Those that other GPUs have on
    /// stronger evidence are left to these where there are more.
    fn divide(&mut self, gpus: &[usize], near: &[usize], evidence: Evidence, what: &str) {
        let is_free = |nic: &&usize| !self.claimed.contains(nic);
        let free: Vec<usize> = near.iter().filter(is_free).copied().collect();
        let pool = if free.is_empty() { near } else { &free };
        let mut reason = format!("{what}: {}", count(pool.len(), "usable NIC"));
        if pool.len() < near.len() {
            reason += &format!(
                " besides {} of GPUs that are nearer",
                near.len() - pool.len()
            );
        } else if free.is_empty() {
            reason += ", used by nearer GPUs too";
        }
        reason += &match gpus.len() {
            1 => String::new(),
            n if pool.len() < n => format!(", shared by {n} GPUs"),
            n => format!(", divided among {n} GPUs"),
        };
        for (gpu, nics) in gpus.iter().zip(shares(pool, gpus.len())) {
            let found = Found {
                nics: nics.to_vec(),
                evidence,
                reason: reason.clone(),
            };
            self.found.insert(*gpu, found);
        }
        self.claimed.extend(pool);
    }

    /// The lowest shared bridges first, host bridges last.
    fn by_tree(&mut self) {
        let flat = self.flat_bus().is_some();
        let groups = self.groups(|index, gpu| {
            let depth = self.depth(index)?;
            let above = gpu.place.bridges.get(..depth).unwrap_or_default();
            (depth > 0 || !flat).then_some((Reverse(depth), gpu.place.root, above))
        });
        for ((_, root, above), gpus) in groups {
            let near = self.nics_where(|nic| nic.root == root && nic.bridges.starts_with(above));
            match above.last() {
                Some(bridge) => {
                    let what = format!("below the bridge {bridge}");
                    self.divide(&gpus, &near, Evidence::SameSwitch, &what);
                }
                None => {
                    let what = format!("no bridge in common with a NIC; on the host bridge {root}");
                    self.divide(&gpus, &near, Evidence::SameRoot, &what);
                }
            }
        }
    }

    /// The host bridge on whose own bus every GPU and usable NIC is, none of them on a known NUMA
    /// node: that of a hypervisor that hides where they are.
    fn flat_bus(&self) -> Option<HostBridge> {
        let gpus = self.gpus.iter().map(|gpu| Some(&gpu.place));
        let mut places = gpus.chain(self.nics.iter().map(|nic| nic.place.as_ref()));
        let root = self.gpus.first()?.place.root;
        places
            .all(|place| {
                place.is_some_and(|place| {
                    place.root == root && place.bridges.is_empty() && place.numa.is_none()
                })
            })
            .then_some(root)
    }

    fn layout(&self) -> Option<&'a Layout> {
        self.entry?.layout.as_ref()
    }

    fn by_catalogue(&mut self) {
        let (Some(entry), Some(layout)) = (self.entry, self.layout()) else {
            return;
        };
        let groups = self.groups(|_, gpu| {
            let mut groups = layout.groups.iter();
            groups.position(|group| group.gpus.contains(&gpu.place.address))
        });
        for (index, gpus) in groups {
            let Some(group) = layout.groups.get(index) else {
                continue;
            };
            let near = self.nics_where(|nic| group.nics.contains(&nic.address));
            if near.is_empty() {
                continue;
            }
            let name = &entry.instance_type;
            let what = format!("{}; as published of {name}", self.unseen());
            self.divide(&gpus, &near, Evidence::Catalogue, &what);
        }
    }

    fn by_numa(&mut self) {
        let groups = self.groups(|_, gpu| gpu.place.numa);
        for (numa, gpus) in groups {
            let near = self.nics_where(|nic| nic.numa == Some(numa));
            if !near.is_empty() {
                let what = format!("{}; on NUMA node {numa}", self.unnamed());
                self.divide(&gpus, &near, Evidence::SameNuma, &what);
            }
        }
    }

    fn with_all(&mut self) {
        let all: Vec<usize> = (0..self.nics.len()).collect();
        let rest: Vec<usize> = self
            .groups(|_, _| Some(()))
            .into_values()
            .flatten()
            .collect();
        for index in rest {
            let Some(gpu) = self.gpus.get(index) else {
                continue;
            };
            let reason = match gpu.place.numa {
                _ if all.is_empty() => "the node has no usable NIC".to_owned(),
                None => format!("{}; its NUMA node is unknown", self.unnamed()),
                Some(numa) => format!("{}; NUMA node {numa} has none", self.unnamed()),
            };
            let found = Found {
                nics: all.clone(),
                evidence: Evidence::AllNics,
                reason,
            };
            self.found.insert(index, found);
        }
    }

    /// Why the tree says nothing.
    fn unseen(&self) -> String {
        self.flat_bus().map_or_else(
            || "no usable NIC on its host bridge".to_owned(),
            |root| format!("every GPU and usable NIC is on one bus ({root}), which tells nothing"),
        )
    }

    /// Why neither the tree nor the catalogue says anything.
    fn unnamed(&self) -> String {
        let catalogue = self.entry.map_or_else(
            || "no catalogue entry".to_owned(),
            |entry| format!("no such NIC published of {}", entry.instance_type),
        );
        format!("{}; {catalogue}", self.unseen())
    }

    fn rails(mut self) -> Rails {
        let gpus = self.gpus.iter().enumerate();
        let gpus = gpus.filter_map(|(index, gpu)| {
            let found = self.found.remove(&index)?;
            let nics = found.nics.iter().filter_map(|nic| self.nics.get(*nic));
            Some(GpuRails {
                gpu: gpu.place.address,
                uuid: gpu.uuid.clone(),
                numa: gpu.place.numa,
                nics: nics.map(|nic| nic.name.clone()).collect(),
                evidence: found.evidence,
                reason: found.reason,
            })
        });
        Rails {
            gpus: gpus.collect(),
            findings: self.findings,
        }
    }
}

fn depth(gpu: &PciPlace, nics: &[&Nic]) -> Option<usize> {
    let shared = nics
        .iter()
        .filter_map(|nic| shared_bridges(gpu, nic.place.as_ref()?));
    shared.max()
}

fn shared_bridges(a: &PciPlace, b: &PciPlace) -> Option<usize> {
    let pairs = a.bridges.iter().zip(&b.bridges);
    (a.root == b.root && a.has_known_root()).then(|| pairs.take_while(|(a, b)| a == b).count())
}

/// A NIC that would be usable if something were mended.
fn mendable(nic: &Nic) -> Option<(&Nic, Unusable)> {
    let why = nic.unusable?;
    matches!(why, Unusable::Down | Unusable::NoUverbs).then_some((nic, why))
}

/// NICs that can't be used, and that some GPU would have if they could.
fn broken(search: &Search<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (nic, why) in &search.broken {
        let Some(place) = &nic.place else { continue };
        let gpus = search.gpus.iter().enumerate();
        let (mut nearer, mut as_near) = (Vec::new(), Vec::new());
        for (index, gpu) in gpus {
            let depth = search.depth(index);
            let has_none_near = evidence(search, index) == Some(Evidence::AllNics);
            let is_on_its_node = gpu.place.numa.is_some() && gpu.place.numa == place.numa;
            if shared_bridges(&gpu.place, place) > depth || (has_none_near && is_on_its_node) {
                nearer.push(gpu.place.address.to_string());
            } else if is_as_near(search, index, gpu, place) {
                as_near.push(gpu.place.address.to_string());
            }
        }
        let why = why.as_str();
        for (gpus, how, than) in [
            (nearer, "is nearer to", "than any usable NIC"),
            (as_near, "is as near to", "as the NICs in use there"),
        ] {
            if !gpus.is_empty() {
                let reason = format!("{how} {} {than}, and left out ({why})", gpus.join(", "));
                findings.push(finding(RDMA_DEVICES, &nic.name, reason));
            }
        }
    }
    findings
}

/// Whether what says that a GPU's NICs are near says it of this place too.
fn is_as_near(search: &Search<'_>, index: usize, gpu: &Gpu, place: &PciPlace) -> bool {
    match evidence(search, index) {
        Some(Evidence::SameSwitch | Evidence::SameRoot) => {
            shared_bridges(&gpu.place, place) == search.depth(index)
        }
        Some(Evidence::Catalogue) => search
            .entry
            .and_then(|entry| entry.group_of(gpu.place.address))
            .is_some_and(|group| group.nics.contains(&place.address)),
        Some(Evidence::SameNuma) => gpu.place.numa == place.numa,
        Some(Evidence::AllNics) | None => false,
    }
}

fn evidence(search: &Search<'_>, gpu: usize) -> Option<Evidence> {
    search.found.get(&gpu).map(|found| found.evidence)
}

fn finding(folder: &str, name: &str, reason: String) -> Finding {
    Finding {
        // No `join`: it would end in a slash where there is no name.
        path: Path::new(folder).iter().chain(Path::new(name)).collect(),
        reason,
    }
}

/// Where what is attached is not what the catalogue says.
fn contradictions(node: &Node, search: &Search<'_>) -> Vec<Finding> {
    let Some(entry) = search.entry else {
        return Vec::new();
    };
    let is_attached = |nic: &&Nic| {
        nic.unusable
            .is_none_or(|why| matches!(why, Unusable::Down | Unusable::NoUverbs))
    };
    let gpus = node.gpus.as_ref().map(Vec::len);
    let nics = node.nics.as_ref();
    let nics = nics.map(|nics| nics.iter().filter(is_attached).count());
    let name = &entry.instance_type;
    let counts = [
        (PCI_DEVICES, "GPU", entry.gpus, gpus),
        (RDMA_DEVICES, "NIC", entry.nics, nics),
    ];
    let counts = counts
        .into_iter()
        .filter_map(|(folder, noun, published, attached)| {
            let attached = attached?;
            let published = published.filter(|published| *published != attached)?;
            let (published, attached) = (count(published, noun), count(attached, noun));
            let reason =
                format!("{name} is published with {published}; {attached} attached, which counts");
            Some(finding(folder, "", reason))
        });
    let gpus = search.gpus.iter().enumerate();
    let layouts = gpus.filter_map(|(index, gpu)| {
        let reason = misplaced(search, search.found.get(&index)?, gpu)?;
        Some(finding(PCI_DEVICES, &gpu.place.address.to_string(), reason))
    });
    counts.chain(layouts).collect()
}

/// How a GPU's NICs differ from the published ones, where the tree or nothing else told them.
fn misplaced(search: &Search<'_>, found: &Found, gpu: &Gpu) -> Option<String> {
    search.layout()?;
    let entry = search.entry?;
    let name = &entry.instance_type;
    let Some(group) = entry.group_of(gpu.place.address) else {
        return Some(format!("is not in the published layout of {name}"));
    };
    let published = group.nics_of(gpu.place.address);
    let nics = found.nics.iter().filter_map(|nic| search.nics.get(*nic));
    let attached: Vec<PciAddress> = nics
        .filter_map(|nic| Some(nic.place.as_ref()?.address))
        .collect();
    let list = |all: &[PciAddress]| {
        let all: Vec<String> = all.iter().map(PciAddress::to_string).collect();
        if all.is_empty() {
            "none".to_owned()
        } else {
            all.join(", ")
        }
    };
    (published != attached).then(|| {
        let (published, attached) = (list(&published), list(&attached));
        format!("{name} is published with the NICs {published} for it; attached here: {attached}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::made::{bridge, gpu, nic, node, place};
    use proptest::prelude::*;

    /// `ADDRESS nics EVIDENCE` of each GPU.
    fn shown(rails: &Rails) -> Vec<String> {
        let gpus = rails.gpus.iter();
        gpus.map(|gpu| {
            let address = gpu.gpu.to_string();
            format!("{} {} {}", &address[5..7], gpu.nics.join(","), gpu.evidence)
        })
        .collect()
    }

    fn reasons(rails: &Rails) -> Vec<&str> {
        rails.gpus.iter().map(|gpu| gpu.reason.as_str()).collect()
    }

    fn findings(rails: &Rails) -> Vec<String> {
        rails.findings.iter().map(Finding::to_string).collect()
    }

    fn down(mut nic: Nic) -> Nic {
        nic.unusable = Some(Unusable::Down);
        nic
    }

    #[test]
    fn the_lowest_bridge_wins() {
        let node = node(
            &[
                gpu("10:00.0", "a", &["1:0.0", "2:0.0", "3:0.0"], Some(0)),
                gpu("11:00.0", "a", &["1:0.0", "4:0.0"], Some(0)),
                gpu("12:00.0", "a", &["5:0.0"], Some(0)),
            ],
            &[
                nic(
                    "near",
                    "20:00.0",
                    "a",
                    &["1:0.0", "2:0.0", "3:0.0"],
                    Some(0),
                ),
                nic("middle", "21:00.0", "a", &["1:0.0", "2:0.0"], Some(0)),
                nic("top", "22:00.0", "a", &["1:0.0"], Some(0)),
                nic("root", "23:00.0", "a", &[], Some(0)),
            ],
        );
        let rails = rails(&node, None);
        assert_eq!(
            shown(&rails),
            [
                "10 near SameSwitch",
                "11 middle,top SameSwitch",
                "12 root SameRoot"
            ]
        );
        assert_eq!(
            reasons(&rails),
            [
                "below the bridge 0000:03:00.0: 1 usable NIC",
                "below the bridge 0000:01:00.0: 2 usable NICs besides 1 of GPUs that are nearer",
                "no bridge in common with a NIC; on the host bridge pci0061:00: 1 usable NIC besides 3 of \
                 GPUs that are nearer",
            ]
        );
        assert_eq!(findings(&rails), [""; 0]);
    }

    #[test]
    fn divided_remainder_first_or_shared() {
        for (gpus, nics, want) in [
            (1, 3, &["10 n0,n1,n2"][..]),
            (2, 5, &["10 n0,n1,n2", "11 n3,n4"]),
            (3, 3, &["10 n0", "11 n1", "12 n2"]),
            (3, 2, &["10 n0", "11 n0", "12 n1"]),
            (2, 1, &["10 n0", "11 n0"]),
        ] {
            let bridges = &["1:0.0"];
            let gpus: Vec<Gpu> = (0..gpus)
                .map(|n| gpu(&format!("1{n}:00.0"), "a", bridges, None))
                .collect();
            let nics: Vec<Nic> = (0..nics)
                .map(|n| nic(&format!("n{n}"), &format!("2{n}:00.0"), "a", bridges, None))
                .collect();
            let rails = rails(&node(&gpus, &nics), None);
            let want: Vec<String> = want.iter().map(|gpu| format!("{gpu} SameSwitch")).collect();
            assert_eq!(shown(&rails), want);
        }
    }

    /// What is known of a GPU is found once, not again for each NIC that is down.
    #[test]
    fn very_many_nics_that_are_down_take_no_time() {
        let gpus: Vec<Gpu> = (0x10..0x20)
            .map(|bus| gpu(&format!("{bus:x}:00.0"), "a", &["1:0.0"], None))
            .collect();
        let nics: Vec<Nic> = (0..8000)
            .map(|index| {
                let at = format!("{index:x}:20:00.0");
                let nic = nic(&format!("n{index}"), &at, "a", &["1:0.0"], None);
                if index % 2 == 0 { nic } else { down(nic) }
            })
            .collect();
        let node = node(&gpus, &nics);
        let start = std::time::Instant::now();
        let rails = rails(&node, None);
        let took = start.elapsed();
        assert_eq!(rails.gpus[0].nics.len(), 250);
        assert_eq!(rails.findings.len(), 4000);
        assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    }

    #[test]
    fn a_gpu_whose_nics_are_all_taken_shares_them() {
        let node = node(
            &[
                gpu("10:00.0", "a", &["1:0.0"], None),
                gpu("11:00.0", "a", &[], None),
            ],
            &[nic("n0", "20:00.0", "a", &["1:0.0"], None)],
        );
        let rails = rails(&node, None);
        assert_eq!(shown(&rails), ["10 n0 SameSwitch", "11 n0 SameRoot"]);
        assert_eq!(
            reasons(&rails)[1],
            "no bridge in common with a NIC; on the host bridge pci0061:00: 1 usable NIC, used by nearer \
             GPUs too"
        );
    }

    #[test]
    fn then_the_catalogue_the_numa_node_and_all() {
        // The addresses of p5en, each device on a host bridge of its own.
        let alone = |bus: &str| gpu(&format!("{bus}:00.0"), &format!("g{bus}"), &[], Some(0));
        let nic_alone = |bus: &str, numa| {
            let root = format!("n{bus}");
            nic(
                &format!("rdmap{bus}"),
                &format!("{bus}:00.0"),
                &root,
                &[],
                numa,
            )
        };
        let mut node = node(
            &[alone("59"), alone("5a"), alone("72"), alone("30")],
            &[
                nic_alone("55", None),
                nic_alone("56", None),
                nic_alone("58", None),
                nic_alone("31", Some(0)),
                nic_alone("32", Some(1)),
            ],
        );
        node.gpus.as_mut().unwrap()[3].place.numa = Some(7);
        let published = Catalogue::published();
        let entry = published.entry("p5en.48xlarge");
        let found = rails(&node, entry);
        assert_eq!(
            shown(&found),
            [
                "30 rdmap31,rdmap32,rdmap55,rdmap56,rdmap58 AllNics",
                "59 rdmap55,rdmap56 Catalogue",
                "5a rdmap58 Catalogue",
                "72 rdmap31 SameNuma",
            ]
        );
        let unseen = "no usable NIC on its host bridge";
        assert_eq!(
            reasons(&found),
            [
                format!("{unseen}; no such NIC published of p5en.48xlarge; NUMA node 7 has none"),
                format!(
                    "{unseen}; as published of p5en.48xlarge: 3 usable NICs, divided among 2 GPUs"
                ),
                format!(
                    "{unseen}; as published of p5en.48xlarge: 3 usable NICs, divided among 2 GPUs"
                ),
                format!(
                    "{unseen}; no such NIC published of p5en.48xlarge; on NUMA node 0: 1 usable NIC"
                ),
            ]
        );
        assert_eq!(
            findings(&found),
            [
                "/sys/bus/pci/devices: p5en.48xlarge is published with 8 GPUs; 4 GPUs attached, \
                 which counts",
                "/sys/class/infiniband: p5en.48xlarge is published with 16 NICs; 5 NICs attached, \
                 which counts",
                "/sys/bus/pci/devices/0000:30:00.0: is not in the published layout of \
                 p5en.48xlarge",
                "/sys/bus/pci/devices/0000:5a:00.0: p5en.48xlarge is published with the NICs \
                 0000:57:00.0, 0000:58:00.0 for it; attached here: 0000:58:00.0",
                "/sys/bus/pci/devices/0000:72:00.0: p5en.48xlarge is published with the NICs \
                 0000:6e:00.0, 0000:6f:00.0 for it; attached here: 0000:31:00.0",
            ]
        );
        assert_eq!(
            reasons(&rails(&node, None))[1],
            format!("{unseen}; no catalogue entry; on NUMA node 0: 1 usable NIC, shared by 3 GPUs")
        );
    }

    #[test]
    fn what_is_attached_beats_the_catalogue() {
        let node = node(
            &[gpu("53:00.0", "pci0000:44", &["44:00.0"], Some(0))],
            &[
                nic("other", "99:00.0", "pci0000:44", &["44:00.0"], Some(0)),
                nic("published", "4f:00.0", "pci0000:55", &[], Some(0)),
            ],
        );
        let published = Catalogue::published();
        let rails = rails(&node, published.entry("p5.48xlarge"));
        assert_eq!(shown(&rails), ["53 other SameSwitch"]);
        assert!(
            findings(&rails)[2].ends_with(
                "p5.48xlarge is published with the NICs 0000:4f:00.0, 0000:50:00.0, 0000:51:00.0, \
                 0000:52:00.0 for it; attached here: 0000:99:00.0"
            ),
            "{:?}",
            findings(&rails)
        );
    }

    #[test]
    fn one_flat_bus_tells_nothing() {
        let gpus = |numa| {
            let root = "pci0000:00";
            [
                gpu("00:16.0", root, &[], numa),
                gpu("00:17.0", root, &[], numa),
            ]
        };
        let nics = |numa| {
            let root = "pci0000:00";
            [
                nic("n1", "00:14.0", root, &[], numa),
                nic("n2", "00:15.0", root, &[], numa),
            ]
        };
        let found = rails(&node(&gpus(None), &nics(None)), None);
        assert_eq!(shown(&found), ["00 n1,n2 AllNics", "00 n1,n2 AllNics"]);
        assert_eq!(
            reasons(&found)[0],
            "every GPU and usable NIC is on one bus (pci0000:00), which tells nothing; no catalogue \
             entry; its NUMA node is unknown"
        );
        let found = rails(&node(&gpus(Some(0)), &nics(Some(0))), None);
        assert_eq!(shown(&found), ["00 n1 SameRoot", "00 n2 SameRoot"]);
    }

    #[test]
    fn unknown_host_bridges_are_not_shared() {
        let node = node(
            &[gpu("10:00.0", "?0000:10:00.0", &[], Some(1))],
            &[
                nic("odd", "10:00.0", "?0000:10:00.0", &[], None),
                nic("numa", "20:00.0", "?0000:20:00.0", &[], Some(1)),
            ],
        );
        assert_eq!(shown(&rails(&node, None)), ["10 numa SameNuma"]);
    }

    #[test]
    fn broken_nics_are_missed_by_the_gpus_that_would_have_them() {
        let mut nvlink = nic("ibp0", "22:00.0", "a", &["1:0.0"], Some(0));
        nvlink.unusable = Some(Unusable::NvlinkController);
        let node = node(
            &[
                gpu("10:00.0", "a", &["1:0.0"], Some(0)),
                gpu("11:00.0", "b", &["2:0.0"], Some(0)),
            ],
            &[
                nvlink,
                down(nic("n0", "20:00.0", "a", &["1:0.0"], Some(0))),
                nic("n1", "21:00.0", "a", &["3:0.0"], Some(0)),
                nic("n2", "23:00.0", "b", &["2:0.0"], Some(0)),
                down(nic("n3", "24:00.0", "b", &["2:0.0"], Some(0))),
            ],
        );
        let rails = rails(&node, None);
        assert_eq!(shown(&rails), ["10 n1 SameRoot", "11 n2 SameSwitch"]);
        assert_eq!(
            findings(&rails),
            [
                "/sys/class/infiniband/n0: is nearer to 0000:10:00.0 than any usable NIC, and left \
                 out (Down)",
                "/sys/class/infiniband/n3: is as near to 0000:11:00.0 as the NICs in use there, and \
                 left out (Down)",
            ]
        );
    }

    #[test]
    fn a_broken_nic_of_the_same_numa_node_is_missed_where_the_tree_tells_nothing() {
        let node = node(
            &[
                gpu("10:00.0", "a", &[], Some(0)),
                gpu("11:00.0", "b", &[], Some(1)),
            ],
            &[
                nic("n0", "20:00.0", "c", &[], Some(0)),
                down(nic("n1", "21:00.0", "d", &[], Some(0))),
                down(nic("n2", "22:00.0", "e", &[], Some(1))),
                down(nic("n3", "23:00.0", "f", &[], None)),
            ],
        );
        let rails = rails(&node, None);
        assert_eq!(shown(&rails), ["10 n0 SameNuma", "11 n0 AllNics"]);
        assert_eq!(
            findings(&rails),
            [
                "/sys/class/infiniband/n1: is as near to 0000:10:00.0 as the NICs in use there, and \
                 left out (Down)",
                "/sys/class/infiniband/n2: is nearer to 0000:11:00.0 than any usable NIC, and left \
                 out (Down)",
            ]
        );
    }

    #[test]
    fn without_a_nic_every_gpu_is_still_there() {
        let nics = [down(nic("n0", "20:00.0", "a", &[], None))];
        let found = rails(&node(&[gpu("10:00.0", "a", &[], None)], &nics), None);
        assert_eq!(shown(&found), ["10  AllNics"]);
        assert_eq!(reasons(&found), ["the node has no usable NIC"]);
        assert_eq!(rails(&node(&[], &nics), None), Rails::default());
    }

    #[test]
    fn soft_nics_come_last_in_the_order_of_their_numbers() {
        let soft = |name: &str| Nic {
            place: None,
            ..nic(name, "20:00.0", "", &[], None)
        };
        let nics = [
            soft("rxe10"),
            soft("rxe2"),
            nic("z", "20:00.0", "b", &[], None),
        ];
        let node = node(&[gpu("10:00.0", "a", &[], None)], &nics);
        assert_eq!(shown(&rails(&node, None)), ["10 z,rxe2,rxe10 AllNics"]);
    }

    #[test]
    fn the_union_has_each_nic_once() {
        let rails = |nics: &[&str]| GpuRails {
            gpu: place("10:00.0", "a", &[], None).address,
            uuid: None,
            numa: None,
            nics: nics.iter().map(|&name| name.to_owned()).collect(),
            evidence: Evidence::SameSwitch,
            reason: String::new(),
        };
        let all = [rails(&["b", "c"]), rails(&["b", "c"]), rails(&["a"])];
        assert_eq!(union(&all), ["b", "c", "a"]);
        assert_eq!(union(&[]), [""; 0]);
    }

    /// NICs at 400 Gbit/s on the host bridges a, a, a, b, b, b of NUMA node 0, and one on 1.
    fn seven() -> Node {
        let mut nics: Vec<Nic> = (0..6)
            .map(|n| {
                let root = if n < 3 { "a" } else { "b" };
                nic(&format!("n{n}"), &format!("2{n}:00.0"), root, &[], Some(0))
            })
            .collect();
        nics.push(nic("far", "30:00.0", "c", &[], Some(1)));
        for nic in &mut nics {
            nic.rate_gbps = Some(400);
        }
        node(&[], &nics)
    }

    #[test]
    fn host_rails_saturate_the_memory() {
        let host = host_rails(&seven(), Some(0));
        assert_eq!(host.nics, ["n0", "n1", "n2", "n3", "n4"]);
        assert_eq!(host.gbps, Some(2000));
        assert_eq!(host.evidence, Evidence::SameNuma);
        assert_eq!(
            host.reason,
            "5 of the 6 usable NICs of NUMA node 0: they saturate its memory (1638 Gbit/s)"
        );
        let mut faster = seven();
        for nic in faster.nics.iter_mut().flatten() {
            nic.rate_gbps = Some(800);
        }
        let host = host_rails(&faster, Some(0));
        assert_eq!(host.nics, ["n0", "n1", "n3"], "the host bridges in turn");
        let host = host_rails(&faster, Some(1));
        assert_eq!(host.nics, ["far"]);
        assert_eq!(host.reason, "the 1 usable NIC of NUMA node 1: 800 Gbit/s");
    }

    #[test]
    fn host_rails_where_something_is_unknown() {
        let mut node = seven();
        node.nics.as_mut().unwrap()[5].rate_gbps = None;
        let host = host_rails(&node, Some(0));
        assert_eq!((host.nics.len(), host.gbps), (6, None));
        assert_eq!(
            host.reason,
            "the 6 usable NICs of NUMA node 0; a rate is unknown, so none is spared"
        );
        let host = host_rails(&node, Some(2));
        assert_eq!((host.nics.len(), host.evidence), (7, Evidence::AllNics));
        assert_eq!(
            host.reason,
            "no usable NIC is known to be on NUMA node 2: all 7 usable NICs"
        );
        let host = host_rails(&node, None);
        assert_eq!((host.nics.len(), host.evidence), (7, Evidence::AllNics));
        let host = host_rails(&crate::made::node(&[], &[]), Some(0));
        assert_eq!((host.nics.len(), host.gbps), (0, None));
        assert_eq!(host.reason, "the node has no usable NIC");
    }

    fn any_place() -> impl Strategy<Value = PciPlace> {
        let numa = proptest::option::of(0_u32..3);
        let bridges = proptest::collection::vec(0_u8..3, 0..4);
        (any::<u8>(), 0_u8..8, 0_u8..4, bridges, numa).prop_map(
            |(bus, function, root, steps, numa)| {
                let address = |bus, function| PciAddress {
                    domain: 0,
                    bus,
                    device: 0,
                    function,
                };
                // A bridge's address tells the whole way to it, so that what is made is a tree.
                let mut way = root;
                let bridges = steps
                    .into_iter()
                    .map(|step| {
                        way = way.wrapping_mul(3).wrapping_add(step + 4);
                        address(way, 0)
                    })
                    .collect();
                PciPlace {
                    address: address(bus, function),
                    root: if root == 3 {
                        bridge(&format!("?{bus}:00.0"))
                    } else {
                        bridge(&format!("pci{root}"))
                    },
                    bridges,
                    numa,
                }
            },
        )
    }

    fn any_nic() -> impl Strategy<Value = (Option<PciPlace>, bool)> {
        (
            proptest::option::weighted(0.9, any_place()),
            proptest::bool::weighted(0.8),
        )
    }

    fn any_node() -> impl Strategy<Value = Node> {
        let gpus = proptest::collection::vec(any_place(), 0..=16);
        let nics = proptest::collection::vec(any_nic(), 0..=64);
        (gpus, nics).prop_map(|(gpus, nics)| {
            let gpus: Vec<Gpu> = gpus
                .into_iter()
                .enumerate()
                .map(|(index, place)| Gpu {
                    place,
                    vendor: 0x10de,
                    device: Some(1),
                    uuid: Some(format!("GPU-{index}")),
                })
                .collect();
            let nics: Vec<Nic> = nics
                .into_iter()
                .enumerate()
                .map(|(index, (place, usable))| Nic {
                    place,
                    unusable: (!usable).then_some(Unusable::Down),
                    ..nic(&format!("n{index}"), "0:0.0", "", &[], None)
                })
                .collect();
            node(&gpus, &nics)
        })
    }

    fn any_entry() -> impl Strategy<Value = Option<usize>> {
        proptest::option::of(0_usize..15)
    }

    proptest! {
        #[test]
        fn every_gpu_has_a_usable_nic_where_there_is_one(node in any_node(), entry in any_entry()) {
            let published = Catalogue::published();
            let rails = rails(&node, entry.map(|index| &published.entries()[index]));
            prop_assert_eq!(rails.gpus.len(), node.known_gpus().len());
            let usable: BTreeSet<&str> = node.known_nics().iter()
                .filter(|nic| nic.is_usable())
                .map(|nic| nic.name.as_str())
                .collect();
            for gpu in &rails.gpus {
                prop_assert_eq!(gpu.nics.is_empty(), usable.is_empty(), "{:?}", gpu);
                prop_assert!(gpu.nics.iter().all(|nic| usable.contains(nic.as_str())));
                let distinct: BTreeSet<&String> = gpu.nics.iter().collect();
                prop_assert_eq!(distinct.len(), gpu.nics.len());
            }
        }

        #[test]
        fn the_order_of_enumeration_does_not_matter(
            (node, gpus, nics) in any_node().prop_flat_map(|node| {
                let gpus = Just(node.known_gpus().to_vec()).prop_shuffle();
                let nics = Just(node.known_nics().to_vec()).prop_shuffle();
                (Just(node), gpus, nics)
            }),
            entry in any_entry(),
            numa in proptest::option::of(0_u32..3),
        ) {
            let published = Catalogue::published();
            let entry = entry.map(|index| &published.entries()[index]);
            let shuffled = Node { gpus: Some(gpus), nics: Some(nics), ..node.clone() };
            prop_assert_eq!(rails(&node, entry), rails(&shuffled, entry));
            prop_assert_eq!(host_rails(&node, numa), host_rails(&shuffled, numa));
        }
    }
}

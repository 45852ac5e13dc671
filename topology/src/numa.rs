//! NUMA nodes: their CPUs and their memory.

use serde::{Deserialize, Serialize};

use crate::cpuset::{CpuSet, CpuSetError};
use crate::fields;
use crate::root::{Finding, Listing, Root};

/// What the kernel has on any machine, and what it has below that only where it knows of NUMA.
const SYSTEM: &str = "sys/devices/system";
pub(crate) const NODES: &str = "sys/devices/system/node";

/// One NUMA node of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NumaNode {
    /// The kernel's number; numbers may have gaps.
    pub id: u32,
    /// Its CPUs (`cpulist`): none on a node of memory alone, `None` where they are unknown.
    // Unknown is written `null`: a key that is missing is a mistake.
    #[serde(deserialize_with = "Option::deserialize")]
    pub cpus: Option<CpuSet>,
    /// All of its memory (`MemTotal` in `meminfo`), huge pages included.
    pub memory_total_bytes: Option<u64>,
    /// Its memory that nothing uses (`MemFree` in `meminfo`), huge pages not included.
    pub memory_free_bytes: Option<u64>,
    /// Its free memory and its page cache of files, which the kernel gives up when it needs to
    /// (`MemFree`, `Active(file)` and `Inactive(file)`).
    pub memory_available_bytes: Option<u64>,
}

/// The NUMA nodes, ascending, and what could not be read. A kernel without NUMA has none; `None`
/// where it is unknown which there are.
#[must_use]
pub fn nodes(root: &Root) -> (Option<Vec<NumaNode>>, Vec<Finding>) {
    let (ids, finding) = ids(root);
    let mut findings = Vec::from_iter(finding);
    let nodes = ids.map(|ids| {
        let nodes = ids.into_iter().map(|id| node(root, id, &mut findings));
        nodes.collect()
    });
    (nodes, findings)
}

/// The folder of a node.
pub(crate) fn folder(id: u32) -> String {
    format!("{NODES}/node{id}")
}

/// The numbers of the nodes, ascending, and why there is none or why they are unknown.
pub(crate) fn ids(root: &Root) -> (Option<Vec<u32>>, Option<Finding>) {
    let names = match root.listing(SYSTEM, &["node"], NODES) {
        Listing::Names(names) => names,
        Listing::Absent(finding) => return (Some(Vec::new()), Some(finding)),
        Listing::Unknown(finding) => return (None, Some(finding)),
    };
    let mut ids: Vec<u32> = names.iter().filter_map(|name| id(name)).collect();
    ids.sort_unstable();
    if ids.is_empty() {
        return (None, Some(root.finding(NODES, "has no NUMA node")));
    }
    (Some(ids), None)
}

fn id(name: &str) -> Option<u32> {
    let number = fields::number(name.strip_prefix("node")?)?;
    u32::try_from(number).ok()
}

fn node(root: &Root, id: u32, findings: &mut Vec<Finding>) -> NumaNode {
    let (cpulist, meminfo) = (folder(id) + "/cpulist", folder(id) + "/meminfo");
    let cpus = root.read(&cpulist).and_then(|text| {
        text.parse()
            .map_err(|error: CpuSetError| root.finding(&cpulist, error.to_string()))
    });
    let mut noted = |finding| findings.push(finding);
    let cpus = cpus.map_err(&mut noted).ok();
    let text = root.read(&meminfo).map_err(&mut noted).ok();
    let mut memory = |key: &str| {
        let bytes = memory(text.as_deref()?, id, key);
        if bytes.is_none() {
            noted(root.finding(&meminfo, format!("has no {key} in kB")));
        }
        bytes
    };
    NumaNode {
        id,
        cpus,
        memory_total_bytes: memory("MemTotal"),
        memory_free_bytes: memory("MemFree"),
        memory_available_bytes: text.as_deref().and_then(|text| available(text, id)),
    }
}

/// Free memory and the cache of files; a cache that is not told of counts as none.
fn available(text: &str, id: u32) -> Option<u64> {
    let cache = |key| memory(text, id, key).unwrap_or(0);
    let free = memory(text, id, "MemFree")?;
    Some(
        free.saturating_add(cache("Active(file)"))
            .saturating_add(cache("Inactive(file)")),
    )
}

/// The bytes of a line `Node 0 MemTotal:  9398044 kB`.
fn memory(text: &str, id: u32, key: &str) -> Option<u64> {
    fields::kilobytes(text, &format!("Node {id} {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use proptest::prelude::*;

    #[test]
    fn sparse_nodes_and_one_of_memory_alone() {
        let fixture = Fixture::new(&[
            ("sys/devices/system/node/online", "0,2,10\n"),
            ("sys/devices/system/node/node10/cpulist", "\n"),
            (
                "sys/devices/system/node/node10/meminfo",
                "Node 10 MemTotal:       1024 kB\nNode 10 MemFree:        0 kB\n",
            ),
            ("sys/devices/system/node/node2/cpulist", "4-7\n"),
            (
                "sys/devices/system/node/node2/meminfo",
                "Node 2 MemTotal:       9398044 kB\nNode 2 MemFree:        7324396 kB\n\
                 Node 2 Active(file): 1024 kB\nNode 2 Inactive(file): 2048 kB\n",
            ),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            (
                "sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal: 4 kB\nNode 0 MemFree: 4 kB\n",
            ),
            ("sys/devices/system/node/nodes/cpulist", "0\n"),
        ]);
        let (nodes, findings) = nodes(&fixture.root());
        let nodes = nodes.unwrap();
        assert_eq!(findings, []);
        assert_eq!(
            nodes.iter().map(|node| node.id).collect::<Vec<_>>(),
            [0, 2, 10]
        );
        assert_eq!(
            nodes[1],
            NumaNode {
                id: 2,
                cpus: Some("4-7".parse().unwrap()),
                memory_total_bytes: Some(9_398_044 * 1024),
                memory_free_bytes: Some(7_324_396 * 1024),
                memory_available_bytes: Some((7_324_396 + 3072) * 1024),
            }
        );
        assert_eq!(nodes[2].cpus, Some(CpuSet::default()));
        assert_eq!(nodes[2].memory_free_bytes, Some(0), "0 that was read is 0");
    }

    #[test]
    fn a_kernel_without_numa_has_none_and_a_broken_tree_tells_none() {
        for (file, want, reason) in [
            (
                "sys/devices/system/cpu/online",
                Some(vec![]),
                "does not exist",
            ),
            ("sys/class/x", None, "does not exist"),
            ("sys/devices/system/node", None, "not a folder"),
            ("sys/devices/system/node/online", None, "has no NUMA node"),
        ] {
            let fixture = Fixture::new(&[(file, "0\n")]);
            let findings = vec![fixture.root().finding(NODES, reason)];
            assert_eq!(nodes(&fixture.root()), (want, findings), "{file}");
        }
    }

    #[test]
    fn gaps_are_unknown_not_zero() {
        let fixture = Fixture::new(&[
            ("sys/devices/system/node/node0/cpulist", "junk\n"),
            (
                "sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal: x kB\n",
            ),
            ("sys/devices/system/node/node1/cpulist", "1\n"),
        ]);
        let (nodes, findings) = nodes(&fixture.root());
        let nodes = nodes.unwrap();
        let cpus: Vec<_> = nodes.iter().map(|node| node.cpus.clone()).collect();
        assert_eq!(cpus, [None, Some("1".parse().unwrap())]);
        assert!(nodes.iter().all(|node| node.memory_total_bytes.is_none()));
        let reasons: Vec<&str> = findings
            .iter()
            .map(|finding| finding.reason.as_str())
            .collect();
        assert_eq!(
            reasons,
            [
                "expected a list of CPUs such as 0-3,8, found \"junk\"",
                "has no MemTotal in kB",
                "has no MemFree in kB",
                "does not exist"
            ]
        );
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "(?s).{0,80}", name in "node[0-9x]{0,24}") {
            memory(&text, 0, "MemFree");
            id(&name);
        }
    }
}

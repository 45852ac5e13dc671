//! Huge pages: the kernel's pools, and the file systems that give them out.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fields;
use crate::mountinfo::{self, MOUNTINFO, Mount};
use crate::numa;
use crate::root::{Finding, Listing, Root, as_text};

/// What the kernel has on any machine, and what it has below that only where it knows of huge pages.
const MEMORY: &str = "sys/kernel/mm";
const POOLS: &str = "sys/kernel/mm/hugepages";

/// The machine's huge pages of one size. All counts are pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pool {
    /// The bytes of one page.
    pub page_bytes: u64,
    /// Pages in the pool now (`nr_hugepages`), surplus ones included.
    pub total: u64,
    /// Pages that nothing has touched yet (`free_hugepages`).
    pub free: u64,
    /// Free pages that mappings were promised and have not touched (`resv_hugepages`).
    pub reserved: u64,
    /// Pages above the pool's configured size, given back when freed (`surplus_hugepages`).
    pub surplus: u64,
    /// The most surplus pages that the kernel may add when the pool is empty
    /// (`nr_overcommit_hugepages`).
    pub overcommit: u64,
    /// The same pool by NUMA node, ascending; a node that has no such pool is left out.
    pub nodes: Vec<NodePool>,
}

/// One NUMA node's part of a [`Pool`]. Counts are pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodePool {
    /// The node's number.
    pub node: u32,
    /// Its pages (`nr_hugepages`).
    pub total: u64,
    /// Those that nothing has touched yet (`free_hugepages`); promises are not counted by node.
    pub free: u64,
}

impl Pool {
    /// The pages that a new mapping can have: free and promised to none.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }
}

/// A hugetlbfs that this process sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugetlbMount {
    /// Where it is mounted.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The bytes of its pages.
    pub page_bytes: u64,
    /// Whether no file can be made in it.
    pub read_only: bool,
}

/// The pools of all page sizes that the kernel has, the smallest pages first, and what could not
/// be read. A kernel without huge pages has none; `None` where it is unknown which there are. A pool
/// with a count that is unknown is left out, with a finding.
///
/// Reads `/sys/kernel/mm/hugepages/hugepages-<N>kB/` and its like below every NUMA node.
#[must_use]
pub fn pools(root: &Root) -> (Option<Vec<Pool>>, Vec<Finding>) {
    let names = match root.listing(MEMORY, &["hugepages"], POOLS) {
        Listing::Names(names) => names,
        Listing::Absent(finding) => return (Some(Vec::new()), vec![finding]),
        Listing::Unknown(finding) => return (None, vec![finding]),
    };
    let mut findings = Vec::new();
    // A kernel without NUMA has pools all the same, and `numa::nodes` is what says so.
    let nodes = numa::ids(root).0.unwrap_or_default();
    let mut pools = Vec::new();
    for name in names {
        match page_bytes(&name).map(|bytes| pool(root, &name, bytes)) {
            Some(Ok(pool)) => pools.push(pool),
            Some(Err(finding)) => findings.push(finding),
            None => {}
        }
    }
    if pools.is_empty() && !findings.is_empty() {
        return (None, findings);
    }
    for pool in &mut pools {
        pool.nodes = node_pools(root, pool.page_bytes, &nodes, &mut findings);
    }
    pools.sort_by_key(|pool| pool.page_bytes);
    (Some(pools), findings)
}

/// The page size in a folder's name, `hugepages-2048kB`.
fn page_bytes(name: &str) -> Option<u64> {
    let kilobytes = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    let bytes = fields::number(kilobytes)?.checked_mul(1024)?;
    (bytes > 0).then_some(bytes)
}

fn pool(root: &Root, name: &str, page_bytes: u64) -> Result<Pool, Finding> {
    let count = |file: &str| root.read_number(format!("{POOLS}/{name}/{file}"));
    Ok(Pool {
        page_bytes,
        total: count("nr_hugepages")?,
        free: count("free_hugepages")?,
        reserved: count("resv_hugepages")?,
        surplus: count("surplus_hugepages")?,
        overcommit: count("nr_overcommit_hugepages")?,
        nodes: Vec::new(),
    })
}

fn node_pools(
    root: &Root,
    page_bytes: u64,
    nodes: &[u32],
    findings: &mut Vec<Finding>,
) -> Vec<NodePool> {
    let mut pools = Vec::new();
    for node in nodes {
        match node_pool(root, page_bytes, *node) {
            Ok(pool) => pools.extend(pool),
            Err(finding) => findings.push(finding),
        }
    }
    pools
}

fn node_pool(root: &Root, page_bytes: u64, node: u32) -> Result<Option<NodePool>, Finding> {
    let kilobytes = page_bytes / 1024;
    let folder = format!("{}/hugepages/hugepages-{kilobytes}kB", numa::folder(node));
    if !root.is_dir(&folder) {
        return Ok(None);
    }
    Ok(Some(NodePool {
        node,
        total: root.read_number(folder.clone() + "/nr_hugepages")?,
        free: root.read_number(folder + "/free_hugepages")?,
    }))
}

/// Every hugetlbfs that this process sees (`/proc/self/mountinfo`), in the kernel's order.
#[must_use]
pub fn mounts(root: &Root) -> Vec<HugetlbMount> {
    mounts_with_findings(root).0
}

/// As [`mounts`], with what could not be read. A mount whose page size is unknown is left out,
/// with a finding.
#[must_use]
pub fn mounts_with_findings(root: &Root) -> (Vec<HugetlbMount>, Vec<Finding>) {
    let all = match mountinfo::mounts(root) {
        Ok(all) => all,
        Err(finding) => return (Vec::new(), vec![finding]),
    };
    let meminfo = root.read("proc/meminfo").unwrap_or_default();
    let default = fields::kilobytes(&meminfo, "Hugepagesize").filter(|bytes| *bytes > 0);
    let mut mounts = Vec::new();
    let mut findings = Vec::new();
    for mount in all.into_iter().filter(|mount| mount.kind == "hugetlbfs") {
        match mounted_page_bytes(&mount, default) {
            Ok(page_bytes) => mounts.push(HugetlbMount {
                page_bytes,
                read_only: mount.is_read_only(),
                path: mount.point,
            }),
            Err(reason) => findings.push(root.finding(MOUNTINFO, reason)),
        }
    }
    (mounts, findings)
}

fn mounted_page_bytes(mount: &Mount, default: Option<u64>) -> Result<u64, String> {
    let point = fields::short(mount.point.display());
    match mount.super_value("pagesize") {
        Some(option) => option_bytes(option).ok_or_else(|| {
            format!(
                "{point} has the unknown option pagesize={}",
                fields::short(option)
            )
        }),
        None => default.ok_or_else(|| {
            format!("{point} names no pagesize, and meminfo no Hugepagesize to take instead")
        }),
    }
}

/// The bytes of `2M`, `1024M`, `1G`, `2048K` or `2097152`.
fn option_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let shift = match text.strip_prefix(digits)? {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return None,
    };
    let bytes = fields::number(digits)?.checked_mul(1 << shift)?;
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use proptest::prelude::*;

    fn add_pool(fixture: &Fixture, kilobytes: u64, counts: [u64; 5]) {
        let files = [
            "nr_hugepages",
            "free_hugepages",
            "resv_hugepages",
            "surplus_hugepages",
            "nr_overcommit_hugepages",
        ];
        for (file, count) in files.into_iter().zip(counts) {
            fixture.write(
                &format!("{POOLS}/hugepages-{kilobytes}kB/{file}"),
                &format!("{count}\n"),
            );
        }
    }

    fn add_node(fixture: &Fixture, node: u32, kilobytes: u64, total: u64, free: u64) {
        let folder = format!("{}/hugepages/hugepages-{kilobytes}kB", numa::folder(node));
        fixture.write(&format!("{folder}/nr_hugepages"), &format!("{total}\n"));
        fixture.write(&format!("{folder}/free_hugepages"), &format!("{free}\n"));
    }

    #[test]
    fn pools_ascend_by_page_and_by_node() {
        let fixture = Fixture::new(&[
            ("sys/kernel/mm/hugepages/unrelated", ""),
            ("sys/devices/system/node/node3/cpulist", "1\n"),
        ]);
        add_pool(&fixture, 1_048_576, [4, 4, 0, 0, 0]);
        add_pool(&fixture, 2048, [100, 90, 30, 5, 10]);
        add_pool(&fixture, 64, [0, 0, 0, 0, 7]);
        add_node(&fixture, 10, 2048, 60, 50);
        add_node(&fixture, 2, 2048, 40, 40);
        add_node(&fixture, 2, 1_048_576, 4, 4);
        let (pools, findings) = pools(&fixture.root());
        let pools = pools.unwrap();
        assert_eq!(findings, []);
        let sizes: Vec<u64> = pools.iter().map(|pool| pool.page_bytes).collect();
        assert_eq!(sizes, [64 << 10, 2 << 20, 1 << 30]);
        assert_eq!(
            pools[1],
            Pool {
                page_bytes: 2 << 20,
                total: 100,
                free: 90,
                reserved: 30,
                surplus: 5,
                overcommit: 10,
                nodes: vec![
                    NodePool {
                        node: 2,
                        total: 40,
                        free: 40
                    },
                    NodePool {
                        node: 10,
                        total: 60,
                        free: 50
                    },
                ],
            }
        );
        assert_eq!(pools[1].available(), 60);
        assert_eq!(pools[0].nodes, []);
        assert_eq!(
            pools[2].nodes,
            [NodePool {
                node: 2,
                total: 4,
                free: 4
            }]
        );
    }

    #[test]
    fn more_promised_than_free_is_none() {
        let fixture = Fixture::new(&[]);
        add_pool(&fixture, 2048, [5, 1, 4, 0, 0]);
        assert_eq!(pools(&fixture.root()).0.unwrap()[0].available(), 0);
    }

    #[test]
    fn an_unknown_count_is_no_pool() {
        let fixture = Fixture::new(&[(
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "9\n",
        )]);
        add_pool(&fixture, 1_048_576, [1, 1, 0, 0, 0]);
        add_node(&fixture, 0, 1_048_576, 1, 1);
        let broken = "sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages";
        fixture.write(broken, "many\n");
        let root = fixture.root();
        let (pools, findings) = pools(&root);
        let pools = pools.unwrap();
        assert_eq!(pools.len(), 1);
        assert_eq!(pools[0].nodes, []);
        assert_eq!(
            findings,
            [
                root.finding(
                    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                    "does not exist"
                ),
                root.finding(broken, "expected a whole number, found \"many\""),
            ]
        );
    }

    #[test]
    fn no_pool_and_unknown_pools_are_told_apart() {
        let broken = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        for (file, want, path) in [
            ("sys/kernel/mm/ksm/run", Some(vec![]), POOLS),
            ("sys/class/x", None, POOLS),
            (POOLS, None, POOLS),
            (broken, None, broken),
        ] {
            let fixture = Fixture::new(&[(file, "many\n")]);
            let (pools, findings) = pools(&fixture.root());
            let paths: Vec<_> = findings.into_iter().map(|finding| finding.path).collect();
            assert_eq!(
                (pools, paths),
                (want, vec![fixture.root().path(path)]),
                "{file}"
            );
        }
    }

    #[test]
    fn mounts_and_their_page_sizes() {
        let fixture = Fixture::new(&[
            (
                "proc/meminfo",
                "HugePages_Total:  0\nHugepagesize:       2048 kB\n",
            ),
            (
                MOUNTINFO,
                "20 1 0:20 / /dev/shm rw - tmpfs tmpfs rw,pagesize=2M\n\
                 21 1 0:21 / /dev/hugepages rw,relatime - hugetlbfs hugetlbfs rw\n\
                 22 1 0:22 / /mnt/huge\\0401G rw shared:5 - hugetlbfs nodev rw,pagesize=1024M\n\
                 23 1 0:23 /sub /ro-mount ro - hugetlbfs nodev rw,pagesize=2M\n\
                 24 1 0:24 / /ro-fs rw - hugetlbfs nodev ro,pagesize=64K\n\
                 25 1 0:25 / /odd rw - hugetlbfs nodev rw,pagesize=huge\n",
            ),
        ]);
        let (mounts, findings) = mounts_with_findings(&fixture.root());
        let seen: Vec<_> = mounts
            .iter()
            .map(|mount| {
                (
                    mount.path.to_str().unwrap(),
                    mount.page_bytes,
                    mount.read_only,
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("/dev/hugepages", 2 << 20, false),
                ("/mnt/huge 1G", 1 << 30, false),
                ("/ro-mount", 2 << 20, true),
                ("/ro-fs", 64 << 10, true),
            ]
        );
        assert_eq!(
            findings[0].reason,
            "/odd has the unknown option pagesize=huge"
        );

        fixture.write("proc/meminfo", "MemTotal: 1 kB\n");
        let (mounts, findings) = mounts_with_findings(&fixture.root());
        assert_eq!((mounts.len(), findings.len()), (3, 2));
        assert_eq!(super::mounts(&Fixture::new(&[]).root()), []);
    }

    #[test]
    fn sizes_of_pages() {
        for (option, want) in [
            ("2M", Some(2 << 20)),
            ("1024M", Some(1 << 30)),
            ("1G", Some(1 << 30)),
            ("2048K", Some(2 << 20)),
            ("16g", Some(16 << 30)),
            ("2097152", Some(2 << 20)),
            ("", None),
            ("M", None),
            ("2MB", None),
            ("0", None),
            ("99999999999999G", None),
        ] {
            assert_eq!(option_bytes(option), want, "{option:?}");
        }
        for (name, want) in [
            ("hugepages-2048kB", Some(2 << 20)),
            ("hugepages-0kB", None),
            ("hugepages-kB", None),
            ("hugepages-18446744073709551615kB", None),
            ("hugepages-2048", None),
        ] {
            assert_eq!(page_bytes(name), want, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "(?s).{0,40}", digits in "[0-9kKmMgGé]{0,24}") {
            option_bytes(&text);
            option_bytes(&digits);
            page_bytes(&format!("hugepages-{digits}kB"));
        }
    }
}

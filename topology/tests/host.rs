//! The machine that runs the tests, read for real and checked against what else knows it.

use std::thread;

use siding_topology::cores::{self, CoreRule};
use siding_topology::{Root, cgroup, hugepages, limits, memory, numa};

#[test]
fn own_cores_agree_with_the_standard_library() {
    let cores = cores::own_cores(&Root::host());
    let std = thread::available_parallelism().unwrap().get();
    // The standard library rounds a quota down where we round up.
    assert!(
        (std..=std + 1).contains(&cores.count.get()),
        "{cores:?}, {std}"
    );
    assert!(cores.cpus.len() >= std, "{cores:?}, {std}");
    if !matches!(cores.rule, CoreRule::QuotaV1 | CoreRule::QuotaV2) {
        assert_eq!(cores.count.get(), cores.cpus.len(), "{cores:?}");
    }
    assert_ne!(cores.rule, CoreRule::Unknown);
}

#[test]
fn memory_adds_up() {
    let root = Root::host();
    assert!(memory::available_bytes(&root).unwrap() > 0);
    let usage = limits::usage(&root);
    assert!(usage.resident_bytes.unwrap() > 0, "{usage:?}");
    let (nodes, findings) = numa::nodes(&root);
    let nodes = nodes.unwrap_or_default();
    assert!(!nodes.is_empty() || !findings.is_empty());
    for node in &nodes {
        assert!(
            node.memory_free_bytes <= node.memory_total_bytes,
            "{node:?}"
        );
    }
    let own = cores::own_cores(&root).cpus;
    let on_nodes = nodes.iter().flat_map(|node| &node.cpus);
    let on_nodes = on_nodes.flat_map(|cpus| cpus.iter());
    let on_nodes = on_nodes.filter(|cpu| own.contains(*cpu)).count();
    assert!(
        nodes.is_empty() || on_nodes == own.len(),
        "{own} on {nodes:?}"
    );
}

#[test]
fn pools_and_limits_make_sense() {
    let root = Root::host();
    let pools = hugepages::pools(&root).0.unwrap_or_default();
    for pool in &pools {
        assert!(pool.page_bytes.is_power_of_two(), "{pool:?}");
        assert!(
            pool.nodes.iter().all(|node| node.free <= node.total),
            "{pool:?}"
        );
        if let Some(limit) = cgroup::hugetlb_limit(&root, pool.page_bytes) {
            assert!(limit.file.is_file(), "{limit:?}");
        }
    }
    assert!(pools.is_sorted_by_key(|pool| pool.page_bytes));
    if let Some(limit) = cgroup::memory_limit(&root) {
        assert!(limit.file.is_file() && limit.limit_bytes > 0, "{limit:?}");
    }
    for mount in hugepages::mounts(&root) {
        assert!(
            mount.path.is_dir() && mount.page_bytes.is_power_of_two(),
            "{mount:?}"
        );
    }
    let memlock = limits::memlock(&root).unwrap();
    if let (Some(soft), Some(hard)) = (memlock.soft_bytes, memlock.hard_bytes) {
        assert!(soft <= hard, "{memlock:?}");
    }
    if let Some(bytes) = memory::pmd_bytes(&root) {
        assert!(bytes.is_power_of_two());
    }
}

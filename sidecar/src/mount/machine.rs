//! What the machine can give now, observed once before a mount.

use std::collections::BTreeMap;

use rustix::process::{Resource, getrlimit};
use siding_topology::Root;
use siding_topology::cgroup::{self, Limit};
use siding_topology::cores::{self, OwnCores};
use siding_topology::hugepages::{self, HugetlbMount, Pool};
use siding_topology::limits::{self, Memlock};
use siding_topology::memory::{self, ShmemMode, TransparentMode};
use siding_topology::numa::{self, NumaNode};

/// The facts that choosing and checking stand on.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Bytes that programs can have without swapping; unknown where the kernel does not say.
    pub available_bytes: Option<u64>,
    /// The memory cgroup with the least room, where one limits.
    pub memory_limit: Option<Limit>,
    /// Huge-page pools, smallest page first.
    pub pools: Vec<Pool>,
    /// The hugetlb cgroup with the least room per page size, where one limits.
    pub hugetlb_limits: BTreeMap<u64, Limit>,
    /// hugetlbfs mounts.
    pub mounts: Vec<HugetlbMount>,
    /// File descriptors that this process may have; `None` where nothing limits it.
    pub files: Option<u64>,
    /// Transparent huge pages for private memory.
    pub transparent: Option<TransparentMode>,
    /// Transparent huge pages for tmpfs.
    pub shmem_transparent: Option<ShmemMode>,
    /// NUMA nodes; empty where the kernel has none, or tells of none.
    pub nodes: Vec<NumaNode>,
    /// This process's cores.
    pub cores: OwnCores,
    /// What this process may pin; unknown where the kernel does not say.
    pub memlock: Option<Memlock>,
}

impl Machine {
    /// Observes the machine under `root`.
    #[must_use]
    pub fn observe(root: &Root) -> Self {
        let pools = hugepages::pools(root).0.unwrap_or_default();
        let hugetlb_limits = pools
            .iter()
            .filter_map(|pool| {
                Some((
                    pool.page_bytes,
                    cgroup::hugetlb_limit(root, pool.page_bytes)?,
                ))
            })
            .collect();
        Self {
            available_bytes: memory::available_bytes(root),
            memory_limit: cgroup::memory_limit(root),
            pools,
            hugetlb_limits,
            mounts: hugepages::mounts(root),
            files: getrlimit(Resource::Nofile).current,
            transparent: memory::transparent(root),
            shmem_transparent: memory::shmem_transparent(root),
            nodes: numa::nodes(root).0.unwrap_or_default(),
            cores: cores::own_cores(root),
            memlock: limits::memlock(root).ok(),
        }
    }

    /// Counts pages (or memory, for base pages) as free that are about to be. Not for a cgroup: whose
    /// they count as is not told.
    pub fn credit(&mut self, page_bytes: u64, bytes: u64) {
        if let Some(pool) = self
            .pools
            .iter_mut()
            .find(|pool| pool.page_bytes == page_bytes)
        {
            pool.free = pool.free.saturating_add(bytes / page_bytes);
            for node in &mut pool.nodes {
                node.free = node.free.saturating_add(bytes / page_bytes);
            }
            return;
        }
        self.available_bytes = self.available_bytes.map(|free| free.saturating_add(bytes));
    }

    /// The pool of this page size.
    #[must_use]
    pub fn pool(&self, page_bytes: u64) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.page_bytes == page_bytes)
    }

    /// A user of NUMA node `id`.
    #[must_use]
    pub fn node(&self, id: u32) -> Option<&NumaNode> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The node that holds most of this process's cores, where there is more than one node.
    #[must_use]
    pub fn home_node(&self) -> Option<u32> {
        if self.nodes.len() < 2 {
            return None;
        }
        let cores = |node: &&NumaNode| {
            let cpus = node.cpus.as_ref();
            cpus.map_or(0, |cpus| cpus.intersect(&self.cores.cpus).len())
        };
        self.nodes
            .iter()
            .filter(|node| cores(node) > 0)
            .max_by_key(|node| (cores(node), std::cmp::Reverse(node.id)))
            .map(|node| node.id)
    }

    /// Bytes that this process may pin in all; `None` where nothing limits it.
    #[must_use]
    pub fn pin_limit_bytes(&self) -> Option<u64> {
        // Unknown is no limit to plan with: the kernel then has the last word.
        self.memlock
            .filter(|memlock| !memlock.can_lock_any)?
            .soft_bytes
    }
}

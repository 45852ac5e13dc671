//! Whether the machine has what the ranks need, before any of them is started.

use std::num::NonZeroUsize;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use siding_fabric::{Unusable, UringDomain, base_page_bytes};
use siding_topology::cgroup::Limit;
use siding_topology::size::{binary, count, page_name};

use super::rank::RankJob;
use super::tasks::{TASK_REMEDY, Tasks};
use crate::mount::choose::with_overhead;
use crate::mount::machine::Machine;
use crate::registration::backend::PIN_REMEDY;

/// Descriptors of a rank beside those of its buffers.
const OTHER_FILES: u64 = 64;
/// Descriptors of the bench beside two pipes for each rank.
const FILES_OF_BENCH: u64 = 32;
/// Threads of a rank before it is let go: its own, and the one that touches.
const FEWEST_THREADS: usize = 2;

/// What there is for the ranks.
#[derive(Debug)]
pub struct There {
    /// The machine.
    pub machine: Machine,
    /// What this user may still start; `None` where nothing limits it.
    pub tasks: Option<Tasks>,
    /// What a ring takes of `RLIMIT_MEMLOCK`, bytes.
    pub ring_pin_bytes: u64,
}

impl There {
    /// Looks. For a moment nothing may be pinned: no other thread may be at that.
    #[must_use]
    pub fn observe(machine: Machine) -> Self {
        let is_charged = machine.pin_limit_bytes().is_some() && is_ring_charged();
        Self {
            machine,
            tasks: Tasks::observe(),
            ring_pin_bytes: if is_charged {
                UringDomain::ring_bytes()
            } else {
                0
            },
        }
    }
}

/// Whether rings count towards `RLIMIT_MEMLOCK`: kernels differ, and none tells.
fn is_ring_charged() -> bool {
    let limit = getrlimit(Resource::Memlock);
    let nothing = Rlimit {
        current: Some(0),
        ..limit
    };
    if setrlimit(Resource::Memlock, nothing).is_err() {
        return false;
    }
    let opened = UringDomain::open();
    let _ = setrlimit(Resource::Memlock, limit);
    matches!(opened, Err(Unusable::NoMemlock))
}

/// What is lacking for so many ranks at the largest of these caps, with the numbers and what mends
/// it; one line.
///
/// # Errors
/// The first thing that is.
pub fn check(
    ranks: NonZeroUsize,
    job: &RankJob,
    caps: &[Option<NonZeroUsize>],
    there: &There,
) -> Result<(), String> {
    let (page, machine) = (job.page_bytes, &there.machine);
    if page != base_page_bytes() && machine.pool(page).is_none() {
        return Err(no_such_page(page, machine));
    }
    let each = job.mapped_bytes().unwrap_or(u64::MAX);
    let need = Need {
        bytes: each.saturating_mul(ranks.get() as u64),
        words: format!("{ranks} x {}", binary(each)),
    };
    if page == base_page_bytes() {
        need.memory(ranks, machine)?;
    } else {
        need.huge_pages(page, machine)?;
    }
    let rings = job.buffers.len() as u64 * ranks.get() as u64;
    need.pins(rings.saturating_mul(there.ring_pin_bytes), machine)?;
    files(ranks, job, machine.files)?;
    tasks(ranks, job, caps, there.tasks)
}

fn files(ranks: NonZeroUsize, job: &RankJob, allowed: Option<u64>) -> Result<(), String> {
    let each = job.buffers.len() as u64 + OTHER_FILES;
    let own = 2 * ranks.get() as u64 + FILES_OF_BENCH;
    let short = |needed: u64| allowed.filter(|allowed| *allowed < needed);
    if let Some(allowed) = short(each) {
        return Err(format!(
            "--buffers: a rank needs {each} file descriptors, RLIMIT_NOFILE allows {allowed}; to mend it: \
             ulimit -n {each}, or fewer buffers"
        ));
    }
    match short(own) {
        Some(allowed) => Err(format!(
            "--ranks: the pipes of {} need {own} file descriptors, RLIMIT_NOFILE allows {allowed}; \
             to mend it: ulimit -n {own}, or fewer ranks",
            count(ranks.get(), "rank")
        )),
        None => Ok(()),
    }
}

/// Whether the threads of all ranks, and the bench's own, may be started.
fn tasks(
    ranks: NonZeroUsize,
    job: &RankJob,
    caps: &[Option<NonZeroUsize>],
    tasks: Option<Tasks>,
) -> Result<(), String> {
    let Some(tasks) = tasks else { return Ok(()) };
    let threads = |cap: &Option<NonZeroUsize>| {
        RankJob {
            cap: *cap,
            ..job.clone()
        }
        .threads()
    };
    let each = caps.iter().map(threads).max().unwrap_or_default();
    let each = each.max(FEWEST_THREADS) as u64;
    let needed = each * ranks.get() as u64 + 1;
    if needed <= tasks.room() {
        return Ok(());
    }
    Err(format!(
        "--ranks, --cap: {} of up to {each} threads are {needed} more processes and threads, \
         RLIMIT_NPROC allows this user {} and {} are there; to mend it: {TASK_REMEDY}, or a smaller --cap, \
         or fewer --ranks",
        count(ranks.get(), "rank"),
        tasks.limit,
        tasks.running
    ))
}

fn no_such_page(page: u64, machine: &Machine) -> String {
    let pools = machine.pools.iter().map(|pool| page_name(pool.page_bytes));
    let names: Vec<String> = std::iter::once(page_name(base_page_bytes()))
        .chain(pools)
        .collect();
    format!(
        "--page: this kernel has no pages of {}; to mend it: use one of {}",
        page_name(page),
        names.join(", ")
    )
}

/// What all ranks need together.
struct Need {
    bytes: u64,
    words: String,
}

impl Need {
    fn memory(&self, ranks: NonZeroUsize, machine: &Machine) -> Result<(), String> {
        let others = with_overhead(0).saturating_mul(ranks.get() as u64 - 1);
        let needed = with_overhead(self.bytes).saturating_add(others);
        let free = machine.available_bytes;
        if let Some(free) = free.filter(|free| *free < needed) {
            return Err(format!(
                "--ranks, --buffers: {} need {needed} bytes with page tables and notes of pins, {free} bytes \
                 of memory are available; to mend it: fewer ranks, or fewer or smaller buffers",
                self.words
            ));
        }
        within(machine.memory_limit.as_ref(), needed, &self.words, "memory")
    }

    fn huge_pages(&self, page: u64, machine: &Machine) -> Result<(), String> {
        let (needed, name) = (self.bytes.div_ceil(page), page_name(page));
        let pool = machine.pool(page);
        let free = pool.map_or(0, |pool| pool.available());
        if free < needed {
            let total = pool.map_or(0, |pool| pool.total) + (needed - free);
            return Err(format!(
                "--page: {} need {needed} free pages of {name}, {free} are there; to mend it: echo {total} | sudo \
                 tee /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages, or --page {}",
                self.words,
                page / 1024,
                page_name(base_page_bytes())
            ));
        }
        let limit = machine.hugetlb_limits.get(&page);
        within(limit, self.bytes, &self.words, &format!("hugepages-{name}"))
    }

    /// What the rings take is pinned too.
    fn pins(&self, rings_bytes: u64, machine: &Machine) -> Result<(), String> {
        let needed = self.bytes.saturating_add(rings_bytes);
        match machine.pin_limit_bytes().filter(|limit| *limit < needed) {
            Some(limit) => Err(format!(
                "--ranks, --buffers: {} are to be pinned, {needed} bytes with an io_uring ring for each buffer, \
                 RLIMIT_MEMLOCK allows this user {limit} bytes over all its processes; to mend it: \
                 {PIN_REMEDY}, or fewer or smaller buffers",
                self.words
            )),
            None => Ok(()),
        }
    }
}

fn within(limit: Option<&Limit>, needed: u64, words: &str, what: &str) -> Result<(), String> {
    let Some(limit) = limit else { return Ok(()) };
    let room = limit.limit_bytes.saturating_sub(limit.usage_bytes);
    if room >= needed {
        return Ok(());
    }
    Err(format!(
        "--ranks, --buffers: {words} need {needed} bytes, the cgroup limit leaves {room} bytes of {what}; to \
         mend it: fewer ranks, fewer or smaller buffers, or raise {}",
        limit.file.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::choose::tests::machine;
    use siding_topology::cgroup::Version;
    use siding_topology::limits::Memlock;

    const GIB: u64 = 1 << 30;

    fn job(buffers: usize, bytes: u64, page_bytes: u64) -> RankJob {
        RankJob {
            buffers: vec![bytes; buffers],
            cap: None,
            page_bytes,
            touched: true,
        }
    }

    fn there(machine: &Machine) -> There {
        There {
            machine: machine.clone(),
            tasks: None,
            ring_pin_bytes: 8192,
        }
    }

    fn told(ranks: usize, job: &RankJob, caps: &[usize], there: &There) -> String {
        let ranks = NonZeroUsize::new(ranks).unwrap();
        let caps: Vec<_> = caps.iter().map(|cap| NonZeroUsize::new(*cap)).collect();
        check(ranks, job, &caps, there).err().unwrap_or_default()
    }

    fn said(ranks: usize, job: &RankJob, machine: &Machine) -> String {
        told(ranks, job, &[1], &there(machine))
    }

    /// 64 GiB of memory, 512 free pages of 2 MiB, two of 1 GiB.
    #[test]
    fn what_is_lacking_is_told_with_the_numbers() {
        let there = machine();
        let eight = job(8, GIB, 4096);
        assert_eq!(said(7, &eight, &there), "");
        let told = said(8, &eight, &there);
        assert!(
            told.starts_with("--ranks, --buffers: 8 x 8Gi need ")
                && told.contains(" 68719476736 bytes of"),
            "{told}"
        );
        let huge = job(512, 2 << 20, 2 << 20);
        assert_eq!(said(1, &huge, &there), "");
        assert_eq!(
            said(2, &huge, &there),
            "--page: 2 x 1Gi need 1024 free pages of 2Mi, 512 are there; to mend it: echo 1024 | sudo tee \
             /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages, or --page 4Ki"
        );
        assert_eq!(
            said(1, &job(1, 1, 16 << 20), &there),
            "--page: this kernel has no pages of 16Mi; to mend it: use one of 4Ki, 2Mi, 1Gi"
        );
    }

    #[test]
    fn limits_count_too() {
        let mut there = machine();
        there.files = Some(1024);
        let many = job(961, 4096, 4096);
        assert!(
            said(1, &many, &there)
                .contains("needs 1025 file descriptors, RLIMIT_NOFILE allows 1024")
        );
        assert_eq!(said(1, &job(960, 4096, 4096), &there), "");
        there.memory_limit = Some(Limit {
            version: Version::V2,
            file: "/sys/fs/cgroup/a/memory.max".into(),
            limit_bytes: 2 * GIB,
            usage_bytes: GIB,
        });
        let told = said(1, &job(1, GIB, 4096), &there);
        assert!(
            told.contains("the cgroup limit leaves 1073741824 bytes of memory"),
            "{told}"
        );
        assert!(
            told.ends_with("raise /sys/fs/cgroup/a/memory.max"),
            "{told}"
        );
    }

    /// The numbers of a user who may pin 8 MiB.
    #[test]
    fn rings_are_pinned_too() {
        let mut machine = machine();
        machine.memlock = Some(Memlock {
            soft_bytes: Some(8 << 20),
            hard_bytes: None,
            can_lock_any: false,
        });
        for (ranks, buffers, bytes, fits) in [
            (1, 682, 4096, true),
            (1, 683, 4096, false),
            (1, 3, 2 << 20, true),
            (1, 4, 2 << 20, false),
            (2, 56, 64 << 10, true),
            (2, 57, 64 << 10, false),
            (2, 60, 64 << 10, false),
        ] {
            let job = job(buffers, bytes, 4096);
            let told = said(ranks, &job, &machine);
            let needed = ranks as u64 * buffers as u64 * (bytes + 8192);
            assert_eq!(needed <= 8 << 20, fits, "{needed}");
            let words = format!(
                "are to be pinned, {needed} bytes with an io_uring ring for each buffer, RLIMIT_MEMLOCK \
                 allows this user 8388608 bytes over all its processes; to mend it: "
            );
            assert_eq!(told.contains(&words), !fits, "{told}");
            assert!(!fits || told.is_empty(), "{told}");
        }
        let mut uncharged = there(&machine);
        uncharged.ring_pin_bytes = 0;
        assert_eq!(told(1, &job(4, 2 << 20, 4096), &[1], &uncharged), "");
    }

    #[test]
    fn the_bench_needs_descriptors_and_processes_itself() {
        let mut there = there(&machine());
        there.machine.files = Some(90);
        let job = job(16, 65_536, 4096);
        assert_eq!(told(29, &job, &[1], &there), "");
        assert_eq!(
            told(30, &job, &[1], &there),
            "--ranks: the pipes of 30 ranks need 92 file descriptors, RLIMIT_NOFILE allows 90; to mend it: \
             ulimit -n 92, or fewer ranks"
        );
        let tasks = |limit, running| Some(Tasks { limit, running });
        there.tasks = tasks(10, 1);
        assert_eq!(told(4, &job, &[1, 2], &there), "");
        assert_eq!(told(1, &job, &[8], &there), "");
        there.tasks = tasks(5, 1);
        assert_eq!(
            told(4, &job, &[1, 3], &there),
            "--ranks, --cap: 4 ranks of up to 3 threads are 13 more processes and threads, RLIMIT_NPROC \
             allows this user 5 and 1 are there; to mend it: raise RLIMIT_NPROC (ulimit -u) or the \
             cgroup's pids.max, or a smaller --cap, or fewer --ranks"
        );
        // Unbounded is a thread for each buffer.
        assert!(told(1, &job, &[0], &there).contains("1 rank of up to 16 threads are 17 more"));
    }
}

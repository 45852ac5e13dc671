//! Whether the machine has what the ranks need, before any of them is started.

use std::num::NonZeroUsize;

use siding_fabric::base_page_bytes;
use siding_topology::cgroup::Limit;
use siding_topology::size::{binary, page_name};

use super::rank::RankJob;
use crate::mount::choose::with_overhead;
use crate::mount::machine::Machine;
use crate::registration::backend::PIN_REMEDY;

/// Descriptors of a rank beside those of its buffers.
const OTHER_FILES: u64 = 64;

/// What is lacking, with the numbers and what mends it; one line.
///
/// # Errors
/// The first thing that is.
pub fn check(ranks: NonZeroUsize, job: &RankJob, machine: &Machine) -> Result<(), String> {
    let page = job.page_bytes;
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
    need.pins(machine)?;
    let files = job.buffers.len() as u64 + OTHER_FILES;
    match machine.files.filter(|there| *there < files) {
        Some(there) => Err(format!(
            "--buffers: a rank needs {files} file descriptors, RLIMIT_NOFILE allows {there}; to mend it: \
             ulimit -n {files}, or fewer buffers"
        )),
        None => Ok(()),
    }
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

    fn pins(&self, machine: &Machine) -> Result<(), String> {
        match machine
            .pin_limit_bytes()
            .filter(|limit| *limit < self.bytes)
        {
            Some(limit) => Err(format!(
                "--ranks, --buffers: {} are to be pinned, RLIMIT_MEMLOCK allows {limit} bytes; to mend it: \
                 {PIN_REMEDY}",
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

    const GIB: u64 = 1 << 30;

    fn job(buffers: usize, bytes: u64, page_bytes: u64) -> RankJob {
        RankJob {
            buffers: vec![bytes; buffers],
            cap: None,
            page_bytes,
            touched: true,
        }
    }

    fn said(ranks: usize, job: &RankJob, machine: &Machine) -> String {
        let ranks = NonZeroUsize::new(ranks).unwrap();
        check(ranks, job, machine).err().unwrap_or_default()
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
}

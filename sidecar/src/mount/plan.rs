//! From a configuration and a machine to a plan: everything that is decided before anything is done.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use siding_fabric::pool::Concurrency;
use siding_fabric::{Pages, Placement};

use super::choose::{Chosen, Form, Wish};
use super::machine::Machine;
use super::strategy::{self, MOST_USEFUL_THREADS, Situation, Strategy};
use crate::config::{Cap, Numa, Page, TouchThreads};
use crate::registration::backend::Choice;
use crate::registration::cap::{LiveCap, planned};
use crate::registration::items::ItemOrder;
use crate::store::{KeptFile, Unfit};

/// What is behind a segment.
#[derive(Debug)]
pub enum Backing {
    /// Memory of this process.
    Process,
    /// A file to be made in this directory.
    NewFile {
        /// The directory.
        directory: PathBuf,
        /// What was there before and did not pass; it is gone by now.
        replaced: Option<Unfit>,
    },
    /// A file that an earlier process left, checked.
    Kept(KeptFile),
}

/// One segment's part of the plan.
#[derive(Debug)]
pub struct SegmentPlan {
    /// Its name.
    pub name: String,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// Its pages.
    pub pages: Pages,
    /// Why these.
    pub page_reason: String,
    /// Where it lies.
    pub placement: Placement,
    /// CPUs to touch from.
    pub cpus: Option<Vec<u32>>,
    /// What is behind it.
    pub backing: Backing,
    /// Whether and how to touch.
    pub strategy: Strategy,
    /// What smaller pages are chosen by where the kernel refuses these.
    pub auto: Option<Auto>,
}

/// What is left of the wish of a segment that takes whatever pages there are, and got huge ones.
#[derive(Debug)]
pub struct Auto {
    /// Where it shall lie.
    pub numa: Numa,
    /// In which form.
    pub form: Form,
}

impl Auto {
    /// Of a wish; `None` where there is nothing smaller to take, or it must not be taken.
    #[must_use]
    pub fn of(wish: Wish<'_>, chosen: &Chosen) -> Option<Self> {
        let falls_back = wish.page == Page::Auto && matches!(chosen.pages, Pages::Huge(_));
        falls_back.then_some(Self {
            numa: wish.numa,
            form: wish.form,
        })
    }
}

/// The whole plan.
#[derive(Debug)]
pub struct MountPlan {
    /// The segments, in the order declared.
    pub segments: Vec<SegmentPlan>,
    /// What registers.
    pub backend: Choice,
    /// Registrations in flight.
    pub cap: LiveCap,
    /// Order of registration.
    pub order: ItemOrder,
    /// Bytes that may be pinned; `None` where nothing limits it.
    pub pin_limit_bytes: Option<u64>,
}

/// Registrations in flight for a cap, and where the number comes from.
#[must_use]
pub fn live_cap(cap: Cap, source: &str, machine: &Machine) -> LiveCap {
    let (concurrency, reason) = match cap {
        Cap::Auto => {
            // Alone: how many ranks share the node is told by a plan, not seen from here.
            let cores = machine.cores.count;
            let reason = format!(
                "auto: this process's {cores} cores ({})",
                machine.cores.rule
            );
            (
                Concurrency::AtMost(planned(cores, NonZeroUsize::MIN)),
                reason,
            )
        }
        Cap::Unbounded => (Concurrency::Unbounded, format!("by {source}")),
        Cap::Limit(n) => (Concurrency::AtMost(n), format!("by {source}")),
    };
    LiveCap::new(concurrency, reason)
}

/// Threads that may touch a segment.
#[must_use]
pub fn touch_threads(wanted: TouchThreads, cpus: Option<&[u32]>, machine: &Machine) -> usize {
    let cores = cpus
        .map_or(machine.cores.count.get(), <[u32]>::len)
        .min(machine.cores.count.get());
    match wanted {
        TouchThreads::Auto => cores.clamp(1, MOST_USEFUL_THREADS),
        TouchThreads::Count(n) => n.get(),
    }
}

/// The strategy for a segment that was chosen pages for.
#[must_use]
pub fn strategy_for(
    size_bytes: u64,
    chosen: &Chosen,
    threads: usize,
    backend: &Choice,
    registers_all: bool,
    kept: bool,
    falls_back: bool,
) -> Strategy {
    let pages = size_bytes / chosen.pages.page_bytes();
    strategy::choose(Situation {
        size_bytes,
        threads: threads.min(usize::try_from(pages).unwrap_or(usize::MAX)),
        domains: backend.in_use.domains().len(),
        registers_all,
        kept,
        falls_back,
    })
}

//! Carries a plan out: map, touch, register; and undoes it.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use siding_crds::reasons::Reason;
use siding_fabric::pool::{self, Concurrency};
use siding_fabric::{
    MapError, MapRequest, Mapping, MemoryRegion, Pages, RegisterError, Shortage, Source,
    TouchError, TouchPlan, touch,
};
use siding_topology::{Root, limits};

use super::choose::pages_name;
use super::fallback;
use super::machine::Machine;
use super::plan::{Backing, MountPlan, SegmentPlan};
use super::registering;
use super::strategy::{Touching, chunk_bytes};
use crate::board::{Board, Content, Phase, RegistrationStatus, SegmentState, State};
use crate::registration::backend::PIN_REMEDY;
use crate::registration::cap::LiveCap;
use crate::store::{self, SegmentFile, StoreError};

/// Pages looked up to tell on which nodes a segment lies.
const NODE_SAMPLES: usize = 64;

/// Why a mount failed. Whatever was done before is undone.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Asked to stop.
    #[error("mounting was cancelled")]
    Cancelled,
    /// A segment could not be mapped.
    #[error("segments[{segment}]: {source}{}", hint(*.page_bytes))]
    Map {
        /// The segment.
        segment: String,
        /// Its page size where huge pages are lacking, bytes.
        page_bytes: Option<u64>,
        /// Why.
        source: MapError,
    },
    /// A segment's pages could not be had.
    #[error("segments[{segment}]: {source}; to mend it: {PAGES_REMEDY}")]
    Touch {
        /// The segment.
        segment: String,
        /// On huge pages.
        huge: bool,
        /// Why.
        source: TouchError,
    },
    /// A segment's file could not be made.
    #[error("segments[{segment}]: {source}")]
    File {
        /// The segment.
        segment: String,
        /// Why.
        source: StoreError,
    },
    /// Nothing of a segment could be registered, or a page was lacking.
    #[error("segments[{segment}]: {source}{}", register_hint(source))]
    Register {
        /// The segment.
        segment: String,
        /// The first error in item order.
        source: RegisterError,
    },
}

impl MountError {
    /// Why, one word.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Map {
                page_bytes: Some(_),
                ..
            } => Reason::HugePagesShort,
            Self::Touch { huge: true, .. } => Reason::HugePagesShort,
            Self::Touch { .. } => Reason::MemoryLimit,
            Self::Register { source, .. } => match source.shortage() {
                Some(Shortage::PinnedMemory) => Reason::MemlockLimit,
                Some(Shortage::Pages) => Reason::MemoryLimit,
                None => Reason::Other,
            },
            Self::Cancelled | Self::Map { .. } | Self::File { .. } => Reason::Other,
        }
    }
}

fn hint(page_bytes: Option<u64>) -> String {
    page_bytes.map_or_else(String::new, |bytes| {
        format!(
            "; to mend it: free or reserve huge pages (/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages, \
             or --reserve), or use page auto",
            bytes / 1024
        )
    })
}

fn register_hint(error: &RegisterError) -> String {
    match error.shortage() {
        Some(Shortage::Pages) => format!("; to mend it: {PAGES_REMEDY}"),
        Some(Shortage::PinnedMemory) => format!("; to mend it: {PIN_REMEDY}, or free memory"),
        None if error.reason() == "too_many_files" => {
            "; to mend it: raise RLIMIT_NOFILE (ulimit -n): a ring is needed for each 256 MiB"
                .to_owned()
        }
        None => String::new(),
    }
}

const PAGES_REMEDY: &str =
    "free memory or huge pages, or raise the cgroup's limit (memory, hugetlb), or declare less";

/// A mounted segment. Regions go before the mapping, the mapping before the file's last mention.
#[derive(Debug)]
pub struct MountedSegment {
    /// Its name.
    pub name: String,
    /// Its registered regions.
    pub regions: Vec<MemoryRegion>,
    /// Its memory.
    pub mapping: Arc<Mapping>,
    /// Its file, where it is one.
    pub file: Option<SegmentFile>,
}

/// What was mounted; dropping it undoes it as well, without saying how it went.
#[derive(Debug)]
pub struct Mounted {
    /// The segments, in the order declared.
    pub segments: Vec<MountedSegment>,
    cap: LiveCap,
}

/// Mounts everything in the plan, telling the board.
///
/// # Errors
/// [`MountError`]; what was done is undone, and files that were not complete are gone.
pub fn mount(
    mut plan: MountPlan,
    store: Option<&store::Store>,
    board: &Board,
    cancel: &AtomicBool,
) -> Result<Mounted, MountError> {
    let started = Instant::now();
    announce(&plan, board);
    let mut mounted = Mounted {
        segments: Vec::new(),
        cap: plan.cap.clone(),
    };
    for index in 0..plan.segments.len() {
        let done = with_pages(index, &mut plan.segments, store, board, cancel)?;
        mounted.segments.push(done);
    }
    registering::register_all(&plan, &mut mounted.segments, board, cancel)?;
    for (index, (segment, planned)) in mounted.segments.iter_mut().zip(&plan.segments).enumerate() {
        if let (Some(file), Some(store)) = (&mut segment.file, store) {
            file.complete().map_err(|source| MountError::File {
                segment: planned.name.clone(),
                source,
            })?;
            store.completed(file);
        }
        observe_nodes(index, segment, board);
        // What was not touched beforehand was touched by registering it.
        board.all_touched(index);
        board.segment(index, |status| status.state = SegmentState::Ready);
    }
    board.update(|status| {
        status.total_seconds = Some(started.elapsed().as_secs_f64());
        status.pinned_bytes = limits::usage(&Root::host()).pinned_bytes;
        if let Some(registration) = &mut status.registration {
            registration.rings = plan.backend.in_use.rings();
        }
        if status.state == State::Mounting {
            status.state = State::Ready;
        }
    });
    Ok(mounted)
}

fn announce(plan: &MountPlan, board: &Board) {
    board.update(|status| {
        let (concurrency, cap_reason) = plan.cap.now();
        status.registration = Some(RegistrationStatus {
            backend: plan.backend.in_use.name().to_owned(),
            reason: plan.backend.reason.clone(),
            cap: match concurrency {
                Concurrency::AtMost(cap) => Some(cap.get()),
                Concurrency::Unbounded => None,
            },
            cap_reason,
            rings: plan.backend.in_use.rings(),
        });
    });
    for (index, segment) in plan.segments.iter().enumerate() {
        announce_pages(index, segment, board);
    }
}

fn announce_pages(index: usize, segment: &SegmentPlan, board: &Board) {
    board.segment(index, |status| {
        status.page = Some(pages_name(segment.pages));
        status.page_reason = Some(segment.page_reason.clone());
        status.touch_reason = Some(segment.strategy.reason.to_owned());
    });
    tracing::info!(
        segment = segment.name,
        bytes = segment.size_bytes,
        pages = pages_name(segment.pages),
        "mounting on pages of this size: {}",
        segment.page_reason
    );
}

/// Maps and touches a segment, on smaller pages where the kernel refuses those that were chosen and
/// the segment takes any.
fn with_pages(
    index: usize,
    segments: &mut [SegmentPlan],
    store: Option<&store::Store>,
    board: &Board,
    cancel: &AtomicBool,
) -> Result<MountedSegment, MountError> {
    let mut refused = Vec::new();
    loop {
        let plan = &segments[index];
        let mounted = map(index, plan, store, board).and_then(|segment| {
            touch_segment(index, plan, &segment, board, cancel)?;
            Ok(segment)
        });
        // What failed is unmapped by now, and its file gone.
        let error = match mounted {
            Ok(segment) => return Ok(segment),
            Err(error) => error,
        };
        let Some(refusal) = fallback::refusal(plan, &error) else {
            return Err(error);
        };
        refused.push(refusal);
        let machine = Machine::observe(&Root::host());
        if !fallback::to_smaller(index, segments, &refused, &machine) {
            return Err(error);
        }
        board.none_touched(index);
        tracing::warn!(
            segment = segments[index].name,
            "taking smaller pages: {error}"
        );
        announce_pages(index, &segments[index], board);
    }
}

fn map(
    index: usize,
    plan: &SegmentPlan,
    store: Option<&store::Store>,
    board: &Board,
) -> Result<MountedSegment, MountError> {
    board.segment(index, |status| status.state = SegmentState::Map);
    let started = Instant::now();
    let (source, file) = open(plan, store)?;
    let kept = matches!(plan.backing, Backing::Kept(_));
    let request = MapRequest {
        len_bytes: plan.size_bytes,
        pages: plan.pages,
        placement: plan.placement.clone(),
        source,
    };
    let mapping = Mapping::new(request).map_err(|source| MountError::Map {
        segment: plan.name.clone(),
        page_bytes: match source {
            MapError::NotEnoughPages { page_bytes, .. } => Some(page_bytes),
            _ => None,
        },
        source,
    })?;
    let seconds = started.elapsed().as_secs_f64();
    board.segment(index, |status| {
        status.seconds.insert(Phase::Map, seconds);
        status.content = Some(if kept { Content::Kept } else { Content::Fresh });
        if let Some(file) = &file {
            status.generation = Some(file.generation());
            status.identity = Some(file.identity().to_owned());
            status.file = Some(file.path().display().to_string());
        }
    });
    if kept {
        board.all_touched(index);
    }
    Ok(MountedSegment {
        name: plan.name.clone(),
        regions: Vec::new(),
        mapping: Arc::new(mapping),
        file,
    })
}

fn open(
    plan: &SegmentPlan,
    store: Option<&store::Store>,
) -> Result<(Source, Option<SegmentFile>), MountError> {
    let failed = |source| MountError::File {
        segment: plan.name.clone(),
        source,
    };
    let made = match (&plan.backing, store) {
        (Backing::Process, _) | (Backing::NewFile { .. } | Backing::Kept(_), None) => {
            return Ok((Source::Process, None));
        }
        (
            Backing::NewFile {
                directory,
                replaced,
            },
            Some(store),
        ) => {
            let (name, size_bytes) = (&plan.name, plan.size_bytes);
            store
                .create(name, size_bytes, plan.pages, directory, replaced.as_ref())
                .map_err(failed)?
        }
        (Backing::Kept(kept), Some(store)) => store.reopen(kept).map_err(failed)?,
    };
    let (file, segment): (File, SegmentFile) = made;
    Ok((Source::File(file), Some(segment)))
}

fn touch_segment(
    index: usize,
    plan: &SegmentPlan,
    segment: &MountedSegment,
    board: &Board,
    cancel: &AtomicBool,
) -> Result<(), MountError> {
    if cancel.load(Ordering::Relaxed) {
        return Err(MountError::Cancelled);
    }
    let Touching::Parallel { threads } = plan.strategy.touching else {
        return Ok(());
    };
    board.segment(index, |status| status.state = SegmentState::Touch);
    let started = Instant::now();
    let how = TouchPlan {
        threads,
        cpus: plan.cpus.clone(),
        chunk_bytes: chunk_bytes(plan.size_bytes, threads),
        method: None,
    };
    touch(&segment.mapping, &how, cancel, &|bytes| {
        board.touched(index, bytes)
    })
    .map_err(|source| match source {
        TouchError::Cancelled => MountError::Cancelled,
        source => MountError::Touch {
            segment: plan.name.clone(),
            huge: matches!(plan.pages, Pages::Huge(_)),
            source,
        },
    })?;
    let seconds = started.elapsed().as_secs_f64();
    board.segment(index, |status| {
        status.seconds.insert(Phase::Touch, seconds);
    });
    Ok(())
}

/// Known from the binding where pages are bound, else from a sample.
fn observe_nodes(index: usize, segment: &MountedSegment, board: &Board) {
    let Ok(sample) = segment.mapping.sample_nodes(NODE_SAMPLES) else {
        return;
    };
    let total: usize = sample.values().sum();
    if total == 0 {
        return;
    }
    let shares = sample
        .into_iter()
        .map(|(node, n)| (node, n as f64 / total as f64))
        .collect();
    board.segment(index, |status| status.node_shares = Some(shares));
}

impl Mounted {
    /// Unregisters and unmaps, in reverse. Files stay where they are complete.
    ///
    /// # Errors
    /// The first failure to unregister in item order; everything is attempted all the same.
    pub fn unmount(mut self) -> io::Result<()> {
        let regions: Vec<_> = self
            .segments
            .iter_mut()
            .rev()
            .flat_map(|segment| segment.regions.drain(..).rev())
            .map(|region| Mutex::new(Some(region)))
            .collect();
        let answers = pool::run(regions.len(), self.cap.concurrency(), &|at| {
            let region = regions[at].lock().ok().and_then(|mut place| place.take());
            region.map_or(Ok(()), MemoryRegion::unregister)
        });
        while let Some(segment) = self.segments.pop() {
            drop(segment);
        }
        answers.into_iter().find(Result::is_err).unwrap_or(Ok(()))
    }
}

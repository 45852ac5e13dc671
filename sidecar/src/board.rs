//! What has been observed so far, in one place: the pipeline writes it, HTTP, metrics and the
//! terminal read it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use siding_crds::reasons::Reason;
use utoipa::ToSchema;

use crate::metrics::Metrics;
use crate::node_plan::PlanStatus;

/// Where the whole of it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Segments are being mounted.
    Mounting,
    /// All segments are mounted, and registered as far as the back end goes.
    Ready,
    /// Mounting failed; `failure` says why.
    Failed,
    /// Unregistering and unmapping.
    Stopping,
}

/// Where a segment stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum SegmentState {
    /// Not begun.
    Waiting,
    /// Address space is being mapped and huge pages set aside.
    Map,
    /// Pages are being made present.
    Touch,
    /// Memory regions are being registered.
    Register,
    /// Mounted, and registered as far as the back end goes.
    Ready,
    /// Given up.
    Failed,
}

/// A part of a mount that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Address space, and huge pages set aside.
    Map,
    /// Pages made present.
    Touch,
    /// Memory regions registered.
    Register,
    /// Told to the world (later releases).
    Publish,
}

impl Phase {
    /// Its name as a metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Touch => "touch",
            Self::Register => "register",
            Self::Publish => "publish",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a segment's content is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Content {
    /// Zeroes.
    Fresh,
    /// Found as an earlier process left it.
    Kept,
}

impl Content {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Kept => "kept",
        }
    }
}

/// One segment, as observed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SegmentStatus {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The pages it got: `4Ki`, `2Mi`, `1Gi`, `transparent`; unknown until chosen.
    pub page: Option<String>,
    /// Why these pages.
    pub page_reason: Option<String>,
    /// Where it stands.
    pub state: SegmentState,
    /// Fresh or kept; unknown until mapped.
    pub content: Option<Content>,
    /// Seconds per finished phase; a phase that was not needed is absent.
    pub seconds: BTreeMap<Phase, f64>,
    /// Why pages were or were not touched before registration.
    pub touch_reason: Option<String>,
    /// Bytes made present so far.
    pub touched_bytes: u64,
    /// Bytes registered so far.
    pub registered_bytes: u64,
    /// Memory regions registered so far.
    pub regions: usize,
    /// What was left out of registration and why.
    pub left_out: Option<String>,
    /// Share of its pages per NUMA node, by a sample; unknown where the kernel does not tell.
    #[schema(value_type = Option<BTreeMap<String, f64>>)]
    pub node_shares: Option<BTreeMap<u32, f64>>,
    /// How often its file was made anew; only for segments that outlive the process.
    pub generation: Option<u64>,
    /// Its identity, the same for as long as its content is kept.
    pub identity: Option<String>,
    /// The file behind it; only for segments that outlive the process.
    pub file: Option<String>,
}

impl SegmentStatus {
    /// A segment that is not begun.
    #[must_use]
    pub fn waiting(name: &str, size_bytes: u64) -> Self {
        Self {
            name: name.to_owned(),
            size_bytes,
            page: None,
            page_reason: None,
            state: SegmentState::Waiting,
            content: None,
            seconds: BTreeMap::new(),
            touch_reason: None,
            touched_bytes: 0,
            registered_bytes: 0,
            regions: 0,
            left_out: None,
            node_shares: None,
            generation: None,
            identity: None,
            file: None,
        }
    }
}

/// Why mounting failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureStatus {
    /// One word, as conditions have it: `HugePagesShort`, `MemoryLimit`, `MemlockLimit` …
    #[schema(value_type = String)]
    pub reason: Reason,
    /// What is wrong and what mends it.
    pub message: String,
}

/// How memory is registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistrationStatus {
    /// The back end in use: `io_uring` or `none`.
    pub backend: String,
    /// Why this one.
    pub reason: String,
    /// Most registrations in flight; null where unbounded.
    pub cap: Option<usize>,
    /// Where the cap comes from.
    pub cap_reason: String,
    /// Rings open, for `io_uring`.
    pub rings: Option<usize>,
}

/// The whole, as observed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Siding's version.
    pub version: String,
    /// Where it stands.
    pub state: State,
    /// Why mounting failed, where it did.
    pub failure: Option<FailureStatus>,
    /// The node's plan; null where no plan is looked for (`siding mount`).
    pub plan: Option<PlanStatus>,
    /// How memory is registered; unknown until chosen.
    pub registration: Option<RegistrationStatus>,
    /// Bytes that the kernel says this process has pinned (VmPin); unknown where it does not say.
    pub pinned_bytes: Option<u64>,
    /// Seconds from the start of mounting to ready.
    pub total_seconds: Option<f64>,
    /// The segments, in the order declared.
    pub segments: Vec<SegmentStatus>,
}

/// The shared place. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Board {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    status: Mutex<Status>,
    touched: Vec<AtomicU64>,
    metrics: Metrics,
}

impl Board {
    /// A board for these segments (name, size in bytes), none of them begun.
    #[must_use]
    pub fn new<'a>(segments: impl IntoIterator<Item = (&'a str, u64)>, metrics: Metrics) -> Self {
        let segments: Vec<_> = segments
            .into_iter()
            .map(|(name, size_bytes)| SegmentStatus::waiting(name, size_bytes))
            .collect();
        let touched = segments.iter().map(|_| AtomicU64::new(0)).collect();
        let status = Mutex::new(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: State::Mounting,
            failure: None,
            plan: None,
            registration: None,
            pinned_bytes: None,
            total_seconds: None,
            segments,
        });
        Self {
            inner: Arc::new(Inner {
                status,
                touched,
                metrics,
            }),
        }
    }

    /// Everything as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Status {
        let mut status = self.lock().clone();
        for (segment, touched) in status.segments.iter_mut().zip(&self.inner.touched) {
            segment.touched_bytes = touched.load(Ordering::Relaxed);
        }
        status
    }

    /// Changes the whole.
    pub fn update(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.lock());
    }

    /// Changes the segment at this index.
    pub fn segment(&self, index: usize, change: impl FnOnce(&mut SegmentStatus)) {
        if let Some(segment) = self.lock().segments.get_mut(index) {
            change(segment);
        }
    }

    /// Counts bytes of a segment that became present. Cheap: called from every toucher.
    pub fn touched(&self, index: usize, bytes: u64) {
        if let Some(touched) = self.inner.touched.get(index) {
            touched.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Forgets the bytes of a segment that were present: its pages are asked for anew.
    pub fn none_touched(&self, index: usize) {
        if let Some(touched) = self.inner.touched.get(index) {
            touched.store(0, Ordering::Relaxed);
        }
    }

    /// Counts all of a segment's bytes as present.
    pub fn all_touched(&self, index: usize) {
        let size = self
            .lock()
            .segments
            .get(index)
            .map(|segment| segment.size_bytes);
        if let (Some(touched), Some(size)) = (self.inner.touched.get(index), size) {
            touched.store(size, Ordering::Relaxed);
        }
    }

    /// The metrics beside it.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        self.inner
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

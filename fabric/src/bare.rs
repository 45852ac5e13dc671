//! The kernel's own limit, for benchmarks: pinned threads, each with its share of one mapping, that
//! populate and register it, and nothing else.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::mm::Advice;

use crate::base_page_bytes;
use crate::mapping::{MapError, MapRequest, Mapping, Pages, Placement, Source};
use crate::region::Domain;
use crate::sys;
use crate::touch::pin;
use crate::uring::{MAX_REGION_BYTES, UringDomain};

/// Seconds that each step took.
#[derive(Debug, Clone, Copy)]
pub struct BareSeconds {
    /// `mmap`.
    pub map: f64,
    /// `MADV_POPULATE_WRITE`, one call per thread.
    pub touch: f64,
    /// Registration as fixed buffers, one ring per thread.
    pub register: f64,
}

impl BareSeconds {
    /// The sum, seconds.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.map + self.touch + self.register
    }
}

/// How the bare threads populate their shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Populating {
    /// By one call for the whole share.
    Share,
    /// By one call for each page, at its last base page.
    PageByPage,
}

/// Maps, populates and registers `len_bytes` with a thread on each of `cpus`, then undoes it.
///
/// # Errors
/// The kernel's.
pub fn mount(
    len_bytes: u64,
    pages: Pages,
    populating: Populating,
    cpus: &[u32],
) -> io::Result<BareSeconds> {
    let started = Instant::now();
    let request = MapRequest {
        len_bytes,
        pages,
        placement: Placement::Any,
        source: Source::Process,
    };
    let mapping = Arc::new(Mapping::new(request).map_err(io_error)?);
    let map = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let page = pages.page_bytes();
    let share = (len_bytes / page).div_ceil(cpus.len().max(1) as u64) * page;
    let (step, part) = match populating {
        Populating::Share => (share, share),
        Populating::PageByPage => (page, base_page_bytes()),
    };
    each_share(len_bytes, share, cpus, |start, end| {
        let mut at = start;
        while at < end {
            let stop = end.min(at + step);
            let range = stop.saturating_sub(part).max(at)..stop;
            let span = mapping.span(&range).ok_or(io::ErrorKind::InvalidInput)?;
            // SAFETY: the span is inside the live mapping; populating changes no byte.
            unsafe { sys::advise(span.0, span.1, Advice::LinuxPopulateWrite) }?;
            at = stop;
        }
        Ok(())
    })?;
    let touch = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let domain = UringDomain::open().map_err(io::Error::other)?;
    let kept = Mutex::new(Vec::new());
    each_share(len_bytes, share, cpus, |start, end| {
        let mut at = start;
        while at < end {
            let stop = end.min(at + MAX_REGION_BYTES);
            let region = domain
                .register(&mapping, at..stop)
                .map_err(|error| error.source)?;
            kept.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(region);
            at = stop;
        }
        Ok(())
    })?;
    let register = started.elapsed().as_secs_f64();
    Ok(BareSeconds {
        map,
        touch,
        register,
    })
}

fn each_share(
    len: u64,
    share: u64,
    cpus: &[u32],
    work: impl Fn(u64, u64) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let failure = Mutex::new(None);
    thread::scope(|scope| {
        for (start, cpu) in (0..len).step_by(share as usize).zip(cpus) {
            let (work, failure) = (&work, &failure);
            scope.spawn(move || {
                pin(Some(&[*cpu]));
                if let Err(error) = work(start, len.min(start + share)) {
                    failure
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(error);
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn io_error(error: MapError) -> io::Error {
    match error {
        MapError::Os { source, .. } => source,
        other => io::Error::other(other),
    }
}

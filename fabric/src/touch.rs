//! Touching: every page of a mapping made present, in parallel, with errors instead of SIGBUS.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::Advice;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::base_page_bytes;
use crate::mapping::{Mapping, Pages};
use crate::sys;

/// How pages are made present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TouchMethod {
    /// `MADV_POPULATE_WRITE`: page tables too; errors come back as such (Linux 5.14 and later).
    Populate,
    /// `fallocate` on the file: pages are allocated, errors come back as such.
    Allocate,
    /// One write that changes nothing to each page: private memory on old kernels.
    Write,
}

/// How to touch.
#[derive(Debug, Clone)]
pub struct TouchPlan {
    /// Threads, at least 1.
    pub threads: usize,
    /// CPUs that they are pinned to, where that is wanted.
    pub cpus: Option<Vec<u32>>,
    /// Bytes that one call populates; rounded up to whole pages. A long call keeps every other
    /// `mmap` of the process waiting.
    pub chunk_bytes: u64,
    /// The method; `None` takes the best that the kernel has.
    pub method: Option<TouchMethod>,
}

/// What a completed touch was like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched {
    /// The method used.
    pub method: TouchMethod,
    /// Threads that worked.
    pub threads: usize,
}

/// Why touching ended early.
#[derive(Debug, thiserror::Error)]
pub enum TouchError {
    /// Asked to stop; some pages may be present.
    #[error("touching was cancelled")]
    Cancelled,
    /// The page at this offset could not be had: the pool, the node or a limit is exhausted.
    #[error("no page could be had for the bytes at offset {offset_bytes}: {source}")]
    OutOfPages {
        /// Offset of the chunk that failed, bytes.
        offset_bytes: u64,
        /// The kernel's answer (`EFAULT` where an access would have got SIGBUS).
        source: io::Error,
    },
    /// Another failure.
    #[error("touching the bytes at offset {offset_bytes} failed: {source}")]
    Os {
        /// Offset of the chunk that failed, bytes.
        offset_bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Touches the whole mapping; `progress` is told of bytes as they become present.
///
/// # Errors
/// The first failure; the other threads stop after the chunk at hand.
pub fn touch(
    mapping: &Mapping,
    plan: &TouchPlan,
    cancel: &AtomicBool,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Touched, TouchError> {
    let method = plan.method.unwrap_or_else(|| best_method(mapping));
    let page = mapping.pages().page_bytes();
    let chunk = plan.chunk_bytes.max(page).div_ceil(page) * page;
    let chunks = mapping.len_bytes().div_ceil(chunk);
    let threads = plan
        .threads
        .clamp(1, usize::try_from(chunks).unwrap_or(usize::MAX).max(1));
    let work = Work {
        mapping,
        method,
        chunk,
        next: AtomicU64::new(0),
        cancel,
        failure: Mutex::new(None),
        failed: AtomicBool::new(false),
        progress,
    };
    let started = if threads == 1 && plan.cpus.is_none() {
        0
    } else {
        work.run_on(threads, plan.cpus.as_deref())
    };
    if started == 0 {
        // A machine that refuses further threads still gets it done.
        work.run();
    }
    match work
        .failure
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
    {
        Some(error) => Err(error),
        None => Ok(Touched {
            method,
            threads: started.max(1),
        }),
    }
}

/// The best method that kernel and mapping allow.
fn best_method(mapping: &Mapping) -> TouchMethod {
    if sys::has_populate() {
        TouchMethod::Populate
    } else if mapping.file().is_some() {
        TouchMethod::Allocate
    } else {
        TouchMethod::Write
    }
}

/// Pins the calling thread. A CPU that went away is no reason to fail: it then runs anywhere.
pub(crate) fn pin(cpus: Option<&[u32]>) {
    let Some(cpus) = cpus else { return };
    let mut set = CpuSet::new();
    for cpu in cpus {
        let cpu = *cpu as usize;
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
    }
    let _ = sched_setaffinity(None, &set);
}

struct Work<'a> {
    mapping: &'a Mapping,
    method: TouchMethod,
    chunk: u64,
    next: AtomicU64,
    cancel: &'a AtomicBool,
    failure: Mutex<Option<TouchError>>,
    failed: AtomicBool,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl Work<'_> {
    /// Runs on threads of their own, pinned where that is asked for; gives how many there were.
    fn run_on(&self, threads: usize, cpus: Option<&[u32]>) -> usize {
        thread::scope(|scope| {
            let start = |_: &usize| {
                let named = thread::Builder::new().name("siding-touch".to_owned());
                let thread = named.spawn_scoped(scope, || {
                    pin(cpus);
                    self.run();
                });
                thread.is_ok()
            };
            (0..threads).take_while(start).count()
        })
    }

    /// Takes chunks until none is left, one fails, or it is cancelled.
    fn run(&self) {
        let len = self.mapping.len_bytes();
        while !self.failed.load(Ordering::Relaxed) {
            let start = self
                .next
                .fetch_add(1, Ordering::Relaxed)
                .saturating_mul(self.chunk);
            if start >= len {
                return;
            }
            if self.cancel.load(Ordering::Relaxed) {
                return self.fail(TouchError::Cancelled);
            }
            let range = start..len.min(start + self.chunk);
            let bytes = range.end - range.start;
            match self.touch(&range) {
                Ok(()) => (self.progress)(bytes),
                Err(source) => return self.fail(typed(start, source)),
            }
        }
    }

    fn touch(&self, range: &Range<u64>) -> io::Result<()> {
        let Some((at, len)) = self.mapping.span(range) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        match (self.method, self.mapping.file()) {
            (TouchMethod::Populate, _) => self.populate(at, len),
            (TouchMethod::Allocate, Some(file)) => retry(|| {
                Ok(fallocate(
                    file,
                    FallocateFlags::empty(),
                    range.start,
                    len as u64,
                )?)
            }),
            (TouchMethod::Allocate, None) => Err(io::Error::other("allocating needs a file")),
            (TouchMethod::Write, Some(_)) if matches!(self.mapping.pages(), Pages::Huge(_)) => Err(
                io::Error::other("writing to a huge page that is not there yet can raise SIGBUS"),
            ),
            (TouchMethod::Write, _) => {
                let page = self.mapping.pages().page_bytes();
                for offset in (range.start..range.end).step_by(page as usize) {
                    if let Some(byte) = self.mapping.at(offset, 1) {
                        // SAFETY: the byte is inside the live mapping and aligned for u8.
                        let byte = unsafe { AtomicU8::from_ptr(byte.as_ptr()) };
                        byte.fetch_or(0, Ordering::Relaxed);
                    }
                }
                Ok(())
            }
        }
    }

    /// Populates page by page where pages are huge, by the last base page of each: the kernel
    /// clears a huge page towards the address that was asked for, and upwards is much the fastest
    /// way through memory (2.3 times, on 2 MiB pages, measured where this was written).
    fn populate(&self, at: NonNull<u8>, len: usize) -> io::Result<()> {
        let populate = |offset: usize, len: usize| {
            retry(|| {
                // SAFETY: offset + len lies in the span, which is inside the live mapping;
                // populating changes no byte.
                unsafe { sys::advise(at.add(offset), len, Advice::LinuxPopulateWrite) }
            })
        };
        let base = base_page_bytes() as usize;
        if let Some(page) = self.mapping.pages().huge_page_bytes() {
            for last in (page as usize..=len).step_by(page as usize) {
                populate(last - base, base)?;
            }
        }
        match self.mapping.pages() {
            Pages::Huge(_) => Ok(()),
            // What the kernel did not join, and all base pages.
            Pages::Base | Pages::Transparent => populate(0, len),
        }
    }

    /// Keeps the first failure.
    fn fail(&self, error: TouchError) {
        self.failed.store(true, Ordering::Relaxed);
        let mut failure = self
            .failure
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        failure.get_or_insert(error);
    }
}

fn retry(mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn typed(offset_bytes: u64, source: io::Error) -> TouchError {
    match source.raw_os_error() {
        Some(libc::EFAULT | libc::ENOMEM | libc::ENOSPC) => TouchError::OutOfPages {
            offset_bytes,
            source,
        },
        _ => TouchError::Os {
            offset_bytes,
            source,
        },
    }
}

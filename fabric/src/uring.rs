//! Registration without a NIC: pages are pinned as `io_uring` fixed buffers.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::IoUring;

use crate::base_page_bytes;
use crate::mapping::Mapping;
use crate::region::{Domain, MemoryRegion, RegisterError, Registration};

/// Largest region that is asked for, bytes. The kernel takes four times as much in one buffer;
/// quarters register a fifth faster.
pub const MAX_REGION_BYTES: u64 = 256 << 20;
/// Pins of a process that died are given back a moment after it is gone.
const PATIENCE: Duration = Duration::from_millis(150);
const PAUSE: Duration = Duration::from_millis(5);

/// Why `io_uring` can't be used here.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The kernel has no `io_uring`.
    #[error("this kernel has no io_uring")]
    NoKernelSupport,
    /// A seccomp profile or the sysctl `kernel.io_uring_disabled` forbids it.
    #[error(
        "io_uring is forbidden here (by the container runtime's seccomp profile or by the sysctl \
         kernel.io_uring_disabled)"
    )]
    Forbidden,
    /// Not even a ring may be had: it counts towards `RLIMIT_MEMLOCK` as well.
    #[error("RLIMIT_MEMLOCK leaves this user not even the pages of an io_uring ring")]
    NoMemlock,
    /// Another failure.
    #[error("io_uring could not be set up: {0}")]
    Os(io::Error),
}

/// A domain that pins by `io_uring`, with a ring of its own for each region.
///
/// A ring that threads share makes them wait for each other; and to account for a huge page the
/// kernel looks through everything that its ring has registered, so that the cost of a ring grows
/// with the square of what it holds (4 GiB of 2 MiB pages: 13 ms in one ring, 5 ms in sixteen). A ring
/// costs 0.05 ms and one file descriptor. This needs no more of the kernel than 5.1 has.
#[derive(Debug, Clone)]
pub struct UringDomain {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    rings: AtomicUsize,
    patience_ends: Mutex<Option<Instant>>,
}

impl UringDomain {
    /// Opens the domain, after a try whether a ring can be had.
    ///
    /// # Errors
    /// [`Unusable`], which says why.
    pub fn open() -> Result<Self, Unusable> {
        let attempt = Shared::default().patiently(|| IoUring::new(1));
        attempt.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSYS) => Unusable::NoKernelSupport,
            Some(libc::EPERM | libc::EACCES) => Unusable::Forbidden,
            Some(libc::ENOMEM) => Unusable::NoMemlock,
            _ => Unusable::Os(error),
        })?;
        Ok(Self {
            shared: Arc::default(),
        })
    }

    /// What a ring takes of memory beside its buffer, bytes: its queues with their heads (below 512
    /// bytes), and its one submission entry (64 bytes), each in whole pages. Some kernels count that
    /// towards `RLIMIT_MEMLOCK` (6.18 does), others towards the memory cgroup only.
    #[must_use]
    pub fn ring_bytes() -> u64 {
        2 * base_page_bytes()
    }

    /// Rings in use now: one for each registered region.
    #[must_use]
    pub fn rings(&self) -> usize {
        self.shared.rings.load(Ordering::Relaxed)
    }
}

impl Domain for UringDomain {
    fn nic(&self) -> &str {
        "none"
    }

    fn max_region_bytes(&self) -> u64 {
        MAX_REGION_BYTES
    }

    fn register(
        &self,
        mapping: &Arc<Mapping>,
        range: Range<u64>,
    ) -> Result<MemoryRegion, RegisterError> {
        let uring = self
            .shared
            .register(mapping, &range)
            .map_err(|source| RegisterError {
                offset_bytes: range.start,
                len_bytes: range.end.saturating_sub(range.start),
                source,
            })?;
        self.shared.rings.fetch_add(1, Ordering::Relaxed);
        let fixed = FixedBuffer {
            uring: Some(uring),
            shared: Arc::clone(&self.shared),
        };
        Ok(MemoryRegion::new(
            Box::new(fixed),
            Arc::clone(mapping),
            range,
        ))
    }
}

impl Shared {
    fn register(&self, mapping: &Mapping, range: &Range<u64>) -> io::Result<IoUring> {
        let (at, len) = mapping.span(range).ok_or(io::ErrorKind::InvalidInput)?;
        let buffer = libc::iovec {
            iov_base: at.as_ptr().cast(),
            iov_len: len,
        };
        // One ring for all tries: that of a failed try would count for some time yet.
        let uring = self.patiently(|| IoUring::new(1))?;
        // SAFETY: the buffer is a part of a mapping that the region made of it keeps alive until the
        // ring has let go of it; no request on the ring ever uses it.
        self.patiently(|| unsafe { uring.submitter().register_buffers(&[buffer]) })?;
        Ok(uring)
    }

    /// Tries again for a moment where the pins of others are yet to be given back.
    fn patiently<T>(&self, attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt() {
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && self.is_patient() => {
                    thread::sleep(PAUSE);
                }
                other => return other,
            }
        }
    }

    /// Whether a shortage may still be a dead process's. The window opens at the first one.
    fn is_patient(&self) -> bool {
        let now = Instant::now();
        let mut ends = self
            .patience_ends
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        now < *ends.get_or_insert(now + PATIENCE)
    }
}

struct FixedBuffer {
    uring: Option<IoUring>,
    shared: Arc<Shared>,
}

impl fmt::Debug for FixedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedBuffer")
            .field("held", &self.uring.is_some())
            .finish_non_exhaustive()
    }
}

impl Registration for FixedBuffer {
    fn release(&mut self) -> io::Result<()> {
        let Some(uring) = self.uring.take() else {
            return Ok(());
        };
        // By hand, since a closed ring lets go of its buffers only some time later.
        let released = uring.submitter().unregister_buffers();
        self.shared.rings.fetch_sub(1, Ordering::Relaxed);
        released
    }
}

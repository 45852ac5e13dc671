//! Registration without a NIC: pages are pinned as `io_uring` fixed buffers.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::IoUring;

use crate::mapping::Mapping;
use crate::region::{Domain, MemoryRegion, RegisterError, Registration};

/// The kernel's limit for one fixed buffer, bytes.
pub const MAX_REGION_BYTES: u64 = 1 << 30;
/// The kernel's limit for the buffers of one ring.
const MAX_BUFFERS: u32 = 16384;
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
        "io_uring is forbidden here (by the container runtime's seccomp profile or by the sysctl kernel.io_uring_disabled)"
    )]
    Forbidden,
    /// Another failure.
    #[error("io_uring could not be set up: {0}")]
    Os(io::Error),
}

/// A domain that pins by `io_uring`. Each thread that registers has a ring of its own, since one
/// that is shared makes them wait for each other.
#[derive(Debug)]
pub struct UringDomain {
    rings: Arc<Rings>,
}

#[derive(Debug)]
struct Rings {
    all: RwLock<Vec<Arc<Mutex<Ring>>>>,
    patience_ends: Mutex<Option<Instant>>,
}

impl UringDomain {
    /// Opens the domain, with its first ring.
    ///
    /// # Errors
    /// [`Unusable`], which says why.
    pub fn open() -> Result<Self, Unusable> {
        let ring = Ring::open().map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSYS) => Unusable::NoKernelSupport,
            Some(libc::EPERM | libc::EACCES) => Unusable::Forbidden,
            _ => Unusable::Os(error),
        })?;
        let all = RwLock::new(vec![Arc::new(Mutex::new(ring))]);
        Ok(Self {
            rings: Arc::new(Rings {
                all,
                patience_ends: Mutex::new(None),
            }),
        })
    }

    /// Rings opened so far.
    #[must_use]
    pub fn rings(&self) -> usize {
        self.rings
            .all
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
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
        let failed = |source| RegisterError {
            offset_bytes: range.start,
            len_bytes: range.end.saturating_sub(range.start),
            source,
        };
        let (ring, slot) = self.rings.register(mapping, &range).map_err(failed)?;
        let fixed = FixedBuffer { ring, slot };
        Ok(MemoryRegion::new(
            Box::new(fixed),
            Arc::clone(mapping),
            range,
        ))
    }
}

impl Rings {
    fn register(
        &self,
        mapping: &Mapping,
        range: &Range<u64>,
    ) -> io::Result<(Arc<Mutex<Ring>>, u32)> {
        let ring = self.idle_ring()?;
        loop {
            let answer = lock(&ring).register(mapping, range);
            match answer {
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && self.is_patient() => {
                    thread::sleep(PAUSE);
                }
                Ok(slot) => return Ok((ring, slot)),
                Err(error) => {
                    lock(&ring).busy = false;
                    return Err(error);
                }
            }
        }
    }

    /// A ring that no other thread registers on, with a free slot; marked busy.
    fn idle_ring(&self) -> io::Result<Arc<Mutex<Ring>>> {
        let found = self
            .all
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .find_map(|ring| {
                let mut held = ring.try_lock().ok()?;
                if held.busy || held.free.is_empty() {
                    return None;
                }
                held.busy = true;
                drop(held);
                Some(Arc::clone(ring))
            });
        if let Some(ring) = found {
            return Ok(ring);
        }
        let mut ring = Ring::open()?;
        ring.busy = true;
        let ring = Arc::new(Mutex::new(ring));
        self.all
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(&ring));
        Ok(ring)
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

struct Ring {
    uring: IoUring,
    /// Kernels before 5.19 have no sparse table: one buffer per ring there.
    sparse: bool,
    free: Vec<u32>,
    /// A thread is registering on it.
    busy: bool,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("sparse", &self.sparse)
            .field("busy", &self.busy)
            .finish_non_exhaustive()
    }
}

impl Ring {
    fn open() -> io::Result<Self> {
        let uring = IoUring::new(1)?;
        let sparse = uring
            .submitter()
            .register_buffers_sparse(MAX_BUFFERS)
            .is_ok();
        let free = if sparse {
            (0..MAX_BUFFERS).rev().collect()
        } else {
            vec![0]
        };
        Ok(Self {
            uring,
            sparse,
            free,
            busy: false,
        })
    }

    /// Registers; on success the ring is no longer busy.
    fn register(&mut self, mapping: &Mapping, range: &Range<u64>) -> io::Result<u32> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let (at, len) = mapping.span(range).ok_or_else(invalid)?;
        let slot = self.free.last().copied().ok_or_else(invalid)?;
        let buffer = libc::iovec {
            iov_base: at.as_ptr().cast(),
            iov_len: len,
        };
        self.set(slot, buffer)?;
        self.free.pop();
        self.busy = false;
        Ok(slot)
    }

    fn release(&mut self, slot: u32) -> io::Result<()> {
        if self.sparse {
            self.set(
                slot,
                libc::iovec {
                    iov_base: std::ptr::null_mut(),
                    iov_len: 0,
                },
            )?;
        } else {
            self.uring.submitter().unregister_buffers()?;
        }
        self.free.push(slot);
        Ok(())
    }

    fn set(&self, slot: u32, buffer: libc::iovec) -> io::Result<()> {
        let submitter = self.uring.submitter();
        if self.sparse {
            // SAFETY: the buffer is empty or a part of a mapping that the region made of it keeps
            // alive until the slot is cleared; no request on this ring ever uses it.
            unsafe { submitter.register_buffers_update(slot, &[buffer], None) }
        } else {
            // SAFETY: as above.
            unsafe { submitter.register_buffers(&[buffer]) }
        }
    }
}

#[derive(Debug)]
struct FixedBuffer {
    ring: Arc<Mutex<Ring>>,
    slot: u32,
}

impl Registration for FixedBuffer {
    fn release(&mut self) -> io::Result<()> {
        lock(&self.ring).release(self.slot)
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

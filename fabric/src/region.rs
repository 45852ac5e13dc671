//! Memory registration: what a device domain makes of a part of a mapping.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use crate::mapping::Mapping;

/// What ran out when a registration failed for want of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Pinned memory: `RLIMIT_MEMLOCK` (per user, over all processes), or memory itself.
    PinnedMemory,
    /// Pages: the range is not backed and no page could be had for it.
    Pages,
}

/// Why a part of a mapping was not registered.
#[derive(Debug, thiserror::Error)]
#[error("registering {len_bytes} bytes at offset {offset_bytes} failed: {source}")]
pub struct RegisterError {
    /// Offset in the mapping, bytes.
    pub offset_bytes: u64,
    /// Length, bytes.
    pub len_bytes: u64,
    /// The kernel's or the provider's answer.
    pub source: io::Error,
}

impl RegisterError {
    /// What ran out, where that is known.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        match self.source.raw_os_error() {
            Some(libc::ENOMEM) => Some(Shortage::PinnedMemory),
            Some(libc::EFAULT) => Some(Shortage::Pages),
            _ => None,
        }
    }

    /// A short word for it: bounded, fit for a metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self.source.raw_os_error() {
            Some(libc::ENOMEM) => "no_memory",
            Some(libc::EFAULT) => "bad_address",
            Some(libc::EPERM | libc::EACCES) => "not_permitted",
            Some(libc::EINVAL) => "invalid",
            Some(libc::EMFILE | libc::ENFILE) => "too_many_files",
            _ => "other",
        }
    }
}

/// A device's protection domain: it registers memory.
pub trait Domain: fmt::Debug + Send + Sync {
    /// Its NIC's name, or `none` where it has none.
    fn nic(&self) -> &str;

    /// Largest region that it takes, bytes.
    fn max_region_bytes(&self) -> u64;

    /// Registers a part of a mapping: its pages are pinned until the region is dropped.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing stays pinned then.
    fn register(
        &self,
        mapping: &Arc<Mapping>,
        range: Range<u64>,
    ) -> Result<MemoryRegion, RegisterError>;
}

/// A back end's side of one registration.
pub(crate) trait Registration: fmt::Debug + Send + Sync {
    /// Gives it back. Called once.
    fn release(&mut self) -> io::Result<()>;
}

/// Registered memory. It keeps its mapping, and its domain, alive.
#[derive(Debug)]
pub struct MemoryRegion {
    registration: Box<dyn Registration>,
    mapping: ManuallyDrop<Arc<Mapping>>,
    range: Range<u64>,
    released: bool,
}

impl MemoryRegion {
    pub(crate) fn new(
        registration: Box<dyn Registration>,
        mapping: Arc<Mapping>,
        range: Range<u64>,
    ) -> Self {
        Self {
            registration,
            mapping: ManuallyDrop::new(mapping),
            range,
            released: false,
        }
    }

    /// The part of the mapping, bytes.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Unregisters it.
    ///
    /// # Errors
    /// The back end's; the memory then stays mapped for the life of the process, since the device
    /// may still reach it.
    pub fn unregister(mut self) -> io::Result<()> {
        self.release()
    }

    fn release(&mut self) -> io::Result<()> {
        if self.released {
            return Ok(());
        }
        self.released = true;
        self.registration.release()?;
        // SAFETY: `released` was false until now and is the only guard, so this happens once.
        unsafe { ManuallyDrop::drop(&mut self.mapping) };
        Ok(())
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

//! Mappings: memory of one page size, aligned, whole pages, placed on NUMA nodes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::Advice;

use crate::base_page_bytes;
use crate::sys::{self, Backing, Policy};

/// Transparent huge pages form only at multiples of this; base pages are aligned to it too.
const ALIGN_BYTES: u64 = 2 << 20;

/// The pages that a mapping is asked to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pages {
    /// The kernel's base pages, and no transparent huge pages.
    Base,
    /// Base pages that the kernel may join into transparent huge pages.
    Transparent,
    /// Huge pages (hugetlb) of so many bytes.
    Huge(u64),
}

impl Pages {
    /// Bytes of which a mapping of these pages is a multiple.
    #[must_use]
    pub fn page_bytes(self) -> u64 {
        match self {
            Self::Base | Self::Transparent => base_page_bytes(),
            Self::Huge(bytes) => bytes,
        }
    }

    /// Bytes of the huge pages that there are, or that the kernel may make by joining.
    pub(crate) fn huge_page_bytes(self) -> Option<u64> {
        match self {
            Self::Base => None,
            Self::Transparent => Some(ALIGN_BYTES),
            Self::Huge(bytes) => Some(bytes),
        }
    }
}

/// On which NUMA nodes the pages shall lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// Wherever the kernel puts them.
    Any,
    /// On this node while it has room, then elsewhere.
    Preferred(u32),
    /// On this node, or it is an error.
    Bind(u32),
    /// In turn on each of these nodes.
    Interleave(Vec<u32>),
}

/// What is behind a mapping.
#[derive(Debug)]
pub enum Source {
    /// Memory of this process: a memfd for huge pages, else private anonymous memory.
    Process,
    /// A file on hugetlbfs or tmpfs, of exactly the mapping's length; it outlives the process.
    File(File),
}

/// What to map.
#[derive(Debug)]
pub struct MapRequest {
    /// Length in bytes: whole pages, more than zero.
    pub len_bytes: u64,
    /// The pages to have.
    pub pages: Pages,
    /// Where they lie.
    pub placement: Placement,
    /// What is behind them.
    pub source: Source,
}

/// Why a mapping was not made.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The length is no whole number of pages, or zero.
    #[error("{len_bytes} bytes are not a whole number of {page_bytes}-byte pages")]
    NotWholePages {
        /// Length asked for, bytes.
        len_bytes: u64,
        /// Page size, bytes.
        page_bytes: u64,
    },
    /// The kernel has no pages of this size.
    #[error("the kernel has no huge pages of {page_bytes} bytes")]
    NoSuchPage {
        /// Page size, bytes.
        page_bytes: u64,
    },
    /// The pool has not so many free huge pages, or a limit forbids them.
    #[error("the kernel could not set aside {len_bytes} bytes in huge pages of {page_bytes} bytes")]
    NotEnoughPages {
        /// Length asked for, bytes.
        len_bytes: u64,
        /// Page size, bytes.
        page_bytes: u64,
    },
    /// The file's length is another: pages beyond its end would raise SIGBUS.
    #[error("the file is {file_bytes} bytes long, not the {len_bytes} that are to be mapped")]
    FileLength {
        /// The file's length, bytes.
        file_bytes: u64,
        /// Length asked for, bytes.
        len_bytes: u64,
    },
    /// Another failure.
    #[error("{operation} of {len_bytes} bytes failed: {source}")]
    Os {
        /// The call that failed.
        operation: &'static str,
        /// Length asked for, bytes.
        len_bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Mapped memory. It is unmapped on drop, which no [`crate::MemoryRegion`] of it outlives.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    pages: Pages,
    fd: Option<OwnedFd>,
}

// SAFETY: the pointer is owned by this value alone; the bytes are only reached through calls that
// copy without forming references, so sharing it between threads is no data race on Rust objects.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps memory as asked. No page is touched yet; huge pages are set aside by the kernel.
    ///
    /// # Errors
    /// [`MapError`], with nothing left behind.
    pub fn new(request: MapRequest) -> Result<Self, MapError> {
        let MapRequest {
            len_bytes,
            pages,
            placement,
            source,
        } = request;
        let page_bytes = pages.page_bytes();
        if len_bytes == 0 || !len_bytes.is_multiple_of(page_bytes) {
            return Err(MapError::NotWholePages {
                len_bytes,
                page_bytes,
            });
        }
        let os = |operation| {
            move |source| MapError::Os {
                operation,
                len_bytes,
                source,
            }
        };
        let len = usize::try_from(len_bytes)
            .map_err(|_| os("mmap")(io::Error::from(io::ErrorKind::OutOfMemory)))?;
        if let Source::File(file) = &source {
            let file_bytes = file.metadata().map_err(os("fstat"))?.len();
            if file_bytes != len_bytes {
                return Err(MapError::FileLength {
                    file_bytes,
                    len_bytes,
                });
            }
        }
        let fd = match (source, pages) {
            (Source::File(file), _) => Some(OwnedFd::from(file)),
            (Source::Process, Pages::Huge(page)) => Some(huge_memfd(len_bytes, page)?),
            (Source::Process, _) => None,
        };
        let base = match (&fd, pages) {
            (Some(fd), Pages::Huge(page_bytes)) => sys::map_anywhere(len, fd.as_fd())
                .map_err(|source| huge_error(source, len_bytes, page_bytes)),
            (Some(fd), _) => {
                sys::map_aligned(len, ALIGN_BYTES as usize, Backing::Shared(fd.as_fd()))
                    .map_err(os("mmap"))
            }
            (None, _) => {
                sys::map_aligned(len, ALIGN_BYTES as usize, Backing::Anonymous).map_err(os("mmap"))
            }
        }?;
        // From here on drop unmaps.
        let mapping = Self {
            base,
            len,
            pages,
            fd,
        };
        mapping.advise_pages().map_err(os("madvise"))?;
        mapping.place(&placement).map_err(os("mbind"))?;
        Ok(mapping)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len as u64
    }

    /// The pages asked for.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// The virtual address of the first byte: a number to publish, never to dereference.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The file behind it, where one is.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Copies bytes out, from `offset` on. False where the range is not inside.
    #[must_use]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(at) = self.at(offset, into.len() as u64) else {
            return false;
        };
        // SAFETY: the range is inside the live mapping, and `into` is a distinct Rust object.
        unsafe { at.copy_to_nonoverlapping(NonNull::from(&mut *into).cast(), into.len()) };
        true
    }

    /// Copies bytes in, from `offset` on. False where the range is not inside.
    #[must_use]
    pub fn write(&self, offset: u64, from: &[u8]) -> bool {
        let Some(at) = self.at(offset, from.len() as u64) else {
            return false;
        };
        // SAFETY: the range is inside the live mapping, and `from` is a distinct Rust object.
        unsafe { at.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
        true
    }

    /// On which nodes up to `samples` evenly spread pages lie, pages per node. Pages that are not
    /// touched yet are left out. Sampled, since looking up every page is slow.
    ///
    /// # Errors
    /// The kernel's, e.g. `ENOSYS` without NUMA.
    pub fn sample_nodes(&self, samples: usize) -> io::Result<BTreeMap<u32, usize>> {
        let page = self.pages.page_bytes();
        let pages = self.len_bytes() / page;
        let count = pages.min(samples.max(1) as u64);
        let addresses: Vec<*const u8> = (0..count)
            .filter_map(|i| self.at(pages * i / count * page, page))
            .map(|at| at.as_ptr().cast_const())
            .collect();
        let mut found = BTreeMap::new();
        for node in sys::nodes_of(&addresses)?.into_iter().flatten() {
            *found.entry(node).or_insert(0) += 1;
        }
        Ok(found)
    }

    /// The pointer to `offset` where `[offset, offset + len)` is inside.
    pub(crate) fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.len_bytes() {
            return None;
        }
        // SAFETY: offset <= len of the mapping, checked above.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// The pointer and length of a non-empty range inside, else `None`.
    pub(crate) fn span(&self, range: &Range<u64>) -> Option<(NonNull<u8>, usize)> {
        let len = range.end.checked_sub(range.start).filter(|len| *len > 0)?;
        Some((self.at(range.start, len)?, usize::try_from(len).ok()?))
    }

    fn advise_pages(&self) -> io::Result<()> {
        let advise = |advice| {
            // SAFETY: the whole range is ours, and these kinds of advice drop no content.
            unsafe { sys::advise(self.base, self.len, advice) }
        };
        match self.pages {
            // A kernel built without transparent huge pages refuses the advice: base pages it is.
            Pages::Base => drop(advise(Advice::LinuxNoHugepage)),
            Pages::Transparent => advise(Advice::LinuxHugepage)?,
            Pages::Huge(_) => {}
        }
        // A core dump of hundreds of GiB helps nobody, and a child that shares registered pages
        // would have its copy-on-write move them from under the device.
        advise(Advice::LinuxDontDump)?;
        advise(Advice::LinuxDontFork)
    }

    fn place(&self, placement: &Placement) -> io::Result<()> {
        let (policy, nodes) = match placement {
            Placement::Any => return Ok(()),
            Placement::Preferred(node) => (Policy::Preferred, std::slice::from_ref(node)),
            Placement::Bind(node) => (Policy::Bind, std::slice::from_ref(node)),
            Placement::Interleave(nodes) => (Policy::Interleave, nodes.as_slice()),
        };
        sys::bind_memory(self.base, self.len, policy, nodes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every user of it borrows or owns this value.
        let _ = unsafe { sys::unmap(self.base, self.len) };
    }
}

fn huge_memfd(len_bytes: u64, page_bytes: u64) -> Result<OwnedFd, MapError> {
    if !page_bytes.is_power_of_two() {
        return Err(MapError::NoSuchPage { page_bytes });
    }
    // The page size travels as its base-2 logarithm in bits 26 to 31 (memfd_create(2)).
    let size = MemfdFlags::from_bits_retain(page_bytes.trailing_zeros() << 26);
    let fd = memfd_create("siding", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | size)
        .map_err(|error| huge_error(error.into(), len_bytes, page_bytes))?;
    ftruncate(&fd, len_bytes).map_err(|error| huge_error(error.into(), len_bytes, page_bytes))?;
    Ok(fd)
}

fn huge_error(source: io::Error, len_bytes: u64, page_bytes: u64) -> MapError {
    match source.raw_os_error() {
        Some(libc::ENODEV | libc::EINVAL | libc::ENOENT) => MapError::NoSuchPage { page_bytes },
        Some(libc::ENOMEM | libc::ENOSPC) => MapError::NotEnoughPages {
            len_bytes,
            page_bytes,
        },
        _ => MapError::Os {
            operation: "mmap",
            len_bytes,
            source,
        },
    }
}

//! Windows: shared handles to parts of mappings, through which the kernel moves bytes from and to
//! sockets. Nothing is copied on the way, and no Rust reference to shared memory is formed.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::mapping::Mapping;
use crate::sys::{self, Span};

/// A part of a mapping, which it keeps alive. Cheap to clone.
///
/// Peers, and other windows of the same mapping, may change the bytes at any time: whoever needs
/// them to stay must agree on that with the others.
#[derive(Debug, Clone)]
pub struct Window {
    mapping: Arc<Mapping>,
    range: Range<u64>,
}

/// A range is not inside its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len_bytes} bytes at offset {offset_bytes} are not inside the window's {window_bytes}")]
pub struct OutOfWindow {
    /// Offset asked for, bytes.
    pub offset_bytes: u64,
    /// Length asked for, bytes.
    pub len_bytes: u64,
    /// The window's length, bytes.
    pub window_bytes: u64,
}

impl From<OutOfWindow> for io::Error {
    fn from(error: OutOfWindow) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

impl Window {
    /// The window on a whole mapping.
    #[must_use]
    pub fn whole(mapping: Arc<Mapping>) -> Self {
        let range = 0..mapping.len_bytes();
        Self { mapping, range }
    }

    /// The window on a part of this one.
    ///
    /// # Errors
    /// [`OutOfWindow`].
    pub fn part(&self, offset_bytes: u64, len_bytes: u64) -> Result<Self, OutOfWindow> {
        let (start, len) = self.inside(offset_bytes, len_bytes)?;
        Ok(Self {
            mapping: Arc::clone(&self.mapping),
            range: start..start + len as u64,
        })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The virtual address of the first byte: a number to publish, never to dereference.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.mapping.address() + self.range.start
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`OutOfWindow`].
    pub fn copy_out(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), OutOfWindow> {
        let (start, _) = self.inside(offset_bytes, into.len() as u64)?;
        // The range is inside, so it is never refused.
        let _ = self.mapping.read(start, into);
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`OutOfWindow`].
    pub fn copy_in(&self, offset_bytes: u64, from: &[u8]) -> Result<(), OutOfWindow> {
        let (start, _) = self.inside(offset_bytes, from.len() as u64)?;
        // The range is inside, so it is never refused.
        let _ = self.mapping.write(start, from);
        Ok(())
    }

    /// Sends `before`, then `len_bytes` of the window, to a connected socket; gives how many bytes
    /// of both the kernel took, which may be fewer. It never waits and raises no SIGPIPE.
    ///
    /// # Errors
    /// `WouldBlock` where the socket takes nothing now; [`OutOfWindow`] as `InvalidInput`; the
    /// kernel's, such as `EFAULT` where a page is missing.
    pub fn send(
        &self,
        socket: impl AsFd,
        before: &[u8],
        offset_bytes: u64,
        len_bytes: u64,
    ) -> io::Result<usize> {
        let span = self.span(offset_bytes, len_bytes)?;
        // SAFETY: the span is inside the mapping, which `self` keeps alive; the kernel only reads
        // it, as bytes.
        unsafe { sys::send(socket.as_fd(), before, span) }
    }

    /// Receives into `before`, then into `len_bytes` of the window, from a connected socket; gives
    /// how many bytes came, which may be fewer; 0 (where some were asked for) says that the peer
    /// sends no more. It never waits.
    ///
    /// # Errors
    /// As for [`Window::send`].
    pub fn receive(
        &self,
        socket: impl AsFd,
        before: &mut [u8],
        offset_bytes: u64,
        len_bytes: u64,
    ) -> io::Result<usize> {
        let span = self.span(offset_bytes, len_bytes)?;
        // SAFETY: the span is inside the mapping, which `self` keeps alive and which no Rust
        // reference points into; `before` is a distinct Rust object.
        unsafe { sys::receive(socket.as_fd(), before, span) }
    }

    /// Where a range starts in the mapping, and its length.
    fn inside(&self, offset_bytes: u64, len_bytes: u64) -> Result<(u64, usize), OutOfWindow> {
        let window_bytes = self.len_bytes();
        let end = offset_bytes.checked_add(len_bytes);
        match (end, usize::try_from(len_bytes)) {
            (Some(end), Ok(len)) if end <= window_bytes => {
                Ok((self.range.start + offset_bytes, len))
            }
            _ => Err(OutOfWindow {
                offset_bytes,
                len_bytes,
                window_bytes,
            }),
        }
    }

    fn span(&self, offset_bytes: u64, len_bytes: u64) -> Result<Span, OutOfWindow> {
        let (start, len) = self.inside(offset_bytes, len_bytes)?;
        let at = self.mapping.at(start, len_bytes).ok_or(OutOfWindow {
            offset_bytes,
            len_bytes,
            window_bytes: self.len_bytes(),
        })?;
        Ok(Span { at, len })
    }
}

//! Every system call that needs `unsafe`, wrapped once to an [`io::Result`].

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// What to put at an address that [`reserve`] or the kernel chose.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Backing<'a> {
    /// Private anonymous memory.
    Anonymous,
    /// The file's bytes from offset 0, shared.
    Shared(BorrowedFd<'a>),
}

/// Maps `len` bytes where the kernel likes, which for a hugetlbfs file is aligned to its page.
pub(crate) fn map_anywhere(len: usize, fd: BorrowedFd<'_>) -> io::Result<NonNull<u8>> {
    // SAFETY: no address is asked for, so no existing mapping can be replaced.
    let base = unsafe { mm::mmap(ptr::null_mut(), len, read_write(), MapFlags::SHARED, fd, 0) }?;
    non_null(base)
}

/// Maps `len` bytes at a multiple of `align` (a power of two, at least a base page).
pub(crate) fn map_aligned(
    len: usize,
    align: usize,
    backing: Backing<'_>,
) -> io::Result<NonNull<u8>> {
    let reserved = reserve(len, align)?;
    let at = reserved.as_ptr().cast::<c_void>();
    let mapped = match backing {
        // SAFETY: [at, at + len) was reserved just above and nobody else knows of it.
        Backing::Anonymous => unsafe {
            mm::mmap_anonymous(at, len, read_write(), MapFlags::PRIVATE | MapFlags::FIXED)
        },
        // SAFETY: as above.
        Backing::Shared(fd) => unsafe {
            mm::mmap(
                at,
                len,
                read_write(),
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                0,
            )
        },
    };
    match mapped {
        Ok(base) => non_null(base),
        Err(error) => {
            // SAFETY: the reservation is ours and unused.
            let _ = unsafe { mm::munmap(at, len) };
            Err(error.into())
        }
    }
}

/// Reserves `len` bytes of address space at a multiple of `align`, without memory behind it.
fn reserve(len: usize, align: usize) -> io::Result<NonNull<u8>> {
    let whole = len
        .checked_add(align)
        .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: no address is asked for, so no existing mapping can be replaced.
    let base = unsafe { mm::mmap_anonymous(ptr::null_mut(), whole, ProtFlags::empty(), flags) }?;
    let start = base.cast::<u8>();
    let head = start.align_offset(align);
    // SAFETY: head <= align and len + align were mapped, so `kept` lies in the reservation.
    let kept = unsafe { start.add(head) };
    if head > 0 {
        // SAFETY: the bytes before `kept` belong to the reservation and are unused.
        unsafe { mm::munmap(base, head) }?;
    }
    if align > head {
        // SAFETY: the bytes after kept + len belong to the reservation and are unused.
        unsafe { mm::munmap(kept.add(len).cast(), align - head) }?;
    }
    non_null(kept.cast())
}

/// Unmaps what [`map_anywhere`] or [`map_aligned`] returned.
///
/// # Safety
/// `[base, base + len)` is such a mapping, and nothing refers to it any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: promised by the caller.
    Ok(unsafe { mm::munmap(base.as_ptr().cast(), len) }?)
}

/// Gives advice that leaves the bytes as they are.
///
/// # Safety
/// `[at, at + len)` lies in one live mapping of ours, and `advice` drops no content.
pub(crate) unsafe fn advise(at: NonNull<u8>, len: usize, advice: Advice) -> io::Result<()> {
    // SAFETY: promised by the caller.
    Ok(unsafe { mm::madvise(at.as_ptr().cast(), len, advice) }?)
}

/// Whether the kernel has `MADV_POPULATE_WRITE` (Linux 5.14 and later).
pub(crate) fn has_populate() -> bool {
    // SAFETY: a length of zero touches nothing; the kernel only validates the advice.
    unsafe { mm::madvise(ptr::null_mut(), 0, Advice::LinuxPopulateWrite) }.is_ok()
}

/// A NUMA memory policy (`linux/mempolicy.h`).
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
pub(crate) enum Policy {
    Preferred = 1,
    Bind = 2,
    Interleave = 3,
}

/// Sets the memory policy of `[at, at + len)`; on a shared file that of the file.
pub(crate) fn bind_memory(
    at: NonNull<u8>,
    len: usize,
    policy: Policy,
    nodes: &[u32],
) -> io::Result<()> {
    let mut mask = vec![0_u64; 1];
    for node in nodes {
        let word = (*node / 64) as usize;
        if word >= mask.len() {
            mask.resize(word + 1, 0);
        }
        mask[word] |= 1 << (node % 64);
    }
    // The kernel takes one bit less than it is told.
    let bits = mask.len() * 64 + 1;
    // SAFETY: the mask lives through the call, and a policy changes no byte.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            at.as_ptr(),
            len,
            policy as i32,
            mask.as_ptr(),
            bits,
            0,
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The NUMA node of the page at each address, `None` where no page is there yet.
pub(crate) fn nodes_of(addresses: &[*const u8]) -> io::Result<Vec<Option<u32>>> {
    let mut status = vec![-1_i32; addresses.len()];
    // SAFETY: without target nodes move_pages only reports; both arrays are `len` long.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            addresses.len(),
            addresses.as_ptr(),
            ptr::null::<i32>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status
        .into_iter()
        .map(|node| u32::try_from(node).ok())
        .collect())
}

/// Bytes in a mapping.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) at: NonNull<u8>,
    pub(crate) len: usize,
}

/// Sends `before`, then the span, in one call that neither waits nor raises SIGPIPE.
///
/// # Safety
/// The span lies in a live mapping.
pub(crate) unsafe fn send(socket: BorrowedFd<'_>, before: &[u8], span: Span) -> io::Result<usize> {
    const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let socket = socket.as_raw_fd();
    let at = span.at.as_ptr().cast::<c_void>();
    if before.is_empty() {
        // SAFETY: promised by the caller.
        return counted(|| unsafe { libc::send(socket, at, span.len, FLAGS) });
    }
    let mut parts = [
        libc::iovec {
            // The kernel does not write through the vectors of a send.
            iov_base: before.as_ptr().cast_mut().cast(),
            iov_len: before.len(),
        },
        libc::iovec {
            iov_base: at,
            iov_len: span.len,
        },
    ];
    let message = message(&mut parts);
    // SAFETY: `before` and `parts` live through the call; the span is promised by the caller.
    counted(|| unsafe { libc::sendmsg(socket, &raw const message, FLAGS) })
}

/// Receives into `before`, then into the span, in one call that does not wait.
///
/// # Safety
/// The span lies in a live mapping, and no Rust reference points into it.
pub(crate) unsafe fn receive(
    socket: BorrowedFd<'_>,
    before: &mut [u8],
    span: Span,
) -> io::Result<usize> {
    let socket = socket.as_raw_fd();
    let at = span.at.as_ptr().cast::<c_void>();
    if before.is_empty() {
        // SAFETY: promised by the caller.
        return counted(|| unsafe { libc::recv(socket, at, span.len, libc::MSG_DONTWAIT) });
    }
    let mut parts = [
        libc::iovec {
            iov_base: before.as_mut_ptr().cast(),
            iov_len: before.len(),
        },
        libc::iovec {
            iov_base: at,
            iov_len: span.len,
        },
    ];
    let mut message = message(&mut parts);
    // SAFETY: `before` and `parts` live through the call; the span is promised by the caller.
    counted(|| unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT) })
}

/// A message of these parts, without address or control data.
fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr is integers and pointers, for all of which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}

/// The count that a call answers, made again where a signal came between.
fn counted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

fn read_write() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

fn non_null(base: *mut c_void) -> io::Result<NonNull<u8>> {
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))
}

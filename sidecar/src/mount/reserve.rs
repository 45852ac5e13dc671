//! Reserving huge pages, and giving them back. The kernel grants fewer than asked for without an
//! error, so every write is read back.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use siding_crds::reasons::Reason;
use siding_fabric::base_page_bytes;
use siding_topology::Root;
use siding_topology::size::page_name;

use super::choose::Lack;
use super::machine::Machine;
use crate::config::{Numa, Page, Segment};

/// How often a lock that somebody else holds is asked for again.
const PAUSE: Duration = Duration::from_millis(20);

/// Pages that were added to one pool. Given back on drop.
#[derive(Debug)]
pub struct Reservation {
    pool: PathBuf,
    page_bytes: u64,
    /// Pages that can be had now and could not before.
    granted: u64,
    /// By how many the count of pages that stay was raised.
    added: u64,
}

/// Keeps other sidings from reserving until what this one reserved is in use and given back: pages
/// that are free only until then would count as theirs.
#[derive(Debug)]
pub struct Turn {
    _lock: File,
}

/// How a reservation ended that got less than it asked for.
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// The pool can't be written.
    #[error("{} cannot be written ({source})", pool.display())]
    NotWritable {
        /// The pool's file.
        pool: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel granted fewer pages. They are given back.
    #[error("asked for {asked} more pages of {}, the kernel granted {granted}", page_name(*page_bytes))]
    Shortfall {
        /// Page size, bytes.
        page_bytes: u64,
        /// Pages asked for.
        asked: u64,
        /// Pages granted.
        granted: u64,
    },
}

impl Turn {
    /// Waits for it; `None` where there are no pools, or once `cancel` is told.
    #[must_use]
    pub fn wait(root: &Root, cancel: &AtomicBool) -> Option<Self> {
        let lock = File::open(root.path("sys/kernel/mm/hugepages")).ok()?;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Self { _lock: lock }),
                Err(rustix::io::Errno::WOULDBLOCK) if !cancel.load(Ordering::Relaxed) => {
                    thread::sleep(PAUSE);
                }
                Err(_) => return None,
            }
        }
    }
}

impl Reservation {
    /// Adds `pages` to the pool of this page size, on one node where it is given.
    ///
    /// # Errors
    /// [`ReserveError`]; the pool is as before then.
    pub fn make(
        root: &Root,
        page_bytes: u64,
        node: Option<u32>,
        pages: u64,
    ) -> Result<Self, ReserveError> {
        let pool = pool_path(root, page_bytes, node);
        let failed = |source| ReserveError::NotWritable {
            pool: pool.clone(),
            source,
        };
        let lock = locked(&pool).map_err(failed)?;
        let before = Counts::read(&pool).map_err(failed)?;
        // Surplus pages, all in use, become persistent before any page is added.
        fs::write(&pool, before.total.saturating_add(pages).to_string()).map_err(failed)?;
        let after = Counts::read(&pool).map_err(failed)?;
        let granted = after.total.saturating_sub(before.total);
        let added = after.persistent().saturating_sub(before.persistent());
        drop(lock);
        let reservation = Self {
            pool: pool.clone(),
            page_bytes,
            granted,
            added,
        };
        if granted < pages {
            drop(reservation);
            return Err(ReserveError::Shortfall {
                page_bytes,
                asked: pages,
                granted,
            });
        }
        Ok(reservation)
    }

    /// Pages added.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.granted
    }

    /// Size of a page, bytes.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Takes the added pages out of the pool again and reads the count back. Pages in use stay so,
    /// and go to the kernel with their mapping instead of into the pool (it calls them surplus).
    ///
    /// # Errors
    /// The kernel's, or a count that says that some were not taken out.
    pub fn give_back(mut self) -> io::Result<()> {
        self.release()
    }

    fn release(&mut self) -> io::Result<()> {
        let added = std::mem::take(&mut self.added);
        if added == 0 {
            return Ok(());
        }
        let _lock = locked(&self.pool)?;
        let wanted = Counts::read(&self.pool)?.persistent().saturating_sub(added);
        fs::write(&self.pool, wanted.to_string())?;
        let left = Counts::read(&self.pool)?.persistent();
        if left > wanted {
            let page = page_name(self.page_bytes);
            return Err(io::Error::other(format!(
                "{} pages of {page} were not given back",
                left - wanted
            )));
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!("reserved huge pages: {error}");
        }
    }
}

/// Reserves what the segments lack, from the largest page that divides each segment down. What
/// could not be had is said in the second part; an explicit page size that could not is an error.
///
/// # Errors
/// [`Lack`] with what was asked and granted; nothing stays reserved then.
pub fn reserve_for(
    root: &Root,
    segments: &[Segment],
    machine: &Machine,
) -> Result<(Vec<Reservation>, Vec<String>), Lack> {
    let mut made = Vec::new();
    let mut notes = Vec::new();
    // Per page size: what segments before this one take, and what the pool has by now.
    let mut free: Vec<(u64, u64)> = machine
        .pools
        .iter()
        .map(|pool| (pool.page_bytes, pool.available()))
        .collect();
    for segment in segments {
        let explicit = matches!(segment.page, Page::Size(_));
        let node = match segment.numa {
            Numa::Node(id) if machine.node(id).is_some() => Some(id),
            _ => None,
        };
        for page_bytes in candidates(segment, machine) {
            let needed = segment.size.get() / page_bytes;
            let Some((_, there)) = free.iter_mut().find(|(page, _)| *page == page_bytes) else {
                continue;
            };
            // A node's own share is not known to be free: the whole is reserved there.
            let missing = if node.is_some() {
                needed
            } else {
                needed.saturating_sub(*there)
            };
            if missing == 0 {
                *there -= needed;
                break;
            }
            match Reservation::make(root, page_bytes, node, missing) {
                Ok(reservation) => {
                    *there = (*there + missing).saturating_sub(needed);
                    made.push(reservation);
                    break;
                }
                Err(error) if explicit => return Err(lack(segment, &error)),
                Err(error) => notes.push(lack(segment, &error).to_string()),
            }
        }
    }
    Ok((made, notes))
}

/// Huge pages that could carry the segment, largest first.
fn candidates(segment: &Segment, machine: &Machine) -> Vec<u64> {
    let size = segment.size.get();
    let sizes = machine.pools.iter().rev().map(|pool| pool.page_bytes);
    match segment.page {
        Page::Auto => sizes.filter(|page| size.is_multiple_of(*page)).collect(),
        Page::Size(bytes) if bytes > base_page_bytes() && size.is_multiple_of(bytes) => {
            sizes.filter(|page| *page == bytes).collect()
        }
        Page::Size(_) | Page::Transparent => Vec::new(),
    }
}

fn lack(segment: &Segment, error: &ReserveError) -> Lack {
    let denied = |source: &io::Error| source.kind() == io::ErrorKind::PermissionDenied;
    Lack {
        field: format!("segments[{}].page", segment.name),
        what: error.to_string(),
        remedy: match error {
            ReserveError::NotWritable { source, .. } if denied(source) => {
                "run as root, or without --reserve with page auto"
            }
            ReserveError::NotWritable { .. } => {
                "reserve outside of this container, or leave --reserve out with page auto"
            }
            ReserveError::Shortfall { .. } => {
                "free memory (echo 3 | sudo tee /proc/sys/vm/drop_caches, echo 1 | sudo tee \
                 /proc/sys/vm/compact_memory), reserve at boot (hugepages=N), or declare less"
            }
        }
        .to_owned(),
        reason: Reason::HugePagesShort,
    }
}

fn pool_path(root: &Root, page_bytes: u64, node: Option<u32>) -> PathBuf {
    let pool = format!("hugepages-{}kB/nr_hugepages", page_bytes / 1024);
    root.path(&match node {
        Some(node) => format!("sys/devices/system/node/node{node}/hugepages/{pool}"),
        None => format!("sys/kernel/mm/hugepages/{pool}"),
    })
}

fn read(pool: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(pool)?;
    text.trim()
        .parse()
        .map_err(|_| io::Error::other(format!("not a count: {}", text.trim())))
}

/// A pool's pages at one moment.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    /// All of them: the count that is read.
    total: u64,
    /// Those that go when nobody uses them.
    surplus: u64,
}

impl Counts {
    /// Both are in files of their own, and a mapping that ends changes both: they are read until
    /// they are the same twice.
    fn read(pool: &Path) -> io::Result<Self> {
        const TRIES: usize = 1000;
        let surplus = pool.with_file_name("surplus_hugepages");
        let once = || -> io::Result<Self> {
            Ok(Self {
                total: read(pool)?,
                surplus: read(&surplus)?,
            })
        };
        let mut last = once()?;
        for _ in 0..TRIES {
            let now = once()?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
        Err(io::Error::other("its counts change all the time"))
    }

    /// Pages that stay when nobody uses them: the count that a write sets.
    fn persistent(&self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }
}

/// Keeps other sidings from changing the pool between our reading and writing it.
fn locked(pool: &Path) -> io::Result<File> {
    const TRIES: usize = 100;
    let file = File::open(pool)?;
    for _ in 0..TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => thread::sleep(PAUSE),
            _ => return Ok(file),
        }
    }
    // Anybody may hold it for ever: then it goes without.
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(directory: &Path, count: u64) -> Root {
        let path = directory.join("sys/kernel/mm/hugepages/hugepages-2048kB");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("nr_hugepages"), format!("{count}\n")).unwrap();
        fs::write(path.join("surplus_hugepages"), "0\n").unwrap();
        Root::at(directory)
    }

    fn count(root: &Root) -> u64 {
        read(&pool_path(root, 2 << 20, None)).unwrap()
    }

    #[test]
    fn pages_are_added_and_taken_out_again() {
        let directory = tempfile::tempdir().unwrap();
        let root = pool(directory.path(), 5);
        let reservation = Reservation::make(&root, 2 << 20, None, 7).unwrap();
        assert_eq!((reservation.pages(), count(&root)), (7, 12));
        // Somebody else adds two meanwhile: they stay.
        fs::write(pool_path(&root, 2 << 20, None), "14").unwrap();
        reservation.give_back().unwrap();
        assert_eq!(count(&root), 7);
        drop(Reservation::make(&root, 2 << 20, None, 3).unwrap());
        assert_eq!(count(&root), 7);
    }

    #[test]
    fn a_pool_that_is_not_there_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let error = Reservation::make(&root, 1 << 30, Some(3), 1).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("node3/hugepages/hugepages-1048576kB/nr_hugepages"),
            "{text}"
        );
    }
}

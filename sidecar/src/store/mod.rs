//! Segments that outlive the process: files on hugetlbfs or tmpfs, and their headers.

pub mod header;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, statfs};
use rustix::process::geteuid;
use siding_fabric::Pages;
use siding_topology::size::page_name;

use self::header::{Expected, Found, Header, VERSION, check};
use crate::mount::choose::{Filesystem, pages_name};

/// Largest header that is read, bytes.
const HEADER_LIMIT_BYTES: u64 = 64 << 10;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or directory call failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another process holds the directory.
    #[error("storage.directory: another siding uses {}; stop it, or give this one another directory", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
}

/// The storage directory, held by a lock for as long as this lives.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    owner: u32,
    _lock: File,
}

/// A checked file of an earlier process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFile {
    header: Header,
    pages: Pages,
}

impl KeptFile {
    /// The pages it has.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }
}

/// What [`Store::find`] came upon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Nothing.
    Nothing,
    /// The segment, complete.
    Kept(KeptFile),
    /// Something that did not pass; it is gone now.
    Unlinked {
        /// The file that was removed.
        file: PathBuf,
        /// Why it did not pass.
        reason: String,
    },
}

/// A segment's file in use. Dropped before [`SegmentFile::complete`], it goes away again.
#[derive(Debug)]
pub struct SegmentFile {
    path: PathBuf,
    header_path: PathBuf,
    header: Header,
    complete: bool,
}

impl Store {
    /// Opens (and makes, where it is missing) the storage directory and locks it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(io_error("storage.directory: cannot make", directory))?;
        let path = directory.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("storage.directory: cannot write", &path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(StoreError::InUse {
                    path: directory.to_owned(),
                });
            }
            Err(error) => {
                return Err(io_error("storage.directory: cannot lock", &path)(
                    error.into(),
                ));
            }
        }
        Ok(Self {
            directory: directory.to_owned(),
            owner: geteuid().as_raw(),
            _lock: lock,
        })
    }

    /// Looks for the file of an earlier process. What does not pass is unlinked, so that its pages
    /// are free before they are needed again; directories are those where it could lie.
    ///
    /// # Errors
    /// [`StoreError`] where something that must go cannot be removed.
    pub fn find(
        &self,
        name: &str,
        size_bytes: u64,
        page: Option<Pages>,
        directories: &[PathBuf],
    ) -> Result<Finding, StoreError> {
        let header_path = self.header_path(name);
        let page_name = page.map(pages_name);
        let expected = Expected {
            name,
            size_bytes,
            page: page_name.as_deref(),
            owner: self.owner,
        };
        let reason = match self.read(&header_path) {
            Ok(Some(header)) => match admit(&header, expected) {
                Ok(pages) => return Ok(Finding::Kept(KeptFile { header, pages })),
                Err(reason) => {
                    self.unlink_named(&header)?;
                    Some(reason)
                }
            },
            Ok(None) => None,
            Err(reason) => Some(reason),
        };
        remove(&header_path)?;
        let mut gone = reason.map(|reason| (header_path, reason));
        for directory in directories {
            let file = segment_path(directory, name);
            if remove(&file)? {
                let half_made = || "it is half-made or not ours: it has no header".to_owned();
                gone = Some((file, gone.map_or_else(half_made, |(_, reason)| reason)));
            }
        }
        Ok(
            gone.map_or(Finding::Nothing, |(file, reason)| Finding::Unlinked {
                file,
                reason,
            }),
        )
    }

    /// Makes a segment's file of this size. Its header is written when it is complete.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is left behind then.
    pub fn create(
        &self,
        name: &str,
        size_bytes: u64,
        pages: Pages,
        directory: &Path,
    ) -> Result<(File, SegmentFile), StoreError> {
        let header_path = self.header_path(name);
        let path = segment_path(directory, name);
        let generation = self.next_generation(name)?;
        let file = OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("cannot make the segment's file", &path))?;
        let header = Header {
            version: VERSION,
            name: name.to_owned(),
            size_bytes,
            page: pages_name(pages),
            owner: self.owner,
            generation,
            identity: identity()?,
            file: path.display().to_string(),
            device: 0,
            inode: 0,
        };
        let mut segment = SegmentFile {
            path,
            header_path,
            header,
            complete: false,
        };
        let found = file
            .set_len(size_bytes)
            .and_then(|()| file.metadata())
            .map_err(io_error("cannot size the segment's file", &segment.path))?;
        segment.header.device = found.dev();
        segment.header.inode = found.ino();
        Ok((file, segment))
    }

    /// Opens a file that [`Store::find`] passed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn reopen(&self, kept: &KeptFile) -> Result<(File, SegmentFile), StoreError> {
        let path = PathBuf::from(&kept.header.file);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io_error("cannot open the segment's file", &path))?;
        let segment = SegmentFile {
            path,
            header_path: self.header_path(&kept.header.name),
            header: kept.header.clone(),
            complete: true,
        };
        Ok((file, segment))
    }

    fn header_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.header.json"))
    }

    /// Reads a header; `Ok(None)` where there is none, `Err` with the reason where it is none.
    fn read(&self, path: &Path) -> Result<Option<Header>, String> {
        let length = match fs::metadata(path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("its header can't be read: {error}")),
        };
        if length > HEADER_LIMIT_BYTES {
            return Err(format!("its header is {length} bytes long"));
        }
        let text = fs::read(path).map_err(|error| format!("its header can't be read: {error}"))?;
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| format!("its header is damaged: {error}"))
    }

    /// Removes the file that a header names, where it is one of ours by its name.
    fn unlink_named(&self, header: &Header) -> Result<(), StoreError> {
        let path = Path::new(&header.file);
        let ours = path.file_name() == segment_path(Path::new(""), &header.name).file_name();
        if ours && is_name(&header.name) {
            remove(path)?;
        }
        Ok(())
    }

    /// One more than ever before, kept beside the headers.
    fn next_generation(&self, name: &str) -> Result<u64, StoreError> {
        let path = self.directory.join(format!("{name}.generation"));
        let last = fs::read_to_string(&path)
            .ok()
            .and_then(|text| text.trim().parse::<u64>().ok());
        let next = last.unwrap_or(0).saturating_add(1);
        write_whole(&path, next.to_string().as_bytes())?;
        Ok(next)
    }
}

impl SegmentFile {
    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How often the segment was made anew.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.header.generation
    }

    /// Its identity, the same for as long as the content is kept.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.header.identity
    }

    /// Says that every page is there: from now on the file outlives the process.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn complete(&mut self) -> Result<(), StoreError> {
        if !self.complete {
            let text = serde_json::to_vec_pretty(&self.header).map_err(|error| {
                io_error("cannot write the header", &self.header_path)(error.into())
            })?;
            write_whole(&self.header_path, &text)?;
            self.complete = true;
        }
        Ok(())
    }
}

impl Drop for SegmentFile {
    fn drop(&mut self) {
        if !self.complete {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What a directory, or the nearest one above it that exists, is on.
///
/// # Errors
/// The kernel's.
pub fn filesystem(directory: &Path) -> io::Result<Filesystem> {
    let existing = directory
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(directory);
    let found = statfs(existing)?;
    Ok(match u64::try_from(found.f_type) {
        Ok(HUGETLBFS_MAGIC) => Filesystem::Hugetlbfs {
            page_bytes: u64::try_from(found.f_bsize).unwrap_or(0),
        },
        Ok(TMPFS_MAGIC) => Filesystem::Tmpfs,
        _ => Filesystem::Other,
    })
}

/// Checks a header against the file it names, and gives the file's pages.
fn admit(header: &Header, expected: Expected<'_>) -> Result<Pages, String> {
    let path = Path::new(&header.file);
    let found = fs::symlink_metadata(path).map_err(|error| format!("its file is gone: {error}"))?;
    if !found.is_file() {
        return Err("it is not a plain file".to_owned());
    }
    let facts = Found {
        len_bytes: found.len(),
        allocated_bytes: found.blocks().saturating_mul(512),
        owner: found.uid(),
        device: found.dev(),
        inode: found.ino(),
    };
    check(header, facts, expected)?;
    let filesystem =
        filesystem(path).map_err(|error| format!("its filesystem is unknown: {error}"))?;
    let pages = match filesystem {
        Filesystem::Hugetlbfs { page_bytes } => Pages::Huge(page_bytes),
        _ if header.page == pages_name(Pages::Transparent) => Pages::Transparent,
        _ => Pages::Base,
    };
    if pages_name(pages) == header.page {
        Ok(pages)
    } else {
        Err(format!(
            "its pages are of {}, not {}",
            page_name(pages.page_bytes()),
            header.page
        ))
    }
}

fn segment_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("siding-{name}.segment"))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Writes a small file so that it is there whole or not at all.
fn write_whole(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    let failed = |source| io_error("cannot write", path)(source);
    let draft = path.with_extension("draft");
    let mut file = File::create(&draft).map_err(failed)?;
    file.write_all(content)
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    fs::rename(&draft, path).map_err(failed)
}

/// Removes a file; false where there was none.
fn remove(path: &Path) -> Result<bool, StoreError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error("cannot remove", path)(error)),
    }
}

/// A random identity, from the kernel.
fn identity() -> Result<String, StoreError> {
    let path = Path::new("/proc/sys/kernel/random/uuid");
    let text = fs::read_to_string(path).map_err(io_error("cannot read", path))?;
    Ok(text.trim().to_owned())
}

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> StoreError + 'a {
    move |source| StoreError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

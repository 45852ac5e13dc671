//! Segments that outlive the process: files on hugetlbfs or tmpfs, and their headers.

pub mod header;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, OFlags, flock, statfs};
use rustix::process::geteuid;
use siding_fabric::{Pages, base_page_bytes};
use siding_topology::size::page_name;

use self::header::{Expected, Found, Header, VERSION, check};
use crate::mount::choose::{Filesystem, pages_name};

const NOFOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();
const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();
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
    /// Another process uses it.
    #[error("another siding uses {}; stop it, or give this one another directory", path.display())]
    InUse {
        /// The directory, or the segment's file.
        path: PathBuf,
    },
    /// It belongs to somebody else, or others may change it.
    #[error("{} {what}; remove it, or use another directory", path.display())]
    NotOurs {
        /// The file or directory.
        path: PathBuf,
        /// Why it is not ours.
        what: String,
    },
    /// No small file can be written there.
    #[error("{} is on hugetlbfs, where no header can be written; use a directory on tmpfs{}", path.display(), tmpfs_hint(hint))]
    OnHugetlbfs {
        /// The directory.
        path: PathBuf,
        /// A directory that would do.
        hint: Option<PathBuf>,
    },
}

fn tmpfs_hint(hint: &Option<PathBuf>) -> String {
    hint.as_ref()
        .map_or_else(String::new, |path| format!(", e.g. {}", path.display()))
}

/// The storage directory, held by a lock for as long as this lives.
///
/// Everything lies in a directory of its own below the one that is configured, which only this user
/// may enter: the configured one may be open to all, as a pod's volumes are.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    owner: u32,
    lock: File,
    /// Files that are not complete yet.
    drafts: Mutex<BTreeSet<PathBuf>>,
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

/// What did not pass: it must go before its pages can be used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// The files, the header last.
    pub files: Vec<PathBuf>,
    /// Why it did not pass.
    pub reason: String,
    /// Bytes that come back, by the page size of their file system.
    pub held: Vec<(u64, u64)>,
    /// It is a complete segment of ours that is only not what is asked for now: its content goes
    /// when, and only when, the new plan is known to work.
    pub is_complete: bool,
    /// The generation that it had, where that is known.
    generation: u64,
}

/// What [`Store::find`] came upon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Nothing.
    Nothing,
    /// The segment, complete.
    Kept(KeptFile),
    /// Something that did not pass. It is still there.
    Unfit(Unfit),
}

/// A segment's file in use. Dropped before [`SegmentFile::complete`], it goes away again.
#[derive(Debug)]
pub struct SegmentFile {
    path: PathBuf,
    header_path: PathBuf,
    header: Header,
    /// Where it is until it is complete.
    draft: Option<PathBuf>,
    /// Tells other processes that it is in use.
    _lock: File,
}

impl Store {
    /// Opens (and makes, where it is missing) the storage directory and locks it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(configured: &Path) -> Result<Self, StoreError> {
        let owner = geteuid().as_raw();
        if let Ok(Filesystem::Hugetlbfs { .. }) = filesystem(configured) {
            return Err(StoreError::OnHugetlbfs {
                path: configured.to_owned(),
                hint: some_tmpfs(),
            });
        }
        let directory = configured.join(format!("siding-{owner}"));
        fs::create_dir_all(configured).map_err(io_error("cannot make", configured))?;
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(io_error("cannot write", &directory)(error));
            }
            _ => {}
        }
        let found = fs::symlink_metadata(&directory).map_err(io_error("cannot see", &directory))?;
        let refuse = |what: String| StoreError::NotOurs {
            path: directory.clone(),
            what,
        };
        if !found.is_dir() {
            return Err(refuse("is no directory".to_owned()));
        }
        if found.uid() != owner || found.mode() & 0o022 != 0 {
            return Err(refuse(format!(
                "belongs to user {} with mode {:o}, so that others may change what is in it",
                found.uid(),
                found.mode() & 0o7777
            )));
        }
        let lock = locked(&directory)?;
        Ok(Self {
            directory,
            owner,
            lock,
            drafts: Mutex::default(),
        })
    }

    /// Looks for the file of an earlier process. Nothing is changed yet; `directories` are those
    /// where it could lie.
    ///
    /// # Errors
    /// [`StoreError`] where it is in use, or somebody else's.
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
        let (header, mut reason) = match self.read(&header_path) {
            Ok(header) => (header, None),
            Err(reason) => (None, Some(reason)),
        };
        if let Some(header) = &header {
            match admit(header, expected) {
                Ok(pages) => {
                    drop(segment_lock(Path::new(&header.file))?);
                    return Ok(Finding::Kept(KeptFile {
                        header: header.clone(),
                        pages,
                    }));
                }
                Err(why) => reason = Some(why),
            }
        }
        let all = directories
            .iter()
            .map(PathBuf::as_path)
            .chain([self.directory.as_path()]);
        let mut places: BTreeSet<PathBuf> = all
            .flat_map(|directory| [segment_path(directory, name), draft_path(directory, name)])
            .collect();
        // Where an earlier configuration put it, if it is that very file.
        let own = header.as_ref().filter(|header| is_its_own(header));
        places.extend(own.map(|header| header.file.clone().into()));
        self.unfit(places, header_path, header.as_ref(), reason)
    }

    fn unfit(
        &self,
        places: BTreeSet<PathBuf>,
        header_path: PathBuf,
        header: Option<&Header>,
        reason: Option<String>,
    ) -> Result<Finding, StoreError> {
        let mut unfit = Unfit {
            files: Vec::new(),
            reason: reason
                .unwrap_or_else(|| "it is half-made or not ours: it has no header".to_owned()),
            held: Vec::new(),
            is_complete: header.is_some_and(is_its_own),
            generation: header.map_or(0, |header| header.generation),
        };
        for file in places {
            let Ok(found) = fs::symlink_metadata(&file) else {
                continue;
            };
            if found.uid() != self.owner {
                let what = format!("belongs to user {}", found.uid());
                return Err(StoreError::NotOurs { path: file, what });
            }
            if found.is_file() {
                drop(segment_lock(&file)?);
                if header.is_none() && is_anothers(&file, &self.directory) {
                    let what =
                        "was made with another storage.directory, or its header is lost".to_owned();
                    return Err(StoreError::NotOurs { path: file, what });
                }
                unfit.held.push(match filesystem(&file) {
                    // What is set aside for it comes back as well as what it has.
                    Ok(Filesystem::Hugetlbfs { page_bytes }) => (page_bytes, found.len()),
                    _ => (base_page_bytes(), found.blocks().saturating_mul(512)),
                });
            }
            unfit.files.push(file);
        }
        if fs::symlink_metadata(&header_path).is_ok() {
            unfit.files.push(header_path);
        }
        Ok(if unfit.files.is_empty() {
            Finding::Nothing
        } else {
            Finding::Unfit(unfit)
        })
    }

    /// Removes what did not pass.
    ///
    /// # Errors
    /// [`StoreError`] where something cannot be removed.
    pub fn remove(&self, unfit: &Unfit) -> Result<(), StoreError> {
        for file in &unfit.files {
            match fs::remove_file(file) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(io_error("cannot remove", file)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Segments of earlier processes that are not among `declared`: name, file and bytes.
    #[must_use]
    pub fn undeclared(&self, declared: &[&str]) -> Vec<(String, PathBuf, u64)> {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let mut found: Vec<_> = entries
            .filter_map(|entry| self.read(&entry.path()).ok().flatten())
            .filter(|header| !declared.contains(&header.name.as_str()) && is_its_own(header))
            .map(|header| (header.name, PathBuf::from(header.file), header.size_bytes))
            .collect();
        found.sort();
        found
    }

    /// Makes a segment's file of this size, in the place of what did not pass. Its header is written
    /// when it is complete.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is left behind then.
    pub fn create(
        &self,
        name: &str,
        size_bytes: u64,
        pages: Pages,
        directory: &Path,
        replaced: Option<&Unfit>,
    ) -> Result<(File, SegmentFile), StoreError> {
        let path = segment_path(directory, name);
        let draft = draft_path(directory, name);
        let header = Header {
            version: VERSION,
            name: name.to_owned(),
            size_bytes,
            page: pages_name(pages),
            owner: self.owner,
            generation: replaced
                .map_or(0, |unfit| unfit.generation)
                .saturating_add(1),
            identity: identity()?,
            file: path.display().to_string(),
            device: 0,
            inode: 0,
        };
        let file = OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(NOFOLLOW)
            .open(&draft)
            .map_err(io_error("cannot make the segment's file", &draft))?;
        lock_drafts(&self.drafts).insert(draft.clone());
        // From here on drop removes it.
        let mut segment = SegmentFile {
            _lock: file.try_clone().map_err(io_error("cannot hold", &path))?,
            header_path: self.header_path(name),
            header,
            draft: Some(draft),
            path,
        };
        hold(&file, &segment.path)?;
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
        let lock = segment_lock(&path)?;
        let found = lock.metadata().map_err(io_error("cannot see", &path))?;
        if (found.dev(), found.ino()) != (kept.header.device, kept.header.inode) {
            let what = "was replaced a moment ago".to_owned();
            return Err(StoreError::NotOurs { path, what });
        }
        let file = lock
            .try_clone()
            .map_err(io_error("cannot open the segment's file", &path))?;
        let segment = SegmentFile {
            header_path: self.header_path(&kept.header.name),
            header: kept.header.clone(),
            draft: None,
            path,
            _lock: lock,
        };
        Ok((file, segment))
    }

    /// Notes that a segment's file is complete.
    pub fn completed(&self, segment: &SegmentFile) {
        let draft = segment.path.with_extension(DRAFT);
        lock_drafts(&self.drafts).remove(&draft);
    }

    /// Removes the files that are not complete, for a process that can't wait for their owners.
    pub fn abandon(&self) {
        for path in std::mem::take(&mut *lock_drafts(&self.drafts)) {
            let _ = fs::remove_file(path);
        }
    }

    /// Where segments without a directory of their own lie.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of a segment's header.
    #[must_use]
    pub fn header_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("siding-{name}.header.json"))
    }

    /// Reads a header; `Ok(None)` where there is none, `Err` with the reason where it is none.
    fn read(&self, path: &Path) -> Result<Option<Header>, String> {
        let unreadable = |error| format!("its header can't be read: {error}");
        let file = match open_plainly(path, false) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        };
        let found = file.metadata().map_err(unreadable)?;
        if !found.is_file() || found.uid() != self.owner {
            return Err("its header is no plain file of this user's".to_owned());
        }
        if found.len() > HEADER_LIMIT_BYTES {
            return Err(format!("its header is {} bytes long", found.len()));
        }
        let mut text = Vec::new();
        file.take(HEADER_LIMIT_BYTES)
            .read_to_end(&mut text)
            .map_err(unreadable)?;
        let header: Header = serde_json::from_slice(&text)
            .map_err(|error| format!("its header is damaged: {error}"))?;
        let place = Path::new(&header.file);
        if place.file_name() != segment_path(Path::new(""), &header.name).file_name() {
            return Err(format!("its header names another file, {}", header.file));
        }
        Ok(Some(header))
    }
}

impl Drop for Store {
    /// A store that holds nothing leaves nothing, not even its lock.
    fn drop(&mut self) {
        let empty = |entry: Result<fs::DirEntry, _>| entry.is_ok_and(|e| e.file_name() == "lock");
        if fs::read_dir(&self.directory).is_ok_and(|mut entries| entries.all(empty)) {
            let _ = fs::remove_file(self.directory.join("lock"));
            let _ = fs::remove_dir(&self.directory);
        }
        let _ = flock(&self.lock, FlockOperation::Unlock);
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
        if let Some(draft) = &self.draft {
            let text = serde_json::to_vec_pretty(&self.header).map_err(|error| {
                io_error("cannot write the header", &self.header_path)(error.into())
            })?;
            // The header first: a name without a header is another store's.
            write_whole(&self.header_path, &text)?;
            fs::rename(draft, &self.path).map_err(io_error("cannot name", &self.path))?;
            self.draft = None;
        }
        Ok(())
    }
}

impl Drop for SegmentFile {
    fn drop(&mut self) {
        if let Some(draft) = &self.draft {
            let _ = fs::remove_file(draft);
        }
    }
}

/// What a directory, or the nearest one above it that exists, is on.
///
/// # Errors
/// The kernel's.
pub fn filesystem(directory: &Path) -> io::Result<Filesystem> {
    room(directory).map(|(filesystem, _)| filesystem)
}

/// The same, and the bytes that it still takes where it has a limit of its own.
///
/// # Errors
/// The kernel's.
pub fn room(directory: &Path) -> io::Result<(Filesystem, Option<u64>)> {
    let existing = directory
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(directory);
    let found = statfs(existing)?;
    let block = u64::try_from(found.f_bsize).unwrap_or(0);
    let free = (found.f_blocks > 0).then(|| block.saturating_mul(found.f_bavail));
    Ok(match u64::try_from(found.f_type) {
        Ok(HUGETLBFS_MAGIC) => (Filesystem::Hugetlbfs { page_bytes: block }, free),
        Ok(TMPFS_MAGIC) => (Filesystem::Tmpfs, free),
        _ => (Filesystem::Other, free),
    })
}

/// A tmpfs of this machine, for a hint.
#[must_use]
pub fn some_tmpfs() -> Option<PathBuf> {
    ["/dev/shm", "/run", "/tmp"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists() && matches!(filesystem(path), Ok(Filesystem::Tmpfs)))
}

/// Takes the directory's lock. Its file may be removed by the last who held it, so the one that is
/// locked must still be the one of this name.
fn locked(directory: &Path) -> Result<File, StoreError> {
    let path = directory.join("lock");
    for _ in 0..100 {
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(NOFOLLOW | NONBLOCK)
            .open(&path)
            .map_err(io_error("cannot write", &path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(StoreError::InUse {
                    path: directory.to_owned(),
                });
            }
            Err(error) => return Err(io_error("cannot lock", &path)(error.into())),
        }
        let held = lock
            .metadata()
            .map_err(io_error("cannot see", &path))?
            .ino();
        if fs::symlink_metadata(&path).is_ok_and(|found| found.ino() == held) {
            return Ok(lock);
        }
    }
    Err(StoreError::InUse {
        path: directory.to_owned(),
    })
}

/// Opens a segment's file and takes its lock.
fn segment_lock(path: &Path) -> Result<File, StoreError> {
    let file =
        open_plainly(path, true).map_err(io_error("cannot open the segment's file", path))?;
    hold(&file, path)?;
    Ok(file)
}

fn hold(file: &File, path: &Path) -> Result<(), StoreError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::InUse {
            path: path.to_owned(),
        }),
        Err(error) => Err(io_error("cannot lock", path)(error.into())),
    }
}

/// Opens what is no link, without waiting for the other end of a pipe.
fn open_plainly(path: &Path, write: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(NOFOLLOW | NONBLOCK)
        .open(path)
}

fn lock_drafts(drafts: &Mutex<BTreeSet<PathBuf>>) -> MutexGuard<'_, BTreeSet<PathBuf>> {
    drafts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the file that a header names is the very one it was written for.
fn is_its_own(header: &Header) -> bool {
    let found = fs::symlink_metadata(&header.file);
    found.is_ok_and(|found| {
        found.is_file() && (found.dev(), found.ino()) == (header.device, header.inode)
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
        Filesystem::Tmpfs if header.page == pages_name(Pages::Transparent) => Pages::Transparent,
        Filesystem::Tmpfs => Pages::Base,
        Filesystem::Other => return Err("it does not lie in memory".to_owned()),
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

/// Extension of a segment's file until it is complete.
const DRAFT: &str = "draft";

fn draft_path(directory: &Path, name: &str) -> PathBuf {
    segment_path(directory, name).with_extension(DRAFT)
}

/// Whether a file that bears the name of a complete segment, and that no header of this store is
/// for, is likely another store's: this store's own directory holds nobody else's.
fn is_anothers(file: &Path, own_directory: &Path) -> bool {
    file.extension().is_some_and(|extension| extension != DRAFT)
        && file.parent() != Some(own_directory)
}

/// Writes a small file so that it is there whole or not at all.
fn write_whole(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    let draft = path.with_extension("draft");
    let written = fresh(&draft)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&draft, path));
    written.map_err(|source| {
        let _ = fs::remove_file(&draft);
        io_error("cannot write", path)(source)
    })
}

/// A file of this name that nobody made before.
fn fresh(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .custom_flags(NOFOLLOW)
        .open(path)
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

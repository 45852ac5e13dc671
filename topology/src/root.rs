//! The root that everything is read below, and what to say of a file that can't be read.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize, Serializer};

use crate::capture::{ABSENT, NO_FILE, NO_FOLDER, NOT_READ, Tree, unpacked};
use crate::{fields, mountinfo};

/// No file of `/proc` or `/sys` that is read here comes near this many bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 16 << 20;

pub(crate) const TOO_LARGE: &str = "larger than 16 MiB";

/// As many links in a row as the kernel itself follows.
const MAX_LINKS: usize = 40;

/// Something that could not be learnt, where it was looked for, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// The file or folder as it was opened, that is with the root in front. In what is serialized,
    /// parts that are not UTF-8 are replaced.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// What is wrong with it, in words for a user.
    pub reason: String,
}

/// A path as text. A file's name may be any bytes, and what one is called must not keep the rest
/// from being told.
pub(crate) fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

/// What is in a folder that may be missing as there is nothing to put into it.
pub(crate) enum Listing {
    /// These.
    Names(Vec<String>),
    /// There is no such folder, so that there is nothing.
    Absent(Finding),
    /// There is one that can't be listed, or it can't be told whether there is.
    Unknown(Finding),
}

/// The tree that stands for `/`: a folder, or an archive of one that was captured.
#[derive(Clone, Debug)]
pub struct Root {
    base: PathBuf,
    archive: Option<Arc<Tree>>,
    record: Option<Arc<Mutex<Tree>>>,
    memory: Option<Arc<Mutex<Memory>>>,
}

/// What need not be looked at again.
#[derive(Debug, Default)]
struct Memory {
    /// Where links lead; `None` for what is none.
    links: HashMap<PathBuf, Option<PathBuf>>,
    /// Where folders really are.
    folders: HashMap<PathBuf, PathBuf>,
    /// What was left out.
    left_out: Vec<Finding>,
}

impl Root {
    /// The machine's own `/`.
    #[must_use]
    pub fn host() -> Self {
        Self::at("/")
    }

    /// A copy of (part of) a machine's tree at `base`.
    #[must_use]
    pub fn at(base: impl Into<PathBuf>) -> Self {
        let base: PathBuf = base.into();
        Self {
            // Without a slash at its end.
            base: base.components().collect(),
            archive: None,
            record: None,
            memory: None,
        }
    }

    /// The folder at `path`, or what the archive (plain `tar`) at `path` holds. An archive is read
    /// into memory: nothing of it is unpacked to a disk.
    ///
    /// # Errors
    /// When there is neither, or the archive can't be read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Finding> {
        let base = path.into();
        match open_tree(&base) {
            Ok(archive) => Ok(Self {
                archive: archive.map(Arc::new),
                ..Self::at(base)
            }),
            Err(error) => Err(Finding {
                path: base,
                reason: reason(&error),
            }),
        }
    }

    /// The same root, which from now on keeps what is read of it for [`Root::capture`].
    #[must_use]
    pub fn recording(&self) -> Self {
        Self {
            record: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// The same root for one reading, in which a link that was followed is not looked at again.
    pub(crate) fn for_one_reading(&self) -> Self {
        Self {
            memory: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// Writes what was read since [`Root::recording`], and nothing else, as an archive that
    /// [`Root::open`] reads: files, links that were followed, and the names in folders that were
    /// listed. Of a root that does not record, an empty one.
    ///
    /// # Errors
    /// When `to` can't be written.
    pub fn capture(&self, to: impl io::Write) -> io::Result<()> {
        let recorded = self.record.as_deref().map(lock);
        recorded.as_deref().unwrap_or(&Tree::default()).write(to)
    }

    /// Where `rel` lies; a leading `/` means this root, and `..` never leads out of it.
    #[must_use]
    pub fn path(&self, rel: impl AsRef<Path>) -> PathBuf {
        let mut inside: Vec<&std::ffi::OsStr> = Vec::new();
        for component in rel.as_ref().components() {
            match component {
                Component::Normal(name) => inside.push(name),
                Component::ParentDir => {
                    inside.pop();
                }
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        let mut path = self.base.clone();
        path.extend(inside);
        path
    }

    /// A finding about `rel`.
    #[must_use]
    pub fn finding(&self, rel: impl AsRef<Path>, reason: impl Into<String>) -> Finding {
        Finding {
            path: self.path(rel),
            reason: reason.into(),
        }
    }

    /// The text of a regular file of at most 16 MiB. What is not UTF-8 in it (one odd name among
    /// a thousand mounts) is replaced, and spoils no more than its own field.
    ///
    /// # Errors
    /// When there is no such file, or it can't be read or is larger.
    pub fn read(&self, rel: impl AsRef<Path>) -> Result<String, Finding> {
        self.text(rel.as_ref())
            .map_err(|error| self.finding(rel, reason(&error)))
    }

    /// As [`Root::read`], where a file that does not exist is no error but `None`.
    ///
    /// # Errors
    /// When the file is there and can't be read or is larger than 16 MiB.
    pub fn read_if_there(&self, rel: impl AsRef<Path>) -> Result<Option<String>, Finding> {
        match self.text(rel.as_ref()) {
            Ok(text) => Ok(Some(text)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(self.finding(rel, reason(&error))),
        }
    }

    /// The one decimal number that a file holds.
    ///
    /// # Errors
    /// As for [`Root::read`], and when the text is not a whole number that fits 64 bits.
    pub fn read_number(&self, rel: impl AsRef<Path>) -> Result<u64, Finding> {
        let text = self.read(&rel)?;
        fields::number(text.trim())
            .ok_or_else(|| self.finding(rel, fields::unexpected("a whole number", &text)))
    }

    /// The names in a folder, sorted; names that are not UTF-8 are left out, which
    /// [`crate::read_node`] tells.
    ///
    /// # Errors
    /// When there is no such folder or it can't be read.
    pub fn list(&self, rel: impl AsRef<Path>) -> Result<Vec<String>, Finding> {
        let names = self
            .names(rel.as_ref())
            .map_err(|error| self.finding(&rel, reason(&error)))?;
        let mut texts = Vec::with_capacity(names.len());
        for name in names {
            match name.into_string() {
                Ok(text) => texts.push(text),
                Err(name) => {
                    let path = rel.as_ref().join(name);
                    self.note(self.finding(path, "its name is no text (UTF-8): left out"));
                }
            }
        }
        Ok(texts)
    }

    /// Keeps what a reading left out.
    pub(crate) fn note(&self, finding: Finding) {
        if let Some(memory) = &self.memory {
            lock(memory).left_out.push(finding);
        }
    }

    /// What a reading left out so far.
    pub(crate) fn left_out(&self) -> Vec<Finding> {
        let memory = self.memory.as_deref();
        memory.map_or_else(Vec::new, |memory| lock(memory).left_out.clone())
    }

    /// Lists a folder that is missing where there is nothing to put into it: where one of some steps
    /// towards it, from a folder that is always there, is not among the names before it.
    pub(crate) fn listing(&self, start: &str, steps: &[&str], folder: &str) -> Listing {
        let finding = match self.list(folder) {
            Ok(names) => return Listing::Names(names),
            Err(finding) => finding,
        };
        let mut above = PathBuf::from(start);
        for step in steps {
            match self.list(&above) {
                Ok(names) if !names.iter().any(|name| name == step) => {
                    return Listing::Absent(finding);
                }
                Ok(_) => above.push(step),
                Err(_) => break,
            }
        }
        Listing::Unknown(finding)
    }

    /// Whether there is such a folder.
    #[must_use]
    pub fn is_dir(&self, rel: impl AsRef<Path>) -> bool {
        let Ok(real) = self.follow(rel.as_ref()) else {
            return false;
        };
        let is_dir = match &self.archive {
            Some(tree) => tree.is_folder(&real),
            None => self.base.join(&real).is_dir(),
        };
        if is_dir {
            self.record(|record| record.add_folder(&real));
        }
        is_dir
    }

    /// Where `rel` really lies, relative to the root, with every link followed as if the root were
    /// `/`: neither a link to `/…` nor one through `..` leads out of it.
    ///
    /// # Errors
    /// When there is no such file or folder, or its links run in a circle.
    pub fn real(&self, rel: impl AsRef<Path>) -> Result<PathBuf, Finding> {
        let real = self
            .follow(rel.as_ref())
            .map_err(|error| self.finding(&rel, reason(&error)))?;
        // A recording learns what is there, though nothing may be read below it.
        self.note_there(&real);
        Ok(real)
    }

    fn text(&self, rel: &Path) -> io::Result<String> {
        if self.is_plain_host() {
            return read_text(&self.base.join(rel));
        }
        let real = self.follow(rel)?;
        let text = match &self.archive {
            Some(tree) => tree.text(&real).map(str::to_owned),
            None => read_text(&self.base.join(&real)),
        };
        let text = text.inspect_err(|error| self.note_unread(&real, error))?;
        self.record(|record| match real.ends_with("mountinfo") {
            true => record.add_file(&real, &mountinfo::for_capture(&text)),
            false => record.add_file(&real, &text),
        });
        Ok(text)
    }

    fn names(&self, rel: &Path) -> io::Result<Vec<OsString>> {
        let real = self.follow(rel)?;
        let names = match &self.archive {
            Some(tree) => tree.names(&real),
            None => names(&self.base.join(&real)),
        };
        let names = names.inspect_err(|error| self.note_unlisted(&real, error))?;
        self.record(|record| record.add_names(&real, &names));
        Ok(names)
    }

    /// Whether the kernel follows links just as we would, and nobody wants to know them.
    fn is_plain_host(&self) -> bool {
        self.record.is_none() && self.archive.is_none() && self.base == Path::new("/")
    }

    fn record(&self, add: impl FnOnce(&mut Tree)) {
        if let Some(record) = &self.record {
            add(&mut lock(record));
        }
    }

    /// Notes what is at a path that is no link and is not read.
    fn note_there(&self, real: &Path) {
        self.record(|record| match &self.archive {
            Some(tree) => record.add_from(tree, real),
            None if self.base.join(real).is_dir() => record.add_folder(real),
            None => record.add_unread(real, NOT_READ),
        });
    }

    /// Notes why a text can't be read.
    fn note_unread(&self, real: &Path, error: &io::Error) {
        self.record(|record| match &self.archive {
            Some(tree) => record.add_from(tree, real),
            None if is_absence(error) => record.add_absent(real),
            None if self.base.join(real).is_dir() => record.add_folder(real),
            None => record.add_unread(real, &reason(error)),
        });
    }

    /// Notes why names can't be listed.
    fn note_unlisted(&self, real: &Path, error: &io::Error) {
        self.record(|record| match &self.archive {
            Some(tree) => record.add_from(tree, real),
            None if is_absence(error) => record.add_absent(real),
            None if self.base.join(real).is_dir() => record.add_unlistable(real, &reason(error)),
            None => record.add_unread(real, &reason(error)),
        });
    }

    /// Notes why a path leads no further.
    fn note_closed(&self, real: &Path, error: &io::Error) {
        if let Some(folder) = real.parent() {
            self.note_there(folder);
        }
        self.record(|record| match &self.archive {
            Some(tree) => record.add_from(tree, real),
            None if is_absence(error) => record.add_absent(real),
            None => record.add_closed(real, &reason(error)),
        });
    }

    fn follow(&self, rel: &Path) -> io::Result<PathBuf> {
        match (rel.parent(), rel.file_name()) {
            (Some(folder), Some(name)) if self.memory.is_some() => {
                self.walk(self.follow_folder(folder)?, Path::new(name))
            }
            _ => self.walk(PathBuf::new(), rel),
        }
    }

    fn follow_folder(&self, folder: &Path) -> io::Result<PathBuf> {
        let memory = self.memory.as_deref();
        if let Some(real) = memory.and_then(|memory| lock(memory).folders.get(folder).cloned()) {
            return Ok(real);
        }
        let real = self.walk(PathBuf::new(), folder)?;
        if let Some(memory) = memory {
            let folder = folder.to_owned();
            lock(memory).folders.insert(folder, real.clone());
        }
        Ok(real)
    }

    /// Where `rel` leads from a folder whose real path is known.
    fn walk(&self, mut real: PathBuf, rel: &Path) -> io::Result<PathBuf> {
        let mut ahead: Vec<OsString> = Vec::new();
        push_parts(&mut ahead, rel);
        let mut links = 0;
        while let Some(part) = ahead.pop() {
            if part == ".." {
                real.pop();
                continue;
            }
            real.push(part);
            let target = self.link(&real);
            let target = target.inspect_err(|error| self.note_closed(&real, error))?;
            let Some(target) = target else {
                continue;
            };
            links += 1;
            if links > MAX_LINKS {
                return Err(io::Error::other("too many links in a row"));
            }
            self.record(|record| record.add_link(&real, &target));
            real.pop();
            if target.is_absolute() {
                real = PathBuf::new();
            }
            push_parts(&mut ahead, &target);
        }
        Ok(real)
    }

    /// Where a link leads; `None` for what is no link.
    fn link(&self, real: &Path) -> io::Result<Option<PathBuf>> {
        let Some(memory) = &self.memory else {
            return self.read_link(real);
        };
        if let Some(known) = lock(memory).links.get(real) {
            return Ok(known.clone());
        }
        let read = self.read_link(real)?;
        lock(memory).links.insert(real.to_owned(), read.clone());
        Ok(read)
    }

    fn read_link(&self, real: &Path) -> io::Result<Option<PathBuf>> {
        if let Some(tree) = &self.archive {
            return tree.link(real);
        }
        match fs::read_link(self.base.join(real)) {
            Ok(target) => unpacked(target).map(Some),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What is kept here is never left half-changed: after a panic it is as good as before.
fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts the parts of a path on top of a stack, the first one uppermost.
fn push_parts(ahead: &mut Vec<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => ahead.push(name.to_owned()),
            Component::ParentDir => ahead.push("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
}

fn open_tree(path: &Path) -> io::Result<Option<Tree>> {
    let kind = fs::metadata(path)?;
    if kind.is_dir() {
        return Ok(None);
    }
    if !kind.is_file() {
        return Err(io::Error::other("neither a folder nor an archive"));
    }
    Tree::read(BufReader::new(File::open(path)?)).map(Some)
}

fn read_text(path: &Path) -> io::Result<String> {
    // A pipe or a device would block or never end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other(NO_FILE));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    // What is replaced in it may make it longer.
    let text = String::from_utf8_lossy(&bytes);
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(TOO_LARGE));
    }
    Ok(text.into_owned())
}

fn names(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    let entries = fs::read_dir(path).map_err(|error| match error.kind() {
        // What leads here was followed: it is no part of the path that is none.
        io::ErrorKind::NotADirectory => io::Error::other(NO_FOLDER),
        _ => error,
    });
    for entry in entries? {
        names.push(entry?.file_name());
    }
    names.sort_unstable();
    Ok(names)
}

fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ABSENT.to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn paths_stay_below_the_root() {
        let root = Root::at("/fixture");
        for (rel, want) in [
            ("proc/meminfo", "/fixture/proc/meminfo"),
            ("/proc/meminfo", "/fixture/proc/meminfo"),
            ("/proc/./self/../meminfo", "/fixture/proc/meminfo"),
            ("../../etc/passwd", "/fixture/etc/passwd"),
            ("", "/fixture"),
        ] {
            assert_eq!(root.path(rel), Path::new(want), "{rel}");
        }
        assert_eq!(Root::host().path("/sys"), Path::new("/sys"));
    }

    #[test]
    fn what_cannot_be_read_is_a_finding_with_its_path() {
        let fixture = Fixture::new(&[("a/file", "7\n"), ("a/word", "seven\n")]);
        let root = fixture.root();
        assert_eq!(root.read("a/file"), Ok("7\n".to_owned()));
        assert_eq!(root.read_number("a/file"), Ok(7));
        assert_eq!(root.read_if_there("a/none"), Ok(None));
        assert_eq!(root.read_if_there("a/file/below"), Ok(None));

        let missing = root.read("a/none").unwrap_err();
        assert_eq!(missing, root.finding("a/none", "does not exist"));
        assert_eq!(
            missing.to_string(),
            format!("{}/a/none: does not exist", root.path("").display())
        );
        assert_eq!(root.read("a").unwrap_err().reason, "not a regular file");
        assert_eq!(
            root.read_number("a/word").unwrap_err().reason,
            "expected a whole number, found \"seven\""
        );
        assert!(root.list("b").is_err());
        assert_eq!(root.list("a"), Ok(vec!["file".into(), "word".into()]));
    }

    #[test]
    fn size_is_bounded_and_encoding_repaired() {
        let fixture = Fixture::new(&[("large", &"x".repeat(MAX_FILE_BYTES as usize + 1))]);
        fixture.write_bytes("binary", b"a\xffb");
        let root = fixture.root();
        assert_eq!(root.read("large").unwrap_err().reason, "larger than 16 MiB");
        assert_eq!(root.read("binary"), Ok("a\u{fffd}b".to_owned()));
        assert!(root.read_if_there("large").is_err());
    }
}

//! What was read of a root, as a tree in memory, which an [archive] holds.

mod archive;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use crate::fields::at_most;

/// Where the link leads that stands for a name that was listed and not opened.
const NAME: &str = "(listed, not captured)";
/// How the target of a link begins that stands for what can't be read, before the reason.
const UNREAD: &str = "(not read) ";
/// How the target of a link begins that stands for what can't be reached, before the reason.
const CLOSED: &str = "(not reached) ";

/// As long as a path of the kernel's can be.
pub(crate) const MAX_PATH_BYTES: usize = 4096;
/// As long as one name in it can be.
const MAX_NAME_BYTES: usize = 255;

/// Longer than any reason that is written.
const MAX_REASON_CHARS: usize = 200;

pub(crate) const ABSENT: &str = "does not exist";
pub(crate) const NO_FILE: &str = "not a regular file";
pub(crate) const NO_FOLDER: &str = "not a folder";
pub(crate) const NOT_READ: &str = "was not read when this was captured";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Folder,
    File(String),
    Link(PathBuf),
    /// Only its name is known.
    Name,
    /// No link, and it can't be read or listed for this reason.
    Unread(String),
    /// Neither it nor what is below it can be reached, for this reason.
    Closed(String),
}

impl Entry {
    /// What a link stands for.
    fn of_link(target: PathBuf) -> Self {
        let text = target.to_string_lossy();
        if text == NAME {
            return Self::Name;
        }
        if let Some(reason) = text.strip_prefix(UNREAD) {
            return Self::Unread(at_most(MAX_REASON_CHARS, reason));
        }
        if let Some(reason) = text.strip_prefix(CLOSED) {
            return Self::Closed(at_most(MAX_REASON_CHARS, reason));
        }
        Self::Link(target)
    }

    fn bytes(&self) -> usize {
        match self {
            Self::File(text) => text.len(),
            _ => 0,
        }
    }

    /// Whether this is kept where `new` is seen, too: what was seen first, unless less was seen.
    fn outlives(&self, new: &Self) -> bool {
        match self {
            Self::Name => false,
            Self::Unread(_) => !matches!(new, Self::File(_)),
            Self::Folder | Self::File(_) | Self::Link(_) | Self::Closed(_) => true,
        }
    }
}

/// Where a link leads that was found on a disk; an error where it only stands for what is not there.
pub(crate) fn unpacked(target: PathBuf) -> io::Result<PathBuf> {
    match Entry::of_link(target) {
        Entry::Link(target) => Ok(target),
        Entry::Unread(reason) | Entry::Closed(reason) => Err(error(&reason)),
        Entry::Name | Entry::Folder | Entry::File(_) => Err(not_captured()),
    }
}

/// Files, folders and links by their path below the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
    /// About what the entries take of memory.
    bytes: usize,
}

impl Tree {
    pub(crate) fn add_folder(&mut self, path: &Path) {
        self.add(path, Entry::Folder);
    }

    pub(crate) fn add_file(&mut self, path: &Path, text: &str) {
        self.add(path, Entry::File(text.to_owned()));
    }

    pub(crate) fn add_link(&mut self, path: &Path, target: &Path) {
        self.add(path, Entry::Link(target.to_owned()));
    }

    pub(crate) fn add_names(&mut self, folder: &Path, names: &[OsString]) {
        self.add_folder(folder);
        for name in names {
            self.add(&folder.join(name), Entry::Name);
        }
    }

    /// Adds that what is there, and no link, can't be read.
    pub(crate) fn add_unread(&mut self, path: &Path, reason: &str) {
        self.add(path, Entry::Unread(reason.to_owned()));
    }

    /// Adds that a folder can't be listed. What is known of some names in it would look like all.
    pub(crate) fn add_unlistable(&mut self, path: &Path, reason: &str) {
        self.entries.retain(|below, _| !below.starts_with(path));
        self.add_unread(path, reason);
    }

    /// Adds that what is there can't be reached.
    pub(crate) fn add_closed(&mut self, path: &Path, reason: &str) {
        self.add(path, Entry::Closed(reason.to_owned()));
    }

    /// Adds that what was listed is not there.
    pub(crate) fn add_absent(&mut self, path: &Path) {
        if self.entries.get(path) == Some(&Entry::Name) {
            self.add_closed(path, ABSENT);
        }
    }

    /// Adds what another tree has at a path.
    pub(crate) fn add_from(&mut self, other: &Self, path: &Path) {
        if let Some(entry) = other.entries.get(path) {
            self.add(path, entry.clone());
        }
    }

    fn add(&mut self, path: &Path, entry: Entry) {
        let is_long = |name: &OsStr| name.len() > MAX_NAME_BYTES;
        if path.as_os_str().len() > MAX_PATH_BYTES || path.iter().any(is_long) {
            return;
        }
        let above: Vec<&Path> = path
            .ancestors()
            .skip(1)
            // Where a folder is known, so are those above it.
            .take_while(|folder| !self.is_folder(folder))
            .collect();
        if above.iter().any(|folder| self.ends(folder)) {
            return;
        }
        for folder in above {
            self.add_entry(folder, Entry::Folder);
        }
        self.add_entry(path, entry);
    }

    /// Whether nothing can be below this.
    fn ends(&self, path: &Path) -> bool {
        let entry = self.entries.get(path);
        entry.is_some_and(|entry| *entry != Entry::Folder && entry.outlives(&Entry::Folder))
    }

    fn add_entry(&mut self, path: &Path, entry: Entry) {
        match self.entries.get_mut(path) {
            Some(known) if known.outlives(&entry) => {}
            Some(known) => {
                self.bytes += entry.bytes();
                *known = entry;
            }
            None => {
                self.bytes += path.as_os_str().len() + entry.bytes();
                self.entries.insert(path.to_owned(), entry);
            }
        }
    }

    pub(crate) fn is_folder(&self, path: &Path) -> bool {
        self.entries.get(path) == Some(&Entry::Folder)
    }

    pub(crate) fn text(&self, path: &Path) -> io::Result<&str> {
        match self.entries.get(path) {
            Some(Entry::File(text)) => Ok(text),
            Some(Entry::Unread(reason) | Entry::Closed(reason)) => Err(error(reason)),
            Some(Entry::Folder | Entry::Link(_) | Entry::Name) => Err(error(NO_FILE)),
            None => Err(error(ABSENT)),
        }
    }

    pub(crate) fn link(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        match self.entries.get(path) {
            Some(Entry::Link(target)) => Ok(Some(target.clone())),
            Some(Entry::Name) => Err(not_captured()),
            Some(Entry::Closed(reason)) => Err(error(reason)),
            Some(Entry::Folder | Entry::File(_) | Entry::Unread(_)) => Ok(None),
            None => Err(error(ABSENT)),
        }
    }

    pub(crate) fn names(&self, folder: &Path) -> io::Result<Vec<OsString>> {
        match self.entries.get(folder) {
            Some(Entry::Folder) => {}
            Some(Entry::Unread(reason) | Entry::Closed(reason)) => return Err(error(reason)),
            Some(Entry::File(_) | Entry::Link(_) | Entry::Name) => return Err(error(NO_FOLDER)),
            None => return Err(error(ABSENT)),
        }
        // Paths are ordered by part, so that what is below a folder comes right after it.
        let below = self.entries.range(folder.to_owned()..).skip(1);
        let below = below.take_while(|(path, _)| path.starts_with(folder));
        let children = below.filter(|(path, _)| path.parent() == Some(folder));
        let names = children.filter_map(|(path, _)| path.file_name());
        Ok(names.map(OsStr::to_owned).collect())
    }
}

/// The error that was met with, for [`crate::root::reason`] to give the same reason.
fn error(reason: &str) -> io::Error {
    match reason {
        ABSENT => io::ErrorKind::NotFound.into(),
        reason => io::Error::other(reason),
    }
}

fn not_captured() -> io::Error {
    io::Error::other("was listed and not opened when this was captured")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason<T: std::fmt::Debug>(result: io::Result<T>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn what_was_seen_gives_way_only_to_more() {
        let path = Path::new("d/a");
        let mut tree = Tree::default();
        tree.add_absent(path);
        assert!(tree.entries.is_empty());
        tree.add_names(Path::new("d"), &["a".into()]);
        tree.add_unread(path, NO_FOLDER);
        tree.add_absent(path);
        tree.add_folder(path);
        assert_eq!(reason(tree.names(path)), NO_FOLDER);
        assert_eq!(tree.link(path).unwrap(), None);
        tree.add_file(path, "1");
        tree.add_closed(path, "later");
        assert_eq!(tree.text(path).unwrap(), "1");
    }

    /// A folder that can't be listed is never one with the few names that are known of it.
    #[test]
    fn an_unlistable_folder_has_no_names() {
        let folder = Path::new("d");
        let mut tree = Tree::default();
        tree.add_file(&folder.join("a"), "1");
        tree.add_unlistable(folder, "permission denied");
        tree.add_file(&folder.join("b"), "1");
        assert_eq!(reason(tree.names(folder)), "permission denied");
        assert_eq!(tree.entries.len(), 2, "the root and the folder");
    }

    #[test]
    fn paths_that_no_kernel_has_are_left_out() {
        let mut tree = Tree::default();
        tree.add_file(Path::new(&"x".repeat(256)), "1");
        tree.add_file(Path::new(&"x/".repeat(2100)), "1");
        assert!(tree.entries.is_empty());
    }
}

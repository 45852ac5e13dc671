//! What was read of a root, as a tree in memory and as an archive.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use tar::{Archive, Builder, EntryType, Header};

use crate::root::MAX_FILE_BYTES;

/// Where the link leads that stands for a name that was listed and not opened.
pub(crate) const NOT_CAPTURED: &str = "(listed, not captured)";

/// As long as a path of the kernel's can be.
const MAX_PATH_BYTES: usize = 4096;

/// No capture comes near this many files and folders.
const MAX_ENTRIES: usize = 200_000;
/// Nor near this many bytes.
const MAX_BYTES: u64 = 256 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Folder,
    File(String),
    Link(PathBuf),
    /// Only its name is known.
    Name,
}

/// Files, folders and links by their path below the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
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

    /// Adds that something is there, whatever it is.
    pub(crate) fn add_name(&mut self, path: &Path) {
        self.add(path, Entry::Name);
    }

    pub(crate) fn add_names(&mut self, folder: &Path, names: &[String]) {
        self.add_folder(folder);
        for name in names {
            self.add_name(&folder.join(name));
        }
    }

    /// Adds what was seen first; a name alone gives way to what it turns out to be.
    fn add(&mut self, path: &Path, entry: Entry) {
        for folder in path.ancestors().skip(1) {
            // Where a folder is known, so are those above it.
            if self.is_folder(folder) {
                break;
            }
            self.add_entry(folder, Entry::Folder);
        }
        self.add_entry(path, entry);
    }

    fn add_entry(&mut self, path: &Path, entry: Entry) {
        match self.entries.get_mut(path) {
            Some(known) if *known == Entry::Name => *known = entry,
            Some(_) => {}
            None => {
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
            Some(_) => Err(io::Error::other("not a regular file")),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(crate) fn link(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        match self.entries.get(path) {
            Some(Entry::Link(target)) => Ok(Some(target.clone())),
            Some(Entry::Name) => Err(not_captured()),
            Some(Entry::Folder | Entry::File(_)) => Ok(None),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(crate) fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        match self.entries.get(folder) {
            Some(Entry::Folder) => {}
            Some(_) => return Err(io::ErrorKind::NotADirectory.into()),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        // Paths are ordered by part, so that what is below a folder comes right after it.
        let below = self.entries.range(folder.to_owned()..).skip(1);
        let below = below.take_while(|(path, _)| path.starts_with(folder));
        let children = below.filter(|(path, _)| path.parent() == Some(folder));
        let names = children.filter_map(|(path, _)| path.file_name()?.to_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// As a plain `tar`, the same bytes for the same tree.
    pub(crate) fn write(&self, to: impl Write) -> io::Result<()> {
        let mut archive = Builder::new(to);
        for (path, entry) in &self.entries {
            if path.as_os_str().is_empty() {
                continue;
            }
            match entry {
                Entry::Folder => {
                    archive.append_data(&mut header(EntryType::Directory, 0), path, io::empty())?;
                }
                Entry::File(text) => {
                    let header = &mut header(EntryType::Regular, text.len() as u64);
                    archive.append_data(header, path, text.as_bytes())?;
                }
                Entry::Link(target) => {
                    archive.append_link(&mut header(EntryType::Symlink, 0), path, target)?;
                }
                Entry::Name => {
                    let header = &mut header(EntryType::Symlink, 0);
                    archive.append_link(header, path, NOT_CAPTURED)?;
                }
            }
        }
        archive.into_inner()?.flush()
    }

    pub(crate) fn read(from: impl Read) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.add_folder(Path::new(""));
        let mut bytes = 0_u64;
        for (count, entry) in Archive::new(from).entries()?.enumerate() {
            let entry = entry.map_err(no_archive)?;
            bytes = bytes.saturating_add(entry.size());
            if count >= MAX_ENTRIES || bytes > MAX_BYTES {
                return Err(io::Error::other("larger than any capture"));
            }
            tree.add_archived(entry)?;
        }
        Ok(tree)
    }

    fn add_archived(&mut self, mut entry: tar::Entry<'_, impl Read>) -> io::Result<()> {
        if entry.path_bytes().len() > MAX_PATH_BYTES {
            return Err(io::Error::other("holds a path longer than any"));
        }
        let path = inside(&entry.path()?);
        match entry.header().entry_type() {
            EntryType::Directory => self.add(&path, Entry::Folder),
            EntryType::Symlink => {
                let target = entry.link_name()?.unwrap_or_default();
                let is_name = target == Path::new(NOT_CAPTURED);
                let link = Entry::Link(target.into_owned());
                self.add(&path, if is_name { Entry::Name } else { link });
            }
            EntryType::Regular if entry.size() <= MAX_FILE_BYTES => {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes)?;
                self.add_file(&path, &String::from_utf8_lossy(&bytes));
            }
            // What a capture does not hold (devices, pipes, hard links) is not there.
            _ => {}
        }
        Ok(())
    }
}

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(match kind {
        EntryType::Directory => 0o755,
        EntryType::Symlink => 0o777,
        _ => 0o644,
    });
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header
}

/// The parts of a path that lead down.
fn inside(path: &Path) -> PathBuf {
    let parts = path.components();
    parts
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect()
}

fn no_archive(error: io::Error) -> io::Error {
    io::Error::other(format!("no plain tar archive: {error}"))
}

pub(crate) fn not_captured() -> io::Error {
    io::Error::other("was listed and not opened when this was captured")
}

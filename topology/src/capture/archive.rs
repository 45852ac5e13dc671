//! A [`Tree`] as a plain `tar`.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};

use tar::{Archive, Builder, EntryType, Header};

use super::{CLOSED, Entry, MAX_PATH_BYTES, NAME, NO_FILE, Tree, UNREAD};
use crate::root::{MAX_FILE_BYTES, TOO_LARGE};

/// No capture comes near this many files and folders.
const MAX_ENTRIES: usize = 200_000;
/// Nor near this many bytes.
const MAX_BYTES: u64 = 256 << 20;
/// Nor do its paths and texts come near this many.
const MAX_TREE_BYTES: usize = 64 << 20;
/// Nor has it longer names, which are kept in memory before they are looked at.
const MAX_EXTENSION_BYTES: u64 = 64 << 10;

const BLOCK: usize = 512;

const OVERSIZE: &str = "larger than any capture";
const CUT: &str = "cut short: it has no end; capture again";
const NO_ARCHIVE: &str = "no plain tar archive, as --capture writes it";

/// How compressed files begin, and what unpacks them.
const COMPRESSED: [(&[u8], &str); 4] = [
    (b"\x1f\x8b", "gunzip"),
    (b"\x28\xb5\x2f\xfd", "unzstd"),
    (b"\xfd7zXZ\0", "unxz"),
    (b"BZh", "bunzip2"),
];

impl Tree {
    /// As a plain `tar`, the same bytes for the same tree.
    pub(crate) fn write(&self, to: impl Write) -> io::Result<()> {
        if self.entries.len() > MAX_ENTRIES || self.bytes > MAX_TREE_BYTES {
            return Err(io::Error::other(OVERSIZE));
        }
        let mut archive = Builder::new(to);
        for (path, entry) in &self.entries {
            if path.as_os_str().is_empty() {
                continue;
            }
            let link = &mut header(EntryType::Symlink, 0);
            match entry {
                Entry::Folder => {
                    archive.append_data(&mut header(EntryType::Directory, 0), path, io::empty())?;
                }
                Entry::File(text) => {
                    let header = &mut header(EntryType::Regular, text.len() as u64);
                    archive.append_data(header, path, text.as_bytes())?;
                }
                Entry::Link(target) => archive.append_link(link, path, target)?,
                Entry::Name => archive.append_link(link, path, NAME)?,
                Entry::Unread(reason) => {
                    archive.append_link(link, path, format!("{UNREAD}{reason}"))?;
                }
                Entry::Closed(reason) => {
                    archive.append_link(link, path, format!("{CLOSED}{reason}"))?;
                }
            }
        }
        archive.into_inner()?.flush()
    }

    pub(crate) fn read(mut from: impl Read + Seek) -> io::Result<Self> {
        check(&mut from)?;
        from.rewind()?;
        let mut tree = Self::default();
        tree.add_folder(Path::new(""));
        let mut bytes = 0_u64;
        for (count, entry) in Archive::new(from).entries()?.enumerate() {
            let entry = entry.map_err(no_archive)?;
            bytes = bytes.saturating_add(entry.size());
            if count >= MAX_ENTRIES || bytes > MAX_BYTES {
                return Err(io::Error::other(OVERSIZE));
            }
            tree.add_archived(entry)?;
            if tree.bytes > MAX_TREE_BYTES {
                return Err(io::Error::other(OVERSIZE));
            }
        }
        Ok(tree)
    }

    fn add_archived(&mut self, mut entry: tar::Entry<'_, impl Read>) -> io::Result<()> {
        if entry.path_bytes().len() > MAX_PATH_BYTES {
            return Err(io::Error::other(OVERSIZE));
        }
        let path = inside(&entry.path().map_err(no_archive)?);
        match entry.header().entry_type() {
            EntryType::Directory => self.add(&path, Entry::Folder),
            EntryType::Symlink => {
                let target = entry.link_name().map_err(no_archive)?.unwrap_or_default();
                self.add(&path, Entry::of_link(target.into_owned()));
            }
            EntryType::Regular if entry.size() <= MAX_FILE_BYTES => {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).map_err(no_archive)?;
                self.add_file(&path, &String::from_utf8_lossy(&bytes));
            }
            EntryType::Regular => self.add_unread(&path, TOO_LARGE),
            EntryType::Link => self.add_unread(&path, "a hard link, which no capture has"),
            _ => self.add_unread(&path, NO_FILE),
        }
        Ok(())
    }
}

/// That an archive is whole, and that nothing in it is larger than in a capture, by its headers.
fn check(from: &mut (impl Read + Seek)) -> io::Result<()> {
    let mut bytes = 0_u64;
    for count in 0..=2 * MAX_ENTRIES {
        let Some(block) = block(from, count == 0)? else {
            return match block(from, false)? {
                None if count == 0 => Err(io::Error::other("holds nothing: no capture")),
                None => Ok(()),
                Some(_) => Err(io::Error::other(CUT)),
            };
        };
        let header = Header::from_byte_slice(&block);
        let size = header.entry_size().map_err(no_archive)?;
        let kind = header.entry_type();
        let is_extension = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        bytes = bytes.saturating_add(size);
        if bytes > MAX_BYTES || (is_extension && size > MAX_EXTENSION_BYTES) {
            return Err(io::Error::other(OVERSIZE));
        }
        if kind.is_gnu_sparse() {
            return Err(io::Error::other(
                "holds a sparse file, which no capture has",
            ));
        }
        let padded = size.next_multiple_of(BLOCK as u64).cast_signed();
        from.seek(SeekFrom::Current(padded))?;
    }
    Err(io::Error::other(OVERSIZE))
}

/// The next block; `None` where it is all zeros.
fn block(from: &mut impl Read, is_first: bool) -> io::Result<Option<[u8; BLOCK]>> {
    let mut block = [0; BLOCK];
    let mut filled = 0;
    while filled < BLOCK {
        match from.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let start = &block[..filled];
    let mut known = COMPRESSED.iter();
    let compressed = known.find(|(magic, _)| is_first && start.starts_with(magic));
    if let Some((_, tool)) = compressed {
        let reason = format!("compressed: unpack it with {tool} first");
        return Err(io::Error::other(reason));
    }
    match filled {
        BLOCK => Ok(Some(block).filter(|block| block.iter().any(|byte| *byte != 0))),
        0 if is_first => Err(io::Error::other("empty: no capture")),
        _ if is_first => Err(io::Error::other(NO_ARCHIVE)),
        _ => Err(io::Error::other(CUT)),
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

/// The kernel's errors as they are; those of the format quote the file, which may be any.
fn no_archive(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(_) => error,
        None => io::Error::other(NO_ARCHIVE),
    }
}

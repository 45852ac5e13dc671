//! The root that everything is read below, and what to say of a file that can't be read.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use crate::fields;

/// No file of `/proc` or `/sys` that is read here comes near this many bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Something that could not be learnt, where it was looked for, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct Finding {
    /// The file or folder as it was opened, that is with the root in front.
    pub path: PathBuf,
    /// What is wrong with it, in words for a user.
    pub reason: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

/// The folder that stands for `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    base: PathBuf,
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
        Self { base: base.into() }
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
        read_text(&self.path(&rel)).map_err(|error| self.finding(rel, reason(&error)))
    }

    /// As [`Root::read`], where a file that does not exist is no error but `None`.
    ///
    /// # Errors
    /// When the file is there and can't be read or is larger than 16 MiB.
    pub fn read_if_there(&self, rel: impl AsRef<Path>) -> Result<Option<String>, Finding> {
        match read_text(&self.path(&rel)) {
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

    /// The names in a folder, sorted; names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// When there is no such folder or it can't be read.
    pub fn list(&self, rel: impl AsRef<Path>) -> Result<Vec<String>, Finding> {
        names(&self.path(&rel)).map_err(|error| self.finding(rel, reason(&error)))
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    // A pipe or a device would block or never end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("larger than 16 MiB"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.extend(entry?.file_name().into_string());
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
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "does not exist".to_owned(),
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

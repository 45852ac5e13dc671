//! Standard output and standard error, which may be full, closed or gone; and files that are
//! written whole or not at all.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;

use crate::failure::Failure;

/// Prints to standard output. A reader that went away wanted no more: that is no failure.
///
/// # Errors
/// [`Failure`] where it can't be written.
pub fn print(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// A text as one line, with what would steer a terminal, end a line, turn the direction in which it
/// is read or not be seen, written out.
#[must_use]
pub fn plain(text: &str) -> String {
    let shown = |letter: char| match letter.is_control() || is_unseen(letter) {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Whether a letter has no shape of its own: separators of lines, marks of direction, joiners, and
/// tags.
fn is_unseen(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Prints a line to standard error, as far as anybody is there.
pub fn complain(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "siding: {text}");
}

/// Prints a line to standard error as it is, for what accompanies a document on standard output.
pub fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes a file whole or not at all: what was there before stays until all of it is on the disk.
/// What is no regular file (a pipe, `/dev/stdout`) is written as it is.
///
/// # Errors
/// Where it can't be written; nothing is left then.
pub fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let place = match fs::metadata(path) {
        Ok(there) if !there.is_file() => return fs::write(path, content),
        // A link stays one.
        Ok(_) => fs::canonicalize(path)?,
        Err(_) => path.to_owned(),
    };
    let draft = draft(&place);
    let written = write_draft(&draft, &place, content).and_then(|()| fs::rename(&draft, &place));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

/// A name beside the file that no other process takes.
fn draft(place: &Path) -> PathBuf {
    place.with_file_name(format!(".siding-{}.draft", process::id()))
}

fn write_draft(draft: &Path, place: &Path, content: &[u8]) -> io::Result<()> {
    // One of an earlier process of this number may be there.
    let _ = fs::remove_file(draft);
    let mut file = File::create_new(draft)?;
    if let Ok(there) = fs::metadata(place) {
        file.set_permissions(there.permissions())?;
    }
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn what_steers_or_hides_is_written_out() {
        assert_eq!(plain("a\u{1b}[31m\n"), "a\\u{1b}[31m\\n");
        for hidden in [
            '\u{202e}', '\u{2028}', '\u{2029}', '\u{feff}', '\u{200b}', '\u{2066}',
        ] {
            let written = format!("\\u{{{:x}}}", u32::from(hidden));
            assert_eq!(plain(&format!("a{hidden}b")), format!("a{written}b"));
        }
        let shown = "é 日本 😀 \u{fffd}";
        assert_eq!(plain(shown), shown);
    }

    #[test]
    fn a_file_is_replaced_and_keeps_its_mode_and_its_links() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        write_file(&file, b"old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("file", &link).unwrap();
        write_file(&link, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(names(folder.path()), ["file", "link"]);
    }

    #[test]
    fn what_fails_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let full = folder.path().join("full");
        symlink("/dev/full", &full).unwrap();
        let error = write_file(&full, b"new").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(write_file(&folder.path().join("no/file"), b"new").is_err());
        assert!(write_file(folder.path(), b"new").is_err());
        assert_eq!(names(folder.path()), ["full"]);
    }
}

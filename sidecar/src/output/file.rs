//! Files that users name for a result.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::{PROC_SUPER_MAGIC, statfs};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// Writes a file whole or not at all: what was there before stays until all of it is on the disk.
/// What a path only leads to is written as it is: a pipe, a device, and a descriptor by its name
/// (`/dev/stdout`, `/dev/fd/3`), after what was written to it before. So is a file that can't be
/// replaced, because its folder can't be written or it is a mount of its own.
///
/// # Errors
/// Where it can't be written; of a file that can be replaced nothing is left then.
pub fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    match Place::of(path)? {
        Place::Own(1) => flushed(io::stdout().lock(), content),
        Place::Own(2) => flushed(io::stderr().lock(), content),
        Place::Own(number) => flushed(descriptor(number, path)?, content),
        Place::Elsewhere => flushed(appending(path)?, content),
        Place::Special => fs::write(path, content),
        Place::File(file) => replace(&file, content),
    }
}

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// A descriptor of this process.
    Own(i32),
    /// A link of the kernel's to what somebody has open.
    Elsewhere,
    /// There is something, and it is no regular file.
    Special,
    /// A regular file, or none yet, with no link at the end of its path.
    File(PathBuf),
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            match fs::symlink_metadata(&path) {
                Ok(there) if there.is_symlink() => {}
                Ok(there) if !there.is_file() => return Ok(Self::Special),
                _ => return Ok(Self::File(path)),
            }
            let folder = folder(&path);
            // Such a link leads to the open file itself, and what it reads as is only its name.
            if statfs(&folder)?.f_type == PROC_SUPER_MAGIC {
                return Ok(own_descriptor(&path).map_or(Self::Elsewhere, Self::Own));
            }
            path = folder.join(fs::read_link(&path)?);
        }
        Err(io::Error::other("too many links"))
    }
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The descriptor of this process that a link below `/proc` stands for.
fn own_descriptor(link: &Path) -> Option<i32> {
    let number = link.file_name()?.to_str()?.parse().ok()?;
    let folder = fs::canonicalize(folder(link)).ok()?;
    let own = fs::canonicalize("/proc/self").ok()?;
    (folder.starts_with(own) && folder.ends_with("fd")).then_some(number)
}

/// The same open file, with the place in it that it has come to.
fn descriptor(number: i32, path: &Path) -> io::Result<File> {
    let own = pidfd_open(getpid(), PidfdFlags::empty());
    let copy = own.and_then(|own| pidfd_getfd(own, number, PidfdGetfdFlags::empty()));
    // A kernel before 5.6 has no such call, and a runtime may forbid it.
    copy.map_or_else(|_| appending(path), |copy: OwnedFd| Ok(File::from(copy)))
}

fn appending(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

fn flushed(mut into: impl Write, content: &[u8]) -> io::Result<()> {
    into.write_all(content)?;
    into.flush()
}

fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let draft = draft(file);
    let written = write_draft(&draft, file, content).and_then(|()| fs::rename(&draft, file));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    match written {
        Err(error) if is_of_the_folder(&error) && file.exists() => overwrite(file, content),
        Err(error) if is_of_the_folder(&error) => Err(named(&folder(file), &error)),
        written => written,
    }
}

/// Whether it says of the folder, or of the file's place in it, that nothing is replaced there.
fn is_of_the_folder(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::ResourceBusy
            | ErrorKind::CrossesDevices
    )
}

fn named(folder: &Path, error: &io::Error) -> io::Error {
    let text = format!("its folder {} can't be written: {error}", folder.display());
    io::Error::new(error.kind(), text)
}

fn overwrite(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(file)?;
    file.write_all(content)?;
    file.sync_all()
}

/// A name beside the file that no other process takes.
fn draft(file: &Path) -> PathBuf {
    file.with_file_name(format!(".siding-{}.draft", process::id()))
}

fn write_draft(draft: &Path, file: &Path, content: &[u8]) -> io::Result<()> {
    // One of an earlier process of this number may be there.
    let _ = fs::remove_file(draft);
    let mut new = File::create_new(draft)?;
    if let Ok(there) = fs::metadata(file) {
        new.set_permissions(there.permissions())?;
    }
    new.write_all(content)?;
    new.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_keeps_its_mode_and_its_links() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        symlink("file", &link).unwrap();
        write_file(&link, b"old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
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
        symlink("loop", folder.path().join("loop")).unwrap();
        assert!(write_file(&folder.path().join("loop"), b"new").is_err());
        assert_eq!(names(folder.path()), ["full", "loop"]);
    }

    #[test]
    fn a_descriptor_is_written_where_it_stands() {
        let folder = tempfile::tempdir().unwrap();
        let (log, link) = (folder.path().join("log"), folder.path().join("link"));
        let mut open = File::create(&log).unwrap();
        let number = open.as_raw_fd();
        symlink(format!("/dev/fd/{number}"), &link).unwrap();
        open.write_all(b"old,").unwrap();
        for (path, content) in [
            (format!("/dev/fd/{number}"), "a,"),
            (format!("/proc/thread-self/fd/{number}"), "b,"),
            (link.display().to_string(), "c,"),
        ] {
            let place = Place::of(Path::new(&path)).unwrap();
            assert_eq!(place, Place::Own(number), "{path}");
            write_file(Path::new(&path), content.as_bytes()).unwrap();
        }
        open.write_all(b"end").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "old,a,b,c,end");
        assert_eq!(names(folder.path()), ["link", "log"]);
    }

    #[test]
    fn what_another_process_has_open_is_only_added_to() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        fs::write(&log, "old,").unwrap();
        let output = OpenOptions::new().append(true).open(&log).unwrap();
        let mut other = process::Command::new("sleep");
        let mut other = other.arg("60").stdout(output).spawn().unwrap();
        let path = format!("/proc/{}/fd/1", other.id());
        let written = write_file(Path::new(&path), b"new");
        other.kill().unwrap();
        other.wait().unwrap();
        written.unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "old,new");
    }

    #[test]
    fn a_pipe_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let read = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write_file(&pipe, b"through").unwrap();
        assert_eq!(read.join().unwrap(), b"through");
        assert_eq!(names(folder.path()), ["pipe"]);
    }
}

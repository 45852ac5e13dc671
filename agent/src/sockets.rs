//! The way to a sidecar's socket, below a directory that the pod itself writes.
//!
//! A pod may put links, folders, pipes or another pod's path in the socket's place. Each step is
//! opened below the one before and follows no link; what was looked at is what is connected to.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use siding_crds::names::{AGENT_SOCKET, RUN_VOLUME};

/// Why there is no way to a socket.
#[derive(Debug, thiserror::Error)]
pub enum NoSocket {
    /// That is no pod's uid.
    #[error("{0:?} is no pod's uid")]
    NoUid(String),
    /// A step of the way can't be opened.
    #[error("{path}: {source}")]
    Step {
        /// The path so far.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Something else is in its place.
    #[error("{path} is no socket but a {what}")]
    Other {
        /// Where it is.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
}

impl NoSocket {
    /// Whether it only is not there (yet).
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Step { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }

    /// Whether the pod's folder itself is not there: the kubelet has not made it yet, or took it away when the pod
    /// had ended.
    #[must_use]
    pub fn is_without_folder(&self) -> bool {
        matches!(self, Self::Step { path, .. } if self.is_absent() && !path.ends_with(AGENT_SOCKET))
    }
}

/// A socket that was found: held by a descriptor, so that nothing can be put in its place.
#[derive(Debug)]
pub struct FoundSocket {
    held: OwnedFd,
}

impl FoundSocket {
    /// A path that leads to it and nothing else, for as long as this lives. (Its own path would
    /// be longer than the address of a socket may be.)
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.held.as_raw_fd()))
    }
}

/// Finds the socket of a pod's sidecar below the kubelet's directory.
///
/// # Errors
/// [`NoSocket`].
pub fn find(kubelet_directory: &Path, pod_uid: &str) -> Result<FoundSocket, NoSocket> {
    if !is_uid(pod_uid) {
        return Err(NoSocket::NoUid(pod_uid.chars().take(64).collect()));
    }
    // The kubelet's own directory may be a link: that is the node's affair.
    let pods = kubelet_directory.join("pods");
    let mut at = open(CWD, &pods, &pods, OFlags::empty())?;
    let mut path = pods;
    for step in [pod_uid, "volumes", "kubernetes.io~empty-dir", RUN_VOLUME] {
        path.push(step);
        at = open(&at, Path::new(step), &path, OFlags::NOFOLLOW)?;
    }
    path.push(AGENT_SOCKET);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = openat(&at, AGENT_SOCKET, flags, Mode::empty()).map_err(|errno| NoSocket::Step {
        path: path.clone(),
        source: errno.into(),
    })?;
    let stat = fstat(&held).map_err(|errno| NoSocket::Step {
        path: path.clone(),
        source: errno.into(),
    })?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => Ok(FoundSocket { held }),
        other => Err(NoSocket::Other {
            path,
            what: word(other),
        }),
    }
}

fn open(
    at: impl std::os::fd::AsFd,
    step: &Path,
    path: &Path,
    more: OFlags,
) -> Result<OwnedFd, NoSocket> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
    openat(at, step, flags, Mode::empty()).map_err(|errno| NoSocket::Step {
        path: path.to_owned(),
        source: errno.into(),
    })
}

/// A UUID, or a static pod's hash: nothing that leads elsewhere.
fn is_uid(uid: &str) -> bool {
    let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    (1..=64).contains(&uid.len()) && uid.bytes().all(letters)
}

fn word(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "folder",
        FileType::Symlink => "link",
        FileType::Fifo => "pipe",
        _ => "device",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};

    use rustix::fs::mknodat;
    use tempfile::TempDir;

    use super::*;

    const UID: &str = "0b3e9f5c-8a1d-4f38-9c65-0c86a4b5a001";

    struct Kubelet(TempDir);

    impl Kubelet {
        fn new() -> Self {
            let kubelet = Self(TempDir::new().unwrap());
            fs::create_dir_all(kubelet.run()).unwrap();
            kubelet
        }

        fn run(&self) -> PathBuf {
            let volumes = format!("pods/{UID}/volumes/kubernetes.io~empty-dir/siding-run");
            self.0.path().join(volumes)
        }

        fn socket(&self) -> PathBuf {
            self.run().join("agent.sock")
        }

        fn find(&self) -> Result<FoundSocket, NoSocket> {
            find(self.0.path(), UID)
        }
    }

    #[test]
    fn the_folder_of_a_pod_that_has_ended_is_another_lack_than_a_socket() {
        let kubelet = Kubelet::new();
        assert!(!kubelet.find().unwrap_err().is_without_folder());
        fs::remove_dir(kubelet.run()).unwrap();
        let error = kubelet.find().unwrap_err();
        assert!(error.is_without_folder() && error.is_absent());
        fs::write(kubelet.run(), "").unwrap();
        assert!(!kubelet.find().unwrap_err().is_without_folder());
    }

    #[test]
    fn a_socket_is_found_and_stays_the_one_that_was_found() {
        let kubelet = Kubelet::new();
        assert!(kubelet.find().unwrap_err().is_absent());
        // As in a pod: bound by a short path. The node's own path to it is longer than a socket's
        // address may be.
        let elsewhere = kubelet.0.path().join("s");
        let first = UnixListener::bind(&elsewhere).unwrap();
        fs::rename(&elsewhere, kubelet.socket()).unwrap();
        let found = kubelet.find().unwrap();
        // The pod puts another one in its place.
        let _second = UnixListener::bind(&elsewhere).unwrap();
        fs::remove_file(kubelet.socket()).unwrap();
        symlink(&elsewhere, kubelet.socket()).unwrap();
        let _client = UnixStream::connect(found.path()).unwrap();
        first.set_nonblocking(true).unwrap();
        assert!(first.accept().is_ok(), "the first one was dialled");
    }

    #[test]
    fn what_a_pod_puts_in_its_place_is_not_followed() {
        let outside = TempDir::new().unwrap();
        let secret = outside.path().join("agent.sock");
        let _listener = UnixListener::bind(&secret).unwrap();
        let refused = |put: &dyn Fn(&Kubelet)| {
            let kubelet = Kubelet::new();
            put(&kubelet);
            let error = kubelet.find().unwrap_err();
            assert!(!error.is_absent(), "{error}");
            error.to_string()
        };
        for (put, said) in [
            (
                &(|k: &Kubelet| symlink(&secret, k.socket()).unwrap()) as &dyn Fn(&Kubelet),
                "is no socket but a link",
            ),
            (
                &|k: &Kubelet| {
                    fs::remove_dir(k.run()).unwrap();
                    symlink(outside.path(), k.run()).unwrap();
                },
                "siding-run: ",
            ),
            (
                &|k: &Kubelet| fs::create_dir(k.socket()).unwrap(),
                "but a folder",
            ),
            (
                &|k: &Kubelet| fs::write(k.socket(), "x").unwrap(),
                "but a file",
            ),
            (
                &|k: &Kubelet| {
                    let mode = Mode::from_raw_mode(0o600);
                    mknodat(CWD, k.socket(), FileType::Fifo, mode, 0).unwrap();
                },
                "but a pipe",
            ),
        ] {
            let error = refused(put);
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_uid_leads_nowhere_else() {
        for uid in ["", "..", "a/b", "../x", "a\0b", &"x".repeat(65)] {
            assert!(
                matches!(find(Path::new("/"), uid), Err(NoSocket::NoUid(_))),
                "{uid}"
            );
        }
    }
}

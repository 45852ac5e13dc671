//! The socket that the node's agent dials: a Unix socket in a folder that the pod and the node
//! share.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The socket, open to this user (and root) alone. Its file is removed on drop.
#[derive(Debug)]
pub struct AgentSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: what another process put in its place is not removed.
    file: Option<(u64, u64)>,
}

impl AgentSocket {
    /// Makes it, in place of one that a former process left.
    ///
    /// # Errors
    /// [`Failure`] with what would work: no folder, something else in its place, another process
    /// that answers there.
    pub fn bind(path: &Path) -> Result<Self, Failure> {
        let lacking =
            |why: String| Failure::lacking(format!("--agent-socket {}: {why}", path.display()));
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(lacking(
                "it is no file's path; name one, e.g. /run/siding/agent.sock".to_owned(),
            ));
        };
        if !folder.as_os_str().is_empty() && !folder.is_dir() {
            return Err(lacking(format!(
                "there is no folder {}; make it (in a pod: mount an emptyDir there)",
                folder.display()
            )));
        }
        free(path).map_err(lacking)?;
        // Bound beside it and moved: whoever finds it can reach it, and nobody else ever could.
        let mut draft = std::ffi::OsString::from(".");
        draft.push(name);
        let draft = folder.join(draft);
        let _ = fs::remove_file(&draft);
        let made = bind(&draft).and_then(|listener| fs::rename(&draft, path).map(|()| listener));
        let listener = made.map_err(|error| {
            let _ = fs::remove_file(&draft);
            lacking(format!(
                "{error}; name a short path in a folder that this user may write"
            ))
        })?;
        let file = fs::symlink_metadata(path).ok().as_ref().map(identity);
        Ok(Self {
            listener,
            path: path.to_owned(),
            file,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The listener, in a runtime.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }
}

impl Drop for AgentSocket {
    fn drop(&mut self) {
        let there = fs::symlink_metadata(&self.path).ok();
        if there.as_ref().map(identity) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether the path may be taken; the error is why not.
fn free(path: &Path) -> Result<(), String> {
    let Ok(file) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !file.file_type().is_socket() {
        return Err(
            "something that is no socket is there; remove it, or name another path".to_owned(),
        );
    }
    match UnixStream::connect(path) {
        Ok(_) => Err("another process answers there; stop it, or name another path".to_owned()),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> String {
        AgentSocket::bind(path).unwrap_err().message
    }

    #[test]
    fn a_stale_socket_is_replaced_and_what_is_not_ours_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        // As a killed process leaves it.
        drop(UnixListener::bind(&path).unwrap());
        let socket = AgentSocket::bind(&path).unwrap();
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        assert!(refused(&path).contains("another process answers there"));
        drop(socket);
        assert!(!path.exists(), "it goes with its owner");

        fs::write(&path, "precious").unwrap();
        assert!(refused(&path).contains("something that is no socket is there"));
        let target = folder.path().join("target");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(refused(&path).contains("something that is no socket is there"));
    }

    #[test]
    fn what_another_process_put_in_its_place_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let first = AgentSocket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }

    #[test]
    fn without_its_folder_the_error_says_what_to_do() {
        let said = refused(Path::new("/nowhere/at/all/agent.sock"));
        assert_eq!(
            said,
            "--agent-socket /nowhere/at/all/agent.sock: there is no folder /nowhere/at/all; make it \
             (in a pod: mount an emptyDir there)"
        );
        let long = std::env::temp_dir().join("x".repeat(150));
        assert!(
            refused(&long).contains("name a short path"),
            "{}",
            refused(&long)
        );
    }
}

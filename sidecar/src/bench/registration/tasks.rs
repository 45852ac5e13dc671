//! How many processes and threads a user may still start.

use std::fs;

use rustix::process::{Resource, getrlimit, getuid};
use rustix::thread::{CapabilitySet, capabilities};

/// What lets a user start more of them.
pub const TASK_REMEDY: &str = "raise RLIMIT_NPROC (ulimit -u) or the cgroup's pids.max";

/// A user's processes and threads, all counted as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tasks {
    /// How many there may be (`RLIMIT_NPROC`).
    pub limit: u64,
    /// How many there are, as far as they can be seen from here.
    pub running: u64,
}

impl Tasks {
    /// Looks; `None` where nothing limits this user.
    #[must_use]
    pub fn observe() -> Option<Self> {
        let limit = getrlimit(Resource::Nproc).current?;
        let exempt = CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_RESOURCE;
        // Where it is not known, the kernel has the last word.
        let effective = capabilities(None).ok()?.effective;
        if effective.intersects(exempt) || getuid().is_root() {
            return None;
        }
        Some(Self {
            limit,
            running: running(getuid().as_raw()),
        })
    }

    /// How many more there may be.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.limit.saturating_sub(self.running)
    }
}

fn running(user: u32) -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let statuses = processes
        .filter(|process| {
            let name = process.file_name();
            name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
        })
        .filter_map(|process| fs::read_to_string(process.path().join("status")).ok());
    statuses.filter_map(|status| threads(&status, user)).sum()
}

/// Threads of a process, where it is this user's.
fn threads(status: &str, user: u32) -> Option<u64> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    (field("Uid:")? == u64::from(user)).then(|| field("Threads:"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_user() {
        let status = "Name:\tUid: 7\nUid:\t65534\t0\t0\t0\nThreads:\t12\n";
        assert_eq!(threads(status, 65_534), Some(12));
        assert_eq!(threads(status, 0), None);
        assert_eq!(threads("", 0), None);
        assert!(running(getuid().as_raw()) >= 1);
        let tasks = |limit, running| Tasks { limit, running };
        assert_eq!((tasks(5, 3).room(), tasks(3, 5).room()), (2, 0));
    }
}

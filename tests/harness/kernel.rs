//! The kernel's own counters, and the knobs that tests turn and turn back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

/// What must be as before when nothing was left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Per huge-page pool: total, free, reserved, surplus.
    pub pools: Vec<(String, [u64; 4])>,
    /// Pages pinned for I/O and not unpinned, over all processes.
    pub pinned_pages: i64,
    /// Files of segments in the directories where they could lie.
    pub files: Vec<PathBuf>,
}

impl Counters {
    /// Reads them, with the files below these directories.
    #[must_use]
    pub fn read(directories: &[&Path]) -> Self {
        let mut pools: Vec<_> = fs::read_dir("/sys/kernel/mm/hugepages")
            .into_iter()
            .flatten()
            .map(|entry| {
                let path = entry.unwrap().path();
                let counts = [
                    "nr_hugepages",
                    "free_hugepages",
                    "resv_hugepages",
                    "surplus_hugepages",
                ];
                (
                    path.display().to_string(),
                    counts.map(|count| number(&path.join(count))),
                )
            })
            .collect();
        pools.sort();
        let mut files: Vec<_> = directories
            .iter()
            .flat_map(|directory| fs::read_dir(directory).into_iter().flatten())
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        Self {
            pools,
            pinned_pages: settled(pinned_pages),
            files,
        }
    }
}

/// Pages pinned for I/O and not unpinned, over all processes.
fn pinned_pages() -> i64 {
    // The counters of each CPU are added up only now and then, or when this is written.
    fs::write("/proc/sys/vm/stat_refresh", "1").expect("reading the kernel's counters needs root");
    let vmstat = fs::read_to_string("/proc/vmstat").unwrap();
    let counter = |name: &str| {
        let line = vmstat
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse::<i64>().unwrap())
    };
    counter("nr_foll_pin_acquired") - counter("nr_foll_pin_released")
}

/// A counter once it stands still: pins of a process that was killed outlive it for some
/// milliseconds.
fn settled(read: impl Fn() -> i64) -> i64 {
    let mut last = read();
    for _ in 0..40 {
        thread::sleep(Duration::from_millis(40));
        let now = read();
        if now == last {
            return now;
        }
        last = now;
    }
    panic!("the counter does not stand still");
}

/// The pool of 2 MiB pages: total, free, reserved, surplus.
#[must_use]
pub fn pool_2mi() -> [u64; 4] {
    let pools = Counters::read(&[]).pools;
    let pool = pools
        .iter()
        .find(|(path, _)| path.ends_with("hugepages-2048kB"));
    pool.expect("this kernel has no pages of 2 MiB").1
}

/// A number in a file.
#[must_use]
pub fn number(path: &Path) -> u64 {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim().parse().unwrap()
}

/// Whether these tests run as root; those that need it say so by this name.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A file of /proc or /sys set to a value, and set back on drop.
pub struct Knob {
    path: PathBuf,
    before: String,
}

impl Knob {
    /// Sets it.
    #[must_use]
    pub fn set(path: &str, value: &str) -> Self {
        let path = PathBuf::from(path);
        let before = fs::read_to_string(&path).unwrap().trim().to_owned();
        fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, before }
    }
}

impl Drop for Knob {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.before);
    }
}

/// Sets the number of 2 MiB pages.
#[must_use]
pub fn huge_pages(count: u64) -> Knob {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let knob = Knob::set(path, &count.to_string());
    assert_eq!(
        number(Path::new(path)),
        count,
        "the kernel grants fewer huge pages"
    );
    knob
}

/// A hugetlbfs of 2 MiB pages, unmounted on drop.
pub struct Hugetlbfs {
    directory: TempDir,
}

impl Hugetlbfs {
    /// Mounts one in a scratch directory.
    #[must_use]
    pub fn mount() -> Self {
        let directory = crate::scratch();
        let status = Command::new("mount")
            .args(["-t", "hugetlbfs", "-o", "pagesize=2M", "none"])
            .arg(directory.path())
            .status()
            .unwrap();
        assert!(status.success());
        Self { directory }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Hugetlbfs {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.directory.path())
            .status();
    }
}

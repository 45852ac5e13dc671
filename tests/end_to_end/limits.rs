//! Limits of cgroups: said before anything is done, and an error instead of SIGBUS where they
//! only show while touching.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use siding_tests::kernel::{Counters, huge_pages, is_root};
use siding_tests::{Said, binary, whole_machine};

const MIB: u64 = 1 << 20;

/// A cgroup of its own below the version 2 hierarchy, removed on drop.
struct HugetlbGroup(PathBuf);

impl HugetlbGroup {
    fn new() -> Self {
        assert!(is_root(), "making a cgroup needs root");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = mounts
            .lines()
            .find(|line| line.contains(" - cgroup2 "))
            .map(|line| PathBuf::from(line.split(' ').nth(4).unwrap()))
            .expect("no cgroup version 2 is mounted");
        fs::write(root.join("cgroup.subtree_control"), "+hugetlb")
            .expect("hugetlb is no controller of cgroup version 2 here");
        let group = root.join(format!("siding-test-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        Self(group)
    }

    fn limit(&self, file: &str, bytes: u64) {
        fs::write(self.0.join(file), bytes.to_string()).unwrap();
    }

    /// Runs `siding` in it.
    fn run(&self, arguments: &str) -> Said {
        let procs = self.0.join("cgroup.procs");
        let script = format!(
            "echo $$ > {} && exec {} {arguments}",
            procs.display(),
            binary().display()
        );
        Said::of(Command::new("sh").args(["-c", &script]))
    }
}

impl Drop for HugetlbGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_hugetlb_limit_is_found_before_the_mount_and_its_remedy_is_told() {
    let _alone = whole_machine();
    let _pages = huge_pages(64);
    let before = Counters::read(&[]);
    let group = HugetlbGroup::new();
    group.limit("hugetlb.2MB.max", 16 * MIB);
    let said = group.run("mount --segment kv=64Mi,page=2Mi");
    assert_eq!(said.code, Some(3), "{}", said.err);
    for words in [
        "the cgroup limit leaves 16777216 bytes of hugepages-2Mi",
        "resources.limits.hugepages-2Mi",
        "hugetlb.2MB.max",
    ] {
        assert!(said.err.contains(words), "{}", said.err);
    }
    // Within the limit it works, and auto goes around it.
    assert_eq!(
        group.run("mount --segment kv=16Mi,page=2Mi -o json").json()["segments"][0]["page"],
        "2Mi"
    );
    let auto = group.run("mount --segment kv=64Mi -o json").json();
    assert_ne!(auto["segments"][0]["page"], "2Mi");
    assert_eq!(Counters::read(&[]), before);
}

/// The check cannot know of a limit in a cgroup file system that it does not see: a private mount
/// namespace without it stands for that. The kernel would then send SIGBUS for a plain access.
#[test]
fn a_limit_that_only_shows_while_touching_is_an_error_and_no_sigbus() {
    let _alone = whole_machine();
    let _pages = huge_pages(64);
    let before = Counters::read(&[]);
    let group = HugetlbGroup::new();
    group.limit("hugetlb.2MB.max", 16 * MIB);
    let procs = group.0.join("cgroup.procs");
    let mount = format!("{} mount --segment kv=64Mi,page=2Mi", binary().display());
    // Both with touching first and with registration that touches.
    for more in ["--backend none", ""] {
        let script = format!(
            "echo $$ > {} && exec unshare --mount sh -c 'umount -l {} && exec {mount} {more}'",
            procs.display(),
            group.0.parent().unwrap().display(),
        );
        let said = Said::of(Command::new("sh").args(["-c", &script]));
        assert!(
            matches!(said.code, Some(1 | 3)),
            "{more}: {:?} {}",
            said.code,
            said.err
        );
        assert!(
            said.err.contains("segments[kv]") && said.err.contains("Bad address"),
            "{}",
            said.err
        );
        assert!(said.err.contains("hugetlb"), "{}", said.err);
    }
    assert_eq!(Counters::read(&[]), before);
}

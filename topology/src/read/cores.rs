//! The node's hardware threads, which are never those of the reader's own cgroup.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use crate::cores::{ONLINE, cpus_in};
use crate::cpuset::CpuSet;
use crate::fields::short;
use crate::mountinfo;
use crate::node::{CoreSource, NodeCores};
use crate::root::{Finding, Root};

/// Where the mounts of cgroup v2 and of v1's cpuset are by convention: the table of mounts that a
/// container sees names its own, while the host's files are below the root.
const USUAL_MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpuset"];

/// The kubelet's group for all pods: by either cgroup driver, below a group of the kubelet's or not.
const KUBEPODS: [&str; 4] = [
    "kubepods.slice",
    "kubepods",
    "kubelet.slice/kubelet-kubepods.slice",
    "kubelet/kubepods",
];

const CPU_FILES: [&str; 3] = [
    "cpuset.cpus.effective",
    "cpuset.effective_cpus",
    "cpuset.cpus",
];

/// The node's cores by the first of the rules that tells.
pub(super) fn node_cores(
    root: &Root,
    allocatable: Option<NonZeroUsize>,
    findings: &mut Vec<Finding>,
) -> Option<NodeCores> {
    if let Some(count) = allocatable {
        let source = CoreSource::Allocatable;
        return Some(NodeCores { count, source });
    }
    let online = cpus_in(root, ONLINE);
    let of_pods = kubepods_cpus(root, online.as_ref().ok(), findings);
    let online = online.map_err(|finding| findings.push(finding)).ok();
    let (cpus, source) = match (of_pods, online) {
        (Some(cpus), _) => (cpus, CoreSource::KubepodsCpuset),
        (None, online) => (online?, CoreSource::Online),
    };
    NonZeroUsize::new(cpus.len()).map(|count| NodeCores { count, source })
}

/// The CPUs of the group of all pods that are online: a cpuset of cgroup v1 keeps the others, too.
fn kubepods_cpus(
    root: &Root,
    online: Option<&CpuSet>,
    findings: &mut Vec<Finding>,
) -> Option<CpuSet> {
    for file in cpu_files(root, findings) {
        // A group without the cpuset controller has no such file, one that inherits an empty one.
        let text = root.read_if_there(&file).unwrap_or_else(|finding| {
            findings.push(finding);
            None
        });
        if text.is_none_or(|text| text.trim().is_empty()) {
            continue;
        }
        match cpus_in(root, &file) {
            Ok(cpus) => {
                let (count, finding) = counting(root, &file, cpus, online);
                findings.extend(finding);
                if count.is_some() {
                    return count;
                }
            }
            Err(finding) => findings.push(finding),
        }
    }
    None
}

/// What of a group's CPUs counts, and what is to be said of the others.
fn counting(
    root: &Root,
    file: &Path,
    cpus: CpuSet,
    online: Option<&CpuSet>,
) -> (Option<CpuSet>, Option<Finding>) {
    let Some(online) = online else {
        return (Some(cpus), None);
    };
    let present = cpus.intersect(online);
    if present == cpus {
        return (Some(cpus), None);
    }
    let (count, words) = match present.is_empty() {
        true => (None, "none of them is: left aside"),
        false => (Some(present), "what is in both counts"),
    };
    let (cpus, online) = (short(cpus), short(online));
    let reason = format!("its CPUs are {cpus}, and {online} are online: {words}");
    (count, Some(root.finding(file, reason)))
}

fn cpu_files(root: &Root, findings: &mut Vec<Finding>) -> Vec<PathBuf> {
    let mounts = mountinfo::mounts(root).unwrap_or_else(|finding| {
        findings.push(finding);
        Vec::new()
    });
    let has_cpusets = |mount: &mountinfo::Mount| match mount.kind.as_str() {
        "cgroup2" => true,
        "cgroup" => mount.has_super_option("cpuset"),
        _ => false,
    };
    let mounted = mounts.into_iter().filter(has_cpusets);
    let mut points: Vec<PathBuf> = mounted.map(|mount| mount.point).collect();
    for usual in USUAL_MOUNTS.map(PathBuf::from) {
        if !points.contains(&usual) {
            points.push(usual);
        }
    }
    let groups = points
        .iter()
        .flat_map(|point| KUBEPODS.iter().map(|group| point.join(group)))
        .filter(|group| root.is_dir(group));
    groups
        .flat_map(|group| CPU_FILES.map(|file| group.join(file)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    const V2: &str = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const V1: &str = "31 1 0:27 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n\
                      32 1 0:28 / /cg/memory rw - cgroup cgroup rw,memory\n";

    fn read(mounts: &str, files: &[(&str, &str)]) -> (Option<(usize, CoreSource)>, Vec<String>) {
        let fixture = Fixture::new(files);
        fixture.write("proc/self/mountinfo", mounts);
        fixture.write(ONLINE, "0-191\n");
        let mut findings = Vec::new();
        let cores = node_cores(&fixture.root(), None, &mut findings);
        let findings = findings.into_iter().map(|finding| finding.reason);
        let cores = cores.map(|cores| (cores.count.get(), cores.source));
        (cores, findings.collect())
    }

    #[test]
    fn the_cpuset_of_all_pods() {
        let kubepods = |count| Some((count, CoreSource::KubepodsCpuset));
        let online = Some((192, CoreSource::Online));
        for (mounts, file, text, want) in [
            (
                V2,
                "sys/fs/cgroup/kubepods.slice/cpuset.cpus.effective",
                "2-191\n",
                kubepods(190),
            ),
            (
                V2,
                "sys/fs/cgroup/kubepods/cpuset.cpus.effective",
                "0-3,8\n",
                kubepods(5),
            ),
            (
                V2,
                "sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice/cpuset.cpus.effective",
                "0-7\n",
                kubepods(8),
            ),
            (
                V1,
                "cg/cpuset/kubepods.slice/cpuset.effective_cpus",
                "0-99\n",
                kubepods(100),
            ),
            (V1, "cg/cpuset/kubepods/cpuset.cpus", "0\n", kubepods(1)),
            (V1, "cg/memory/kubepods/cpuset.cpus", "0\n", online),
            (
                "",
                "sys/fs/cgroup/kubepods.slice/cpuset.cpus.effective",
                "0-1\n",
                kubepods(2),
            ),
            (V2, "sys/fs/cgroup/kubepods.slice/cpuset.cpus", "\n", online),
            (
                V2,
                "sys/fs/cgroup/kubepods.slice/cpu.max",
                "10000 100000\n",
                online,
            ),
            (V2, "sys/fs/cgroup/cpuset.cpus.effective", "0-1\n", online),
        ] {
            assert_eq!(read(mounts, &[(file, text)]), (want, vec![]), "{file}");
        }
    }

    #[test]
    fn only_what_is_online_counts() {
        let file = "cg/cpuset/kubepods/cpuset.cpus";
        for (text, want, reason) in [
            (
                "0-255\n",
                (192, CoreSource::KubepodsCpuset),
                "its CPUs are 0-255, and 0-191 are online: what is in both counts",
            ),
            (
                "190-200\n",
                (2, CoreSource::KubepodsCpuset),
                "its CPUs are 190-200, and 0-191 are online: what is in both counts",
            ),
            (
                "200-203\n",
                (192, CoreSource::Online),
                "its CPUs are 200-203, and 0-191 are online: none of them is: left aside",
            ),
        ] {
            let want = (Some(want), vec![reason.to_owned()]);
            assert_eq!(read(V1, &[(file, text)]), want, "{text}");
        }
    }

    /// As an agent limited to 100m on a node of 192 threads sees it.
    #[test]
    fn the_readers_own_limits_do_not_count() {
        let files = [
            ("proc/self/cgroup", "0::/kubepods.slice/pod1/agent\n"),
            ("proc/self/status", "Cpus_allowed_list:\t0\n"),
            ("sys/fs/cgroup/cpu.max", "10000 100000\n"),
            ("sys/fs/cgroup/cpuset.cpus.effective", "0\n"),
        ];
        let mount = "30 1 0:26 /kubepods.slice/pod1/agent /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        let want = Some((192, CoreSource::Online));
        assert_eq!(read(mount, &files), (want, vec![]));
    }

    #[test]
    fn junk_is_said_and_the_next_rule_taken() {
        let file = "sys/fs/cgroup/kubepods/cpuset.cpus.effective";
        let reason = "expected a list of CPUs such as 0-3,8, found \"many\"";
        assert_eq!(
            read(V2, &[(file, "many\n")]),
            (Some((192, CoreSource::Online)), vec![reason.to_owned()])
        );
    }

    #[test]
    fn what_the_kubelet_says_comes_first_and_nothing_is_unknown() {
        let root = Fixture::new(&[]).root();
        let mut findings = Vec::new();
        let cores = node_cores(&root, NonZeroUsize::new(190), &mut findings).unwrap();
        assert_eq!(
            (cores.count.get(), cores.source),
            (190, CoreSource::Allocatable)
        );
        assert_eq!(findings, []);
        assert_eq!(node_cores(&root, None, &mut findings), None);
        let files: Vec<_> = findings.into_iter().map(|finding| finding.path).collect();
        assert_eq!(files, [root.path("proc/self/mountinfo"), root.path(ONLINE)]);
    }
}

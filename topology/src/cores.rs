//! How many cores this process has for itself.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cgroup::{self, Group, Version};
use crate::cpuset::{CpuSet, CpuSetError};
use crate::fields::{self, short};
use crate::root::{Finding, Root};

const STATUS: &str = "proc/self/status";
pub(crate) const ONLINE: &str = "sys/devices/system/cpu/online";

/// The cores of one process, never those of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OwnCores {
    /// Hardware threads' worth of time: the fewest that any rule leaves, a quota rounded up.
    pub count: NonZeroUsize,
    /// The CPUs that the process may run on; empty where they are unknown.
    pub cpus: CpuSet,
    /// What `count` comes from.
    pub rule: CoreRule,
    /// What could not be read, or contradicts the rest.
    pub findings: Vec<Finding>,
}

/// What decided how many cores a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CoreRule {
    /// The CPUs it is allowed to run on, by affinity (`Cpus_allowed_list` in `/proc/self/status`).
    AllowedCpus,
    /// The CPUs of its cgroup v1 (`cpuset.effective_cpus`, else `cpuset.cpus`).
    CpusetV1,
    /// The CPUs of its cgroup v2 (`cpuset.cpus.effective`).
    CpusetV2,
    /// The CPU time of a cgroup v1 (`cpu.cfs_quota_us` over `cpu.cfs_period_us`).
    QuotaV1,
    /// The CPU time of a cgroup v2 (`cpu.max`).
    QuotaV2,
    /// The machine's online CPUs, because the allowed ones are unknown.
    OnlineCpus,
    /// Nothing could be read: one core is assumed.
    Unknown,
}

impl fmt::Display for CoreRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllowedCpus => "AllowedCpus",
            Self::CpusetV1 => "CpusetV1",
            Self::CpusetV2 => "CpusetV2",
            Self::QuotaV1 => "QuotaV1",
            Self::QuotaV2 => "QuotaV2",
            Self::OnlineCpus => "OnlineCpus",
            Self::Unknown => "Unknown",
        })
    }
}

/// The cores that this process can use: the minimum of its allowed CPUs, its cgroup's cpuset and
/// the tightest CPU quota of its cgroup and that one's ancestors; at least 1.
///
/// The allowed CPUs are those of the process's first thread: a thread that is pinned later
/// changes nothing. The kernel narrows them to the cpuset, so where both are the same CPUs and
/// fewer than are online, the cpuset is named as the cause.
#[must_use]
pub fn own_cores(root: &Root) -> OwnCores {
    let mut findings = Vec::new();
    let (cpus, mut rule) = usable_cpus(root, &mut findings);
    let mut count = NonZeroUsize::new(cpus.len());
    let quota = tightest_quota(root, &mut findings);
    let quota = quota.filter(|(quota, _)| count.is_none_or(|count| *quota < count));
    if let Some((quota, version)) = quota {
        count = Some(quota);
        rule = match version {
            Version::V1 => CoreRule::QuotaV1,
            Version::V2 => CoreRule::QuotaV2,
        };
    }
    // Both lookups read the same tables and may miss the same file.
    findings.dedup();
    OwnCores {
        count: count.unwrap_or(NonZeroUsize::MIN),
        cpus,
        rule,
        findings,
    }
}

/// The CPUs by affinity and cpuset, and which of the two they come from.
fn usable_cpus(root: &Root, findings: &mut Vec<Finding>) -> (CpuSet, CoreRule) {
    let online = cpus_in(root, ONLINE).ok();
    let (allowed, rule) = match (allowed_cpus(root), &online) {
        (Ok(allowed), Some(online)) => {
            let allowed = present(root, STATUS, allowed, online, findings);
            (allowed, CoreRule::AllowedCpus)
        }
        (Ok(allowed), None) => (allowed, CoreRule::AllowedCpus),
        (Err(finding), online) => {
            findings.push(finding);
            match online {
                Some(online) => (online.clone(), CoreRule::OnlineCpus),
                None => (CpuSet::default(), CoreRule::Unknown),
            }
        }
    };
    let Some((file, cpuset, version)) = cpuset(root, findings) else {
        return (allowed, rule);
    };
    let cpuset_rule = match version {
        Version::V1 => CoreRule::CpusetV1,
        Version::V2 => CoreRule::CpusetV2,
    };
    if allowed.is_empty() {
        return (cpuset, cpuset_rule);
    }
    let common = allowed.intersect(&cpuset);
    if common.is_empty() {
        let (of_group, of_process) = (short(&cpuset), short(&allowed));
        let reason =
            format!("its CPUs {of_group} are none of the allowed {of_process}: left aside");
        findings.push(root.finding(file, reason));
        return (allowed, rule);
    }
    let narrows = common.len() < allowed.len()
        || (common == cpuset && online.is_some_and(|online| cpuset.len() < online.len()));
    (common, if narrows { cpuset_rule } else { rule })
}

/// Those of the allowed CPUs that are online: the kernel allows ones that may be plugged in later.
fn present(
    root: &Root,
    file: &str,
    allowed: CpuSet,
    online: &CpuSet,
    findings: &mut Vec<Finding>,
) -> CpuSet {
    let present = allowed.intersect(online);
    if present.is_empty() {
        let (own, online) = (short(&allowed), short(online));
        let reason = format!("its CPUs {own} are none of those online, {online}");
        findings.push(root.finding(file, reason));
        return allowed;
    }
    present
}

fn allowed_cpus(root: &Root) -> Result<CpuSet, Finding> {
    let text = root.read(STATUS)?;
    let list = fields::value(&text, "Cpus_allowed_list")
        .ok_or_else(|| root.finding(STATUS, "has no Cpus_allowed_list"))?;
    cpu_list(list).map_err(|reason| root.finding(STATUS, reason))
}

/// The CPUs that a file lists, at least one.
pub(crate) fn cpus_in(root: &Root, file: impl AsRef<Path>) -> Result<CpuSet, Finding> {
    let file = file.as_ref();
    cpu_list(&root.read(file)?).map_err(|reason| root.finding(file, reason))
}

/// A list that must name at least one CPU.
fn cpu_list(text: &str) -> Result<CpuSet, String> {
    let cpus: CpuSet = text
        .parse()
        .map_err(|error: CpuSetError| error.to_string())?;
    if cpus.is_empty() {
        return Err("names no CPU".to_owned());
    }
    Ok(cpus)
}

type CgroupCpus = (PathBuf, CpuSet, Version);

/// The cpuset of the process's cgroup, with the file that says so. An empty one is inherited.
fn cpuset(root: &Root, findings: &mut Vec<Finding>) -> Option<CgroupCpus> {
    let (group, missing) = Group::of(root, "cpuset");
    findings.extend(missing);
    let group = group?;
    let names: &[&str] = match group.version {
        Version::V1 => &["cpuset.effective_cpus", "cpuset.cpus"],
        Version::V2 => &["cpuset.cpus.effective"],
    };
    let read = cgroup::closest(root, &group, names).and_then(|found| {
        let Some((file, text)) = found else {
            return Ok(None);
        };
        let cpus = cpu_list(&text).map_err(|reason| root.finding(&file, reason))?;
        Ok(Some((file, cpus, group.version)))
    });
    read.unwrap_or_else(|finding| {
        findings.push(finding);
        None
    })
}

/// The fewest cores that the quota of the process's cgroup or of an ancestor amounts to.
fn tightest_quota(root: &Root, findings: &mut Vec<Finding>) -> Option<(NonZeroUsize, Version)> {
    let (group, missing) = Group::of(root, "cpu");
    findings.extend(missing);
    let group = group?;
    let mut tightest = None;
    for dir in group.dirs() {
        let quota = match group.version {
            Version::V1 => quota_v1(root, dir),
            Version::V2 => quota_v2(root, dir),
        };
        match quota {
            Ok(quota) => tightest = tightest.into_iter().chain(quota).min(),
            Err(finding) => findings.push(finding),
        }
    }
    Some((tightest?, group.version))
}

fn quota_v1(root: &Root, dir: &Path) -> Result<Option<NonZeroUsize>, Finding> {
    let (quota, period) = (dir.join("cpu.cfs_quota_us"), dir.join("cpu.cfs_period_us"));
    let Some(text) = root.read_if_there(&quota)? else {
        return Ok(None);
    };
    if text.trim() == "-1" {
        return Ok(None);
    }
    let period = root.read(&period)?;
    let cores = whole_cores(&text, &period).map_err(|reason| root.finding(&quota, reason))?;
    Ok(Some(cores))
}

fn quota_v2(root: &Root, dir: &Path) -> Result<Option<NonZeroUsize>, Finding> {
    let file = dir.join("cpu.max");
    let Some(text) = root.read_if_there(&file)? else {
        return Ok(None);
    };
    max_cores(&text).map_err(|reason| root.finding(&file, reason))
}

/// `max 100000` is no limit, `150000 100000` is one and a half cores.
fn max_cores(text: &str) -> Result<Option<NonZeroUsize>, String> {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        ["max"] | ["max", _] => Ok(None),
        [quota, period] => whole_cores(quota, period).map(Some),
        _ => Err(fields::unexpected("a quota and a period", text)),
    }
}

/// Microseconds of CPU time over the microseconds they are for, rounded up.
fn whole_cores(quota: &str, period: &str) -> Result<NonZeroUsize, String> {
    let positive = |text: &str| {
        fields::number(text.trim())
            .filter(|number| *number > 0)
            .ok_or_else(|| fields::unexpected("a number of microseconds above 0", text))
    };
    let cores = positive(quota)?.div_ceil(positive(period)?);
    let cores = usize::try_from(cores).unwrap_or(usize::MAX);
    Ok(NonZeroUsize::new(cores).unwrap_or(NonZeroUsize::MIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use proptest::prelude::*;

    const V2: &str = "20 1 0:20 / /cg rw - cgroup2 c rw\n";

    /// A machine with 64 CPUs online.
    fn machine(allowed: &str, cgroup: &str, mounts: &str, files: &[(&str, &str)]) -> Fixture {
        let fixture = Fixture::new(files);
        fixture.write(ONLINE, "0-63\n");
        fixture.write("proc/self/cgroup", cgroup);
        fixture.write("proc/self/mountinfo", mounts);
        let status = format!("Cpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\n");
        fixture.write(STATUS, &status);
        fixture
    }

    fn says(fixture: &Fixture) -> String {
        let cores = own_cores(&fixture.root());
        assert_eq!(cores.findings, []);
        format!("{} of {} by {}", cores.count, cores.cpus, cores.rule)
    }

    #[test]
    fn affinity_and_cpusets() {
        let cpuset = |allowed, cpus| {
            let files = [("cg/a/cpuset.cpus.effective", cpus)];
            says(&machine(allowed, "0::/a/b\n", V2, &files))
        };
        assert_eq!(
            says(&machine("4,6", "", "", &[])),
            "2 of 4,6 by AllowedCpus"
        );
        assert_eq!(cpuset("0-3", "0-7\n"), "4 of 0-3 by AllowedCpus");
        assert_eq!(cpuset("0-63", "8-11\n"), "4 of 8-11 by CpusetV2");
        assert_eq!(cpuset("0-63", "\n"), "64 of 0-63 by AllowedCpus");
        // A cpuset of all that is online explains nothing; the same CPUs and fewer do.
        assert_eq!(cpuset("0-63", "0-63\n"), "64 of 0-63 by AllowedCpus");
        assert_eq!(cpuset("0-7", "0-7\n"), "8 of 0-7 by CpusetV2");
    }

    /// CPUs that may be plugged in later are allowed, and give no time now.
    #[test]
    fn only_what_is_online_counts() {
        let machine = |allowed| machine(allowed, "0::/\n", "", &[]);
        assert_eq!(own_cores(&machine("0-255").root()).count.get(), 64);
        assert_eq!(
            own_cores(&machine("60-70").root()).cpus.to_string(),
            "60-63"
        );
        let contradicting = own_cores(&machine("64-65").root());
        assert_eq!(contradicting.count.get(), 2);
        assert_eq!(
            contradicting.findings[0].reason,
            "its CPUs 64-65 are none of those online, 0-63"
        );
    }

    #[test]
    fn quotas_round_up_and_the_tightest_ancestor_decides() {
        let quota = |allowed, own, parent| {
            let files = [("cg/a/b/cpu.max", own), ("cg/a/cpu.max", parent)];
            says(&machine(allowed, "0::/a/b\n", V2, &files))
        };
        let none = "max 100000\n";
        assert_eq!(quota("0-63", none, none), "64 of 0-63 by AllowedCpus");
        assert_eq!(
            quota("0-63", "150000 100000\n", none),
            "2 of 0-63 by QuotaV2"
        );
        assert_eq!(quota("0-63", "1000 100000\n", none), "1 of 0-63 by QuotaV2");
        assert_eq!(
            quota("0-63", none, "400000 50000\n"),
            "8 of 0-63 by QuotaV2"
        );
        assert_eq!(
            quota("0-63", "1600000 100000\n", "400000 100000\n"),
            "4 of 0-63 by QuotaV2"
        );
        assert_eq!(
            quota("0-1", "400000 100000\n", none),
            "2 of 0-1 by AllowedCpus"
        );
        assert_eq!(
            quota("0-3", "400000 100000\n", none),
            "4 of 0-3 by AllowedCpus"
        );
    }

    #[test]
    fn v1_on_the_host() {
        let mounts = "20 1 0:20 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup c rw,cpu,cpuacct\n\
                      21 1 0:21 / /sys/fs/cgroup/cpuset rw - cgroup c rw,cpuset\n";
        let files = [
            ("sys/fs/cgroup/cpu,cpuacct/p/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/p/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpuset/p/cpuset.cpus", "0,2\n"),
        ];
        let groups = "3:cpu,cpuacct:/p\n2:cpuset:/p\n1:name=systemd:/p\n";
        let fixture = machine("0-63", groups, mounts, &files);
        assert_eq!(says(&fixture), "2 of 0,2 by CpusetV1");
        fixture.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
        fixture.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
        assert_eq!(says(&fixture), "1 of 0,2 by QuotaV1");
    }

    #[test]
    fn v1_in_a_container() {
        let mounts = "20 1 0:20 /docker/x /cpu rw - cgroup c rw,cpu\n\
                      21 1 0:21 /docker/x /cpuset rw - cgroup c rw,cpuset\n";
        let files = [
            ("cpu/cpu.cfs_quota_us", "250000\n"),
            ("cpu/cpu.cfs_period_us", "50000\n"),
            ("cpuset/cpuset.effective_cpus", "0-15\n"),
            ("cpuset/cpuset.cpus", "0-31\n"),
        ];
        let groups = "3:cpu:/docker/x\n2:cpuset:/docker/x\n0::/docker/x\n";
        let fixture = machine("0-63", groups, mounts, &files);
        assert_eq!(says(&fixture), "5 of 0-15 by QuotaV1");
    }

    #[test]
    fn hybrid_takes_each_controller_where_it_is() {
        let mounts = "20 1 0:1 / /v1 rw - cgroup c rw,cpu\n21 1 0:2 / /v2 rw - cgroup2 c rw\n";
        let files = [
            ("v1/a/cpu.cfs_quota_us", "-1\n"),
            ("v2/u/cpu.max", "100000 100000\n"),
            ("v2/u/cpuset.cpus.effective", "1-3\n"),
        ];
        let fixture = machine("0-63", "3:cpu:/a\n0::/u\n", mounts, &files);
        assert_eq!(says(&fixture), "3 of 1-3 by CpusetV2");
    }

    #[test]
    fn nothing_to_read_is_one_core_and_findings() {
        let empty = Fixture::new(&[]);
        let cores = own_cores(&empty.root());
        assert_eq!((cores.count.get(), cores.rule), (1, CoreRule::Unknown));
        assert!(cores.cpus.is_empty());
        let reasons: Vec<_> = cores.findings.iter().map(|finding| &finding.path).collect();
        assert_eq!(
            reasons,
            [
                &empty.root().path(STATUS),
                &empty.root().path("proc/self/cgroup")
            ]
        );
    }

    #[test]
    fn a_gap_leaves_the_other_rules() {
        let files = [("cg/a/cpu.max", "200000 100000\n")];
        let cores = own_cores(&machine("none", "0::/a\n", V2, &files).root());
        assert_eq!((cores.count.get(), cores.rule), (2, CoreRule::QuotaV2));
        assert_eq!(cores.cpus.len(), 64, "those online");
        assert_eq!(cores.findings.len(), 1);

        let files = [
            ("cg/a/cpu.max", "0 100000\n"),
            ("cg/a/cpuset.cpus.effective", "9\n"),
        ];
        let cores = own_cores(&machine("0-3", "0::/a\n", V2, &files).root());
        assert_eq!((cores.count.get(), cores.rule), (4, CoreRule::AllowedCpus));
        let findings = cores.findings.into_iter();
        let reasons: Vec<String> = findings.map(|finding| finding.reason).collect();
        assert_eq!(
            reasons,
            [
                "its CPUs 9 are none of the allowed 0-3: left aside",
                "expected a number of microseconds above 0, found \"0\""
            ]
        );
    }

    #[test]
    fn cpu_max() {
        for (text, want) in [
            ("max 100000\n", Some(None)),
            ("max\n", Some(None)),
            ("100000 100000\n", Some(Some(1))),
            ("100001 100000\n", Some(Some(2))),
            ("18446744073709551615 1\n", Some(Some(usize::MAX))),
            ("100000\n", None),
            ("100000 0\n", None),
            ("-1 100000\n", None),
            ("", None),
            ("1 2 3\n", None),
        ] {
            let got = max_cores(text).ok();
            assert_eq!(
                got.map(|cores| cores.map(NonZeroUsize::get)),
                want,
                "{text:?}"
            );
        }
    }

    #[test]
    fn shown_and_serialized_alike() {
        for rule in [
            CoreRule::AllowedCpus,
            CoreRule::CpusetV1,
            CoreRule::CpusetV2,
            CoreRule::QuotaV1,
            CoreRule::QuotaV2,
            CoreRule::OnlineCpus,
            CoreRule::Unknown,
        ] {
            assert_eq!(serde_json::to_string(&rule).unwrap(), format!("\"{rule}\""));
        }
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "(?s).{0,60}", quota in "[0-9max -]{0,30}") {
            let _ = max_cores(&text);
            let _ = max_cores(&quota);
            let _ = whole_cores(&quota, &text);
            let _ = cpu_list(&text);
        }
    }
}

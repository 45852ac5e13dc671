//! The control groups this process is in, and the limits that they and their ancestors set.
//!
//! Where a group's files are is taken from `/proc/self/cgroup` (which group) and
//! `/proc/self/mountinfo` (what of the hierarchy is mounted where), for cgroup v1, v2 and both
//! side by side. Ancestors above what is mounted, as in a container, can't be seen.

use std::iter;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use crate::fields;
use crate::mountinfo::{self, MOUNTINFO, Mount};
use crate::root::{Finding, Root};

const MEMBERSHIP: &str = "proc/self/cgroup";

/// cgroup v1 writes "no limit" as the largest multiple of a page that fits 63 bits.
const UNLIMITED_FROM: u64 = 1 << 62;

/// The generation of the cgroup interface that a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Version {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// A limit on bytes, and what counts against it already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// The most bytes that the group may hold.
    pub limit_bytes: u64,
    /// The bytes charged to the group now: by all its processes and those of groups below it.
    pub usage_bytes: u64,
    /// The file that sets the limit, with the root in front.
    pub file: PathBuf,
    /// Which interface it belongs to.
    pub version: Version,
}

impl Limit {
    /// The bytes that can still be charged.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.usage_bytes)
    }
}

/// The limit on huge pages of `page_bytes` each with the least room left, among this process's
/// group and its ancestors; `None` where none is set or known.
///
/// Reads `hugetlb.<size>[.rsvd].limit_in_bytes` and `usage_in_bytes` (v1) or
/// `hugetlb.<size>[.rsvd].max` and `current` (v2). Pages count as `rsvd` from `mmap` on, and
/// else from their first touch.
#[must_use]
pub fn hugetlb_limit(root: &Root, page_bytes: u64) -> Option<Limit> {
    hugetlb_limit_with_findings(root, page_bytes).0
}

/// As [`hugetlb_limit`], with what could not be read.
#[must_use]
pub fn hugetlb_limit_with_findings(root: &Root, page_bytes: u64) -> (Option<Limit>, Vec<Finding>) {
    let size = hugetlb_size(page_bytes);
    tightest(root, "hugetlb", |version| match version {
        Version::V1 => ["", ".rsvd"].map(|kind| {
            let stem = format!("hugetlb.{size}{kind}");
            (
                format!("{stem}.limit_in_bytes"),
                format!("{stem}.usage_in_bytes"),
            )
        }),
        Version::V2 => ["", ".rsvd"].map(|kind| {
            let stem = format!("hugetlb.{size}{kind}");
            (format!("{stem}.max"), format!("{stem}.current"))
        }),
    })
}

/// The limit on memory with the least room left, among this process's group and its ancestors;
/// `None` where none is set or known.
///
/// Reads `memory.limit_in_bytes` and `memory.usage_in_bytes` (v1) or `memory.max` and
/// `memory.current` (v2), less the cache of files not used lately (`total_inactive_file` or
/// `inactive_file` in `memory.stat`), which the kernel gives up first; huge pages of hugetlbfs
/// don't count here.
#[must_use]
pub fn memory_limit(root: &Root) -> Option<Limit> {
    memory_limit_with_findings(root).0
}

/// As [`memory_limit`], with what could not be read.
#[must_use]
pub fn memory_limit_with_findings(root: &Root) -> (Option<Limit>, Vec<Finding>) {
    let (limit, findings) = tightest(root, "memory", |version| {
        let (limit, usage) = match version {
            Version::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            Version::V2 => ("memory.max", "memory.current"),
        };
        [(limit.to_owned(), usage.to_owned())]
    });
    (limit.map(|limit| without_idle_cache(root, limit)), findings)
}

/// The limit with the idle cache of files taken out of its usage, where the kernel tells of it.
fn without_idle_cache(root: &Root, mut limit: Limit) -> Limit {
    let key = match limit.version {
        Version::V1 => "total_inactive_file",
        Version::V2 => "inactive_file",
    };
    let stat = limit.file.with_file_name("memory.stat");
    let idle = stat
        .strip_prefix(root.path(""))
        .ok()
        .and_then(|stat| root.read(stat).ok())
        .and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
            fields::number(line.trim())
        });
    limit.usage_bytes = limit.usage_bytes.saturating_sub(idle.unwrap_or(0));
    limit
}

/// The page size in the names of hugetlb's files: `64KB`, `2MB`, `1GB`, as the kernel cuts it.
fn hugetlb_size(page_bytes: u64) -> String {
    match page_bytes {
        1_073_741_824.. => format!("{}GB", page_bytes >> 30),
        1_048_576.. => format!("{}MB", page_bytes >> 20),
        _ => format!("{}KB", page_bytes >> 10),
    }
}

/// The least room among the pairs of (limit, usage) files that `names` gives for every group.
fn tightest<const N: usize>(
    root: &Root,
    controller: &str,
    names: impl Fn(Version) -> [(String, String); N],
) -> (Option<Limit>, Vec<Finding>) {
    let (group, mut findings) = Group::of(root, controller);
    let Some(group) = group else {
        return (None, findings);
    };
    let names = names(group.version);
    let mut limits = Vec::new();
    for dir in group.dirs() {
        for (limit, usage) in &names {
            match limit_in(root, group.version, &dir.join(limit), &dir.join(usage)) {
                Ok(limit) => limits.extend(limit),
                Err(finding) => findings.push(finding),
            }
        }
    }
    (limits.into_iter().min_by_key(Limit::room_bytes), findings)
}

fn limit_in(
    root: &Root,
    version: Version,
    limit: &Path,
    usage: &Path,
) -> Result<Option<Limit>, Finding> {
    let Some(text) = root.read_if_there(limit)? else {
        return Ok(None);
    };
    let Some(limit_bytes) = limit_bytes(&text).map_err(|reason| root.finding(limit, reason))?
    else {
        return Ok(None);
    };
    Ok(Some(Limit {
        limit_bytes,
        usage_bytes: root.read_number(usage)?,
        file: root.path(limit),
        version,
    }))
}

/// The bytes of a limit, `None` for no limit: `max`, `-1` or a number near the largest.
fn limit_bytes(text: &str) -> Result<Option<u64>, String> {
    match text.trim() {
        "max" | "-1" => Ok(None),
        number => fields::number(number)
            .map(|bytes| Some(bytes).filter(|bytes| *bytes < UNLIMITED_FROM))
            .ok_or_else(|| fields::unexpected("bytes or \"max\"", text)),
    }
}

/// The group that governs this process for one controller, as far as it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) version: Version,
    /// Where the mounted part of the hierarchy begins.
    mount_point: PathBuf,
    /// The folder of the process's own group.
    own: PathBuf,
    /// Why `own` is not the group that the kernel names, where it is not.
    substitute: Option<String>,
}

impl Group {
    /// Looks `controller` up. No group and no finding means that no cgroup limits it.
    pub(crate) fn of(root: &Root, controller: &str) -> (Option<Self>, Vec<Finding>) {
        let read = || Ok((root.read(MEMBERSHIP)?, mountinfo::mounts(root)?));
        let (memberships, mounts) = match read() {
            Ok(read) => read,
            Err(finding) => return (None, vec![finding]),
        };
        let Some((version, path)) = membership(&memberships, controller) else {
            return (None, Vec::new());
        };
        let candidates = candidates(version, path, controller, &mounts);
        let mut mounted = candidates.into_iter();
        let group = mounted.find(|group| root.is_dir(&group.mount_point));
        let reason = match &group {
            Some(group) => group.substitute.clone(),
            None => Some(format!(
                "shows no mount of {controller}, whose group {path} this process is in"
            )),
        };
        let findings = reason.map(|reason| root.finding(MOUNTINFO, reason));
        (group, findings.into_iter().collect())
    }

    /// The folders of the group and of its ancestors, the group's own first.
    pub(crate) fn dirs(&self) -> impl Iterator<Item = &Path> {
        let inside = |dir: &&Path| dir.starts_with(&self.mount_point);
        self.own.ancestors().take_while(inside)
    }
}

/// The interface that manages `controller` and the path of the process's group in it.
fn membership<'a>(memberships: &'a str, controller: &str) -> Option<(Version, &'a str)> {
    let mut unified = None;
    for line in memberships.lines() {
        // `4:memory:/path`, `3:cpu,cpuacct:/path`, `1:name=systemd:/path`, `0::/path`
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        if controllers.split(',').any(|name| name == controller) {
            return Some((Version::V1, path));
        }
        if id == "0" && controllers.is_empty() {
            unified = Some((Version::V2, path));
        }
    }
    unified
}

/// The mounts through which a group may be seen, the best first: those that hold it, the one that
/// shows most ancestors before the others; then, as a substitute, the roots of those that don't.
fn candidates(version: Version, path: &str, controller: &str, mounts: &[Mount]) -> Vec<Group> {
    let serves = |mount: &&Mount| match version {
        Version::V1 => mount.kind == "cgroup" && mount.has_super_option(controller),
        Version::V2 => mount.kind == "cgroup2",
    };
    let mut holding = Vec::new();
    let mut others = Vec::new();
    for mount in mounts.iter().filter(serves) {
        match below(Path::new(path), &mount.root) {
            Some(rest) => holding.push((mount.root.components().count(), mount, rest)),
            None => others.push(mount),
        }
    }
    holding.sort_by_key(|(depth, ..)| *depth);
    let holding = holding.into_iter().map(|(_, mount, rest)| Group {
        version,
        mount_point: mount.point.clone(),
        // No `join`: it would end in a slash where `rest` is empty.
        own: mount.point.components().chain(rest.components()).collect(),
        substitute: None,
    });
    let others = others.into_iter().map(|mount| Group {
        version,
        mount_point: mount.point.clone(),
        own: mount.point.clone(),
        substitute: Some(format!(
            "group {path} is outside of {}, the part mounted at {}: limits are read there",
            mount.root.display(),
            mount.point.display()
        )),
    });
    holding.chain(others).collect()
}

/// What is left of a group's path below the folder that is mounted. In a cgroup namespace both
/// may lead out of it through `..`.
fn below<'a>(path: &'a Path, mounted: &Path) -> Option<&'a Path> {
    let rest = path.strip_prefix(mounted).ok()?;
    let leads_out = rest.components().any(|part| part == Component::ParentDir);
    (!leads_out).then_some(rest)
}

/// The first of `names` that exists and says something in the group or, where the group has none,
/// in the closest ancestor that does.
pub(crate) fn closest(
    root: &Root,
    group: &Group,
    names: &[&str],
) -> Result<Option<(PathBuf, String)>, Finding> {
    let files = group
        .dirs()
        .flat_map(|dir| iter::repeat(dir).zip(names))
        .map(|(dir, name)| dir.join(name));
    for file in files {
        let text = root.read_if_there(&file)?;
        if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
            return Ok(Some((file, text)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;
    const UNLIMITED_V1: &str = "9223372036854771712\n";

    fn mounts(lines: &[&str]) -> String {
        let numbered = lines.iter().enumerate();
        numbered
            .map(|(id, line)| format!("{} 1 0:{id} {line}\n", id + 10))
            .collect()
    }

    fn fixture(cgroup: &str, mount_lines: &[&str], files: &[(&str, &str)]) -> Fixture {
        let fixture = Fixture::new(files);
        fixture.write("proc/self/cgroup", cgroup);
        fixture.write("proc/self/mountinfo", &mounts(mount_lines));
        fixture
    }

    #[test]
    fn membership_of_a_controller() {
        let hybrid = "9:name=memory:/no\n4:memory:/a:b\n3:cpu,cpuacct:/c\n0::/u (deleted)\n";
        for (controller, want) in [
            ("memory", Some((Version::V1, "/a:b"))),
            ("cpu", Some((Version::V1, "/c"))),
            ("cpuacct", Some((Version::V1, "/c"))),
            ("hugetlb", Some((Version::V2, "/u"))),
        ] {
            assert_eq!(membership(hybrid, controller), want, "{controller}");
        }
        assert_eq!(membership("4:memory:/a\n", "cpu"), None);
        assert_eq!(membership("junk\n:\n\n4:memory\n", "memory"), None);
    }

    #[test]
    fn the_mount_root_is_stripped() {
        for (path, mounted, want) in [
            ("/", "/", Some("")),
            ("/a/b", "/", Some("a/b")),
            ("/docker/x", "/docker/x", Some("")),
            ("/docker/x/y", "/docker/x", Some("y")),
            ("/docker/xy", "/docker/x", None),
            ("/a", "/docker/x", None),
            ("/../a", "/", None),
            ("/../a", "/..", Some("a")),
            ("/", "/../..", None),
        ] {
            let got = below(Path::new(path), Path::new(mounted));
            assert_eq!(got, want.map(Path::new), "{path} in {mounted}");
        }
    }

    #[test]
    fn names_of_page_sizes() {
        for (bytes, want) in [
            (64 << 10, "64KB"),
            (2 << 20, "2MB"),
            (512 << 20, "512MB"),
            (GIB, "1GB"),
            (16 * GIB, "16GB"),
        ] {
            assert_eq!(hugetlb_size(bytes), want);
        }
    }

    #[test]
    fn limits_and_what_is_none() {
        for (text, want) in [
            ("max\n", Some(None)),
            ("-1\n", Some(None)),
            (UNLIMITED_V1, Some(None)),
            ("9223372035781033984\n", Some(None)),
            ("0\n", Some(Some(0))),
            ("1073741824\n", Some(Some(GIB))),
            ("", None),
            ("-2\n", None),
            ("1G\n", None),
        ] {
            assert_eq!(limit_bytes(text).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn v2_takes_the_ancestor_with_least_room() {
        let fixture = fixture(
            "0::/kubepods/pod1/c1\n",
            &["/ /cg rw - cgroup2 cgroup2 rw"],
            &[
                ("cg/kubepods/pod1/c1/memory.max", "4294967296\n"),
                ("cg/kubepods/pod1/c1/memory.current", "0\n"),
                ("cg/kubepods/pod1/memory.max", "8589934592\n"),
                ("cg/kubepods/pod1/memory.current", "7516192768\n"),
                ("cg/kubepods/memory.max", "max\n"),
                (
                    "cg/kubepods/pod1/memory.stat",
                    "anon 1\ninactive_file 536870912\nactive_file 9\n",
                ),
            ],
        );
        let root = fixture.root();
        let limit = memory_limit(&root).unwrap();
        assert_eq!(limit.limit_bytes, 8 * GIB);
        assert_eq!(limit.usage_bytes, 7 * GIB - GIB / 2, "idle cache is no use");
        assert_eq!(limit.room_bytes(), GIB + GIB / 2);
        assert_eq!(limit.file, root.path("cg/kubepods/pod1/memory.max"));
        assert_eq!(limit.version, Version::V2);
        assert_eq!(memory_limit_with_findings(&root).1, []);
    }

    #[test]
    fn v1_in_a_container_strips_the_root_of_the_mount() {
        let fixture = fixture(
            "5:hugetlb:/kubepods/p/c\n4:memory:/kubepods/p/c\n0::/\n",
            &[
                "/kubepods/p/c /sys/fs/cgroup/hugetlb ro - cgroup cgroup rw,hugetlb",
                "/kubepods/p/c /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
            ],
            &[
                (
                    "sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes",
                    "8388608\n",
                ),
                (
                    "sys/fs/cgroup/hugetlb/hugetlb.2MB.usage_in_bytes",
                    "2097152\n",
                ),
                (
                    "sys/fs/cgroup/hugetlb/hugetlb.1GB.limit_in_bytes",
                    "9223372035781033984\n",
                ),
                ("sys/fs/cgroup/hugetlb/hugetlb.1GB.usage_in_bytes", "0\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED_V1),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n"),
            ],
        );
        let root = fixture.root();
        let limit = hugetlb_limit(&root, 2 << 20).unwrap();
        assert_eq!((limit.limit_bytes, limit.usage_bytes), (8 << 20, 2 << 20));
        assert_eq!(limit.version, Version::V1);
        assert_eq!(hugetlb_limit(&root, GIB), None);
        assert_eq!(hugetlb_limit(&root, 64 << 10), None);
        assert_eq!(memory_limit_with_findings(&root), (None, vec![]));
    }

    #[test]
    fn reservations_count_where_tighter() {
        for (cgroup, mount, stem, limit, usage) in [
            (
                "2:hugetlb:/g\n",
                "/ /h rw - cgroup h rw,hugetlb",
                "h/g/hugetlb.2MB",
                "limit_in_bytes",
                "usage_in_bytes",
            ),
            (
                "0::/g\n",
                "/ /h rw - cgroup2 h rw",
                "h/g/hugetlb.2MB",
                "max",
                "current",
            ),
        ] {
            let fixture = fixture(cgroup, &[mount], &[]);
            let root = fixture.root();
            fixture.write(&format!("{stem}.{limit}"), "8388608\n");
            fixture.write(&format!("{stem}.{usage}"), "0\n");
            fixture.write(&format!("{stem}.rsvd.{limit}"), "8388608\n");
            fixture.write(&format!("{stem}.rsvd.{usage}"), "6291456\n");
            let tight = hugetlb_limit(&root, 2 << 20).unwrap();
            assert_eq!(tight.room_bytes(), 2 << 20);
            assert_eq!(tight.file, root.path(format!("{stem}.rsvd.{limit}")));

            fixture.write(&format!("{stem}.{usage}"), "9000000\n");
            let over = hugetlb_limit(&root, 2 << 20).unwrap();
            assert_eq!((over.room_bytes(), over.usage_bytes), (0, 9_000_000));
        }
    }

    #[test]
    fn the_mount_that_shows_most_is_used() {
        let fixture = fixture(
            "0::/a/b\n",
            &[
                "/a/b /narrow rw - cgroup2 c rw",
                "/gone /elsewhere rw - cgroup2 c rw",
                "/ /absent rw - cgroup2 c rw",
                "/a /wide rw - cgroup2 c rw",
            ],
            &[("wide/b/x", ""), ("narrow/x", ""), ("elsewhere/x", "")],
        );
        let (group, findings) = Group::of(&fixture.root(), "cpu");
        let group = group.unwrap();
        let dirs: Vec<&Path> = group.dirs().collect();
        assert_eq!(dirs, [Path::new("/wide/b"), Path::new("/wide")]);
        assert_eq!(findings, []);
    }

    #[test]
    fn a_group_outside_of_every_mount_is_said() {
        let fixture = fixture(
            "0::/../other\n",
            &["/ /cg rw - cgroup2 c rw"],
            &[("cg/memory.max", "4096\n"), ("cg/memory.current", "96\n")],
        );
        let (limit, findings) = memory_limit_with_findings(&fixture.root());
        assert_eq!(limit.unwrap().room_bytes(), 4000);
        assert_eq!(
            findings[0].reason,
            "group /../other is outside of /, the part mounted at /cg: limits are read there"
        );
    }

    #[test]
    fn gaps_are_findings_and_no_limit() {
        let nothing = Fixture::new(&[]);
        let (limit, findings) = memory_limit_with_findings(&nothing.root());
        assert_eq!((limit, findings.len()), (None, 1));

        let unmounted = fixture("4:memory:/a\n0::/\n", &["/ /cg rw - cgroup2 c rw"], &[]);
        let (limit, findings) = memory_limit_with_findings(&unmounted.root());
        assert_eq!(limit, None);
        assert!(
            findings[0].reason.contains("shows no mount of memory"),
            "{findings:?}"
        );

        let mount = ["/ /cg rw - cgroup2 c rw"];
        let no_usage = fixture("0::/\n", &mount, &[("cg/memory.max", "4096\n")]);
        let (limit, findings) = memory_limit_with_findings(&no_usage.root());
        assert_eq!(limit, None, "usage that is unknown is not 0");
        assert_eq!(
            findings,
            [no_usage
                .root()
                .finding("cg/memory.current", "does not exist")]
        );

        let junk = fixture("0::/\n", &mount, &[("cg/memory.max", "lots\n")]);
        let (limit, findings) = memory_limit_with_findings(&junk.root());
        assert_eq!(limit, None);
        assert_eq!(
            findings[0].reason,
            "expected bytes or \"max\", found \"lots\""
        );
    }

    proptest! {
        #[test]
        fn junk_never_panics(
            text in "(?s).{0,80}",
            path in "[./a]{0,12}",
            mounted in "[./a]{0,12}",
        ) {
            let _ = limit_bytes(&text);
            membership(&text, "memory");
            below(Path::new(&path), Path::new(&mounted));
            hugetlb_size(text.len() as u64);
        }

        #[test]
        fn folders_never_leave_the_mount(path in "[./a]{0,12}", mounted in "/[./a]{0,8}") {
            let fixture = fixture(
                &format!("0::{path}\n"),
                &[&format!("{mounted} /cg rw - cgroup2 c rw")],
                &[("cg/x", "")],
            );
            let (group, _) = Group::of(&fixture.root(), "cpu");
            for dir in group.unwrap().dirs() {
                prop_assert!(fixture.root().path(dir).starts_with(fixture.root().path("cg")));
            }
        }
    }
}

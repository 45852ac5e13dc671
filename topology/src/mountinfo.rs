//! `/proc/self/mountinfo`: what this process sees mounted where.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::capture::MAX_PATH_BYTES;
use crate::root::{Finding, Root};

/// Where the table is, below the root.
pub(crate) const MOUNTINFO: &str = "proc/self/mountinfo";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    id: String,
    parent: String,
    /// The folder of the file system that is mounted, `/` for all of it.
    pub(crate) root: PathBuf,
    /// Where it is mounted.
    pub(crate) point: PathBuf,
    /// Its type: `cgroup2`, `hugetlbfs`, …
    pub(crate) kind: String,
    mount_options: String,
    super_options: String,
}

impl Mount {
    /// Whether `name` is an option of the file system.
    pub(crate) fn has_super_option(&self, name: &str) -> bool {
        self.super_options.split(',').any(|option| option == name)
    }

    /// The text after `name=` among the options of the file system.
    pub(crate) fn super_value(&self, name: &str) -> Option<&str> {
        let mut options = self.super_options.split(',');
        options.find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether this crate looks at it.
    fn is_of_interest(&self) -> bool {
        matches!(self.kind.as_str(), "cgroup" | "cgroup2" | "hugetlbfs")
    }

    /// Whether its paths are such as the kernel has, and text.
    fn has_text_paths(&self) -> bool {
        let is_text = |path: &Path| {
            let text = path.to_string_lossy();
            text.len() <= MAX_PATH_BYTES && !text.contains(char::REPLACEMENT_CHARACTER)
        };
        is_text(&self.root) && is_text(&self.point)
    }

    /// Whether nothing can be written here, because of the mount or of its file system.
    pub(crate) fn is_read_only(&self) -> bool {
        self.has_super_option("ro") || self.mount_options.split(',').any(|option| option == "ro")
    }
}

/// The mounts that can be reached: one that another is stacked upon is left out, as is one whose
/// place is not UTF-8: what was read of it is the path of something else.
pub(crate) fn mounts(root: &Root) -> Result<Vec<Mount>, Finding> {
    let mounts = parse(&root.read(MOUNTINFO)?).into_iter();
    let (named, nameless): (Vec<Mount>, Vec<Mount>) = mounts.partition(Mount::has_text_paths);
    for mount in nameless.iter().filter(|mount| mount.is_of_interest()) {
        let reason = format!(
            "a {} is mounted on what is no text (UTF-8): left out",
            mount.kind
        );
        root.note(root.finding(MOUNTINFO, reason));
    }
    Ok(named)
}

/// The lines of the table that this crate looks at, and those stacked upon them: the others may
/// name a user's shares and volumes.
pub(crate) fn for_capture(text: &str) -> String {
    let lines = text.lines().filter_map(|text| Some((text, line(text)?)));
    let lines: Vec<(&str, Mount)> = lines.collect();
    let kept = lines.iter().filter(|(_, mount)| mount.is_of_interest());
    let points: HashSet<&Path> = kept.map(|(_, mount)| mount.point.as_path()).collect();
    let lines = lines
        .iter()
        .filter(|(_, mount)| points.contains(mount.point.as_path()));
    lines.map(|(text, _)| format!("{text}\n")).collect()
}

fn parse(text: &str) -> Vec<Mount> {
    let all: Vec<Mount> = text.lines().filter_map(line).collect();
    // The root of all mounts is its own parent.
    let stacked = all.iter().filter(|mount| mount.parent != mount.id);
    let covered: HashSet<(&str, &Path)> = stacked
        .map(|mount| (mount.parent.as_str(), mount.point.as_path()))
        .collect();
    let reachable = all
        .iter()
        .filter(|mount| !covered.contains(&(mount.id.as_str(), mount.point.as_path())));
    reachable.cloned().collect()
}

/// `31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - tmpfs tmpfs rw,mode=755`: any number of
/// optional fields comes before the dash.
fn line(line: &str) -> Option<Mount> {
    let fields: Vec<&str> = line.split(' ').collect();
    let dash = 6 + fields.get(6..)?.iter().position(|field| *field == "-")?;
    Some(Mount {
        id: fields.first()?.to_string(),
        parent: fields.get(1)?.to_string(),
        root: unescape(fields.get(3)?).into(),
        point: unescape(fields.get(4)?).into(),
        mount_options: fields.get(5)?.to_string(),
        kind: fields.get(dash + 1)?.to_string(),
        super_options: fields.get(dash + 3)?.to_string(),
    })
}

/// Undoes the kernel's `\040` for a blank, `\011`, `\012`, `\134` and their like.
fn unescape(text: &str) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'\\').then(|| octal(after)).flatten();
        plain.push(escaped.unwrap_or(*first));
        rest = match escaped {
            Some(_) => after.get(3..).unwrap_or_default(),
            None => after,
        };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn octal(after: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(after.get(..3)?).ok()?;
    let octal = digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    octal.then(|| u8::from_str_radix(digits, 8).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_of_a_line() {
        let plain =
            line("40 24 0:41 / /dev/hugepages rw,relatime - hugetlbfs hugetlbfs rw,pagesize=2M")
                .unwrap();
        assert_eq!(plain.kind, "hugetlbfs");
        assert_eq!(plain.root, Path::new("/"));
        assert_eq!(plain.point, Path::new("/dev/hugepages"));
        assert_eq!(plain.super_value("pagesize"), Some("2M"));
        assert_eq!(plain.super_value("page"), None);
        assert!(!plain.is_read_only());

        let shared = line(
            r"1 2 0:3 /a\040b /m\011n\134o ro,nosuid shared:1 master:2 - cgroup  rw,cpu,cpuacct",
        )
        .unwrap();
        assert_eq!(shared.root, Path::new("/a b"));
        assert_eq!(shared.point, Path::new("/m\tn\\o"));
        assert!(shared.is_read_only());
        assert!(shared.has_super_option("cpu") && !shared.has_super_option("cp"));
    }

    #[test]
    fn what_is_no_line() {
        for text in [
            "",
            "1 2 0:3 / /m rw",
            "1 2 0:3 / /m rw - tmpfs",
            "- - - - - -",
            "     ",
        ] {
            assert_eq!(line(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_mount_below_another_is_hidden() {
        let text = "1 1 0:2 / / rw - rootfs rootfs rw\n\
                    26 24 0:26 / /dev/pts rw - devpts devpts rw\n\
                    29 26 0:26 / /dev/pts rw - tmpfs tmpfs rw\n\
                    30 29 0:27 / /dev/pts/x rw - tmpfs tmpfs rw\n";
        let ids: Vec<String> = parse(text).into_iter().map(|mount| mount.id).collect();
        assert_eq!(ids, ["1", "29", "30"]);
    }

    #[test]
    fn what_a_capture_keeps() {
        let text = "22 1 8:1 / / rw - ext4 /dev/root rw\n\
                    30 25 0:26 / /cg rw - cgroup2 cgroup2 rw\n\
                    31 30 0:27 / /cg rw - tmpfs tmpfs rw\n\
                    32 22 0:28 / /s rw - cifs //host/share rw,username=u\n\
                    33 22 0:29 / /hp rw - hugetlbfs h rw\njunk\n";
        let kept = for_capture(text);
        let kept: Vec<&str> = kept.lines().map(|line| &line[..2]).collect();
        assert_eq!(kept, ["30", "31", "33"]);
    }

    #[test]
    fn octal_escapes() {
        for (text, want) in [
            (r"a\040b", "a b"),
            (r"\303\251", "é"),
            (r"\04", r"\04"),
            (r"\999", r"\999"),
            (r"\777", r"\777"),
            ("\\", "\\"),
            (r"\é0", r"\é0"),
        ] {
            assert_eq!(unescape(text), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn junk_never_panics(
            text in "(?s).{0,120}",
            fields in proptest::collection::vec("[0-9/a-z,=\\\\-]{0,4}", 0..14),
        ) {
            parse(&text);
            parse(&fields.join(" "));
            unescape(&text);
        }
    }
}

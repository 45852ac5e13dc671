//! Memory that is not in a huge-page pool: what is free of it and when it is huge by itself.

use std::fmt;

use serde::Serialize;

use crate::fields;
use crate::root::Root;

const TRANSPARENT: &str = "sys/kernel/mm/transparent_hugepage";

/// The bytes that new work can have without swapping (`MemAvailable` in `/proc/meminfo`): of the
/// whole machine, whatever a cgroup allows. `None` where unknown.
#[must_use]
pub fn available_bytes(root: &Root) -> Option<u64> {
    let text = root.read("proc/meminfo").ok()?;
    fields::kilobytes(&text, "MemAvailable")
}

/// When private memory gets transparent huge pages (`enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum TransparentMode {
    /// Always.
    Always,
    /// Where a process asks for it with `madvise`.
    Madvise,
    /// Never.
    Never,
}

/// When shared memory (a memfd, say) gets transparent huge pages (`shmem_enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ShmemMode {
    /// Always.
    Always,
    /// As `Always`, but never past the end of the file.
    WithinSize,
    /// Where a process asks for it with `madvise`.
    Advise,
    /// Never.
    Never,
    /// Never, even where a mount asks for it.
    Deny,
    /// Always, even where a mount forbids it.
    Force,
}

impl TransparentMode {
    /// The kernel's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
        }
    }

    fn of(word: &str) -> Option<Self> {
        let all = [Self::Always, Self::Madvise, Self::Never];
        all.into_iter().find(|mode| mode.as_str() == word)
    }
}

impl ShmemMode {
    /// The kernel's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::WithinSize => "within_size",
            Self::Advise => "advise",
            Self::Never => "never",
            Self::Deny => "deny",
            Self::Force => "force",
        }
    }

    fn of(word: &str) -> Option<Self> {
        let all = [
            Self::Always,
            Self::WithinSize,
            Self::Advise,
            Self::Never,
            Self::Deny,
            Self::Force,
        ];
        all.into_iter().find(|mode| mode.as_str() == word)
    }
}

impl fmt::Display for TransparentMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for ShmemMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The mode of private memory (`/sys/kernel/mm/transparent_hugepage/enabled`); `None` where the
/// kernel has no transparent huge pages or says something new.
#[must_use]
pub fn transparent(root: &Root) -> Option<TransparentMode> {
    let text = root.read(format!("{TRANSPARENT}/enabled")).ok()?;
    TransparentMode::of(bracketed(&text)?)
}

/// The mode of shared memory (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`); `None` as for
/// [`transparent`].
#[must_use]
pub fn shmem_transparent(root: &Root) -> Option<ShmemMode> {
    let text = root.read(format!("{TRANSPARENT}/shmem_enabled")).ok()?;
    ShmemMode::of(bracketed(&text)?)
}

/// The bytes of a transparent huge page (`/sys/kernel/mm/transparent_hugepage/hpage_pmd_size`);
/// `None` where unknown.
#[must_use]
pub fn pmd_bytes(root: &Root) -> Option<u64> {
    let file = format!("{TRANSPARENT}/hpage_pmd_size");
    root.read_number(file).ok().filter(|bytes| *bytes > 0)
}

/// The chosen word of `always [madvise] never`.
fn bracketed(text: &str) -> Option<&str> {
    let mut words = text.split_whitespace();
    words.find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use proptest::prelude::*;

    #[test]
    fn modes_and_sizes() {
        let fixture = Fixture::new(&[
            (
                "proc/meminfo",
                "MemTotal: 10 kB\nMemFree: 1 kB\nMemAvailable:   8 kB\n",
            ),
            (
                "sys/kernel/mm/transparent_hugepage/enabled",
                "always [madvise] never\n",
            ),
            (
                "sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size [advise] never deny force\n",
            ),
            (
                "sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
                "2097152\n",
            ),
        ]);
        let root = fixture.root();
        assert_eq!(available_bytes(&root), Some(8192));
        assert_eq!(transparent(&root), Some(TransparentMode::Madvise));
        assert_eq!(shmem_transparent(&root), Some(ShmemMode::Advise));
        assert_eq!(pmd_bytes(&root), Some(2 << 20));
    }

    #[test]
    fn every_word_of_the_kernel() {
        for word in "always madvise never".split(' ') {
            assert_eq!(TransparentMode::of(word).unwrap().to_string(), word);
        }
        for word in "always within_size advise never deny force".split(' ') {
            assert_eq!(ShmemMode::of(word).unwrap().to_string(), word);
        }
    }

    #[test]
    fn what_is_missing_or_new_is_unknown() {
        let fixture = Fixture::new(&[]);
        let root = fixture.root();
        assert_eq!(available_bytes(&root), None);
        assert_eq!(transparent(&root), None);
        assert_eq!(shmem_transparent(&root), None);
        assert_eq!(pmd_bytes(&root), None);
        for (file, text) in [
            ("enabled", "always [sometimes] never\n"),
            ("shmem_enabled", "always never\n"),
            ("hpage_pmd_size", "0\n"),
        ] {
            fixture.write(&format!("{TRANSPARENT}/{file}"), text);
        }
        fixture.write("proc/meminfo", "MemFree: 1 kB\n");
        assert_eq!(available_bytes(&root), None);
        assert_eq!(transparent(&root), None);
        assert_eq!(shmem_transparent(&root), None);
        assert_eq!(pmd_bytes(&root), None);
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "(?s).{0,40}", words in "[a-z \\[\\]]{0,30}") {
            bracketed(&text);
            bracketed(&words);
        }
    }
}

//! What this process may lock, and what memory it holds.

use serde::Serialize;

use crate::fields;
use crate::root::{Finding, Root};

const LIMITS: &str = "proc/self/limits";
const STATUS: &str = "proc/self/status";

/// `CAP_IPC_LOCK` in the kernel's numbering of capabilities.
const CAP_IPC_LOCK: u32 = 14;

/// How much memory this process may lock or have registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memlock {
    /// The bytes that bind now; `None` is unlimited.
    pub soft_bytes: Option<u64>,
    /// The bytes up to which the process can raise that itself; `None` is unlimited.
    pub hard_bytes: Option<u64>,
    /// Whether it has `CAP_IPC_LOCK`, so that neither binds.
    pub can_lock_any: bool,
}

/// The memory of this process; a field is `None` where the kernel does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// Bytes present in memory (`VmRSS`), huge pages of hugetlbfs not included.
    pub resident_bytes: Option<u64>,
    /// Bytes pinned, as for a device (`VmPin`).
    pub pinned_bytes: Option<u64>,
    /// Bytes of hugetlbfs pages mapped and touched (`HugetlbPages`).
    pub hugetlb_bytes: Option<u64>,
    /// Bytes locked by `mlock` and its like (`VmLck`).
    pub locked_bytes: Option<u64>,
}

/// The limit on locked memory: `Max locked memory` in `/proc/self/limits` and `CapEff` in
/// `/proc/self/status`.
///
/// # Errors
/// When either can't be read: `None` inside means unlimited, never unknown.
pub fn memlock(root: &Root) -> Result<Memlock, Finding> {
    let (soft_bytes, hard_bytes) =
        locked_limits(&root.read(LIMITS)?).map_err(|reason| root.finding(LIMITS, reason))?;
    let capabilities = effective_capabilities(&root.read(STATUS)?)
        .ok_or_else(|| root.finding(STATUS, "has no CapEff in hexadecimal"))?;
    Ok(Memlock {
        soft_bytes,
        hard_bytes,
        can_lock_any: capabilities & (1 << CAP_IPC_LOCK) != 0,
    })
}

/// The memory that this process holds, from `/proc/self/status`.
#[must_use]
pub fn usage(root: &Root) -> ProcessMemory {
    let status = root.read(STATUS).unwrap_or_default();
    ProcessMemory {
        resident_bytes: fields::kilobytes(&status, "VmRSS"),
        pinned_bytes: fields::kilobytes(&status, "VmPin"),
        hugetlb_bytes: fields::kilobytes(&status, "HugetlbPages"),
        locked_bytes: fields::kilobytes(&status, "VmLck"),
    }
}

/// Soft and hard of `Max locked memory       8388608     unlimited     bytes`.
fn locked_limits(text: &str) -> Result<(Option<u64>, Option<u64>), String> {
    const NAME: &str = "Max locked memory";
    let values = text
        .lines()
        .find_map(|line| line.strip_prefix(NAME))
        .ok_or_else(|| format!("has no line {NAME:?}"))?;
    let bytes = |word: &str| match word {
        "unlimited" => Ok(None),
        number => fields::number(number)
            .map(Some)
            .ok_or_else(|| fields::unexpected("bytes or \"unlimited\"", word)),
    };
    match values.split_whitespace().collect::<Vec<_>>()[..] {
        [soft, hard, "bytes"] => Ok((bytes(soft)?, bytes(hard)?)),
        _ => Err(fields::unexpected("two limits in bytes", values)),
    }
}

fn effective_capabilities(text: &str) -> Option<u64> {
    let digits = fields::value(text, "CapEff")?;
    let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    hexadecimal
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use proptest::prelude::*;

    const HEADER: &str =
        "Limit                     Soft Limit           Hard Limit           Units     \n";

    #[test]
    fn locked_memory_and_the_capability() {
        for (line, capabilities, want) in [
            (
                "8388608              8388608              bytes     ",
                "000001fffeffffff",
                (Some(8 << 20), Some(8 << 20), true),
            ),
            (
                "65536                unlimited            bytes     ",
                "00000000a80425fb",
                (Some(65_536), None, false),
            ),
            (
                "unlimited            unlimited            bytes     ",
                "0000000000004000",
                (None, None, true),
            ),
            (
                "0                    0                    bytes     ",
                "0000000000000000",
                (Some(0), Some(0), false),
            ),
        ] {
            let fixture = Fixture::new(&[
                (
                    LIMITS,
                    &format!("{HEADER}Max locked memory         {line}\n"),
                ),
                (STATUS, &format!("CapPrm:\tffff\nCapEff:\t{capabilities}\n")),
            ]);
            let got = memlock(&fixture.root()).unwrap();
            assert_eq!(
                (got.soft_bytes, got.hard_bytes, got.can_lock_any),
                want,
                "{line}"
            );
        }
    }

    #[test]
    fn unknown_is_an_error_not_unlimited() {
        let good = format!("{HEADER}Max locked memory  1 2 bytes\n");
        for (limits, status, reason) in [
            (HEADER, "CapEff: 0\n", "has no line \"Max locked memory\""),
            (
                "Max locked memory 1 bytes\n",
                "CapEff: 0\n",
                "expected two limits in bytes, found \"1 bytes\"",
            ),
            (
                "Max locked memory -1 2 bytes\n",
                "CapEff: 0\n",
                "expected bytes or \"unlimited\", found \"-1\"",
            ),
            (&good, "CapPrm: 0\n", "has no CapEff in hexadecimal"),
            (&good, "CapEff: +f\n", "has no CapEff in hexadecimal"),
            (&good, "CapEff: \n", "has no CapEff in hexadecimal"),
        ] {
            let fixture = Fixture::new(&[(LIMITS, limits), (STATUS, status)]);
            assert_eq!(memlock(&fixture.root()).unwrap_err().reason, reason);
        }
        assert!(memlock(&Fixture::new(&[]).root()).is_err());
    }

    #[test]
    fn memory_of_the_process() {
        let fixture = Fixture::new(&[(
            STATUS,
            "VmLck:\t  8 kB\nVmPin:\t  4 kB\nVmRSS:\t  2048 kB\nHugetlbPages:\t  0 kB\n",
        )]);
        assert_eq!(
            usage(&fixture.root()),
            ProcessMemory {
                resident_bytes: Some(2 << 20),
                pinned_bytes: Some(4096),
                hugetlb_bytes: Some(0),
                locked_bytes: Some(8192),
            }
        );
        assert_eq!(usage(&Fixture::new(&[]).root()), ProcessMemory::default());
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "(?s).{0,60}") {
            let _ = locked_limits(&format!("Max locked memory {text}"));
            effective_capabilities(&format!("CapEff:{text}"));
        }
    }
}

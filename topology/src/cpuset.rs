//! Sets of CPUs, in the list format of the kernel.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::fields;

/// The kernel numbers far fewer CPUs; a list that names more is not one.
const MAX_CPU: u32 = 65_535;

/// CPUs (hardware threads) by their kernel number. Shown, parsed and serialized as the kernel
/// writes it: `0-3,8,10-11`, and the empty text for no CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    cpus: BTreeSet<u32>,
}

/// A text that is no list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    /// A part between commas is neither a number nor `low-high`.
    #[error("{0}")]
    Malformed(String),
    /// A range whose end comes before its start.
    #[error("the range {0}-{1} of CPUs ends before it starts")]
    Reversed(u32, u32),
    /// A number that no kernel gives to a CPU.
    #[error("{0} is no CPU number (the largest is {MAX_CPU})")]
    TooLarge(u64),
}

impl CpuSet {
    /// How many CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cpus.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty()
    }

    /// Whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.cpus.contains(&cpu)
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.cpus.iter().copied()
    }

    /// The CPUs that are in both.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        Self {
            cpus: self.cpus.intersection(&other.cpus).copied().collect(),
        }
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self {
            cpus: cpus.into_iter().collect(),
        }
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        let mut ranges = text
            .split(',')
            .map(|part| range(part.trim()))
            .collect::<Result<Vec<_>, _>>()?;
        ranges.sort_unstable();
        // Ranges that overlap are expanded once, so that the text's length bounds nothing.
        let mut next = 0;
        let mut cpus = BTreeSet::new();
        for (low, high) in ranges {
            cpus.extend(low.max(next)..=high);
            next = next.max(high + 1);
        }
        Ok(Self { cpus })
    }
}

fn range(part: &str) -> Result<(u32, u32), CpuSetError> {
    let (low, high) = part.split_once('-').unwrap_or((part, part));
    let (low, high) = (cpu(low, part)?, cpu(high, part)?);
    if high < low {
        return Err(CpuSetError::Reversed(low, high));
    }
    Ok((low, high))
}

fn cpu(text: &str, part: &str) -> Result<u32, CpuSetError> {
    let number = fields::number(text).ok_or_else(|| {
        CpuSetError::Malformed(fields::unexpected("a list of CPUs such as 0-3,8", part))
    })?;
    u32::try_from(number)
        .ok()
        .filter(|cpu| *cpu <= MAX_CPU)
        .ok_or(CpuSetError::TooLarge(number))
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(low) = cpus.next() {
            let mut high = low;
            while let Some(cpu) = cpus.next_if(|cpu| cpu - high == 1) {
                high = cpu;
            }
            write!(f, "{separator}{low}")?;
            if high > low {
                write!(f, "-{high}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(cpus: &[u32]) -> CpuSet {
        cpus.iter().copied().collect()
    }

    #[test]
    fn kernel_lists() {
        for (text, want, shown) in [
            ("", vec![], ""),
            ("\n", vec![], ""),
            ("0\n", vec![0], "0"),
            ("0-3,8,10-11", vec![0, 1, 2, 3, 8, 10, 11], "0-3,8,10-11"),
            ("8,0-1,1-2", vec![0, 1, 2, 8], "0-2,8"),
            ("5-5", vec![5], "5"),
            ("65535", vec![65_535], "65535"),
        ] {
            let parsed: CpuSet = text.parse().unwrap();
            assert_eq!(parsed, set(&want), "{text:?}");
            assert_eq!(parsed.to_string(), shown, "{text:?}");
            assert_eq!(parsed.len(), want.len());
            assert_eq!(parsed.iter().collect::<Vec<_>>(), want);
        }
    }

    #[test]
    fn what_is_no_list() {
        for text in [
            ",", "0,", ",0", "a", "0-", "-1", "1-2-3", "0x1", "+1", "0-3:1/2", "all", "0 1",
        ] {
            assert!(
                matches!(text.parse::<CpuSet>(), Err(CpuSetError::Malformed(_))),
                "{text:?}"
            );
        }
        assert_eq!("3-1".parse::<CpuSet>(), Err(CpuSetError::Reversed(3, 1)));
        assert_eq!(
            "0-4294967295".parse::<CpuSet>().unwrap_err().to_string(),
            "4294967295 is no CPU number (the largest is 65535)"
        );
        assert_eq!(
            "0-x".parse::<CpuSet>().unwrap_err().to_string(),
            "expected a list of CPUs such as 0-3,8, found \"0-x\""
        );
    }

    #[test]
    fn intersection_and_membership() {
        let both = set(&[0, 1, 2, 9]).intersect(&set(&[1, 2, 3]));
        assert_eq!(both, set(&[1, 2]));
        assert!(both.contains(1) && !both.contains(9));
        assert!(both.intersect(&CpuSet::default()).is_empty());
        assert_eq!(serde_json::to_string(&both).unwrap(), "\"1-2\"");
    }

    proptest! {
        #[test]
        fn what_is_shown_parses_back(cpus in proptest::collection::btree_set(0u32..300, 0..60)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>(), Ok(set));
        }

        #[test]
        fn junk_never_panics(text in "(?s).{0,40}", list in "[0-9,\\-]{0,40}") {
            let _ = text.parse::<CpuSet>();
            let _ = list.parse::<CpuSet>();
        }
    }
}

//! Sizes and counts as users and metric labels spell them.

use std::fmt::Display;

const UNITS: [(&str, u64); 6] = [
    ("Ei", 1 << 60),
    ("Pi", 1 << 50),
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
];

/// A page size as in a pool's `pageSize` and in labels: `4Ki`, `2Mi`, `1Gi`; digits alone where no
/// binary unit is exact.
#[must_use]
pub fn page_name(bytes: u64) -> String {
    exact(bytes).unwrap_or_else(|| bytes.to_string())
}

/// A size for a message: `64Gi`, `1536Mi` where a binary unit is exact, else `1000 bytes`.
#[must_use]
pub fn binary(bytes: u64) -> String {
    exact(bytes).unwrap_or_else(|| format!("{bytes} bytes"))
}

/// How many of what: `1 NIC`, `2 NICs`.
#[must_use]
pub fn count(number: impl Display, noun: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn exact(bytes: u64) -> Option<String> {
    let largest = |(_, unit): &&(&str, u64)| bytes != 0 && bytes.is_multiple_of(*unit);
    let (name, unit) = UNITS.iter().find(largest)?;
    Some(format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_or_bytes() {
        for (bytes, page, message) in [
            (0, "0", "0 bytes"),
            (1000, "1000", "1000 bytes"),
            (4096, "4Ki", "4Ki"),
            (65_536, "64Ki", "64Ki"),
            (2 << 20, "2Mi", "2Mi"),
            (512 << 20, "512Mi", "512Mi"),
            (1 << 30, "1Gi", "1Gi"),
            (16 << 30, "16Gi", "16Gi"),
            (1536 << 20, "1536Mi", "1536Mi"),
            (
                u64::MAX,
                "18446744073709551615",
                "18446744073709551615 bytes",
            ),
            (1 << 63, "8Ei", "8Ei"),
        ] {
            assert_eq!(page_name(bytes), page);
            assert_eq!(binary(bytes), message);
        }
    }

    #[test]
    fn one_is_said_as_one() {
        assert_eq!(
            [count(0, "NIC"), count(1, "NIC"), count(2, "NIC")],
            ["0 NICs", "1 NIC", "2 NICs"]
        );
    }
}

//! Amounts of any resource, exactly: to compare a request with a limit.

use serde_json::Value;
use siding_crds::format_bytes;

/// Digits that are read; more are no amount that a pod could have.
const DIGITS: usize = 24;
/// The unit that all amounts are counted in: 10^-9, the finest that Kubernetes has.
const NANO_EXPONENT: i32 = 9;
/// One, in that unit.
pub(super) const UNIT: i128 = 1_000_000_000;

/// A quantity of CPUs, bytes or devices in units of 10^-9, as Kubernetes writes them. `None` where it is
/// not a quantity or no plausible one.
pub(super) fn amount(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => parse(text),
        Value::Number(number) => parse(&number.to_string()),
        _ => None,
    }
}

pub(super) fn parse(text: &str) -> Option<i128> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (digits, unit) = unsigned.split_at(end);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.len() + fraction.len() > DIGITS || fraction.contains('.') {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (factor, exponent) = scale(unit)?;
    let shift = exponent + NANO_EXPONENT - i32::try_from(fraction.len()).ok()?;
    let scaled = mantissa.checked_mul(factor)?;
    let power = 10_i128.checked_pow(shift.unsigned_abs())?;
    let nanos = if shift < 0 {
        exact_div(scaled, power)?
    } else {
        scaled.checked_mul(power)?
    };
    Some(sign * nanos)
}

/// An amount of a resource as Kubernetes writes it: bytes in binary units, other things in whole ones or
/// thousandths.
pub(super) fn shown(resource: &str, amount: i128) -> String {
    let is_bytes =
        matches!(resource, "memory" | "ephemeral-storage") || resource.starts_with("hugepages-");
    match (exact_div(amount, UNIT), exact_div(amount, UNIT / 1000)) {
        (Some(whole), _) => match u64::try_from(whole) {
            Ok(bytes) if is_bytes => format_bytes(bytes),
            _ => whole.to_string(),
        },
        (None, Some(thousandths)) => format!("{thousandths}m"),
        (None, None) => format!("{amount}n"),
    }
}

fn exact_div(dividend: i128, divisor: i128) -> Option<i128> {
    (dividend % divisor == 0).then_some(dividend / divisor)
}

/// A unit as a factor and a power of ten.
fn scale(unit: &str) -> Option<(i128, i32)> {
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(index) = binary.iter().position(|name| *name == unit) {
        return Some((1_i128 << (10 * (index + 1)), 0));
    }
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    if let Some(index) = decimal.iter().position(|name| *name == unit) {
        return Some((1, 3 * (i32::try_from(index).ok()? - 3)));
    }
    let exponent: i32 = unit.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-NANO_EXPONENT..=18)
        .contains(&exponent)
        .then_some((1, exponent))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_same_amount_is_the_same_however_written() {
        let same = [
            ["1", "1000m"],
            ["1.5", "1500m"],
            ["1Gi", "1024Mi"],
            ["1e3", "1k"],
            ["0.1", "100m"],
            ["100n", "0.1u"],
            ["+2", "2.0"],
            [".5", "500m"],
        ];
        for [left, right] in same {
            assert!(parse(left).is_some(), "{left}");
            assert_eq!(parse(left), parse(right), "{left} {right}");
        }
        assert_eq!(parse("2"), Some(2_000_000_000));
        assert_eq!(parse("-1"), Some(-1_000_000_000));
    }

    #[test]
    fn as_kubernetes_writes_it() {
        let cases = [
            ("memory", "1024Mi", "1Gi"),
            ("hugepages-2Mi", "1e3", "1000"),
            ("cpu", "2000m", "2"),
            ("cpu", "1024", "1024"),
            ("cpu", "0.1", "100m"),
            ("cpu", "5n", "5n"),
            ("memory", "-2", "-2"),
        ];
        for (resource, text, wanted) in cases {
            assert_eq!(shown(resource, parse(text).unwrap()), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_none() {
        let nines = "9".repeat(60);
        for text in [
            "", "m", "1 ", "abc", "1GB", "1.2.3", "1e", "1e99", "--1", "0x1", "0.1n", &nines, ".",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

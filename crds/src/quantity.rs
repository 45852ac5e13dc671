//! Kubernetes quantities of memory, as exact integers of bytes.
//!
//! The grammar is Kubernetes' own: a decimal number with an optional sign and fraction, then one of
//! `Ki Mi Gi Ti Pi Ei` (powers of 1024), `n u m k M G T P E` (powers of 1000), an exponent (`e3`,
//! `E-3`) or nothing. Where Kubernetes rounds, this refuses: a quantity is a whole number of bytes
//! of at most 2^63-1 or it is an error. No step uses floating point.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use crate::quote::quoted;

/// The largest quantity, bytes: 2^63-1, as in Kubernetes.
pub const MAX_BYTES: u64 = i64::MAX.unsigned_abs();

/// What the JSON schema says of a quantity, where it is a string.
#[cfg(feature = "schema")]
const PATTERN: &str =
    r"^\+?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$";

const BINARY_UNITS: [(&str, u32); 6] = [
    ("Ei", 60),
    ("Pi", 50),
    ("Ti", 40),
    ("Gi", 30),
    ("Mi", 20),
    ("Ki", 10),
];

/// Why a text is no quantity of bytes. Its message is [`what`](Self::what) and
/// [`remedy`](Self::remedy).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", self.what(), self.remedy())]
pub enum QuantityError {
    /// There is no number at the start, e.g. `abc` or an empty text.
    NotANumber {
        /// The text.
        value: String,
        /// What would work.
        works: Option<String>,
    },
    /// What follows the number is no unit, e.g. `1GB`, `0x10`, `1Gi+1`.
    UnknownUnit {
        /// The text.
        value: String,
        /// What stands in the unit's place.
        unit: String,
        /// What would work, the likeliest first.
        works: Vec<String>,
    },
    /// Less than zero.
    Negative {
        /// The text.
        value: String,
        /// What would work.
        works: String,
    },
    /// Not a whole number of bytes, e.g. `1.5`.
    NotWhole {
        /// The text.
        value: String,
        /// The nearest whole number below, bytes.
        below: u64,
        /// The same number with a unit that makes it whole, where only the unit was left out.
        with_unit: Option<String>,
    },
    /// More than [`MAX_BYTES`].
    TooLarge {
        /// The text.
        value: String,
    },
    /// A floating-point number, which has lost its text: only from JSON and the like.
    FloatingPoint {
        /// The number as Rust prints it.
        value: String,
    },
}

impl QuantityError {
    /// The text that is no quantity.
    #[must_use]
    pub fn value(&self) -> &str {
        match self {
            Self::NotANumber { value, .. }
            | Self::UnknownUnit { value, .. }
            | Self::Negative { value, .. }
            | Self::NotWhole { value, .. }
            | Self::TooLarge { value }
            | Self::FloatingPoint { value } => value,
        }
    }

    /// What is wrong, naming the value.
    #[must_use]
    pub fn what(&self) -> String {
        match self {
            Self::NotANumber { value, .. } if value.is_empty() => {
                "'' is not a quantity: it is empty".to_owned()
            }
            Self::NotANumber { value, .. } => {
                format!(
                    "{} is not a quantity: it must start with a digit",
                    quoted(value)
                )
            }
            Self::UnknownUnit { value, unit, .. } => {
                format!(
                    "{} is not a quantity: {} is not a unit",
                    quoted(value),
                    quoted(unit)
                )
            }
            Self::Negative { value, .. } => format!("{} is negative", quoted(value)),
            Self::NotWhole { value, .. } => {
                format!("{} is not a whole number of bytes", quoted(value))
            }
            Self::TooLarge { value } => {
                format!(
                    "{} is too large: the most is {MAX_BYTES} bytes (2^63-1)",
                    quoted(value)
                )
            }
            Self::FloatingPoint { value } => {
                format!("{value} is a floating-point number, which is not taken: it may be rounded")
            }
        }
    }

    /// What would work instead.
    #[must_use]
    pub fn remedy(&self) -> String {
        const EXAMPLES: &str = "write digits and a unit, e.g. '1Gi', '512Mi' or '100Gi'";
        match self {
            Self::NotANumber {
                works: Some(works), ..
            }
            | Self::Negative { works, .. } => {
                format!("write {}", quoted(works))
            }
            Self::NotANumber { works: None, .. } => EXAMPLES.to_owned(),
            Self::UnknownUnit { works, .. } if works.is_empty() => EXAMPLES.to_owned(),
            Self::UnknownUnit { works, .. } => {
                let works: Vec<String> = works.iter().map(|text| quoted(text)).collect();
                format!("write {}", works.join(" or "))
            }
            Self::NotWhole {
                below, with_unit, ..
            } => {
                let above = below.saturating_add(1);
                let mut text = match (*below, above > MAX_BYTES) {
                    (0, _) => format!("the nearest is '{above}'"),
                    (_, true) => format!("the nearest is '{below}'"),
                    _ => format!("the nearest are '{below}' and '{above}'"),
                };
                if let Some(with_unit) = with_unit {
                    text.push_str(&format!(", or with a unit: {}", quoted(with_unit)));
                }
                text
            }
            Self::TooLarge { .. } => "write less, e.g. '1Ti'".to_owned(),
            Self::FloatingPoint { .. } => {
                "write the quantity as a string, e.g. \"1.5Gi\"".to_owned()
            }
        }
    }
}

/// Parses a quantity into bytes, exactly. 0 is a quantity: who needs more refuses it.
///
/// ```
/// use siding_crds::parse_bytes;
///
/// assert_eq!(parse_bytes("1.5Gi"), Ok(1_610_612_736));
/// assert_eq!(
///     parse_bytes("1GiB").unwrap_err().to_string(),
///     "'1GiB' is not a quantity: 'GiB' is not a unit; write '1Gi'"
/// );
/// ```
///
/// # Errors
/// [`QuantityError`]: not in Kubernetes' grammar, negative, not a whole number of bytes, or more
/// than [`MAX_BYTES`].
pub fn parse_bytes(value: &str) -> Result<u64, QuantityError> {
    let Some(number) = Number::split(value) else {
        let trimmed = value.trim();
        let works = (trimmed != value && parse_bytes(trimmed).is_ok()).then(|| trimmed.to_owned());
        return Err(QuantityError::NotANumber {
            value: value.to_owned(),
            works,
        });
    };
    let Some(unit) = Unit::named(number.unit) else {
        return Err(QuantityError::UnknownUnit {
            value: value.to_owned(),
            unit: number.unit.to_owned(),
            works: likely(&number),
        });
    };
    match amount(&number, unit) {
        Amount::Whole(0) => Ok(0),
        _ if number.negative => Err(QuantityError::Negative {
            value: value.to_owned(),
            works: positive(value),
        }),
        Amount::Whole(bytes) => Ok(bytes),
        Amount::TooLarge => Err(QuantityError::TooLarge {
            value: value.to_owned(),
        }),
        Amount::Above(below) => Err(QuantityError::NotWhole {
            value: value.to_owned(),
            below,
            with_unit: number
                .unit
                .is_empty()
                .then(|| format!("{value}Gi"))
                .filter(|text| parse_bytes(text).is_ok()),
        }),
    }
}

/// The shortest exact form with a binary unit where one is exact, else digits alone: `1536Mi`,
/// `1Gi`, `1000`. [`parse_bytes`] gives the same bytes back, up to [`MAX_BYTES`].
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let exact = |(_, twos): &&(&str, u32)| bytes != 0 && bytes.trailing_zeros() >= *twos;
    match BINARY_UNITS.iter().find(exact) {
        Some((name, twos)) => format!("{}{name}", bytes >> twos),
        None => bytes.to_string(),
    }
}

/// A quantity's text, cut into its parts.
struct Number<'a> {
    negative: bool,
    /// The digits with their point, without the sign.
    digits: &'a str,
    whole: &'a str,
    fraction: &'a str,
    /// All that follows.
    unit: &'a str,
}

impl<'a> Number<'a> {
    fn split(value: &'a str) -> Option<Self> {
        let unsigned = value.strip_prefix(['+', '-']).unwrap_or(value);
        let (whole, rest) = leading_digits(unsigned);
        let (fraction, unit) = rest.strip_prefix('.').map_or(("", rest), leading_digits);
        let digits = &unsigned[..unsigned.len() - unit.len()];
        let negative = value.starts_with('-');
        let number = Self {
            negative,
            digits,
            whole,
            fraction,
            unit,
        };
        (!whole.is_empty() || !fraction.is_empty()).then_some(number)
    }
}

fn leading_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// A factor of 10^`tens` x 2^`twos`.
#[derive(Clone, Copy)]
struct Unit {
    tens: i64,
    twos: u32,
}

impl Unit {
    fn named(name: &str) -> Option<Self> {
        if let Some((_, twos)) = BINARY_UNITS.iter().find(|(unit, _)| *unit == name) {
            return Some(Self {
                tens: 0,
                twos: *twos,
            });
        }
        let tens = match name {
            "n" => -9,
            "u" => -6,
            "m" => -3,
            "" => 0,
            "k" => 3,
            "M" => 6,
            "G" => 9,
            "T" => 12,
            "P" => 15,
            "E" => 18,
            _ => exponent(name)?,
        };
        Some(Self { tens, twos: 0 })
    }
}

/// The exponent of `e3`, `E+3`, `e-3`; one that is beyond all bounds stays so.
fn exponent(name: &str) -> Option<i64> {
    let text = name.strip_prefix(['e', 'E'])?;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || leading_digits(digits).0 != digits {
        return None;
    }
    let beyond = if text.starts_with('-') {
        i64::MIN
    } else {
        i64::MAX
    };
    Some(text.parse().unwrap_or(beyond))
}

/// A number times its unit, regardless of sign.
enum Amount {
    /// So many bytes, at most [`MAX_BYTES`].
    Whole(u64),
    /// More than so many bytes and less than one byte more.
    Above(u64),
    /// More than [`MAX_BYTES`].
    TooLarge,
}

/// Decimal digits before the point that no `u64` has.
const TOO_MANY_DIGITS: i64 = 20;
/// Zeros after the point that no binary unit lifts to a byte: 10^-40 x 2^60 < 1.
const TOO_MANY_ZEROS: i64 = 40;

fn amount(number: &Number<'_>, unit: Unit) -> Amount {
    let digits: Vec<u8> = number
        .whole
        .bytes()
        .chain(number.fraction.bytes())
        .map(|byte| byte - b'0')
        .collect();
    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    let significant = &digits[zeros..];
    if significant.is_empty() {
        return Amount::Whole(0);
    }
    let length = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    // How many of the significant digits stand before the point; negative: zeros after it.
    let point = (length(number.whole.len()) - length(zeros)).saturating_add(unit.tens);
    if point >= TOO_MANY_DIGITS {
        return Amount::TooLarge;
    }
    if point < -TOO_MANY_ZEROS {
        return Amount::Above(0);
    }
    let before = usize::try_from(point).unwrap_or(0);
    let (whole, fraction) = significant.split_at(before.min(significant.len()));
    let padding = std::iter::repeat_n(&0, before - whole.len());
    let whole = whole
        .iter()
        .chain(padding)
        .fold(0_u128, |sum, digit| sum * 10 + u128::from(*digit));
    let mut tail = vec![0; usize::try_from(-point).unwrap_or(0)];
    tail.extend_from_slice(fraction);
    let carried = double(&mut tail, unit.twos);
    // Below 10^19 x 2^60 + 2^60 < 2^128.
    match u64::try_from((whole << unit.twos) + u128::from(carried)) {
        Ok(bytes) if bytes <= MAX_BYTES => {
            let exact = tail.iter().all(|digit| *digit == 0);
            if exact {
                Amount::Whole(bytes)
            } else {
                Amount::Above(bytes)
            }
        }
        _ => Amount::TooLarge,
    }
}

/// Doubles the decimal fraction `times` times (at most 60) and returns what passed the point.
fn double(fraction: &mut [u8], times: u32) -> u64 {
    let mut passed = 0;
    for _ in 0..times {
        let mut carry = 0;
        for digit in fraction.iter_mut().rev() {
            let doubled = *digit * 2 + carry;
            *digit = doubled % 10;
            carry = doubled / 10;
        }
        passed = passed * 2 + u64::from(carry);
    }
    passed
}

fn positive(value: &str) -> String {
    let unsigned = value.trim_start_matches('-');
    if parse_bytes(unsigned).is_ok() {
        unsigned.to_owned()
    } else {
        "1Gi".to_owned()
    }
}

/// What someone who wrote this unit probably meant. All of it parses.
fn likely(number: &Number<'_>) -> Vec<String> {
    let digits = number.digits;
    let unit: String = number.unit.chars().filter(|c| !c.is_whitespace()).collect();
    let lower = unit.to_ascii_lowercase();
    let units = match (
        lower.strip_prefix(['k', 'm', 'g', 't', 'p', 'e']),
        lower.as_str(),
    ) {
        _ if Unit::named(&unit).is_some() => vec![unit],
        (Some("i" | "ib"), _) => vec![binary_unit(&lower)],
        (Some("" | "b"), _) => vec![binary_unit(&lower), decimal_unit(&lower)],
        (_, "b" | "byte" | "bytes") => vec![String::new()],
        (_, hex) if digits == "0" && hex.starts_with('x') => {
            let bytes = u64::from_str_radix(&hex[1..], 16).ok();
            return bytes
                .filter(|bytes| *bytes <= MAX_BYTES)
                .map(format_bytes)
                .into_iter()
                .collect();
        }
        _ => vec!["Gi".to_owned()],
    };
    let mut works: Vec<String> = units.iter().map(|unit| format!("{digits}{unit}")).collect();
    works.retain(|text| parse_bytes(text).is_ok());
    works
}

/// `Ki` for `k…`, `Gi` for `g…`.
fn binary_unit(lower: &str) -> String {
    format!("{}i", lower[..1].to_ascii_uppercase())
}

/// `k` for `k…`, `G` for `g…`.
fn decimal_unit(lower: &str) -> String {
    if lower.starts_with('k') {
        "k".to_owned()
    } else {
        lower[..1].to_ascii_uppercase()
    }
}

/// A number of bytes that is written as a quantity.
///
/// From a text, whatever the format, it is taken exactly. From a number in JSON it must be an
/// integer: a floating-point number has lost its text and is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(u64);

impl Bytes {
    /// So many bytes. Above [`MAX_BYTES`] its text form cannot be read back.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for Bytes {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;

    fn from_str(value: &str) -> Result<Self, QuantityError> {
        parse_bytes(value).map(Self)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_bytes(self.0))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_bytes(self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BytesVisitor)
    }
}

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity of bytes such as \"1Gi\"")
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Bytes, E> {
        value.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Bytes, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Bytes, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Bytes, E> {
        Err(E::custom(QuantityError::FloatingPoint {
            value: format!("{value:?}"),
        }))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Bytes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A Kubernetes quantity of bytes, taken exactly: 1.5Gi, 512Mi, 100G, \
                129e6 or digits alone; a whole number of bytes, at most 2^63-1.",
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "minimum": 0,
            "pattern": PATTERN,
            "x-kubernetes-int-or-string": true,
        })
    }
}

#[cfg(test)]
mod tests;

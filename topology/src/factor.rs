//! The planner's factor.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// The factor where nothing better is known: the one that the simulator supports (`siding simulate`
/// lists what each costs on the published nodes; between 0.95 and 1.0 is no difference, and 1.0 leaves
/// nothing for anybody else). Measured on P5, in powers of two only, 128 of 192 threads are best with
/// 4 and with 8 ranks, and 64 of 64: 0.67 to 1.0.
pub const DEFAULT_FACTOR: Factor = Factor(0.95);

/// Threads that register at once on a node, as a part of its hardware threads. More than 0, at most
/// 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Factor(f64);

/// Not a factor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a factor; write a number above 0 and at most 1, e.g. 0.75")]
pub struct NotAFactor(String);

impl Factor {
    /// A factor of this value, where it is above 0 and at most 1.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        (value > 0.0 && value <= 1.0).then_some(Self(value))
    }

    /// Its value.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Factor {
    type Err = NotAFactor;

    fn from_str(text: &str) -> Result<Self, NotAFactor> {
        let value = text.parse().ok().and_then(Self::new);
        value.ok_or_else(|| NotAFactor(text.chars().take(64).collect()))
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nobody means less; it is given back as it would be written.
        match self.0 < 1e-4 {
            true => write!(f, "{:e}", self.0),
            false => self.0.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        Self::new(value).ok_or_else(|| serde::de::Error::custom(NotAFactor(format!("{value:?}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_factor() {
        for (text, want) in [
            ("1", Some(1.0)),
            ("0.75", Some(0.75)),
            (".5", Some(0.5)),
            ("0", None),
            ("-0.5", None),
            ("1.01", None),
            ("nan", None),
            ("inf", None),
            ("", None),
            ("3/4", None),
        ] {
            let factor = text.parse().ok().map(Factor::get);
            assert_eq!(factor, want, "{text}");
        }
        for text in ["0.0001", "9e-5", "1e-320"] {
            assert_eq!(text.parse::<Factor>().unwrap().to_string(), text);
        }
        assert_eq!(
            "2".parse::<Factor>().unwrap_err().to_string(),
            "\"2\" is not a factor; write a number above 0 and at most 1, e.g. 0.75"
        );
    }

    #[test]
    fn serialized_as_a_number() {
        let factor = Factor::new(0.33).unwrap();
        assert_eq!(serde_json::to_string(&factor).unwrap(), "0.33");
        assert_eq!(serde_json::from_str::<Factor>("0.33").unwrap(), factor);
        assert!(serde_json::from_str::<Factor>("0").is_err());
        assert!((0.67..=1.0).contains(&DEFAULT_FACTOR.get()));
    }
}

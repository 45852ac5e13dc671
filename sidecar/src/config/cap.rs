//! The cap on registrations in flight, and its three sources.

use std::ffi::OsStr;
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use siding_crds::quoted;

use super::problem::Refusal;
use super::words::{Whole, same, whole};

/// The environment variable that Mooncake's users set the cap by.
pub const CAP_VARIABLE: &str = "MC_MAX_CONCURRENT_REG_MR";

/// Most registrations in flight at once.
///
/// As text (configuration file and command line alike): `auto`, `unbounded` or a whole number of at
/// least 1. 0 is refused there: who wants no cap must write `unbounded`. Precedence: what is
/// written out in a flag or the file, then the environment, then `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Cap {
    /// What fits the cores that the process may use.
    #[default]
    Auto,
    /// No cap: everything at once.
    Unbounded,
    /// This many.
    Limit(NonZeroUsize),
}

/// Something about an environment variable that its owner should know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {what}; {remedy}")]
pub struct Warning {
    /// The variable.
    pub variable: &'static str,
    /// Its value; replacement characters where it is not UTF-8.
    pub value: String,
    /// What is odd and what follows from it, naming the value.
    pub what: String,
    /// What would work better.
    pub remedy: String,
}

impl Cap {
    /// The cap by Mooncake's published rules for the value of [`CAP_VARIABLE`] (`None`: unset).
    ///
    /// Unset is [`Auto`](Self::Auto); n > 0 is [`Limit`](Self::Limit); 0 is
    /// [`Unbounded`](Self::Unbounded), with a warning; anything else (not a whole number, negative,
    /// empty, with other text around it, not UTF-8) is ignored with a warning. This reads no
    /// environment itself.
    #[must_use]
    pub fn from_environment(value: Option<&OsStr>) -> (Self, Option<Warning>) {
        let Some(value) = value else {
            return (Self::Auto, None);
        };
        let shown = value.to_string_lossy().into_owned();
        let number = value.to_str().map_or(Whole::No, whole);
        let ignored = |why: &str| {
            let what = format!(
                "{} is {why}: ignored, the default (auto) stays",
                quoted(&shown)
            );
            let remedy = "set a whole number (0 is unbounded), or unset it";
            (Self::Auto, Some(Warning::new(shown.clone(), what, remedy)))
        };
        match number {
            Whole::Is(0) => {
                let what = "'0' means unbounded: all registrations start at once".to_owned();
                let remedy =
                    "unset it for a cap that fits the cores, or set a number of at least 1";
                (Self::Unbounded, Some(Warning::new(shown, what, remedy)))
            }
            Whole::Is(n) => limit(n).map_or_else(|| ignored("too large"), |cap| (cap, None)),
            Whole::TooLarge => ignored("too large"),
            Whole::No if value.is_empty() => ignored("empty"),
            Whole::No if value.to_str().is_none() => ignored("not UTF-8"),
            Whole::No => ignored("not a whole number"),
        }
    }
}

impl Warning {
    fn new(value: String, what: String, remedy: &str) -> Self {
        Self {
            variable: CAP_VARIABLE,
            value,
            what,
            remedy: remedy.to_owned(),
        }
    }
}

fn limit(n: u64) -> Option<Cap> {
    usize::try_from(n)
        .ok()
        .and_then(NonZeroUsize::new)
        .map(Cap::Limit)
}

impl FromStr for Cap {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        const REMEDY: &str = "write 'auto', 'unbounded' or a whole number of at least 1";
        let refused =
            |why: &str| Refusal::new(text, format!("{} is not a cap{why}", quoted(text)), REMEDY);
        match whole(text) {
            _ if same(text, "auto") => Ok(Self::Auto),
            _ if same(text, "unbounded") => Ok(Self::Unbounded),
            Whole::Is(0) => Err(Refusal::new(
                text,
                format!("{} is not a cap: nothing could be registered", quoted(text)),
                "write 'unbounded' to lift the cap, 'auto' or a whole number of at least 1",
            )),
            Whole::Is(n) => limit(n).ok_or_else(|| refused(": it is too large")),
            Whole::TooLarge => Err(refused(": it is too large")),
            Whole::No if text.is_empty() => Err(refused(": it is empty")),
            Whole::No => Err(refused("")),
        }
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Unbounded => f.pad("unbounded"),
            Self::Limit(n) => n.fmt(f),
        }
    }
}

impl Serialize for Cap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto | Self::Unbounded => serializer.collect_str(self),
            Self::Limit(n) => n.serialize(serializer),
        }
    }
}

//! How memory is touched and registered.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use siding_crds::quoted;

use super::cap::Cap;
use super::problem::Refusal;
use super::words::{Whole, pick, same, whole};

/// How memory is touched and registered.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub struct Registration {
    /// What registers: `auto` takes what is usable here and says why.
    pub backend: Backend,
    /// Most registrations in flight: `auto`, `unbounded` or a whole number of at least 1. `auto`
    /// lets the environment variable MC_MAX_CONCURRENT_REG_MR decide where it is set.
    pub cap: Cap,
    /// The order in which regions are registered.
    pub order: Order,
    /// Threads that touch pages: `auto` or a whole number of at least 1.
    pub touch_threads: TouchThreads,
}

/// What registers memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Backend {
    /// What is usable here.
    #[default]
    Auto,
    /// Pinned by `io_uring`'s registered buffers.
    #[serde(rename = "io_uring")]
    IoUring,
    /// Nothing: memory is served without registration.
    None,
}

impl FromStr for Backend {
    type Err = Refusal;

    /// `auto`, `io_uring` (also `ioUring`, `io-uring`) or `none`.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        if same(text, "io_uring") || same(text, "io-uring") {
            return Ok(Self::IoUring);
        }
        let words = [
            ("auto", Self::Auto),
            ("io_uring", Self::IoUring),
            ("none", Self::None),
        ];
        if same(&text.replace(['_', '-'], ""), "iouring") {
            return Ok(Self::IoUring);
        }
        pick(text, "a registration back end", &words)
    }
}

/// The order in which regions are registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Small ones first.
    #[default]
    Ascending,
    /// As declared.
    Declared,
}

impl FromStr for Order {
    type Err = Refusal;

    /// `ascending` or `declared` (also `given`).
    fn from_str(text: &str) -> Result<Self, Refusal> {
        if same(text, "given") {
            return Ok(Self::Declared);
        }
        pick(
            text,
            "an order",
            &[("ascending", Self::Ascending), ("declared", Self::Declared)],
        )
    }
}

/// Threads that touch pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TouchThreads {
    /// What fits the cores of the segment's node.
    #[default]
    Auto,
    /// This many.
    Count(NonZeroUsize),
}

impl FromStr for TouchThreads {
    type Err = Refusal;

    /// `auto` or a whole number of at least 1.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        if same(text, "auto") {
            return Ok(Self::Auto);
        }
        let count = match whole(text) {
            Whole::Is(n) => usize::try_from(n).ok().and_then(NonZeroUsize::new),
            Whole::TooLarge | Whole::No => None,
        };
        count.map(Self::Count).ok_or_else(|| {
            let what = format!("{} is not a number of threads", quoted(text));
            Refusal::new(text, what, "write 'auto' or a whole number of at least 1")
        })
    }
}

impl fmt::Display for TouchThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Count(n) => n.fmt(f),
        }
    }
}

impl Serialize for TouchThreads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.collect_str(self),
            Self::Count(n) => n.serialize(serializer),
        }
    }
}

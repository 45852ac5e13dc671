//! A size as the user wrote it.

use serde::{Deserialize, Serialize};

use crate::{QuantityError, parse_bytes};

/// A quantity of bytes, kept as it was written: one object that an older schema let through must
/// not stop the others from being read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// A quantity such as `2Gi`.
    Quantity(String),
}

impl Size {
    /// The bytes.
    ///
    /// # Errors
    /// What is wrong with it and what would work.
    pub fn bytes(&self) -> Result<u64, QuantityError> {
        match self {
            Self::Bytes(bytes) => parse_bytes(&bytes.to_string()),
            Self::Quantity(text) => parse_bytes(text),
        }
    }
}

impl From<&str> for Size {
    fn from(text: &str) -> Self {
        Self::Quantity(text.to_owned())
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Quantity(text) => f.pad(text),
        }
    }
}

impl schemars::JsonSchema for Size {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": true,
            "maxLength": 32,
        })
    }
}

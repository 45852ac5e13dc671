//! A size as the user wrote it.

use serde::{Deserialize, Serialize};

use crate::{QuantityError, parse_bytes};

/// A quantity of bytes, kept as it was written: one object that an older schema let through must
/// not stop the others from being read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(String);

impl Size {
    /// The bytes.
    ///
    /// # Errors
    /// What is wrong with it and what would work.
    pub fn bytes(&self) -> Result<u64, QuantityError> {
        parse_bytes(&self.0)
    }
}

impl From<&str> for Size {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
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
            // Not a number as well: rules on what may be both cost the API server too much.
            "type": "string",
            "minLength": 1,
            "maxLength": 32,
        })
    }
}

//! `Auto` or a number.

use std::num::NonZeroU32;

use serde::de::{self, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that is at least 1, or `Auto`: Siding finds it. 0 is neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoOr {
    /// Siding finds it.
    #[default]
    Auto,
    /// So many.
    Number(NonZeroU32),
}

impl AutoOr {
    /// The number, where one was written.
    #[must_use]
    pub fn number(self) -> Option<NonZeroU32> {
        match self {
            Self::Auto => None,
            Self::Number(number) => Some(number),
        }
    }
}

impl Serialize for AutoOr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("Auto"),
            Self::Number(number) => number.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for AutoOr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        let wanted = &"'Auto' or a whole number from 1";
        match Written::deserialize(deserializer)? {
            Written::Text(text) if text == "Auto" => Ok(Self::Auto),
            Written::Text(text) => Err(de::Error::invalid_value(Unexpected::Str(&text), wanted)),
            Written::Number(number) => u32::try_from(number)
                .ok()
                .and_then(NonZeroU32::new)
                .map(Self::Number)
                .ok_or_else(|| de::Error::invalid_value(Unexpected::Unsigned(number), wanted)),
        }
    }
}

impl schemars::JsonSchema for AutoOr {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AutoOr".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": true,
            // Of numbers and of strings respectively.
            "minimum": 1,
            "maximum": 65535,
            "pattern": "^Auto$",
        })
    }
}

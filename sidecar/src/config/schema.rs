//! The configuration file's JSON schema, made from the types and their documentation.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema, schema_for};

use super::{Cap, Config, Numa, Page, TouchThreads};

/// The JSON schema (draft 2020-12) of the configuration file.
#[must_use]
pub fn schema() -> serde_json::Value {
    schema_for!(Config).into()
}

/// A schema of one of a few words or a whole number of at least `least`.
fn words_or_number(words: &[&str], least: u32) -> Schema {
    json_schema!({
        "anyOf": [{ "enum": words }, { "type": "integer", "minimum": least }],
    })
}

impl JsonSchema for Cap {
    fn schema_name() -> Cow<'static, str> {
        "Cap".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        words_or_number(&["auto", "unbounded"], 1)
    }
}

impl JsonSchema for TouchThreads {
    fn schema_name() -> Cow<'static, str> {
        "TouchThreads".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        words_or_number(&["auto"], 1)
    }
}

impl JsonSchema for Numa {
    fn schema_name() -> Cow<'static, str> {
        "Numa".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        words_or_number(&["local", "interleave"], 0)
    }
}

impl JsonSchema for Page {
    fn schema_name() -> Cow<'static, str> {
        "Page".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "integer"],
            "pattern": "^([Aa]uto|[Tt]ransparent|[0-9]+([KMGTPE]i)?)$",
            "minimum": super::SMALLEST_PAGE_BYTES,
            "examples": ["auto", "transparent", "4Ki", "2Mi", "1Gi"],
        })
    }
}

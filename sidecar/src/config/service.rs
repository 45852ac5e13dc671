//! Where the sidecar listens, how it ends and what it logs.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;

use super::problem::Refusal;
use super::words::pick;

/// What `shutdown.graceSeconds` may be.
pub const GRACE_SECONDS: RangeInclusive<u32> = 1..=3600;

/// Where the sidecar listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub struct Listen {
    /// HTTP (metrics, health, status): an IP address and a port, `127.0.0.1:9600` or `[::1]:9600`;
    /// port 0 takes any free one.
    pub http: SocketAddr,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, 9600)),
        }
    }
}

/// What a failed mount does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// The process ends with an exit code that tells; whoever started it decides what follows.
    #[default]
    Exit,
    /// The process stays up without segments and tells what failed (`/v1/status`, `/readyz`) until
    /// SIGTERM; its exit code is then 0.
    Serve,
}

impl FromStr for OnFailure {
    type Err = Refusal;

    /// `exit` or `serve`.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        let words = [("exit", Self::Exit), ("serve", Self::Serve)];
        pick(text, "what a failed mount does", &words)
    }
}

/// How the sidecar ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub struct Shutdown {
    /// Seconds that unregistering and unmapping may take after SIGTERM, 1 to 3600.
    #[schemars(range(min = 1, max = 3600))]
    pub grace_seconds: u32,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { grace_seconds: 30 }
    }
}

/// What the sidecar logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub struct Logging {
    /// The form of log lines.
    pub format: LogFormat,
    /// Which log lines: `error`, `warn`, `info`, `debug`, `trace`, or directives such as
    /// `siding=debug,warn`.
    pub level: String,
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            format: LogFormat::Auto,
            level: "info".to_owned(),
        }
    }
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    /// JSON in a pod, text elsewhere.
    #[default]
    Auto,
    /// A JSON object a line.
    Json,
    /// For people.
    Text,
}

impl FromStr for LogFormat {
    type Err = Refusal;

    /// `auto`, `json` or `text`.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        let words = [
            ("auto", Self::Auto),
            ("json", Self::Json),
            ("text", Self::Text),
        ];
        pick(text, "a log format", &words)
    }
}

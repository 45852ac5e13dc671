//! The configuration: one typed object, from a YAML file, a builder or the command line.
//!
//! Every field has a default, apart from what a segment is called and how large it is:
//!
//! ```
//! let config = siding::config::parse(
//!     "
//! segments:
//! - name: kv                # unique; becomes part of a file's name
//!   size: 1Gi               # a Kubernetes quantity, whole pages
//!   page: auto              # auto | transparent | 4Ki | 64Ki | 2Mi | 1Gi …
//!   numa: local             # local | interleave | a node's number
//!   directory: null         # default: a mounted hugetlbfs of the page size, else storage.directory
//! storage:
//!   directory: /run/siding  # tmpfs
//! registration:
//!   backend: auto           # auto | io_uring | none
//!   cap: auto               # auto | unbounded | 1, 2, …
//!   order: ascending        # ascending | declared
//!   touchThreads: auto      # auto | 1, 2, …
//! transfer: {}
//! listen:
//!   http: 127.0.0.1:9600    # port 0: any free one
//! onFailure: exit           # exit | serve
//! shutdown:
//!   graceSeconds: 30        # 1 to 3600
//! logging:
//!   format: auto            # auto | json | text
//!   level: info
//! ",
//! )?;
//! let built = siding::config::Config::builder()
//!     .segment(siding::config::Segment::new("kv", 1 << 30))
//!     .build()?;
//! assert_eq!(config, built);
//! # Ok::<(), siding::config::ConfigError>(())
//! ```
//!
//! Scalars are read from their text, exactly as written: `1e3`, `100G` and `1.5` are never floating
//! point on the way, and quotes make no difference. All problems of a file are reported at once,
//! each with its line, field, value and remedy.
//!
//! The cap in force: a command-line flag or the file, where it is not `auto`; then the environment
//! ([`Cap::from_environment`]); then the node's plan, where there is one; then `auto`.

mod builder;
mod cap;
mod load;
mod problem;
mod read;
mod registration;
mod schema;
mod segment;
mod service;
#[cfg(test)]
mod tests;
mod tree;
mod validate;
mod words;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

pub use builder::ConfigBuilder;
pub use cap::{CAP_VARIABLE, Cap, Warning};
pub use load::{MAX_FILE_BYTES, Refused, load, parse};
pub use problem::{ConfigError, Problem, Refusal};
pub use registration::{Backend, Order, Registration, TouchThreads};
pub use schema::schema;
pub use segment::{Numa, Page, SMALLEST_PAGE_BYTES, Segment};
pub use service::{GRACE_SECONDS, Listen, LogFormat, Logging, OnFailure, Shutdown};
pub use validate::validate;

/// Configuration of the sidecar: what to mount, how to register it, where to serve.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "Configuration of siding", default, deny_unknown_fields)]
pub struct Config {
    /// The segments to mount, in this order. At least one is needed.
    pub segments: Vec<Segment>,
    /// Where files live.
    pub storage: Storage,
    /// How memory is touched and registered.
    pub registration: Registration,
    /// How memory is served to others.
    pub transfer: Transfer,
    /// Where the sidecar listens.
    pub listen: Listen,
    /// What a failed mount does: `exit` ends the process, `serve` keeps it up without segments.
    pub on_failure: OnFailure,
    /// How it ends.
    pub shutdown: Shutdown,
    /// What it logs.
    pub logging: Logging,
}

/// Where files live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub struct Storage {
    /// Directory of the headers, and of segments on 4 KiB or transparent pages: an absolute path,
    /// on tmpfs.
    pub directory: PathBuf,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            directory: PathBuf::from("/run/siding"),
        }
    }
}

/// How memory is served to others. It has no fields yet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub struct Transfer {}

/// The configuration as YAML, every field written out: [`parse`] gives the same one back.
///
/// # Errors
/// A path that is not UTF-8 has no form in YAML.
pub fn to_yaml(config: &Config) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(config)
}

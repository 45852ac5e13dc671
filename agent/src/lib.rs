//! The node's agent: it publishes what its node has, tells each sidecar which GPUs its pod got, and
//! relays what each of them did.
//!
//! [`topology`] and [`mount`] are pure: from what was read to what is published. [`sockets`],
//! [`sidecar`] and [`pod_resources`] read; [`publish`] writes; [`agent`] is the loop around them.

#![forbid(unsafe_code)]

pub mod agent;
pub mod conditions;
pub mod environment;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod mount;
pub mod options;
pub mod pod_resources;
pub mod publish;
pub mod report;
pub mod sidecar;
pub mod sockets;
mod text;
pub mod topology;

/// The field manager of everything that is applied.
pub const FIELD_MANAGER: &str = "siding-agent";

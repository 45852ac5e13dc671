//! The sidecar: it mounts, touches and registers KV-cache segments, and tells what each second
//! went to.

#![forbid(unsafe_code)]

pub mod agent_socket;
pub mod bench;
pub mod board;
pub mod commands;
pub mod config;
pub mod environment;
pub mod failure;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod mount;
pub mod node_plan;
pub mod output;
pub mod registration;
pub mod session;
pub mod signals;
pub mod store;

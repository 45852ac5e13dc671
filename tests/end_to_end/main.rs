//! End-to-end tests: the real binary on the real kernel.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_input;
mod bench;
mod http;
mod life_cycle;
mod limits;
mod mount;
mod named_files;
mod plan;
mod pod;
mod ranks;
mod simulate;
mod topology;

//! Tests on a real Kubernetes. It comes up once for all of them.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chain;
mod failures;
mod golden;
mod ground;
mod living;
mod shapes;
mod used;

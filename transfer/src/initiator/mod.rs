//! The initiator: reads and writes the memory of peers, as Mooncake's clients do.
//!
//! Operations for one peer wait in its group's queue; lanes, each one connection with one request in
//! flight, carry them. Every operation is settled exactly once, whatever happens to it.

#[allow(dead_code, reason = "the lanes come next")]
mod batch;
mod error;
#[allow(dead_code, reason = "the lanes come next")]
mod group;
mod sync;

#[cfg(all(test, loom))]
mod loom_tests;

pub use error::{Outcome, TransferError};

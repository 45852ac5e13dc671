//! The data path: segments that Mooncake's unmodified clients read and write, and a client of our
//! own that speaks the same.
#![forbid(unsafe_code)]

#[cfg(not(loom))]
pub mod histogram;
pub mod initiator;
#[cfg(not(loom))]
pub mod loops;
#[cfg(not(loom))]
pub mod metadata;
#[cfg(not(loom))]
pub mod peers;
#[cfg(not(loom))]
mod service;
#[cfg(not(loom))]
pub mod target;

#[cfg(not(loom))]
pub use service::{Door, DoorSnapshot, Listener};

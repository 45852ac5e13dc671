//! The data path: segments that Mooncake's unmodified clients read and write, and a client of our
//! own that speaks the same.
#![forbid(unsafe_code)]

pub mod histogram;
pub mod loops;
pub mod metadata;
pub mod peers;
mod service;
pub mod target;

pub use service::{Door, DoorSnapshot, Listener};

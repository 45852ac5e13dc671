//! The data path: segments that Mooncake's unmodified clients read and write, and a client of our
//! own that speaks the same.
#![forbid(unsafe_code)]

pub mod initiator;

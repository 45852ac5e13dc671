//! Mooncake's formats, as its released wheels speak them: pure, bounded, without input or output.
#![forbid(unsafe_code)]

pub mod descriptor;
pub mod frame;
pub mod handshake;
pub mod keys;
pub mod rpc;

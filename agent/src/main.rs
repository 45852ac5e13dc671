//! Siding's node agent.

#![forbid(unsafe_code)]

fn main() {}

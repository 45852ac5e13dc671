//! Siding's operator.

#![forbid(unsafe_code)]

fn main() {}

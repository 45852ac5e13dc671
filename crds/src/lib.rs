//! API types of Siding and the quantities in them.

#![forbid(unsafe_code)]

pub mod quantity;
mod quote;

pub use quantity::{Bytes, QuantityError, format_bytes, parse_bytes};
pub use quote::quoted;

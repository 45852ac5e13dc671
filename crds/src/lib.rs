//! API types of Siding: the quantities in them, the names that it leaves on other objects, what
//! travels on a pod's annotations, and (feature `api`) the custom resources.

#![forbid(unsafe_code)]

#[cfg(feature = "api")]
pub mod api;
pub mod names;
pub mod plan;
pub mod quantity;
mod quote;
pub mod reasons;

pub use quantity::{Bytes, QuantityError, format_bytes, parse_bytes};
pub use quote::quoted;

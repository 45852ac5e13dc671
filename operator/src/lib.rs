//! Siding's operator: webhooks, controllers, certificates.

#![forbid(unsafe_code)]

pub mod admission;
pub mod binding;
pub mod caches;
pub mod planning;

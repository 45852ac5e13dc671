//! Siding's operator: webhooks, controllers, certificates.

#![forbid(unsafe_code)]

pub mod admission;

//! Siding's operator: webhooks, controllers, certificates.

#![forbid(unsafe_code)]

pub mod admission;
pub mod binding;
pub mod caches;
pub mod certificates;
pub mod controllers;
pub mod leader;
pub mod live;
pub mod metrics;
pub mod planning;
pub mod server;

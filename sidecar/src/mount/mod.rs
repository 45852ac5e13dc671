//! Mounting: observe, choose, plan, carry out, tell.

pub mod choose;
mod fallback;
pub mod machine;
pub mod pipeline;
pub mod plan;
pub mod progress;
mod registering;
pub mod report;
pub mod reserve;
pub mod strategy;

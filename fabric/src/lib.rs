//! The one crate of Siding with `unsafe` code: mappings, touching and memory registration.
//!
//! Ownership mirrors hardware: a [`Domain`] makes [`MemoryRegion`]s of a [`Mapping`], and a region
//! keeps both alive, so that nothing is unmapped while a device can still write to it.

pub mod bare;
mod mapping;
pub mod pool;
mod region;
mod sys;
mod touch;
mod uring;
mod window;

pub use mapping::{MapError, MapRequest, Mapping, Pages, Placement, Source};
pub use region::{Domain, MemoryRegion, RegisterError, Shortage};
pub use touch::{TouchError, TouchMethod, TouchPlan, Touched, touch};
pub use uring::{MAX_REGION_BYTES, Unusable, UringDomain};
pub use window::{OutOfWindow, Window};

/// The size of the kernel's base page in bytes (4096 on x86-64).
#[must_use]
pub fn base_page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

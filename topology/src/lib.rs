//! What a node has and what this process may use of it, read from `/sys` and `/proc` below a
//! [`Root`]: `/` in production, a folder of fixtures in a test. Nothing else is read, nothing is
//! written, and nothing that is missing is fatal: a gap is a [`Finding`] or a `None`, never 0.
//!
//! Sizes are bytes and counts are pages or CPUs; a field's name says which.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod budget;
pub mod catalogue;
pub mod cgroup;
pub mod cores;
pub mod cpuset;
pub mod distance;
pub mod factor;
pub mod hugepages;
pub mod limits;
pub mod memory;
pub mod node;
pub mod numa;
pub mod pci;
pub mod plan;
pub mod rails;
pub mod read;
pub mod root;
pub mod size;

mod capture;
mod fields;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod made;
mod mountinfo;
mod split;

pub use cpuset::CpuSet;
pub use pci::{HostBridge, PciAddress};
pub use read::{ReadOptions, read_node};
pub use root::{Finding, Root};

//! The cap that fits: the planner's, for ranks that share this process's cores.

use std::num::NonZeroUsize;

use siding_topology::factor::DEFAULT_FACTOR;
use siding_topology::plan;

/// Registrations in flight a rank, for `ranks` that share `cores` hardware threads.
#[must_use]
pub fn planned(cores: NonZeroUsize, ranks: NonZeroUsize) -> NonZeroUsize {
    plan::cap(cores, ranks, DEFAULT_FACTOR).0
}

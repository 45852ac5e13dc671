//! The cap that fits a node: the planner's, for this process.

use std::num::NonZeroUsize;

/// Registrations in flight a rank, for `ranks` that share `cores` hardware threads.
#[must_use]
pub fn planned(cores: NonZeroUsize, ranks: NonZeroUsize) -> NonZeroUsize {
    NonZeroUsize::new(cores.get() / ranks.get()).unwrap_or(NonZeroUsize::MIN)
}

//! The cap that fits: the planner's, for ranks that share this process's cores; and the cap in
//! force, which a later plan may change.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use siding_fabric::pool::Concurrency;
use siding_topology::factor::DEFAULT_FACTOR;
use siding_topology::plan;

/// Registrations in flight a rank, for `ranks` that share `cores` hardware threads.
#[must_use]
pub fn planned(cores: NonZeroUsize, ranks: NonZeroUsize) -> NonZeroUsize {
    plan::cap(cores, ranks, DEFAULT_FACTOR).0
}

/// The cap in force: whoever registers reads it each time anew. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LiveCap {
    inner: Arc<Mutex<(Concurrency, String)>>,
}

impl LiveCap {
    /// A cap, and where it comes from.
    #[must_use]
    pub fn new(concurrency: Concurrency, reason: String) -> Self {
        Self {
            inner: Arc::new(Mutex::new((concurrency, reason))),
        }
    }

    /// The cap now.
    #[must_use]
    pub fn concurrency(&self) -> Concurrency {
        self.now().0
    }

    /// The cap now, and where it comes from.
    #[must_use]
    pub fn now(&self) -> (Concurrency, String) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clone()
    }

    /// From now on another.
    pub fn set(&self, concurrency: Concurrency, reason: String) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        *inner = (concurrency, reason);
    }
}

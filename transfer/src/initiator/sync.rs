//! The synchronisation that the core is built on: the standard library's, or loom's in its models.

use std::sync::PoisonError;

#[cfg(loom)]
pub(super) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(loom))]
pub(super) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

/// Locks. No holder leaves the value half changed, so a panic elsewhere does not spoil it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The life of operations: each is settled exactly once, whoever comes first.
//!
//! Operations are submitted in batches, and a batch is what is waited for and cancelled: one wake-up
//! for all of them. Pure synchronisation: loom goes through its schedules.

use std::task::{Context, Poll, Waker};

use super::error::{Outcome, TransferError};
use super::sync::{Arc, AtomicBool, Mutex, Ordering, lock};

/// Operations that were submitted together.
#[derive(Debug)]
pub(super) struct Batch {
    inner: Mutex<Inner>,
    /// Set before the movers are woken; they look at it each time that they are polled.
    cancelled: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    phases: Vec<Phase>,
    unsettled: usize,
    waiter: Option<Waker>,
}

/// Where an operation is.
#[derive(Debug)]
enum Phase {
    /// In a queue: nothing touches its memory.
    Waiting,
    /// A lane moves its bytes; woken when it is to stop.
    Moving(Waker),
    /// Over; this never changes again.
    Settled(Outcome),
}

impl Batch {
    /// A batch of so many operations, and the ticket of each.
    pub(super) fn new(operations: usize) -> (Arc<Self>, Vec<Ticket>) {
        let batch = Arc::new(Self {
            inner: Mutex::new(Inner {
                phases: (0..operations).map(|_| Phase::Waiting).collect(),
                unsettled: operations,
                waiter: None,
            }),
            cancelled: AtomicBool::new(false),
        });
        let tickets = (0..operations)
            .map(|index| Ticket {
                batch: batch.clone(),
                index,
                settled: false,
            })
            .collect();
        (batch, tickets)
    }

    /// Ready when every operation is settled; woken once, then.
    pub(super) fn poll_settled(&self, context: &Context<'_>) -> Poll<()> {
        let mut inner = lock(&self.inner);
        if inner.unsettled == 0 {
            return Poll::Ready(());
        }
        match &mut inner.waiter {
            Some(waiter) => waiter.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// The outcome of each operation, in the order they were submitted; `None` of unsettled ones.
    pub(super) fn outcomes(&self) -> Vec<Option<Outcome>> {
        let inner = lock(&self.inner);
        let outcome = |phase: &Phase| match phase {
            Phase::Settled(outcome) => Some(*outcome),
            Phase::Waiting | Phase::Moving(_) => None,
        };
        inner.phases.iter().map(outcome).collect()
    }

    /// Settles what still waits, and has lanes stop what they move: they settle it once they no
    /// longer touch its memory. How many this settled.
    pub(super) fn cancel(&self) -> usize {
        let mut wakers = Vec::new();
        let mut inner = lock(&self.inner);
        self.cancelled.store(true, Ordering::Release);
        let Inner {
            phases, unsettled, ..
        } = &mut *inner;
        let before = *unsettled;
        for phase in phases {
            match phase {
                Phase::Waiting => {
                    *phase = Phase::Settled(Err(TransferError::Cancelled));
                    *unsettled -= 1;
                }
                Phase::Moving(mover) => wakers.push(mover.clone()),
                Phase::Settled(_) => {}
            }
        }
        let settled = before - *unsettled;
        if settled > 0 && *unsettled == 0 {
            wakers.extend(inner.waiter.take());
        }
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
        settled
    }

    /// Settles one, unless it is; true where this did it.
    fn settle(&self, index: usize, outcome: Outcome) -> bool {
        let mut inner = lock(&self.inner);
        let Some(phase) = inner.phases.get_mut(index) else {
            return false;
        };
        if matches!(phase, Phase::Settled(_)) {
            return false;
        }
        *phase = Phase::Settled(outcome);
        inner.unsettled -= 1;
        let waiter = (inner.unsettled == 0)
            .then(|| inner.waiter.take())
            .flatten();
        drop(inner);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
        true
    }
}

/// The right, and the duty, to settle one operation. Dropping it settles it as abandoned.
#[derive(Debug)]
pub(super) struct Ticket {
    batch: Arc<Batch>,
    index: usize,
    settled: bool,
}

impl Ticket {
    /// Takes the operation up: from now on its memory may be touched, until it is settled or put
    /// back. `mover` is woken when it is to stop. False where it is over already.
    pub(super) fn claim(&self, mover: &Waker) -> bool {
        let mut inner = lock(&self.batch.inner);
        match inner.phases.get_mut(self.index) {
            Some(phase @ Phase::Waiting) => {
                *phase = Phase::Moving(mover.clone());
                true
            }
            _ => false,
        }
    }

    /// Puts it back, to be claimed again. False where it is to stop: then it must be settled.
    pub(super) fn put_back(&self) -> bool {
        let mut inner = lock(&self.batch.inner);
        if self.is_cancelled() {
            return false;
        }
        match inner.phases.get_mut(self.index) {
            Some(phase @ Phase::Moving(_)) => {
                *phase = Phase::Waiting;
                true
            }
            _ => false,
        }
    }

    /// Whether whoever moves it is to stop.
    pub(super) fn is_cancelled(&self) -> bool {
        self.batch.cancelled.load(Ordering::Acquire)
    }

    /// Whether it is over, cancelled while it waited.
    pub(super) fn is_over(&self) -> bool {
        let inner = lock(&self.batch.inner);
        matches!(inner.phases.get(self.index), Some(Phase::Settled(_)))
    }

    /// Settles it, unless its caller cancelled it before it was claimed; true where this did it.
    pub(super) fn settle(mut self, outcome: Outcome) -> bool {
        self.settled = true;
        self.batch.settle(self.index, outcome)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.settled {
            self.batch.settle(self.index, Err(TransferError::Abandoned));
        }
    }
}

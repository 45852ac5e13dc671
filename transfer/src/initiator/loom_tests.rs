//! Every schedule of the core, within loom's bounds.
#![allow(clippy::unwrap_used)]

use std::future::poll_fn;
use std::io::ErrorKind;
use std::task::Poll;
use std::time::{Duration, Instant};

use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::batch::{Batch, Ticket};
use super::error::{Outcome, TransferError};
use super::group::{Bounds, Group, Next};

/// Explores with so many forced switches of threads at most, which finds nearly all that there is.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn settled(batch: &Batch) -> Vec<Outcome> {
    block_on(poll_fn(|context| batch.poll_settled(context)));
    batch.outcomes().into_iter().map(Option::unwrap).collect()
}

fn one() -> (Arc<Batch>, Ticket) {
    let (batch, mut tickets) = Batch::new(1);
    (batch, tickets.pop().unwrap())
}

fn bounds(queue: usize, pending: usize) -> Bounds {
    Bounds {
        queue,
        pending,
        admission: Duration::from_secs(1),
        cool_down: Duration::from_secs(1),
    }
}

fn counter() -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(0))
}

/// Claims with the waker of the task that runs this, as a lane does.
fn claim(ticket: &Ticket) -> bool {
    block_on(poll_fn(|context| {
        Poll::Ready(ticket.claim(context.waker()))
    }))
}

#[test]
fn loom_cancel_against_completion() {
    explore(3, || {
        let (batch, ticket) = one();
        let (settlements, touching) = (counter(), counter());
        let lane = {
            let (settlements, touching) = (settlements.clone(), touching.clone());
            thread::spawn(move || {
                if claim(&ticket) {
                    touching.fetch_add(1, Ordering::SeqCst);
                    touching.fetch_sub(1, Ordering::SeqCst);
                    let did = ticket.settle(Ok(()));
                    settlements.fetch_add(usize::from(did), Ordering::SeqCst);
                }
            })
        };
        let canceller = {
            let (batch, settlements) = (batch.clone(), settlements.clone());
            thread::spawn(move || {
                settlements.fetch_add(batch.cancel(), Ordering::SeqCst);
            })
        };
        let outcome = settled(&batch);
        assert_eq!(
            touching.load(Ordering::SeqCst),
            0,
            "settled while a lane touches it"
        );
        lane.join().unwrap();
        canceller.join().unwrap();
        assert_eq!(settlements.load(Ordering::SeqCst), 1, "{outcome:?}");
        assert!(matches!(outcome[0], Ok(()) | Err(TransferError::Cancelled)));
    });
}

/// A peer that never answers: only the cancel wakes the lane.
#[test]
fn loom_cancel_wakes_the_lane() {
    explore(3, || {
        let (batch, ticket) = one();
        let lane = thread::spawn(move || {
            let mut claimed = false;
            let goes_on = block_on(poll_fn(|context| {
                if !claimed {
                    claimed = ticket.claim(context.waker());
                    if !claimed {
                        return Poll::Ready(false);
                    }
                }
                match ticket.is_cancelled() {
                    true => Poll::Ready(true),
                    false => Poll::Pending,
                }
            }));
            if goes_on {
                assert!(ticket.settle(Err(TransferError::Cancelled)));
            }
        });
        batch.cancel();
        assert_eq!(settled(&batch), [Err(TransferError::Cancelled)]);
        lane.join().unwrap();
    });
}

/// A lane that puts its operation back (its connection had gone stale) while it is cancelled.
#[test]
fn loom_cancel_against_put_back() {
    explore(3, || {
        let now = Instant::now();
        let group = Arc::new(Group::new(bounds(4, 4), 1));
        let (batch, ticket) = one();
        let lane = {
            let group = group.clone();
            thread::spawn(move || {
                if !claim(&ticket) {
                    return;
                }
                if !ticket.put_back() {
                    assert!(ticket.settle(Err(TransferError::Cancelled)));
                    return;
                }
                assert!(group.return_first(ticket, now).is_none());
            })
        };
        batch.cancel();
        group.forget(Ticket::is_over);
        assert_eq!(settled(&batch), [Err(TransferError::Cancelled)]);
        lane.join().unwrap();
        // One that came back after the cancel lies there as over, and is never claimed.
        for ticket in group.close() {
            assert!(ticket.is_over() && !claim(&ticket));
        }
    });
}

/// One lane's life: connects (or finds the peer unreachable), carries, and ends with the group.
fn lane(group: &Group<Ticket>, index: usize, reachable: bool, connecting: &AtomicUsize) {
    let now = Instant::now();
    loop {
        match block_on(poll_fn(|context| group.poll_next(index, now, context))) {
            Next::End => return,
            Next::Connect if reachable => {
                group.connected(index, now);
            }
            Next::Connect => {
                let others = connecting.fetch_add(1, Ordering::SeqCst);
                assert_eq!(others, 0, "two probes at once");
                connecting.fetch_sub(1, Ordering::SeqCst);
                for ticket in group.unreachable(index, ErrorKind::ConnectionRefused, now) {
                    ticket.settle(Err(TransferError::Unreachable {
                        kind: ErrorKind::ConnectionRefused,
                    }));
                }
            }
            Next::Carry(ticket) => {
                if claim(&ticket) {
                    assert!(ticket.settle(Ok(())));
                }
            }
        }
    }
}

/// Submits one operation with nothing else to wake the lanes, waits for its end, then closes.
fn submit_and_wait(lanes: usize, reachable: bool) {
    let group = Arc::new(Group::new(bounds(4, 4), lanes));
    let connecting = counter();
    let threads: Vec<_> = (0..lanes)
        .map(|index| {
            let (group, connecting) = (group.clone(), connecting.clone());
            thread::spawn(move || lane(&group, index, reachable, &connecting))
        })
        .collect();
    let (batch, ticket) = one();
    assert!(group.submit([ticket], Instant::now()).is_empty());
    let outcome = settled(&batch)[0];
    assert_eq!(outcome.is_ok(), reachable, "{outcome:?}");
    assert!(group.close().is_empty());
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn loom_a_lane_is_woken_for_what_is_submitted() {
    explore(3, || submit_and_wait(1, true));
    explore(2, || submit_and_wait(2, true));
}

#[test]
fn loom_one_probe_and_its_failure_settles_what_waited() {
    explore(3, || submit_and_wait(1, false));
    explore(2, || submit_and_wait(2, false));
}

/// Shut down while an operation is submitted: it is carried, refused or given back, and the lane ends.
#[test]
fn loom_shutdown_against_submit() {
    explore(3, || {
        let now = Instant::now();
        let group = Arc::new(Group::new(bounds(4, 4), 1));
        let lane = {
            let group = group.clone();
            thread::spawn(move || lane(&group, 0, true, &AtomicUsize::new(0)))
        };
        let (batch, ticket) = one();
        let submitter = {
            let group = group.clone();
            thread::spawn(move || {
                for (ticket, why) in group.submit([ticket], now) {
                    assert_eq!(why, TransferError::ShutDown);
                    assert!(ticket.settle(Err(why)));
                }
            })
        };
        for ticket in group.close() {
            assert!(ticket.settle(Err(TransferError::ShutDown)));
        }
        let outcome = settled(&batch)[0];
        assert!(
            matches!(outcome, Ok(()) | Err(TransferError::ShutDown)),
            "{outcome:?}"
        );
        submitter.join().unwrap();
        lane.join().unwrap();
        assert_eq!(group.depth().0, 0);
    });
}

/// Two submitters at a queue of one and one pending admission: two are taken, two are refused.
#[test]
fn loom_admission_is_bounded() {
    explore(3, || {
        let now = Instant::now();
        let group: Arc<Group<Ticket>> = Arc::new(Group::new(bounds(1, 1), 1));
        let submit = move |group: &Group<Ticket>| {
            let (_, tickets) = Batch::new(2);
            let refused = group.submit(tickets, now);
            for (_, why) in &refused {
                let full = TransferError::QueueFull {
                    queued: 1,
                    pending: 1,
                };
                assert_eq!(*why, full);
            }
            refused.len()
        };
        let other = {
            let group = group.clone();
            thread::spawn(move || submit(&group))
        };
        let refused = submit(&group) + other.join().unwrap();
        assert_eq!(refused, 2);
        assert_eq!(group.close().len(), 2);
    });
}

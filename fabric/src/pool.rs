//! The registration pool: a bounded number of workers that pull from one shared index.
//!
//! One mechanism for every back end, for registering and unregistering alike. Every item is
//! attempted, whatever the others gave, and answers come back in item order.

use std::num::NonZeroUsize;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

#[cfg(loom)]
use loom::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

/// How many items may be in work at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// At most so many.
    AtMost(NonZeroUsize),
    /// All of them, a thread each.
    Unbounded,
}

impl Concurrency {
    /// Workers for so many items, the caller included.
    #[must_use]
    pub fn workers(self, items: usize) -> usize {
        match self {
            Self::AtMost(cap) => cap.get().min(items),
            Self::Unbounded => items,
        }
    }
}

/// Does `work` on every item below `items` and gives the answers in item order.
///
/// The calling thread is one of the workers, so that a machine that refuses further threads still
/// gets all of it done.
pub fn run<T: Send>(
    items: usize,
    concurrency: Concurrency,
    work: &(impl Fn(usize) -> T + Sync),
) -> Vec<T> {
    run_counted(items, concurrency, work).0
}

/// [`run`], with the number of workers that there really were: fewer than
/// [`Concurrency::workers`] where the machine refused a thread.
pub fn run_counted<T: Send>(
    items: usize,
    concurrency: Concurrency,
    work: &(impl Fn(usize) -> T + Sync),
) -> (Vec<T>, usize) {
    let desk = Desk::new(items);
    let caller_cpu = sched_getcpu();
    let wanted = concurrency.workers(items);
    let workers = thread::scope(|scope| {
        let start = |nth: &usize| {
            let nth = *nth;
            let desk = &desk;
            let helper = thread::Builder::new().name("siding-register".to_owned());
            let started = helper.spawn_scoped(scope, move || {
                step_aside(caller_cpu, nth);
                desk.work_off(work);
            });
            started.is_ok()
        };
        let helpers = (1..wanted).take_while(start).count();
        desk.work_off(work);
        wanted.min(1) + helpers
    });
    (desk.answers(), workers)
}

/// Moves the calling thread to the `nth` CPU after the one it was started from, and leaves it
/// free to move on.
///
/// A new thread waits on its parent's CPU, and the parent is about to enter one long system call:
/// without this, two workers did the work of one until the scheduler looked round.
fn step_aside(caller_cpu: usize, nth: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect();
    let Some(at) = cpus.iter().position(|cpu| *cpu == caller_cpu) else {
        return;
    };
    let mut there = CpuSet::new();
    there.set(cpus[(at + nth) % cpus.len()]);
    // Only where it runs is at stake: a refusal leaves it where it is.
    let _ = sched_setaffinity(None, &there);
    let _ = sched_setaffinity(None, &allowed);
}

/// The shared index, and a place for each answer.
struct Desk<T> {
    next: AtomicUsize,
    answers: Vec<Mutex<Option<T>>>,
}

impl<T> Desk<T> {
    fn new(items: usize) -> Self {
        Self {
            next: AtomicUsize::new(0),
            answers: (0..items).map(|_| Mutex::new(None)).collect(),
        }
    }

    /// Takes items until none is left.
    fn work_off(&self, work: &impl Fn(usize) -> T) {
        loop {
            // Relaxed: the index only hands out numbers; answers travel by their mutex and by
            // the end of the thread.
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = self.answers.get(item) else {
                return;
            };
            let answer = work(item);
            if let Ok(mut place) = place.lock() {
                *place = Some(answer);
            }
        }
    }

    fn answers(self) -> Vec<T> {
        self.answers
            .into_iter()
            .filter_map(|place| place.into_inner().ok().flatten())
            .collect()
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    fn at_most(cap: usize) -> Concurrency {
        Concurrency::AtMost(NonZeroUsize::new(cap).unwrap())
    }

    /// A back end that lets items go only in full groups of `cap`, so that the schedule itself
    /// shows how many were in flight.
    struct Gate {
        cap: usize,
        state: Mutex<(usize, usize, usize)>,
        changed: Condvar,
    }

    impl Gate {
        fn pass(&self, items: usize) {
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            state.2 = state.2.max(state.0);
            let group = state.1 / self.cap;
            state.1 += 1;
            let full = ((group + 1) * self.cap).min(items);
            self.changed.notify_all();
            while state.1 < full {
                state = self.changed.wait(state).unwrap();
            }
            state.0 -= 1;
        }
    }

    #[test]
    fn as_many_as_the_cap_are_in_flight_and_never_more() {
        for (items, cap) in [(1, 1), (8, 1), (8, 2), (9, 3), (64, 16), (3, 8)] {
            let gate = Gate {
                cap,
                state: Mutex::new((0, 0, 0)),
                changed: Condvar::new(),
            };
            let answers = run(items, at_most(cap), &|item| {
                gate.pass(items);
                item * 10
            });
            assert_eq!(answers, (0..items).map(|i| i * 10).collect::<Vec<_>>());
            assert_eq!(
                gate.state.lock().unwrap().2,
                cap.min(items),
                "{items} items, cap {cap}"
            );
        }
    }

    #[test]
    fn unbounded_has_every_item_in_flight_at_once() {
        let gate = Gate {
            cap: 12,
            state: Mutex::new((0, 0, 0)),
            changed: Condvar::new(),
        };
        run(12, Concurrency::Unbounded, &|_| gate.pass(12));
        assert_eq!(gate.state.lock().unwrap().2, 12);
    }

    #[test]
    fn every_item_is_attempted_and_errors_keep_their_place() {
        for concurrency in [at_most(1), at_most(4), Concurrency::Unbounded] {
            let answers = run(10, concurrency, &|item| {
                if item % 3 == 1 { Err(item) } else { Ok(item) }
            });
            assert_eq!(answers.iter().find_map(|a| a.as_ref().err()), Some(&1));
            assert_eq!(answers.iter().filter(|a| a.is_err()).count(), 3);
            assert_eq!(answers.len(), 10);
        }
    }

    #[test]
    fn workers_are_counted() {
        for (items, concurrency, workers) in [
            (0, at_most(4), 0),
            (1, at_most(4), 1),
            (9, at_most(4), 4),
            (9, Concurrency::Unbounded, 9),
        ] {
            let (answers, counted) = run_counted(items, concurrency, &|item| item);
            assert_eq!((answers.len(), counted), (items, workers));
        }
    }

    #[test]
    fn nothing_to_do_is_done() {
        assert_eq!(run(0, at_most(4), &|item| item), Vec::<usize>::new());
        assert_eq!(
            run(0, Concurrency::Unbounded, &|item| item),
            Vec::<usize>::new()
        );
    }
}

#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used)]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    use super::Desk;

    /// Every interleaving of `workers` on `items`: each item once, at most `workers` in flight.
    fn explore(workers: usize, items: usize) {
        loom::model(move || {
            let desk = Arc::new(Desk::new(items));
            let in_flight = Arc::new(AtomicUsize::new(0));
            let attempts: Arc<Vec<AtomicUsize>> =
                Arc::new((0..items).map(|_| AtomicUsize::new(0)).collect());
            let work_off = {
                let (desk, in_flight, attempts) =
                    (desk.clone(), in_flight.clone(), attempts.clone());
                move || {
                    desk.work_off(&|item| {
                        assert!(in_flight.fetch_add(1, Ordering::SeqCst) < workers);
                        attempts[item].fetch_add(1, Ordering::SeqCst);
                        in_flight.fetch_sub(1, Ordering::SeqCst);
                        if item == 1 { Err(item) } else { Ok(item) }
                    });
                }
            };
            let helpers: Vec<_> = (1..workers)
                .map(|_| thread::spawn(work_off.clone()))
                .collect();
            work_off();
            for helper in helpers {
                helper.join().unwrap();
            }
            drop(work_off);
            for count in attempts.iter() {
                assert_eq!(count.load(Ordering::SeqCst), 1);
            }
            let answers = Arc::try_unwrap(desk).ok().unwrap().answers();
            let expected: Vec<_> = (0..items)
                .map(|item| if item == 1 { Err(item) } else { Ok(item) })
                .collect();
            assert_eq!(answers, expected);
        });
    }

    #[test]
    fn loom_two_workers_three_items() {
        explore(2, 3);
    }

    #[test]
    fn loom_three_workers_two_items() {
        explore(3, 2);
    }
}

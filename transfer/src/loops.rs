//! Event loops: threads with a runtime each, on which everything that moves bytes runs.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Most event loops that there can be.
pub const MAX_LOOPS: usize = 32;

/// Event loops `0..len`, each a thread named `siding-io-<i>`. Cheap to clone.
///
/// What is spawned on a loop stays on its thread. When the last clone is dropped without
/// [`IoLoops::stop`], tasks are dropped where they stand.
#[derive(Debug, Clone)]
pub struct IoLoops {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    loops: Vec<Loop>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Loop {
    handle: Handle,
    /// Gone once the loop takes no more tasks. Each task holds a clone: when all are gone, so are
    /// the tasks.
    pass: RwLock<Option<Pass>>,
    thread: Mutex<Option<Thread>>,
}

type Pass = mpsc::Sender<Infallible>;

#[derive(Debug)]
struct Thread {
    /// Told how long tasks may take to end; dropped: no time at all.
    stop: oneshot::Sender<Duration>,
    /// Gives how many tasks had not ended.
    handle: thread::JoinHandle<usize>,
}

/// Why loops could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LoopsError {
    /// So many there can't be.
    #[error("{0} event loops; there can be 1 to {MAX_LOOPS}")]
    Count(usize),
    /// The machine has not what a loop needs; those started before are gone again.
    #[error("event loop {index} could not be started: {source}")]
    Start {
        /// Which loop.
        index: usize,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The loops take no more tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the event loops are stopping")]
pub struct Stopping;

impl IoLoops {
    /// Starts `count` loops.
    ///
    /// # Errors
    /// [`LoopsError`].
    pub fn start(count: usize) -> Result<Self, LoopsError> {
        if !(1..=MAX_LOOPS).contains(&count) {
            return Err(LoopsError::Count(count));
        }
        let mut inner = Inner {
            loops: Vec::with_capacity(count),
            next: AtomicUsize::new(0),
        };
        for index in 0..count {
            let started = Loop::start(index);
            // Dropping `inner` ends those that run.
            inner
                .loops
                .push(started.map_err(|source| LoopsError::Start { index, source })?);
        }
        let inner = Arc::new(inner);
        Ok(Self { inner })
    }

    /// How many there are, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.inner.loops.len()
    }

    /// The next loop in turn.
    #[must_use]
    pub fn next(&self) -> usize {
        self.inner.next.fetch_add(1, Ordering::Relaxed) % self.len()
    }

    /// Runs a task on loop `index` (modulo their number).
    ///
    /// # Errors
    /// [`Stopping`]; the task is dropped then.
    pub fn spawn<F>(&self, index: usize, task: F) -> Result<JoinHandle<F::Output>, Stopping>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let it = &self.inner.loops[index % self.len()];
        let pass = it.pass.read().unwrap_or_else(PoisonError::into_inner);
        let pass = pass.clone().ok_or(Stopping)?;
        Ok(it.handle.spawn(async move {
            // Declared first, so that it goes last, however the task ends.
            let _pass = pass;
            task.await
        }))
    }

    /// Takes no more tasks, gives those that run `grace` to end, drops the others, and joins the
    /// threads; says how many were dropped. Whoever spawned a task has to ask it to end before.
    ///
    /// It waits, so it must not be called on a loop. A second call finds nothing to do.
    pub fn stop(&self, grace: Duration) -> usize {
        self.inner.stop(Some(grace))
    }
}

impl Inner {
    /// Without a grace tasks are dropped where they stand.
    fn stop(&self, grace: Option<Duration>) -> usize {
        let threads: Vec<_> = self.loops.iter().filter_map(Loop::close).collect();
        let handles: Vec<_> = threads
            .into_iter()
            .map(|Thread { stop, handle }| {
                // Dropped instead of sent: no time at all.
                if let Some(grace) = grace {
                    let _ = stop.send(grace);
                }
                handle
            })
            .collect();
        let me = thread::current().id();
        handles
            .into_iter()
            .filter(|handle| handle.thread().id() != me)
            .map(|handle| handle.join().unwrap_or_default())
            .sum()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop(None);
    }
}

impl Loop {
    fn start(index: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (pass, ended) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(format!("siding-io-{index}"))
            .spawn(move || run(runtime, stopped, ended))?;
        Ok(Self {
            handle,
            pass: RwLock::new(Some(pass)),
            thread: Mutex::new(Some(Thread {
                stop,
                handle: thread,
            })),
        })
    }

    /// Takes no more tasks; gives the thread to whoever comes first.
    fn close(&self) -> Option<Thread> {
        *self.pass.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// A loop's thread; gives how many tasks had not ended.
fn run(
    runtime: Runtime,
    stopped: oneshot::Receiver<Duration>,
    mut ended: mpsc::Receiver<Infallible>,
) -> usize {
    let all_ended = runtime.block_on(async {
        let grace = stopped.await.unwrap_or_default();
        tokio::time::timeout(grace, ended.recv()).await.is_ok()
    });
    if all_ended {
        0
    } else {
        // Dropping the runtime drops the tasks, here on their own thread.
        runtime.metrics().num_alive_tasks()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::pending;
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Sends when it is dropped.
    struct Told(std::sync::mpsc::Sender<&'static str>, &'static str);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }

    #[test]
    fn there_are_1_to_32_loops() {
        for count in [0, 33] {
            let error = IoLoops::start(count).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{count} event loops; there can be 1 to 32")
            );
        }
        assert_eq!(IoLoops::start(32).unwrap().len(), 32);
    }

    #[test]
    fn a_task_runs_on_the_thread_of_its_loop() {
        let loops = IoLoops::start(3).unwrap();
        let (sender, names) = channel();
        for index in [0, 1, 2, 4] {
            let sender = sender.clone();
            let task = async move {
                // Still there after it has waited.
                tokio::task::yield_now().await;
                let name = thread::current().name().map(str::to_owned);
                sender.send((index, name.unwrap())).unwrap();
            };
            loops.spawn(index, task).unwrap();
        }
        assert_eq!(loops.stop(LONG), 0);
        drop(sender);
        let mut names: Vec<_> = names.iter().collect();
        names.sort();
        let want = [(0, 0), (1, 1), (2, 2), (4, 1)];
        assert_eq!(names, want.map(|(i, l)| (i, format!("siding-io-{l}"))));
    }

    #[test]
    fn turns_go_round() {
        let loops = IoLoops::start(3).unwrap();
        let turns: Vec<_> = (0..7).map(|_| loops.next()).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn stopping_waits_for_tasks_that_end_and_takes_no_others() {
        let loops = IoLoops::start(2).unwrap();
        let (go, gone) = oneshot::channel::<()>();
        let (sender, told) = channel();
        let task = Told(sender.clone(), "first");
        let within = loops.clone();
        loops
            .spawn(1, async move {
                gone.await.unwrap();
                // The stop is under way.
                let late = Told(sender, "late");
                let refused = within.spawn(0, async move { drop(late) });
                assert!(matches!(refused, Err(Stopping)));
                drop(task);
            })
            .unwrap();
        let stopper = {
            let loops = loops.clone();
            thread::spawn(move || loops.stop(LONG))
        };
        // Wait until the gate is shut: the schedule, not the clock.
        while loops.spawn(0, async {}).is_ok() {
            thread::yield_now();
        }
        go.send(()).unwrap();
        assert_eq!(stopper.join().unwrap(), 0);
        assert_eq!(told.iter().collect::<Vec<_>>(), ["late", "first"]);
        assert_eq!(loops.stop(LONG), 0);
    }

    #[test]
    fn tasks_that_do_not_end_are_dropped_and_counted() {
        let loops = IoLoops::start(2).unwrap();
        let (sender, told) = channel();
        for index in 0..3 {
            let task = Told(sender.clone(), "dropped");
            let task = async move {
                let _task = task;
                pending::<()>().await;
            };
            loops.spawn(index, task).unwrap();
        }
        drop(sender);
        assert_eq!(loops.stop(Duration::ZERO), 3);
        assert_eq!(told.iter().count(), 3);
    }

    #[test]
    fn the_last_handle_takes_its_tasks_along_even_on_a_loop_itself() {
        let loops = IoLoops::start(1).unwrap();
        let (sender, told) = channel();
        let (go, gone) = oneshot::channel::<()>();
        let last = loops.clone();
        let task = Told(sender, "dropped");
        loops
            .spawn(0, async move {
                let _task = task;
                gone.await.unwrap();
                drop(last);
                pending::<()>().await;
            })
            .unwrap();
        drop(loops);
        go.send(()).unwrap();
        assert_eq!(told.recv(), Ok("dropped"));
    }

    #[test]
    fn a_panic_ends_its_task_alone() {
        let loops = IoLoops::start(1).unwrap();
        let bad = loops.spawn(0, async { panic!("on purpose") });
        let good = loops.spawn(0, async { 7 }).unwrap();
        assert_eq!(
            Builder::new_current_thread()
                .build()
                .unwrap()
                .block_on(good)
                .unwrap(),
            7
        );
        assert_eq!(loops.stop(LONG), 0);
        drop(bad);
    }
}

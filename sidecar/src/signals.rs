//! Signals, from the first moment on: nothing that has to be undone is done before they are caught.

use std::io;
use std::thread;

use rustix::process::{Resource, getrlimit};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::failure::Failure;

/// Descriptors that this process needs beside those of rings and connections.
const FEWEST_FILES: u64 = 32;
/// SIGXFSZ: a file size limit then shows as an error of the call.
const FILE_SIZE: i32 = 25;

/// From now on a file size limit (`ulimit -f`) shows as an error of the write and ends no process.
pub fn survive_file_size_limit() {
    // Where the process may have no runtime, it has the kernel's default.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return;
    };
    let _entered = runtime.enter();
    // It is caught for good: dropping what listens changes nothing.
    let _ = signal(SignalKind::from_raw(FILE_SIZE));
}

/// The runtime, and the signals that ask to stop.
pub struct Signals {
    /// Runs everything that waits.
    pub runtime: Runtime,
    /// SIGTERM, SIGINT, SIGHUP and SIGQUIT.
    pub stop: Stop,
}

/// The signals that ask to stop.
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    quit: Signal,
    _file_size: Signal,
}

impl Signals {
    /// Catches them.
    ///
    /// # Errors
    /// [`Failure`] where the process may not have what that needs.
    pub fn catch() -> Result<Self, Failure> {
        let files = getrlimit(Resource::Nofile).current;
        if files.is_some_and(|files| files < FEWEST_FILES) {
            let files = files.unwrap_or_default();
            return Err(Failure::lacking(format!(
                "RLIMIT_NOFILE allows {files} file descriptors, {FEWEST_FILES} are needed at least; to mend it: ulimit -n 1024"
            )));
        }
        let failed = |error| Failure::failed(format!("signals can't be caught: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let entered = runtime.enter();
        let stop = Stop::listen().map_err(failed)?;
        drop(entered);
        Ok(Self { runtime, stop })
    }

    /// Does `work` on a thread of its own; a signal tells `cancel`, and the work is waited for.
    ///
    /// # Errors
    /// That it was interrupted, or what kept it from running.
    pub fn interruptible<T: Send>(
        &mut self,
        cancel: impl FnOnce(),
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, Failure> {
        let (done, finished) = oneshot::channel();
        let (runtime, stop) = (&self.runtime, &mut self.stop);
        thread::scope(|scope| {
            let started = thread::Builder::new()
                .name("siding-work".to_owned())
                .spawn_scoped(scope, move || drop(done.send(work())));
            started.map_err(|error| no_thread(&error))?;
            runtime.block_on(async {
                tokio::pin!(finished);
                tokio::select! {
                    result = &mut finished => result.map_err(|_| Failure::failed("the work panicked")),
                    () = stop.asked() => {
                        cancel();
                        let _ = finished.await;
                        Err(interrupted())
                    }
                }
            })
        })
    }
}

/// That it was interrupted, and that nothing is left of it.
#[must_use]
pub fn interrupted() -> Failure {
    Failure::interrupted("interrupted; everything is undone")
}

/// That no thread could be started.
#[must_use]
pub fn no_thread(error: &io::Error) -> Failure {
    Failure::lacking(format!(
        "a thread can't be started: {error}; to mend it: raise RLIMIT_NPROC (ulimit -u) or the cgroup's pids.max"
    ))
}

impl Stop {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            _file_size: signal(SignalKind::from_raw(FILE_SIZE))?,
        })
    }

    /// Waits until one of them came, now or since they are caught.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hang_up.recv() => {}
            _ = self.quit.recv() => {}
        }
    }
}

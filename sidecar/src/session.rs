//! The life of a mount: carried out on a thread of its own while HTTP answers, kept until a signal
//! comes, undone within the grace period.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use siding_topology::Root;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::board::{Board, State};
use crate::failure::Failure;
use crate::http;
use crate::mount::pipeline::{self, MountError, Mounted};
use crate::mount::plan::MountPlan;
use crate::mount::progress;
use crate::signals::{Signals, Stop, interrupted, no_thread};
use crate::store::Store;

/// What a session is to do.
#[derive(Debug)]
pub struct Session {
    /// What to mount.
    pub plan: MountPlan,
    /// Where files live, for segments that outlive the process.
    pub store: Option<Arc<Store>>,
    /// Where observations go.
    pub board: Board,
    /// Where HTTP listens; `None` serves nothing and ends when the mount is done.
    pub listener: Option<std::net::TcpListener>,
    /// How long undoing may take.
    pub grace: Duration,
    /// Draw progress bars.
    pub bars: bool,
}

/// Takes the address that HTTP listens on.
///
/// # Errors
/// [`Failure`] that names the field, the address and what would work.
pub fn listen(address: SocketAddr) -> Result<std::net::TcpListener, Failure> {
    let bound = std::net::TcpListener::bind(address);
    bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)).map_err(|error| {
        Failure::lacking(format!(
            "listen.http: {address}: {error}; use another address or port, or port 0 for any free one"
        ))
    })
}

/// Runs a session to its end; `ready` is told once everything is mounted.
///
/// # Errors
/// [`Failure`]. A signal while serving or mounting is a good end for a session that serves; one
/// that does not serve says that it was interrupted.
pub fn run(signals: Signals, session: Session, ready: impl FnOnce(&Board)) -> Result<(), Failure> {
    let Signals { runtime, stop } = signals;
    let result = runtime.block_on(supervise(session, stop, ready));
    // What has not ended within the grace period is left to the kernel.
    runtime.shutdown_background();
    result
}

async fn supervise(
    session: Session,
    mut stop: Stop,
    ready: impl FnOnce(&Board),
) -> Result<(), Failure> {
    let Session {
        plan,
        store,
        board,
        listener,
        grace,
        bars,
    } = session;
    let serves = listener.is_some();
    let (quit, server) = serve(listener, &board)?;
    let cancel = Arc::new(AtomicBool::new(false));
    let mounting = {
        let (board, cancel, store) = (board.clone(), Arc::clone(&cancel), store.clone());
        on_a_thread("siding-mount", move || {
            let mount = || pipeline::mount(plan, store.as_deref(), &board, &cancel);
            if bars {
                progress::with_bars(&board, mount)
            } else {
                mount()
            }
        })?
    };
    tokio::pin!(mounting);
    let mut asked = false;
    let finished = tokio::select! {
        finished = &mut mounting => finished,
        () = stop.asked() => {
            asked = true;
            tracing::info!("asked to stop while mounting: undoing");
            board.update(|status| status.state = State::Stopping);
            cancel.store(true, Ordering::Relaxed);
            within(grace, &mut mounting).await.inspect_err(|_| abandon(store.as_deref()))?
        }
    };
    let mounted = finished.map_err(|_| Failure::failed("the mount thread panicked"))?;
    let result = match mounted {
        Ok(mounted) => {
            if !asked {
                ready(&board);
                if serves {
                    tracing::info!("ready");
                    stop.asked().await;
                }
            }
            undo(mounted, &board, grace)
                .await
                .and_then(|()| end(asked, serves))
        }
        Err(MountError::Cancelled) => end(true, serves),
        Err(error) => Err(fail(&board, &error)),
    };
    let _ = quit.send(true);
    if let Some(server) = server {
        let _ = tokio::time::timeout(grace, server).await;
    }
    result
}

fn end(asked: bool, serves: bool) -> Result<(), Failure> {
    if asked && !serves {
        Err(interrupted())
    } else {
        Ok(())
    }
}

/// Files that are not complete must not outlive the process, however it ends.
fn abandon(store: Option<&Store>) {
    if let Some(store) = store {
        store.abandon();
    }
}

/// Does `work` on a thread of its own.
fn on_a_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>, Failure> {
    let (done, finished) = oneshot::channel();
    let started = thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || drop(done.send(work())));
    started.map(|_| finished).map_err(|error| no_thread(&error))
}

async fn undo(mounted: Mounted, board: &Board, grace: Duration) -> Result<(), Failure> {
    board.update(|status| status.state = State::Stopping);
    let undoing = on_a_thread("siding-unmount", move || mounted.unmount())?;
    match within(grace, undoing).await? {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Failure::failed(format!("unregistering: {error}"))),
        Err(_) => Err(Failure::failed("the unmount thread panicked")),
    }
}

async fn within<T>(grace: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(grace, work).await.map_err(|_| {
        Failure::failed(format!(
            "shutdown.graceSeconds: not undone within {} s; the kernel undoes the rest at exit",
            grace.as_secs()
        ))
    })
}

fn fail(board: &Board, error: &MountError) -> Failure {
    board.update(|status| {
        status.state = State::Failed;
        status.failure = Some(error.to_string());
    });
    match error {
        MountError::Map { .. } | MountError::Touch { .. } => Failure::lacking(error),
        MountError::Register { source, .. } if source.shortage().is_some() => {
            Failure::lacking(error)
        }
        _ => Failure::failed(error),
    }
}

type Server = Option<JoinHandle<io::Result<()>>>;

fn serve(
    listener: Option<std::net::TcpListener>,
    board: &Board,
) -> Result<(watch::Sender<bool>, Server), Failure> {
    let (quit, mut quitting) = watch::channel(false);
    let Some(listener) = listener else {
        return Ok((quit, None));
    };
    let failed = |error: io::Error| Failure::failed(format!("listen.http: {error}"));
    let listener = TcpListener::from_std(listener).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    tracing::info!(address = %bound, "serving HTTP on http://{bound}");
    let router = http::router(board.clone(), Root::host());
    let until = async move {
        let _ = quitting.wait_for(|quit| *quit).await;
    };
    let server = tokio::spawn(http::serve(listener, router, until));
    Ok((quit, Some(server)))
}

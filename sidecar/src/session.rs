//! The life of a mount: carried out on a thread of its own while HTTP answers, kept until a signal
//! comes, undone within the grace period.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siding_topology::Root;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::board::{Board, State};
use crate::failure::{Failure, Kind};
use crate::http;
use crate::mount::pipeline::{self, MountError, Mounted};
use crate::mount::plan::MountPlan;
use crate::mount::progress;
use crate::store::Store;

/// What a session is to do.
#[derive(Debug)]
pub struct Session {
    /// What to mount.
    pub plan: MountPlan,
    /// Where files live, for segments that outlive the process.
    pub store: Option<Store>,
    /// Where observations go.
    pub board: Board,
    /// Where HTTP listens; `None` serves nothing and ends when the mount is done.
    pub listen: Option<SocketAddr>,
    /// How long undoing may take.
    pub grace: Duration,
    /// Draw progress bars.
    pub bars: bool,
}

/// SIGTERM and SIGINT.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Runs a session to its end; `ready` is told once everything is mounted.
///
/// # Errors
/// [`Failure`]. A signal while serving or mounting is a good end for a session that serves; one
/// that does not serve says that it was interrupted.
pub fn run(session: Session, ready: impl FnOnce(&Board)) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("the async runtime could not start: {error}")))?;
    let result = runtime.block_on(supervise(session, ready));
    // What has not ended within the grace period is left to the kernel.
    runtime.shutdown_background();
    result
}

async fn supervise(session: Session, ready: impl FnOnce(&Board)) -> Result<(), Failure> {
    let Session {
        plan,
        store,
        board,
        listen,
        grace,
        bars,
    } = session;
    let mut stop = Stop::listen().map_err(|error| Failure::failed(format!("signals: {error}")))?;
    let (quit, server) = serve(listen, &board).await?;
    let cancel = Arc::new(AtomicBool::new(false));
    let mut work = {
        let (board, cancel) = (board.clone(), Arc::clone(&cancel));
        tokio::task::spawn_blocking(move || {
            let mount = || pipeline::mount(plan, store.as_ref(), &board, &cancel);
            let mounted = if bars {
                progress::with_bars(&board, mount)
            } else {
                mount()
            };
            (mounted, store)
        })
    };
    let mut asked = false;
    let finished = tokio::select! {
        finished = &mut work => Some(finished),
        () = stop.asked() => None,
    };
    let finished = match finished {
        Some(finished) => finished,
        None => {
            asked = true;
            tracing::info!("asked to stop while mounting: undoing");
            board.update(|status| status.state = State::Stopping);
            cancel.store(true, Ordering::Relaxed);
            within(grace, work).await?
        }
    };
    // The store's lock is held until everything is unmapped.
    let (mounted, _store) =
        finished.map_err(|error| Failure::failed(format!("the mount thread: {error}")))?;
    let result = match mounted {
        Ok(mounted) => {
            if !asked {
                ready(&board);
                if listen.is_some() {
                    tracing::info!("ready");
                    stop.asked().await;
                }
            }
            undo(mounted, &board, grace)
                .await
                .and_then(|()| interrupted(asked, listen))
        }
        Err(MountError::Cancelled) => interrupted(true, listen),
        Err(error) => Err(fail(&board, &error)),
    };
    let _ = quit.send(true);
    if let Some(server) = server {
        let _ = tokio::time::timeout(grace, server).await;
    }
    result
}

fn interrupted(asked: bool, listen: Option<SocketAddr>) -> Result<(), Failure> {
    if asked && listen.is_none() {
        let message = "interrupted; everything is undone".to_owned();
        return Err(Failure {
            kind: Kind::Interrupted,
            message,
        });
    }
    Ok(())
}

async fn undo(mounted: Mounted, board: &Board, grace: Duration) -> Result<(), Failure> {
    board.update(|status| status.state = State::Stopping);
    let undone = within(grace, tokio::task::spawn_blocking(|| mounted.unmount())).await?;
    match undone {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Failure::failed(format!("unregistering: {error}"))),
        Err(error) => Err(Failure::failed(format!("the unmount thread: {error}"))),
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

async fn serve(
    listen: Option<SocketAddr>,
    board: &Board,
) -> Result<(watch::Sender<bool>, Server), Failure> {
    let (quit, mut quitting) = watch::channel(false);
    let Some(address) = listen else {
        return Ok((quit, None));
    };
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::lacking(format!(
            "listen.http: {address}: {error}; use another address or port, or port 0 for any free one"
        ))
    })?;
    let bound = listener.local_addr().map_err(Failure::failed)?;
    tracing::info!(address = %bound, "serving HTTP on http://{bound}");
    let router = http::router(board.clone(), Root::host());
    let until = async move {
        let _ = quitting.wait_for(|quit| *quit).await;
    };
    let server = tokio::spawn(http::serve(listener, router, until));
    Ok((quit, Some(server)))
}

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

use crate::agent_socket::AgentSocket;
use crate::board::{Board, FailureStatus, State};
use crate::config::OnFailure;
use crate::failure::Failure;
use crate::http;
use crate::mount::pipeline::{self, MountError, Mounted};
use crate::mount::plan::MountPlan;
use crate::mount::progress;
use crate::node_plan::{self, PlanFile, Planning};
use crate::signals::{Signals, Stop, interrupted, no_thread};
use crate::store::Store;

/// What a session is to do.
#[derive(Debug)]
pub struct Session {
    /// What to mount, or why it can't be.
    pub plan: Result<MountPlan, Failure>,
    /// Where files live, for segments that outlive the process.
    pub store: Option<Arc<Store>>,
    /// Where observations go.
    pub board: Board,
    /// The node's plan, where one is looked for.
    pub planning: Option<Planning>,
    /// The plan's file.
    pub plan_file: Option<PlanFile>,
    /// Where it is served; nowhere: the session ends when the mount is done.
    pub listeners: Listeners,
    /// What a failed mount does.
    pub on_failure: OnFailure,
    /// How long undoing may take.
    pub grace: Duration,
    /// Draw progress bars.
    pub bars: bool,
}

/// Where a session is served.
#[derive(Debug, Default)]
pub struct Listeners {
    /// For the kubelet, Prometheus and people.
    pub http: Option<std::net::TcpListener>,
    /// For the node's agent.
    pub agent: Option<AgentSocket>,
}

/// Takes the address that HTTP listens on.
///
/// # Errors
/// [`Failure`] that names the field, the address and what would work.
pub fn listen(address: SocketAddr) -> Result<std::net::TcpListener, Failure> {
    siding_service::listen(address).map_err(|error| {
        Failure::lacking(format!(
            "listen.http: {address}: {error}; use another address or port, or port 0 for any free one"
        ))
    })
}

/// Runs a session to its end; `ready` is told once everything is mounted.
///
/// # Errors
/// [`Failure`]. A signal while serving or mounting is a good end for a session that serves, also of
/// one that serves its failure; one that does not serve says that it was interrupted.
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
        planning,
        plan_file,
        listeners,
        on_failure,
        grace,
        bars,
    } = session;
    let serves = listeners.http.is_some();
    let servers = Servers::start(listeners, &board, planning.as_ref())?;
    if let (Some(planning), Some(file)) = (planning, plan_file) {
        tokio::spawn(node_plan::watch(planning, file));
    }
    let life = Life {
        store,
        board,
        serves,
        grace,
        bars,
    };
    let result = match plan {
        Ok(plan) => life.lead(plan, &mut stop, ready).await,
        Err(failure) => Err(life.fail(failure)),
    };
    let result = match result {
        Err(failure) if on_failure == OnFailure::Serve && serves && life.has_failed() => {
            tracing::error!(
                reason = failure.reason.as_str(),
                "{failure}; serving without segments until SIGTERM"
            );
            stop.asked().await;
            Ok(())
        }
        other => other,
    };
    servers.stop(grace).await;
    result
}

/// The life of one mount.
struct Life {
    store: Option<Arc<Store>>,
    board: Board,
    serves: bool,
    grace: Duration,
    bars: bool,
}

impl Life {
    /// From the plan to the end.
    async fn lead(
        &self,
        plan: MountPlan,
        stop: &mut Stop,
        ready: impl FnOnce(&Board),
    ) -> Result<(), Failure> {
        let cancel = Arc::new(AtomicBool::new(false));
        let mounting = self.mount(plan, &cancel).map_err(|f| self.fail(f))?;
        tokio::pin!(mounting);
        let mut asked = false;
        let finished = tokio::select! {
            finished = &mut mounting => finished,
            () = stop.asked() => {
                asked = true;
                tracing::info!("asked to stop while mounting: undoing");
                self.board.update(|status| status.state = State::Stopping);
                cancel.store(true, Ordering::Relaxed);
                within(self.grace, &mut mounting)
                    .await
                    .inspect_err(|_| abandon(self.store.as_deref()))?
            }
        };
        let mounted = match finished {
            Ok(Ok(mounted)) => mounted,
            Ok(Err(MountError::Cancelled)) => return end(true, self.serves),
            Ok(Err(error)) => return Err(self.fail(failure_of(&error))),
            Err(_) => return Err(self.fail(Failure::failed("the mount thread panicked"))),
        };
        if !asked {
            ready(&self.board);
            if self.serves {
                tracing::info!("ready");
                stop.asked().await;
            }
        }
        undo(mounted, &self.board, self.grace).await?;
        end(asked, self.serves)
    }

    fn mount(
        &self,
        plan: MountPlan,
        cancel: &Arc<AtomicBool>,
    ) -> Result<oneshot::Receiver<Result<Mounted, MountError>>, Failure> {
        let (board, store, bars) = (self.board.clone(), self.store.clone(), self.bars);
        let cancel = Arc::clone(cancel);
        on_a_thread("siding-mount", move || {
            let mount = || pipeline::mount(plan, store.as_deref(), &board, &cancel);
            if bars {
                progress::with_bars(&board, mount)
            } else {
                mount()
            }
        })
    }

    /// Tells the board of a failure.
    fn fail(&self, failure: Failure) -> Failure {
        self.board.update(|status| {
            status.state = State::Failed;
            status.failure = Some(FailureStatus {
                reason: failure.reason,
                message: failure.message.clone(),
            });
        });
        failure
    }

    fn has_failed(&self) -> bool {
        self.board.snapshot().state == State::Failed
    }
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

fn failure_of(error: &MountError) -> Failure {
    let failure = match error {
        MountError::Map { .. } | MountError::Touch { .. } => Failure::lacking(error),
        MountError::Register { source, .. } if source.shortage().is_some() => {
            Failure::lacking(error)
        }
        _ => Failure::failed(error),
    };
    failure.because(error.reason())
}

/// What answers while a session lasts.
struct Servers {
    quit: watch::Sender<bool>,
    tasks: Vec<JoinHandle<io::Result<()>>>,
    /// Its file goes with the session.
    _agent: Option<AgentSocket>,
}

impl Servers {
    fn start(
        listeners: Listeners,
        board: &Board,
        planning: Option<&Planning>,
    ) -> Result<Self, Failure> {
        let (quit, quitting) = watch::channel(false);
        let until = || {
            let mut quitting = quitting.clone();
            async move {
                let _ = quitting.wait_for(|quit| *quit).await;
            }
        };
        let mut tasks = Vec::new();
        if let Some(listener) = listeners.http {
            let failed = |error: io::Error| Failure::failed(format!("listen.http: {error}"));
            let listener = TcpListener::from_std(listener).map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            tracing::info!(address = %bound, "serving HTTP on http://{bound}");
            let router = http::router(board.clone(), Root::host());
            tasks.push(tokio::spawn(http::serve(listener, router, until())));
        }
        if let (Some(agent), Some(planning)) = (&listeners.agent, planning) {
            let listener = agent.listener().map_err(|error| {
                Failure::failed(format!(
                    "--agent-socket {}: {error}",
                    agent.path().display()
                ))
            })?;
            let router = http::agent_router(board.clone(), Root::host(), planning.clone());
            tasks.push(tokio::spawn(http::serve(listener, router, until())));
        }
        Ok(Self {
            quit,
            tasks,
            _agent: listeners.agent,
        })
    }

    async fn stop(self, grace: Duration) {
        let _ = self.quit.send(true);
        for task in self.tasks {
            let _ = tokio::time::timeout(grace, task).await;
        }
    }
}

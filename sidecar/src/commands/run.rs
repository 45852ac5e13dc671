//! `siding run`.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use siding_topology::Root;

use super::prepare;
use crate::agent_socket::AgentSocket;
use crate::board::{Board, Content};
use crate::config::{self, Cap, Config, OnFailure, Refused, Segment};
use crate::environment::Environment;
use crate::failure::{Failure, Kind};
use crate::logging;
use crate::metrics::Metrics;
use crate::mount::machine::Machine;
use crate::mount::plan::MountPlan;
use crate::node_plan::{Known, PlanFile, Planning};
use crate::session::{self, Listeners, Session};
use crate::signals::Signals;
use crate::store::{self, Store, StoreError};

/// How long pages of an unlinked file are waited for.
const FREED: Duration = Duration::from_secs(1);
/// How long the end of a process that was killed is waited for: clearing a huge page of memory that
/// was never used before takes seconds, and nothing interrupts it.
const ENDED: Duration = Duration::from_secs(10);
const DEFAULT_LEVEL: &str = "info";
const PAUSE: Duration = Duration::from_millis(10);

/// Arguments of `siding run`.
#[derive(Debug, Args)]
#[command(after_help = "\
The file's fields are told by `siding config schema`; `siding config check FILE` checks one.
The smallest useful file:

  segments:
    - name: kv
      size: 2Gi

With `onFailure: serve` a failed mount does not end the process: it serves the reason on /readyz and
/v1/status until SIGTERM, and then ends with 0.

The cap in force: registration.cap of the file, where it is a number; else MC_MAX_CONCURRENT_REG_MR;
else the plan's; else what fits this process's cores.")]
pub struct RunArgs {
    /// The configuration file (YAML)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The node's plan for this pod (JSON), as the operator annotates it: in a pod a file of a
    /// downward-API volume. It is looked at every two seconds
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// A Unix socket for the node's agent: all that HTTP serves, and PUT /v1/gpus. Its folder has
    /// to be there
    #[arg(long, value_name = "PATH")]
    agent_socket: Option<PathBuf>,
}

impl RunArgs {
    pub(super) fn run(self, environment: &Environment) -> Result<(), Failure> {
        let (config, mut refused) = match config::load(&self.config) {
            Ok(config) => (config, None),
            Err(Refused {
                error,
                rest: Some(rest),
            }) if rest.on_failure == OnFailure::Serve => (*rest, Some(Failure::input(error))),
            Err(refused) => return Err(Failure::input(refused)),
        };
        let logging = &config.logging;
        let start = |level: &str| logging::start(logging.format, level, environment.in_pod);
        match start(&logging.level).map_err(Failure::input) {
            // What is refused is served all the same, and logged.
            Err(failure) if config.on_failure == OnFailure::Serve => {
                start(DEFAULT_LEVEL).map_err(Failure::input)?;
                refused = refused.or(Some(failure));
            }
            other => other?,
        }
        let signals = Signals::catch()?;
        let mut plan_file = self.plan.clone().map(PlanFile::new);
        let known = known(plan_file.as_mut());
        let wished = prepare::cap(&config, environment, "registration.cap");
        let plan_decides = wished.0 == Cap::Auto;
        let cap = prepare::by_plan(wished, known.plan.as_ref());
        let mut listeners = Listeners::default();
        let prepared = match refused {
            Some(refused) => Err(refused),
            None => self.prepare(&config, &cap, &mut listeners),
        };
        let (plan, store) = match prepared {
            Ok((plan, store)) => (Ok(plan), Some(store)),
            Err(failure) if config.on_failure == OnFailure::Serve => {
                patiently(ENDED, || self.listen(&config, &mut listeners))?;
                (Err(failure), None)
            }
            Err(failure) => return Err(failure),
        };
        let segments = config.segments.iter();
        let board = Board::new(
            segments.map(|segment| (segment.name.as_str(), segment.size.get())),
            Metrics::new(),
        );
        let live = plan.as_ref().ok().filter(|_| plan_decides);
        let live = live.map(|plan: &MountPlan| plan.cap.clone());
        let session = Session {
            plan,
            store,
            planning: Some(Planning::new(known, board.clone(), live)),
            board,
            plan_file,
            listeners,
            on_failure: config.on_failure,
            grace: Duration::from_secs(config.shutdown.grace_seconds.into()),
            bars: false,
        };
        session::run(signals, session, tell)
    }

    /// All that comes before mounting.
    fn prepare(
        &self,
        config: &Config,
        cap: &(Cap, String),
        listeners: &mut Listeners,
    ) -> Result<(MountPlan, Arc<Store>), Failure> {
        let root = Root::host();
        let store = Arc::new(open_store(config)?);
        let left = prepare::find_left(config, &store, &Machine::observe(&root))?;
        tell_undeclared(config, &store);
        let plan = |machine: &Machine| {
            let form = |segment: &Segment| prepare::in_files(segment, &store, machine);
            prepare::plan(config, machine, &left, &form, cap.clone())
        };
        // What is half-made has no content to lose. What is complete goes only once all the rest
        // is known to work.
        prepare::remove_unfit(config, &store, &left, false)?;
        patiently(FREED, || {
            plan(&prepare::with_credit(Machine::observe(&root), &left))
        })?;
        self.listen(config, listeners)?;
        prepare::remove_unfit(config, &store, &left, true)?;
        let plan = patiently(FREED, || plan(&Machine::observe(&root)))?;
        Ok((plan, store))
    }

    /// Takes what is not taken yet.
    fn listen(&self, config: &Config, listeners: &mut Listeners) -> Result<(), Failure> {
        if listeners.http.is_none() {
            listeners.http = Some(session::listen(config.listen.http)?);
        }
        if let (None, Some(path)) = (&listeners.agent, &self.agent_socket) {
            listeners.agent = Some(AgentSocket::bind(path)?);
        }
        Ok(())
    }
}

/// What the plan's file says at the start.
fn known(file: Option<&mut PlanFile>) -> Known {
    let mut known = Known::default();
    match file.and_then(PlanFile::look) {
        Some(Ok(plan)) => known.plan = Some(plan),
        Some(Err(trouble)) => {
            tracing::warn!("{trouble}; the cap stays as without a plan");
            known.trouble = Some(trouble);
        }
        None => {}
    }
    known
}

/// Files of segments that are no longer declared hold memory until somebody removes them.
fn tell_undeclared(config: &Config, store: &Store) {
    let declared: Vec<&str> = config.segments.iter().map(|s| s.name.as_str()).collect();
    for (name, file, bytes) in store.undeclared(&declared) {
        tracing::warn!(
            segment = name,
            bytes,
            "a segment that is not declared any more still holds its memory; declare it again, or: rm {} {}",
            file.display(),
            store.header_path(&name).display()
        );
    }
}

/// Pages of a process that was killed, and of a file that was unlinked, come back a moment later:
/// what is lacking may be there then.
fn patiently<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + patience;
    loop {
        match attempt() {
            Err(failure) if failure.kind == Kind::Lacking && Instant::now() < deadline => {
                thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

fn open_store(config: &Config) -> Result<Store, Failure> {
    let lacking = |error: StoreError| {
        let hint = match (&error, store::some_tmpfs()) {
            (StoreError::Io { .. }, Some(tmpfs)) => format!(
                "; use a directory on tmpfs that this user may write, e.g. in {}",
                tmpfs.display()
            ),
            _ => String::new(),
        };
        Failure::lacking(format!("storage.directory: {error}{hint}"))
    };
    // A process that was killed holds its lock until it is wholly gone.
    patiently(ENDED, || {
        Store::open(&config.storage.directory).map_err(lacking)
    })
}

fn tell(board: &Board) {
    for segment in board.snapshot().segments {
        let seconds: f64 = segment.seconds.values().sum();
        tracing::info!(
            segment = segment.name,
            bytes = segment.size_bytes,
            page = segment.page.as_deref().unwrap_or("unknown"),
            page_reason = segment.page_reason.as_deref().unwrap_or(""),
            content = segment.content.map_or("unknown", Content::as_str),
            registered_bytes = segment.registered_bytes,
            seconds = format!("{seconds:.3}"),
            "mounted"
        );
        if let Some(left_out) = segment.left_out {
            tracing::warn!(segment = segment.name, "{left_out}");
        }
    }
}

//! `siding run`.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use siding_topology::Root;

use super::prepare;
use crate::board::{Board, Content};
use crate::config::{self, Config, Segment};
use crate::environment::Environment;
use crate::failure::{Failure, Kind};
use crate::logging;
use crate::metrics::Metrics;
use crate::mount::machine::Machine;
use crate::session::{self, Session};
use crate::signals::Signals;
use crate::store::{self, Store, StoreError};

/// How long pages of an unlinked file are waited for.
const FREED: Duration = Duration::from_secs(1);
/// How long the end of a process that was killed is waited for: clearing a huge page of memory that
/// was never used before takes seconds, and nothing interrupts it.
const ENDED: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// Arguments of `siding run`.
#[derive(Debug, Args)]
#[command(after_help = "\
The file's fields are told by `siding config schema`; `siding config check FILE` checks one.
The smallest useful file:

  segments:
    - name: kv
      size: 2Gi")]
pub struct RunArgs {
    /// The configuration file (YAML)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl RunArgs {
    pub(super) fn run(self, environment: &Environment) -> Result<(), Failure> {
        let config = config::load(&self.config).map_err(Failure::input)?;
        logging::start(
            config.logging.format,
            &config.logging.level,
            environment.in_pod,
        )
        .map_err(Failure::input)?;
        let signals = Signals::catch()?;
        let root = Root::host();
        let store = Arc::new(open_store(&config)?);
        let left = prepare::find_left(&config, &store, &Machine::observe(&root))?;
        tell_undeclared(&config, &store);
        let cap = prepare::cap(&config, environment, "registration.cap");
        let plan = |machine: &Machine| {
            let form = |segment: &Segment| prepare::in_files(segment, &store, machine);
            prepare::plan(&config, machine, &left, &form, cap.clone())
        };
        // What is half-made has no content to lose. What is complete goes only once all the rest
        // is known to work.
        prepare::remove_unfit(&config, &store, &left, false)?;
        patiently(FREED, || {
            plan(&prepare::with_credit(Machine::observe(&root), &left))
        })?;
        let listener = session::listen(config.listen.http)?;
        prepare::remove_unfit(&config, &store, &left, true)?;
        let plan = patiently(FREED, || plan(&Machine::observe(&root)))?;
        let board = Board::new(
            config
                .segments
                .iter()
                .map(|segment| (segment.name.as_str(), segment.size.get())),
            Metrics::new(),
        );
        let session = Session {
            plan,
            store: Some(store),
            board,
            listener: Some(listener),
            grace: Duration::from_secs(config.shutdown.grace_seconds.into()),
            bars: false,
        };
        session::run(signals, session, tell)
    }
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
    attempt: impl Fn() -> Result<T, Failure>,
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

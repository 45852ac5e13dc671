//! `siding run`.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use siding_topology::Root;

use super::prepare;
use crate::board::Board;
use crate::config::{self, Config};
use crate::environment::Environment;
use crate::failure::{Failure, Kind};
use crate::logging;
use crate::metrics::Metrics;
use crate::mount::machine::Machine;
use crate::session::{self, Session};
use crate::store::{Store, StoreError};

/// How long pages of an unlinked file are waited for.
const PATIENCE: Duration = Duration::from_secs(1);
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
        let store = open_store(&config)?;
        let root = Root::host();
        // Files that do not pass are unlinked first: their pages count as free afterwards.
        let left = prepare::find_left(&config, &store, &Machine::observe(&root))?;
        let cap = prepare::cap(&config, environment, "registration.cap");
        let plan = patiently(left.freed, || {
            prepare::plan(
                &config,
                &Machine::observe(&root),
                &left.kept,
                true,
                cap.clone(),
            )
        })?;
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
            listen: Some(config.listen.http),
            grace: Duration::from_secs(config.shutdown.grace_seconds.into()),
            bars: false,
        };
        session::run(session, tell)
    }
}

/// Pages of a file that was unlinked come back when the process that pinned them is wholly gone:
/// what is lacking may be there in a moment.
fn patiently<T>(freed: bool, plan: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match plan() {
            Err(failure) if freed && failure.kind == Kind::Lacking && Instant::now() < deadline => {
                thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

fn open_store(config: &Config) -> Result<Store, Failure> {
    Store::open(&config.storage.directory).map_err(|error| match error {
        StoreError::InUse { .. } => Failure::lacking(error),
        error => Failure::lacking(format!(
            "{error}; use a directory on tmpfs that this user may write, e.g. one in /dev/shm or /run"
        )),
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
            content = ?segment.content,
            registered_bytes = segment.registered_bytes,
            seconds,
            "mounted"
        );
        if let Some(left_out) = segment.left_out {
            tracing::warn!(segment = segment.name, "{left_out}");
        }
    }
}

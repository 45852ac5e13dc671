//! `siding mount`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use siding_topology::Root;
use siding_topology::size::page_name;

use super::{LogArgs, Output, prepare};
use crate::board::Board;
use crate::config::{Backend, Cap, Config, OnFailure, Order, Segment, TouchThreads};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::mount::machine::Machine;
use crate::mount::report::{self, Report};
use crate::mount::reserve::{self, Reservation, Turn};
use crate::output;
use crate::session::{self, Listeners, Session};
use crate::signals::Signals;
use crate::store::Finding;

const GRACE: Duration = Duration::from_secs(30);

/// Arguments of `siding mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  siding mount --segment kv=2Gi
  siding mount --segment kv=4Gi,page=2Mi --segment index=512Mi,page=4Ki,numa=0 --reserve
  siding mount --segment kv=2Gi --serve --listen 127.0.0.1:9600")]
pub struct MountArgs {
    /// A segment: NAME=SIZE[,page=4Ki|2Mi|1Gi|transparent|auto][,numa=N|local|interleave]; SIZE is a
    /// Kubernetes quantity such as 1Gi. May be given several times
    #[arg(
        long = "segment",
        value_name = "NAME=SIZE[,…]",
        required = true,
        allow_hyphen_values = true
    )]
    segments: Vec<Segment>,
    /// What registers: auto takes what is usable here and says why
    #[arg(long, value_name = "auto|io_uring|none", default_value = "auto")]
    backend: Backend,
    /// Most registrations in flight: auto, a number of at least 1, or unbounded
    #[arg(
        long,
        value_name = "auto|N|unbounded",
        default_value = "auto",
        allow_hyphen_values = true
    )]
    cap: Cap,
    /// Order in which regions are registered
    #[arg(long, value_name = "ascending|declared", default_value = "ascending")]
    order: Order,
    /// Threads that touch
    #[arg(
        long,
        value_name = "auto|N",
        default_value = "auto",
        allow_hyphen_values = true
    )]
    touch_threads: TouchThreads,
    /// Reserve the huge pages that are missing (root); they go when the mount ends, also if it is killed
    #[arg(long)]
    reserve: bool,
    /// Stay, and serve /metrics, /v1/status and the like until SIGTERM
    #[arg(long)]
    serve: bool,
    /// Where --serve listens; port 0 takes a free one
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9600",
        requires = "serve"
    )]
    listen: SocketAddr,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    log: LogArgs,
}

impl MountArgs {
    pub(super) fn run(self, environment: &Environment) -> Result<(), Failure> {
        self.log.start(environment)?;
        let config = Config::builder()
            .segments(self.segments)
            .backend(self.backend)
            .cap(self.cap)
            .order(self.order)
            .touch_threads(self.touch_threads)
            .build()
            .map_err(Failure::input)?;
        let mut signals = Signals::catch()?;
        let root = Root::host();
        let cap = prepare::cap(&config, environment, "--cap");
        let (mut turn, mut reservations, notes) = if self.reserve {
            reserve(&mut signals, &root, &config)?
        } else {
            (None, Vec::new(), Vec::new())
        };
        let left = vec![Finding::Nothing; config.segments.len()];
        let machine = Machine::observe(&root);
        let plan = prepare::plan(&config, &machine, &left, &prepare::in_process, cap)?;
        let board = Board::new(
            config
                .segments
                .iter()
                .map(|segment| (segment.name.as_str(), segment.size.get())),
            Metrics::new(),
        );
        let listener = self
            .serve
            .then(|| session::listen(self.listen))
            .transpose()?;
        let address = listener
            .as_ref()
            .and_then(|listener| listener.local_addr().ok());
        let session = Session {
            plan: Ok(plan),
            store: None,
            board,
            planning: None,
            plan_file: None,
            listeners: Listeners {
                http: listener,
                agent: None,
            },
            on_failure: OnFailure::Exit,
            grace: GRACE,
            bars: true,
        };
        let reserved_pages = count(&reservations);
        let mut given_back = Ok(());
        let mut printed = Ok(());
        let result = session::run(signals, session, |board| {
            // The pages are in use: from now on they go to the kernel with the mapping, also if
            // the process is killed, and at no moment look free to others that reserve.
            given_back = give_back(std::mem::take(&mut reservations));
            drop(turn.take());
            let report = Told {
                reserved_pages,
                notes: &notes,
                address,
            };
            printed = print(board, self.output, report);
        });
        // Not mounted: what was reserved is still there, and the turn ours.
        let given_back = given_back.and(give_back(reservations));
        drop(turn);
        result.and(printed).and(given_back)
    }
}

type Reserved = (Option<Turn>, Vec<Reservation>, Vec<String>);

/// Reserves what is missing. A signal is heeded as soon as the kernel has answered.
fn reserve(signals: &mut Signals, root: &Root, config: &Config) -> Result<Reserved, Failure> {
    let cancel = AtomicBool::new(false);
    signals.interruptible(
        || cancel.store(true, Ordering::Relaxed),
        || {
            let turn = Turn::wait(root, &cancel);
            let machine = Machine::observe(root);
            let (reservations, notes) = reserve::reserve_for(root, &config.segments, &machine)?;
            Ok((turn, reservations, notes))
        },
    )?
}

/// What is told beside the status.
struct Told<'a> {
    /// Pages reserved, by their size in bytes.
    reserved_pages: BTreeMap<u64, u64>,
    notes: &'a [String],
    address: Option<SocketAddr>,
}

fn print(board: &Board, output: Output, told: Told<'_>) -> Result<(), Failure> {
    let status = board.snapshot();
    let http = told.address.map(|address| format!("http://{address}"));
    match output {
        Output::Table => {
            let mut text = report::table(&status);
            for note in told.notes {
                text += &format!("not reserved: {note}\n");
            }
            for (page_bytes, pages) in told.reserved_pages {
                let page = page_name(page_bytes);
                text += &format!(
                    "reserved for this mount: {pages} pages of {page}; they go when it ends\n"
                );
            }
            if let Some(http) = http {
                text += &format!("serving on {http} until SIGTERM or Ctrl-C\n");
            }
            output::print(text)
        }
        Output::Json => {
            let report = Report {
                status: &status,
                reserved_pages: told.reserved_pages,
                notes: told.notes,
                http,
            };
            let text = serde_json::to_string_pretty(&report).map_err(Failure::failed)?;
            output::print(text + "\n")
        }
    }
}

/// Pages reserved, by their size in bytes.
fn count(reservations: &[Reservation]) -> BTreeMap<u64, u64> {
    let mut pages = BTreeMap::new();
    for reservation in reservations {
        *pages.entry(reservation.page_bytes()).or_insert(0) += reservation.pages();
    }
    pages
}

fn give_back(reservations: Vec<Reservation>) -> Result<(), Failure> {
    let mut first = Ok(());
    for reservation in reservations {
        if let Err(error) = reservation.give_back() {
            first = first.and(Err(Failure::failed(format!(
                "giving reserved huge pages back: {error}"
            ))));
        }
    }
    first
}

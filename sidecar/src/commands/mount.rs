//! `siding mount`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use siding_topology::Root;

use super::{LogArgs, Output, prepare};
use crate::board::Board;
use crate::config::{Backend, Cap, Config, Order, Segment, TouchThreads};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::mount::machine::Machine;
use crate::mount::report::{self, Report};
use crate::mount::reserve::{self, Reservation};
use crate::session::{self, Session};

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
    #[arg(long = "segment", value_name = "NAME=SIZE[,…]", required = true)]
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
    /// Reserve the huge pages that are missing (root), and give them back at the end
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
        let root = Root::host();
        let (reservations, notes) = if self.reserve {
            reserve::reserve_for(&root, &config.segments, &Machine::observe(&root))
                .map_err(Failure::lacking)?
        } else {
            (Vec::new(), Vec::new())
        };
        let machine = Machine::observe(&root);
        let kept = vec![None; config.segments.len()];
        let cap = prepare::cap(&config, environment, "--cap");
        let plan = prepare::plan(&config, &machine, &kept, false, cap)?;
        let board = Board::new(
            config
                .segments
                .iter()
                .map(|segment| (segment.name.as_str(), segment.size.get())),
            Metrics::new(),
        );
        let session = Session {
            plan,
            store: None,
            board,
            listen: self.serve.then_some(self.listen),
            grace: GRACE,
            bars: true,
        };
        let mut printed = Ok(());
        let result = session::run(session, |board| {
            printed = print(board, self.output, &reservations, &notes);
        });
        let given_back = give_back(reservations);
        result.and(printed).and(given_back)
    }
}

fn print(
    board: &Board,
    output: Output,
    reservations: &[Reservation],
    notes: &[String],
) -> Result<(), Failure> {
    let status = board.snapshot();
    let mut reserved_pages = BTreeMap::new();
    for reservation in reservations {
        *reserved_pages.entry(reservation.page_bytes()).or_insert(0) += reservation.pages();
    }
    match output {
        Output::Table => {
            print!("{}", report::table(&status));
            for note in notes {
                println!("not reserved: {note}");
            }
            for (page_bytes, pages) in reserved_pages {
                let page = siding_topology::size::page_name(page_bytes);
                println!(
                    "reserved for this mount: {pages} pages of {page}; they are given back at the end"
                );
            }
        }
        Output::Json => {
            let report = Report {
                status: &status,
                reserved_pages,
                notes,
            };
            let text = serde_json::to_string_pretty(&report).map_err(Failure::failed)?;
            println!("{text}");
        }
    }
    Ok(())
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

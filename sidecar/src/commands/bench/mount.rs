//! `siding bench mount`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use siding_fabric::base_page_bytes;
use siding_topology::Root;
use siding_topology::limits;
use siding_topology::size::page_name;

use super::super::numbers::whole;
use super::super::{LogArgs, Output, prepare};
use super::bar;
use crate::bench::OWN_BINARY;
use crate::bench::mount::{Answer, Question, Ratios, Surroundings, measure};
use crate::config::{Backend, Cap, Config, Page, Segment};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::mount::machine::Machine;
use crate::mount::plan::MountPlan;
use crate::mount::reserve::{self, Turn};
use crate::output;
use crate::signals::Signals;
use crate::store::Finding;

/// Arguments of `siding bench mount`.
#[derive(Debug, Args)]
pub(super) struct MountBenchArgs {
    /// Size of the segment
    #[arg(
        long,
        value_name = "SIZE",
        allow_hyphen_values = true,
        default_value = "4Gi"
    )]
    size: String,
    /// Its pages: 4Ki, 2Mi, 1Gi, …
    #[arg(
        long,
        value_name = "PAGE",
        allow_hyphen_values = true,
        default_value = "2Mi"
    )]
    page: Page,
    /// Rounds that count
    #[arg(long, value_name = "N", default_value = "12", value_parser = whole::<NonZeroUsize>(1..=1000))]
    rounds: NonZeroUsize,
    /// A Python that has Mooncake's wheel (tests/mooncake/install makes one)
    #[arg(long, value_name = "PATH")]
    mooncake_python: Option<PathBuf>,
    /// Reserve the huge pages that are missing (root), and give them back at the end
    #[arg(long)]
    reserve: bool,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    log: LogArgs,
}

impl MountBenchArgs {
    pub(super) fn run(self, environment: &Environment) -> Result<(), Failure> {
        self.log.start(environment)?;
        if !matches!(self.page, Page::Size(_)) {
            return Err(Failure::input(
                "--page: the contestants need the same pages: use a size such as 4Ki, 2Mi or 1Gi",
            ));
        }
        let segment: Segment = format!("bench={}", self.size)
            .parse()
            .map_err(|error| Failure::input(format!("--size: {error}")))?;
        let config = Config::builder()
            .segment(segment.page(self.page))
            .backend(Backend::IoUring)
            .build()
            .map_err(Failure::input)?;
        let mut signals = Signals::catch()?;
        let cancel = AtomicBool::new(false);
        signals.interruptible(
            || cancel.store(true, Ordering::Relaxed),
            || self.measure(&config, &cancel),
        )?
    }

    fn measure(&self, config: &Config, cancel: &AtomicBool) -> Result<(), Failure> {
        let root = Root::host();
        let turn = self.reserve.then(|| Turn::wait(&root, cancel));
        let machine = Machine::observe(&root);
        let reservations = if self.reserve {
            reserve::reserve_for(&root, &config.segments, &machine)
                .map_err(Failure::lacking)?
                .0
        } else {
            Vec::new()
        };
        let around = Here {
            root: &root,
            config,
            bar: bar(self.rounds.get() + 1),
        };
        let pages = around
            .plan()
            .map_err(Failure::lacking)?
            .segments
            .first()
            .map(|s| s.pages);
        let question = Question {
            size_bytes: config
                .segments
                .iter()
                .map(|segment| segment.size.get())
                .sum(),
            pages: pages.ok_or_else(|| Failure::failed("no segment was planned"))?,
            rounds: self.rounds,
            cpus: machine
                .cores
                .cpus
                .iter()
                .take(machine.cores.count.get())
                .collect(),
            mooncake_python: self.mooncake_python.clone(),
        };
        let answer = measure(&question, &around, cancel);
        around.bar.finish_and_clear();
        drop((reservations, turn));
        print(&answer.map_err(Failure::failed)?, self.output)
    }
}

/// This machine and this binary.
struct Here<'a> {
    root: &'a Root,
    config: &'a Config,
    bar: ProgressBar,
}

impl Surroundings for Here<'_> {
    fn plan(&self) -> Result<MountPlan, String> {
        let cap = (Cap::Auto, String::new());
        prepare::plan(
            self.config,
            &Machine::observe(self.root),
            &[Finding::Nothing],
            &prepare::in_process,
            cap,
        )
        .map_err(|failure| failure.to_string())
    }

    fn resident_bytes(&self) -> Option<u64> {
        // Base pages of the segment count as resident, huge pages do not.
        let resident = limits::usage(self.root).resident_bytes?;
        let base = self
            .config
            .segments
            .iter()
            .filter(|s| s.page == Page::Size(base_page_bytes()));
        Some(resident.saturating_sub(base.map(|segment| segment.size.get()).sum()))
    }

    fn exec_seconds(&self) -> Option<f64> {
        let mut command = Command::new(OWN_BINARY);
        let page = page_name(base_page_bytes());
        command.args(["mount", "--segment", &format!("first={page},page={page}")]);
        let started = Instant::now();
        let output = command.output().ok()?;
        output
            .status
            .success()
            .then(|| started.elapsed().as_secs_f64())
    }

    fn progress(&self, round: usize) {
        self.bar.set_position(round as u64);
    }
}

/// The table, or the JSON document alone on standard output; the last line is the ratios in both.
fn print(answer: &Answer, output: Output) -> Result<(), Failure> {
    match output {
        Output::Table => output::print(format!("{}{}\n", answer.table(), answer.last_line())),
        Output::Json => {
            let report = Report {
                answer,
                ratios: answer.ratios(),
            };
            let text = serde_json::to_string(&report).map_err(Failure::failed)?;
            output::print(text + "\n")?;
            output::note(answer.last_line());
            Ok(())
        }
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    answer: &'a Answer,
    ratios: Ratios,
}

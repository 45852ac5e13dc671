//! `siding bench registration`.

use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use serde::Serialize;
use siding_topology::{Root, cores};

use super::super::{LogArgs, Output};
use super::bar;
use crate::bench::registration::{self, Question, RankJob, Sweep, parse_buffers, sweep};
use crate::config::{Cap, Page};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::output;
use crate::registration::cap::planned;
use crate::signals::Signals;

/// Arguments of `siding bench registration`.
#[derive(Debug, Args)]
pub(super) struct RegistrationBenchArgs {
    /// Processes that register at once
    #[arg(long, value_name = "N", default_value = "2")]
    ranks: NonZeroUsize,
    /// Caps to try beside the planner's: sweep (1, 2, 4, … unbounded), a number, unbounded, or auto
    /// for the planner's alone
    #[arg(long, value_name = "sweep|auto|N|unbounded", default_value = "sweep")]
    cap: Caps,
    /// Order in which each rank registers its buffers
    #[arg(long, value_enum, default_value_t = BufferOrder::Ascending)]
    order: BufferOrder,
    /// Buffers of a rank: a file with a line each of SIZE [COUNT]. Default: 48 of 8Mi
    #[arg(long, value_name = "FILE")]
    buffers: Option<PathBuf>,
    /// Their pages: 4Ki, 2Mi, …
    #[arg(long, value_name = "PAGE", default_value = "4Ki")]
    page: Page,
    /// Make pages present before the barrier, so that only pinning is measured
    #[arg(long)]
    touched: bool,
    /// Rounds; the minimum counts
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: NonZeroUsize,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    log: LogArgs,
}

/// Caps to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caps {
    Sweep,
    One(Cap),
}

impl FromStr for Caps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("sweep") {
            return Ok(Self::Sweep);
        }
        text.parse()
            .map(Self::One)
            .map_err(|error| format!("{error}, or 'sweep'"))
    }
}

/// Order in which a rank registers its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BufferOrder {
    /// Small ones first.
    Ascending,
    /// Large ones first.
    Descending,
    /// As in the file.
    Declared,
}

/// The hidden command that is a rank.
pub(super) fn rank() -> Result<(), Failure> {
    registration::rank(io::stdin().lock(), io::stdout().lock()).map_err(Failure::failed)
}

impl RegistrationBenchArgs {
    pub(super) fn run(self, environment: &Environment) -> Result<(), Failure> {
        self.log.start(environment)?;
        let Page::Size(page_bytes) = self.page else {
            return Err(Failure::input("--page: use a size such as 4Ki or 2Mi"));
        };
        let mut buffers = match &self.buffers {
            Some(path) => read(path)?,
            None => vec![8 << 20; 48],
        };
        match self.order {
            BufferOrder::Ascending => buffers.sort_unstable(),
            BufferOrder::Descending => buffers.sort_unstable_by(|a, b| b.cmp(a)),
            BufferOrder::Declared => {}
        }
        let cores = cores::own_cores(&Root::host()).count;
        let planned = planned(cores, self.ranks);
        let caps = self.caps(cores, planned, buffers.len());
        let job = RankJob {
            buffers,
            cap: None,
            page_bytes,
            touched: self.touched,
        };
        let binary = std::env::current_exe()
            .map_err(|error| Failure::failed(format!("own path: {error}")))?;
        let (ranks, rounds) = (self.ranks, self.rounds);
        let mut signals = Signals::catch()?;
        let cancel = AtomicBool::new(false);
        let sweep = signals.interruptible(
            || cancel.store(true, Ordering::Relaxed),
            || {
                let question = Question {
                    binary: &binary,
                    ranks,
                    cores,
                    planned,
                    caps: &caps,
                    rounds,
                    job,
                };
                let bar = bar(caps.len() * rounds.get());
                let result = sweep(&question, &cancel, || bar.inc(1));
                bar.finish_and_clear();
                result
            },
        )?;
        print(&sweep.map_err(Failure::failed)?, self.output)
    }

    fn caps(
        &self,
        cores: NonZeroUsize,
        planned: NonZeroUsize,
        buffers: usize,
    ) -> Vec<Option<NonZeroUsize>> {
        let mut caps = match self.cap {
            Caps::One(Cap::Auto) => Vec::new(),
            Caps::One(Cap::Unbounded) => vec![None],
            Caps::One(Cap::Limit(n)) => vec![Some(n)],
            Caps::Sweep => {
                let most = buffers.min(cores.get().saturating_mul(8));
                let powers = (0..)
                    .map(|power| 1_usize << power)
                    .take_while(|cap| *cap <= most);
                powers.map(NonZeroUsize::new).chain([None]).collect()
            }
        };
        if !caps.contains(&Some(planned)) {
            caps.push(Some(planned));
        }
        // Ascending, unbounded last.
        caps.sort_by_key(|cap| cap.map_or(usize::MAX, NonZeroUsize::get));
        caps
    }
}

fn read(path: &Path) -> Result<Vec<u64>, Failure> {
    let failed = |why: String| Failure::input(format!("--buffers: {}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    parse_buffers(&text).map_err(failed)
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    sweep: &'a Sweep,
    ratios: Ratios,
}

#[derive(Serialize)]
struct Ratios {
    planner_vs_best: Option<f64>,
    spread: Option<f64>,
}

fn print(sweep: &Sweep, output: Output) -> Result<(), Failure> {
    match output {
        Output::Table => output::print(format!("{}{}\n", sweep.table(), sweep.last_line())),
        Output::Json => {
            let ratios = Ratios {
                planner_vs_best: sweep.planner_vs_best(),
                spread: sweep.spread(),
            };
            let text = serde_json::to_string(&Report { sweep, ratios }).map_err(Failure::failed)?;
            output::print(text + "\n")?;
            output::note(sweep.last_line());
            Ok(())
        }
    }
}

//! `siding bench registration`.

use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use siding_fabric::UringDomain;
use siding_topology::Root;

use super::super::numbers::whole;
use super::super::{LogArgs, Output};
use super::bar;
use crate::bench::OWN_BINARY;
use crate::bench::registration::buffers::{MOST_FILE_BYTES, parse_buffers};
use crate::bench::registration::rank::RankJob;
use crate::bench::registration::room::{self, There};
use crate::bench::registration::{self, Question, Ranks, Sweep, sweep};
use crate::config::{Cap, Page};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::mount::machine::Machine;
use crate::output;
use crate::registration::cap::planned;
use crate::signals::Signals;

/// Each is a process.
const MOST_RANKS: u64 = 256;
const MOST_ROUNDS: u64 = 1000;

/// Arguments of `siding bench registration`.
#[derive(Debug, Args)]
pub(super) struct RegistrationBenchArgs {
    /// Processes that register at once
    #[arg(long, value_name = "N", default_value = "2", value_parser = whole::<NonZeroUsize>(1..=MOST_RANKS))]
    ranks: NonZeroUsize,
    /// Caps to try beside the planner's: sweep (1, 2, 4, … unbounded), a number, unbounded, or auto
    /// for the planner's alone, which then has nothing to be compared with
    #[arg(long, value_name = "sweep|auto|N|unbounded", default_value = "sweep")]
    cap: Caps,
    /// Order in which each rank registers its buffers
    #[arg(long, value_enum, default_value_t = BufferOrder::Ascending)]
    order: BufferOrder,
    /// Buffers of a rank: a file with a line each of SIZE [COUNT]. Default: 256 of 8Mi
    #[arg(long, value_name = "FILE")]
    buffers: Option<PathBuf>,
    /// Their pages: 4Ki, 2Mi, …
    #[arg(
        long,
        value_name = "PAGE",
        allow_hyphen_values = true,
        default_value = "4Ki"
    )]
    page: Page,
    /// Leave the pages to be made by registering them. Without it they are there before the barrier,
    /// so that only pinning is measured
    #[arg(long)]
    untouched: bool,
    /// Rounds; the minimum counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = whole::<NonZeroUsize>(1..=MOST_ROUNDS))]
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
    // However the bench ends, no rank outlives it. What it told before that is read to its end.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    registration::rank::rank(io::stdin().lock(), io::stdout().lock()).map_err(Failure::failed)
}

impl RegistrationBenchArgs {
    pub(super) fn run(self, environment: &Environment) -> Result<(), Failure> {
        self.log.start(environment)?;
        let Page::Size(page_bytes) = self.page else {
            return Err(Failure::input(
                "--page: auto and transparent leave open which pages are pinned; write a size such as 4Ki or \
                 2Mi",
            ));
        };
        let mut buffers = match &self.buffers {
            Some(path) => read(path)?,
            None => vec![8 << 20; 256],
        };
        match self.order {
            BufferOrder::Ascending => buffers.sort_unstable(),
            BufferOrder::Descending => buffers.sort_unstable_by(|a, b| b.cmp(a)),
            BufferOrder::Declared => {}
        }
        let job = RankJob {
            buffers,
            cap: None,
            page_bytes,
            touched: !self.untouched,
        };
        let there = There::observe(Machine::observe(&Root::host()));
        let cores = there.machine.cores.count;
        let planned = planned(cores, self.ranks);
        let caps = self.caps(cores, planned, job.buffers.len());
        room::check(self.ranks, &job, &caps, &there).map_err(Failure::lacking)?;
        UringDomain::open().map_err(Failure::lacking)?;
        let question = Question {
            binary: Path::new(OWN_BINARY),
            ranks: self.ranks,
            cores,
            planned,
            caps: &caps,
            rounds: self.rounds,
            job,
        };
        print(&measure(&question)?, self.output)
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

/// Lets the ranks run; a signal ends them at once.
fn measure(question: &Question<'_>) -> Result<Sweep, Failure> {
    let mut signals = Signals::catch()?;
    let ranks = Ranks::default();
    signals.interruptible(
        || ranks.stop(),
        || {
            let bar = bar(question.caps.len() * question.rounds.get() + 1);
            let result = sweep(question, &ranks, || bar.inc(1));
            bar.finish_and_clear();
            result
        },
    )?
}

fn read(path: &Path) -> Result<Vec<u64>, Failure> {
    let failed = |why: String| Failure::input(format!("--buffers: {}: {why}", path.display()));
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| failed(error.to_string()))?;
    if bytes.len() as u64 > MOST_FILE_BYTES {
        return Err(failed(format!(
            "longer than {MOST_FILE_BYTES} bytes; write equal buffers as one line: SIZE COUNT"
        )));
    }
    parse_buffers(&bytes).map_err(failed)
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
    contention: &'static str,
    /// Why they say nothing; null where they do.
    caveat: Option<String>,
}

fn print(sweep: &Sweep, output: Output) -> Result<(), Failure> {
    match output {
        Output::Table => output::print(format!("{}{}\n", sweep.table(), sweep.last_line())),
        Output::Json => {
            let ratios = Ratios {
                planner_vs_best: sweep.planner_vs_best(),
                spread: sweep.spread(),
                contention: sweep.contention(),
                caveat: sweep.caveat(),
            };
            let text = serde_json::to_string(&Report { sweep, ratios }).map_err(Failure::failed)?;
            output::print(text + "\n")?;
            output::note(sweep.last_line());
            Ok(())
        }
    }
}

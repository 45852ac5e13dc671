//! `siding bench`.

use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use siding_topology::Root;
use siding_topology::limits;

use super::{LogArgs, Output, prepare};
use crate::bench::mount::{Answer, Question, measure};
use crate::config::{Backend, Cap, Config, Page, Segment};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::mount::machine::Machine;
use crate::mount::reserve;

/// Arguments of `siding bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Our mount against the kernel's limit and against Mooncake Store's own
    #[command(after_help = "\
Each contestant maps, touches and registers (Mooncake over TCP has nothing to register) the same
bytes on the same pages, one after another in every round; a first round warms the memory and does
not count. The last line has the ratios of the minima: vs_kernel (1 is the limit), vs_mooncake (how
many times faster), register_share (registering in our best round).

  siding bench mount --size 4Gi --page 2Mi --reserve --mooncake-python PATH-TO-PYTHON")]
    Mount(MountBenchArgs),
}

#[derive(Debug, Args)]
struct MountBenchArgs {
    /// Size of the segment
    #[arg(long, value_name = "SIZE", default_value = "4Gi")]
    size: String,
    /// Its pages: 4Ki, 2Mi, 1Gi, …
    #[arg(long, value_name = "PAGE", default_value = "2Mi")]
    page: Page,
    /// Rounds that count
    #[arg(long, value_name = "N", default_value = "5")]
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

impl BenchArgs {
    pub(super) fn run(self, environment: &Environment) -> Result<(), Failure> {
        match self.command {
            BenchCommand::Mount(args) => args.run(environment),
        }
    }
}

impl MountBenchArgs {
    fn run(self, environment: &Environment) -> Result<(), Failure> {
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
        let root = Root::host();
        let machine = Machine::observe(&root);
        let _reservations = if self.reserve {
            reserve::reserve_for(&root, &config.segments, &machine)
                .map_err(Failure::lacking)?
                .0
        } else {
            Vec::new()
        };
        let plan = || {
            let cap = (Cap::Auto, String::new());
            prepare::plan(&config, &Machine::observe(&root), &[None], false, cap)
        };
        let pages = plan()?.segments.first().map(|segment| segment.pages);
        let question = Question {
            size_bytes: config
                .segments
                .iter()
                .map(|segment| segment.size.get())
                .sum(),
            pages: pages.ok_or_else(|| Failure::failed("no segment was planned"))?,
            rounds: self.rounds,
            cores: machine.cores.count,
            mooncake_python: self.mooncake_python,
        };
        let bar = bar(self.rounds);
        let resident = || limits::usage(&root).resident_bytes;
        let answer = measure(
            &question,
            || plan().map_err(|f| f.to_string()),
            resident,
            |round| {
                bar.set_position(round as u64);
            },
        );
        bar.finish_and_clear();
        print(&answer.map_err(Failure::failed)?, self.output)
    }
}

fn bar(rounds: NonZeroUsize) -> ProgressBar {
    if io::stderr().is_terminal() {
        ProgressBar::new(rounds.get() as u64 + 1)
    } else {
        ProgressBar::hidden()
    }
}

fn print(answer: &Answer, output: Output) -> Result<(), Failure> {
    match output {
        Output::Table => print!("{}", answer.table()),
        Output::Json => println!(
            "{}",
            serde_json::to_string(answer).map_err(Failure::failed)?
        ),
    }
    println!("{}", answer.last_line());
    Ok(())
}

//! `siding bench`.

mod mount;
mod registration;

use std::io::{self, IsTerminal};

use clap::{Args, Subcommand};
use indicatif::ProgressBar;

use crate::environment::Environment;
use crate::failure::Failure;

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
many times faster), register_share (registering in the whole of ours).

  siding bench mount --size 4Gi --page 2Mi --reserve --mooncake-python PATH-TO-PYTHON")]
    Mount(mount::MountBenchArgs),
    /// Several processes that register at once: which cap is best, and what the planner's costs
    #[command(after_help = "\
Each rank is a process with buffers of its own; all are let go at once, and the slowest counts. The
last line has planner_vs_best (the best cap's seconds over the planner's: 1 is the best), spread
(worst over best) and whether the sweep shows contention: larger caps at least 1.3 times slower, and
by more than one cap's own rounds differ.

  siding bench registration --ranks 4
  siding bench registration --ranks 2 --buffers FILE    (a line each: SIZE [COUNT], e.g. 391M 48)")]
    Registration(registration::RegistrationBenchArgs),
    #[command(hide = true)]
    Rank,
}

impl BenchArgs {
    pub(super) fn run(self, environment: &Environment) -> Result<(), Failure> {
        match self.command {
            BenchCommand::Mount(args) => args.run(environment),
            BenchCommand::Registration(args) => args.run(environment),
            BenchCommand::Rank => registration::rank(),
        }
    }
}

/// A bar of so many steps, at a terminal.
fn bar(steps: usize) -> ProgressBar {
    if io::stderr().is_terminal() {
        ProgressBar::new(steps as u64)
    } else {
        ProgressBar::hidden()
    }
}

//! The command line.

pub mod bench;
pub mod config;
pub mod mount;
mod numbers;
pub mod plan;
mod prepare;
pub mod run;
pub mod simulate;
pub mod topology;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::LogFormat;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::logging;

/// Mounts, touches and registers KV-cache segments, and tells what each second went to.
#[derive(Debug, Parser)]
#[command(name = "siding", version, about, long_about = LONG, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const LONG: &str = "\
Mounts memory segments on the largest pages that the machine can give, touches every page in
parallel, registers them (really pinned), and tells what each second went to.

  siding mount --segment kv=2Gi             mount, measure, undo
  siding mount --segment kv=2Gi --reserve   on huge pages reserved for it (root)
  siding run --config siding.yaml           the sidecar: segments that outlive the process";

const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 something failed while it was done; 2 the input is wrong; 3 the machine
lacks something (the message names the command or field that mends it); 130 interrupted.
In each case nothing is left behind: no page reserved, no file but those of complete segments of
`siding run`, no pin.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount segments, measure, print a table and undo it all (or stay, with --serve)
    Mount(mount::MountArgs),
    /// Run the sidecar from a configuration file
    Run(run::RunArgs),
    /// Check a configuration file, or print the schema
    Config(config::ConfigArgs),
    /// Print what this node has: cores, NUMA nodes, huge pages, GPUs, NICs and how near they are
    Topology(topology::TopologyArgs),
    /// Plan a node: the cap, the NICs and the cores of each rank, and what fits into its NICs
    Plan(plan::PlanArgs),
    /// Model registration on a node: show the model against what was measured, and the best cap
    Simulate(simulate::SimulateArgs),
    /// Measure this machine against its peers
    Bench(bench::BenchArgs),
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For machines.
    Json,
}

/// How commands that are not configured by a file log.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Log lines as JSON or text; auto is JSON in a pod
    #[arg(long, value_name = "auto|json|text", default_value = "auto")]
    log_format: LogFormat,
    /// Which log lines: error, warn, info, debug, trace, or directives such as siding=debug
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: String,
}

impl LogArgs {
    fn start(&self, environment: &Environment) -> Result<(), Failure> {
        logging::start(self.log_format, &self.log_level, environment.in_pod).map_err(Failure::input)
    }
}

impl Cli {
    /// Does what the command line says.
    ///
    /// # Errors
    /// [`Failure`], with what to say and the exit code.
    pub fn run(self) -> Result<(), Failure> {
        let environment = Environment::read();
        match self.command {
            Command::Mount(args) => args.run(&environment),
            Command::Run(args) => args.run(&environment),
            Command::Config(args) => args.run(),
            Command::Topology(args) => args.run(),
            Command::Plan(args) => args.run(),
            Command::Simulate(args) => args.run(),
            Command::Bench(args) => args.run(&environment),
        }
    }
}

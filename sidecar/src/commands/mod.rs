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

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

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
    /// The command line; where it is wrong, that is said and the process ends.
    #[must_use]
    pub fn read() -> Self {
        let matches = with_negative_numbers(Self::command()).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

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

/// A negative number is the value of the option before it, which then says what it takes.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| match arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
        .mut_subcommands(with_negative_numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command lines of all options that take a value, with this one, and the option's name.
    fn with_value(
        command: &clap::Command,
        path: &[String],
        value: &str,
    ) -> Vec<(Vec<String>, String)> {
        let valued = command
            .get_arguments()
            .filter(|arg| arg.get_action().takes_values());
        let mut all: Vec<_> = valued
            .filter_map(|arg| arg.get_long())
            .map(|name| {
                let option = [format!("--{name}"), value.to_owned()];
                ([path, &option].concat(), format!("--{name}"))
            })
            .collect();
        for inner in command.get_subcommands() {
            let path = [path, &[inner.get_name().to_owned()]].concat();
            all.extend(with_value(inner, &path, value));
        }
        all
    }

    /// What the command line says of it; nothing where it takes it.
    fn said(line: &[String]) -> String {
        let refused = with_negative_numbers(Cli::command()).try_get_matches_from(line);
        refused
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn a_negative_number_is_its_options_own() {
        let mut command = with_negative_numbers(Cli::command());
        command.build();
        let lines = with_value(&command, &["siding".to_owned()], "-1");
        assert!(lines.len() > 40, "{}", lines.len());
        for (line, option) in lines {
            let said = said(&line);
            assert!(!said.contains("unexpected argument"), "{line:?}: {said}");
            let is_refused = said.contains("invalid value");
            assert!(!is_refused || said.contains(&option), "{line:?}: {said}");
        }
        for (line, option) in with_value(&command, &["siding".to_owned()], "-1Gi") {
            if ["--segment", "--size", "--page"].contains(&option.as_str()) {
                let said = said(&line);
                assert!(!said.contains("unexpected argument"), "{line:?}: {said}");
            }
        }
    }
}

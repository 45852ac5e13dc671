//! The command `siding`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use siding::commands::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("siding: {failure}");
            failure.exit_code()
        }
    }
}

//! Siding's node agent.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use siding_agent::agent;
use siding_agent::environment::Environment;
use siding_agent::logging;
use siding_agent::options::Options;

fn main() -> ExitCode {
    let options = Options::parse();
    logging::start(options.log_format, options.log_level);
    match agent::run(&options, &Environment::read()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

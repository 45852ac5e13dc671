//! The command `siding`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use rustix::process::{Resource, getrlimit, setrlimit};
use siding::commands::Cli;
use siding::output::complain;
use siding::signals::survive_file_size_limit;

fn main() -> ExitCode {
    allow_all_files();
    survive_file_size_limit();
    match Cli::read().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            failure.exit_code()
        }
    }
}

/// Each registered region holds a file descriptor: the soft limit is raised to the hard one.
fn allow_all_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it may not be raised, a registration that needs more says so.
    let _ = setrlimit(Resource::Nofile, limit);
}

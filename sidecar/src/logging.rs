//! Logs on standard error: JSON in a pod, human at a terminal.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging. Later calls in the same process change nothing.
///
/// # Errors
/// What is wrong with the level, in the user's words.
pub fn start(format: LogFormat, level: &str, in_pod: bool) -> Result<(), String> {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        format!("logging.level: {level:?}: {error}; use error, warn, info, debug, trace or siding=debug,warn")
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    let json = match format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => in_pod,
    };
    let started = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            .try_init()
    };
    drop(started);
    Ok(())
}

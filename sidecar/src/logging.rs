//! Logs on standard error: JSON in a pod, human at a terminal.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// What `logging.level` means. A word that is no level is refused: the filter itself would take it
/// for the name of a module, and log nothing.
///
/// # Errors
/// What is wrong with it, in the user's words.
pub fn check(level: &str) -> Result<EnvFilter, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let refused = |why: &str| {
        format!(
            "logging.level: {level:?}: {why}; use error, warn, info, debug, trace, off, or directives \
             such as siding=debug,warn"
        )
    };
    for directive in level.split(',') {
        let word = directive.rsplit('=').next().unwrap_or_default().trim();
        if !LEVELS.contains(&word.to_ascii_lowercase().as_str()) {
            return Err(refused(&format!("{word:?} is no level")));
        }
    }
    EnvFilter::try_new(level).map_err(|error| refused(&error.to_string()))
}

/// Starts logging. Later calls in the same process change nothing.
///
/// # Errors
/// What is wrong with the level, in the user's words.
pub fn start(format: LogFormat, level: &str, in_pod: bool) -> Result<(), String> {
    let filter = check(level)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // Where nobody takes the logs, work goes on.
        .log_internal_errors(false);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_directives() {
        for level in [
            "info",
            "WARN",
            "off",
            "siding=debug,warn",
            "siding::mount=trace",
        ] {
            assert!(check(level).is_ok(), "{level}");
        }
        for level in [
            "loud",
            "warning",
            "",
            "9",
            "garbage=",
            "siding=loud",
            "siding",
            "info,",
        ] {
            let error = check(level).unwrap_err();
            assert!(
                error.starts_with("logging.level: ") && error.contains("use error, warn"),
                "{error}"
            );
        }
    }
}

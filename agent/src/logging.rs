//! Logs on standard error: human at a terminal, JSON elsewhere.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text at a terminal, JSON elsewhere.
    Auto,
    /// A JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Which log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// What failed.
    Error,
    /// And what is odd.
    Warn,
    /// And what was done.
    Info,
    /// And what was looked at.
    Debug,
}

/// Starts logging. Later calls in the same process change nothing.
pub fn start(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let at_terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::default().add_directive(level.into()))
        .with_writer(io::stderr)
        .log_internal_errors(false);
    let json = match format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !at_terminal,
    };
    let started = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.with_ansi(at_terminal).with_target(false).try_init()
    };
    drop(started);
}

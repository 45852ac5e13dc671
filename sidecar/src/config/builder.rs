//! The configuration from code.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::problem::ConfigError;
use super::validate::validate;
use super::{Backend, Cap, Config, LogFormat, OnFailure, Order, Segment, TouchThreads};

/// Builds a [`Config`]; what is not set is the default.
#[derive(Debug, Clone, Default)]
pub struct ConfigBuilder {
    config: Config,
}

impl Config {
    /// A builder with every default.
    #[must_use]
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder::default()
    }
}

impl ConfigBuilder {
    /// Adds a segment.
    #[must_use]
    pub fn segment(mut self, segment: Segment) -> Self {
        self.config.segments.push(segment);
        self
    }

    /// Adds segments.
    #[must_use]
    pub fn segments(mut self, segments: impl IntoIterator<Item = Segment>) -> Self {
        self.config.segments.extend(segments);
        self
    }

    /// `storage.directory`, an absolute path.
    #[must_use]
    pub fn storage_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.config.storage.directory = directory.into();
        self
    }

    /// `registration.backend`.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.config.registration.backend = backend;
        self
    }

    /// `registration.cap`.
    #[must_use]
    pub fn cap(mut self, cap: Cap) -> Self {
        self.config.registration.cap = cap;
        self
    }

    /// `registration.order`.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.config.registration.order = order;
        self
    }

    /// `registration.touchThreads`.
    #[must_use]
    pub fn touch_threads(mut self, threads: TouchThreads) -> Self {
        self.config.registration.touch_threads = threads;
        self
    }

    /// `listen.http`.
    #[must_use]
    pub fn http(mut self, address: SocketAddr) -> Self {
        self.config.listen.http = address;
        self
    }

    /// `onFailure`.
    #[must_use]
    pub fn on_failure(mut self, does: OnFailure) -> Self {
        self.config.on_failure = does;
        self
    }

    /// `shutdown.graceSeconds`, from 1 to 3600.
    #[must_use]
    pub fn grace_seconds(mut self, seconds: u32) -> Self {
        self.config.shutdown.grace_seconds = seconds;
        self
    }

    /// `logging.format`.
    #[must_use]
    pub fn log_format(mut self, format: LogFormat) -> Self {
        self.config.logging.format = format;
        self
    }

    /// `logging.level`.
    #[must_use]
    pub fn log_level(mut self, level: impl Into<String>) -> Self {
        self.config.logging.level = level.into();
        self
    }

    /// Checks and returns the configuration.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with all problems, as for a file.
    pub fn build(self) -> Result<Config, ConfigError> {
        match validate(&self.config) {
            Ok(()) => Ok(self.config),
            Err(problems) => Err(ConfigError::invalid(problems)),
        }
    }
}

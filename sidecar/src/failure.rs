//! How a command fails: what is said, and the exit code that means it.

use std::fmt;
use std::process::ExitCode;

use siding_crds::reasons::Reason;

use crate::mount::choose::Lack;

/// What went wrong, by what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Something failed while it was done: exit code 1.
    Failed,
    /// The input is wrong; nothing was done: exit code 2 (as for a wrong command line).
    Input,
    /// The machine lacks something; nothing was done: exit code 3.
    Lacking,
    /// Interrupted before it was done; what was done is undone: exit code 130.
    Interrupted,
}

/// A command's failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its kind.
    pub kind: Kind,
    /// Why, one word, as conditions and metric labels have it.
    pub reason: Reason,
    /// What is said, a line for each problem.
    pub message: String,
}

impl Failure {
    /// Something failed while it was done.
    #[must_use]
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(Kind::Failed, Reason::Other, message)
    }

    /// The input is wrong.
    #[must_use]
    pub fn input(message: impl fmt::Display) -> Self {
        Self::new(Kind::Input, Reason::InvalidConfiguration, message)
    }

    /// The machine lacks something.
    #[must_use]
    pub fn lacking(message: impl fmt::Display) -> Self {
        Self::new(Kind::Lacking, Reason::Other, message)
    }

    /// It was interrupted.
    #[must_use]
    pub fn interrupted(message: impl fmt::Display) -> Self {
        Self::new(Kind::Interrupted, Reason::Other, message)
    }

    /// The same, for this reason.
    #[must_use]
    pub fn because(mut self, reason: Reason) -> Self {
        self.reason = reason;
        self
    }

    fn new(kind: Kind, reason: Reason, message: impl fmt::Display) -> Self {
        Self {
            kind,
            reason,
            message: message.to_string(),
        }
    }

    /// The process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.kind {
            Kind::Failed => 1,
            Kind::Input => 2,
            Kind::Lacking => 3,
            Kind::Interrupted => 130,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Lack> for Failure {
    fn from(lack: Lack) -> Self {
        let reason = lack.reason;
        Self::lacking(lack).because(reason)
    }
}

//! What is wrong with a configuration, in the user's words.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use siding_crds::{QuantityError, quoted};

/// Why a single value is refused, whatever the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {remedy}")]
pub struct Refusal {
    /// The value.
    pub value: String,
    /// What is wrong, naming the value.
    pub what: String,
    /// What would work.
    pub remedy: String,
}

impl Refusal {
    pub(super) fn new(value: &str, what: String, remedy: impl Into<String>) -> Self {
        Self {
            value: value.to_owned(),
            what,
            remedy: remedy.into(),
        }
    }

    pub(super) fn at(self, field: impl Into<String>) -> Problem {
        Problem {
            field: field.into(),
            line: None,
            value: Some(self.value),
            what: self.what,
            remedy: self.remedy,
        }
    }
}

impl From<QuantityError> for Refusal {
    fn from(error: QuantityError) -> Self {
        Self::new(error.value(), error.what(), error.remedy())
    }
}

/// One thing that is wrong. Prints as `field: what; remedy`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// The field's path, e.g. `segments[kv].size` (by index where the name is no help); empty where
    /// the text as a whole is wrong.
    pub field: String,
    /// Its line in the text, from 1, where there is a text.
    pub line: Option<usize>,
    /// The value, where there is one.
    pub value: Option<String>,
    /// What is wrong, naming the value.
    pub what: String,
    /// What would work.
    pub remedy: String,
}

impl Problem {
    /// Names the value as its author wrote it, e.g. `100G` for `97656250Ki`.
    pub(super) fn as_written(&mut self, text: &str) {
        if let Some(value) = self.value.replace(text.to_owned()) {
            self.what = self.what.replacen(&quoted(&value), &quoted(text), 1);
        }
    }

    /// A problem without a value.
    pub(super) fn new(
        field: impl Into<String>,
        line: Option<usize>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            field: field.into(),
            line,
            value: None,
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// Problems that a message lists; the rest are counted.
const LISTED: usize = 20;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read ({source}); {}", path.display(), read_remedy(source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is a directory.
    #[error("{}: is a directory; name the file, e.g. {}", path.display(), path.join("siding.yaml").display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// It is too large to be a configuration; nothing of it was used.
    #[error(
        "{}: is larger than {} bytes; a configuration has a few thousand: is it the right file?",
        path.display(),
        super::MAX_FILE_BYTES
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is not UTF-8.
    #[error("{}: byte {offset} ({byte:#04x}) is not UTF-8; save the file as UTF-8 text", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that does not fit, from 0.
        offset: usize,
        /// That byte.
        byte: u8,
    },
    /// It says what cannot work. Prints a line for each problem.
    #[error("{}", listed(file.as_deref(), problems))]
    Invalid {
        /// The file, where it comes from one.
        file: Option<PathBuf>,
        /// All problems, in the order of their lines; at least one.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// The problems, where the file could be read.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Invalid { problems, .. } => problems,
            _ => &[],
        }
    }

    pub(super) fn invalid(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        Self::Invalid {
            file: None,
            problems,
        }
    }

    pub(super) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Invalid { problems, .. } => Self::Invalid {
                file: Some(path.to_owned()),
                problems,
            },
            other => other,
        }
    }
}

fn read_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "check the path",
        io::ErrorKind::PermissionDenied => "let this user read it, e.g. chmod a+r",
        _ => "name a readable file",
    }
}

fn listed(file: Option<&Path>, problems: &[Problem]) -> String {
    let line = |problem: &Problem| match (file, problem.line) {
        (Some(file), Some(line)) => format!("{}:{line}: {problem}", file.display()),
        (Some(file), None) => format!("{}: {problem}", file.display()),
        (None, Some(line)) => format!("line {line}: {problem}"),
        (None, None) => problem.to_string(),
    };
    let mut lines: Vec<String> = problems.iter().take(LISTED).map(line).collect();
    if problems.len() > LISTED {
        lines.push(format!("and {} more problems", problems.len() - LISTED));
    }
    lines.join("\n")
}

//! From a file or a text to a configuration.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::problem::ConfigError;
use super::{Config, read, validate};

/// The largest file that is read, bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// All that is wrong with it.
    pub error: ConfigError,
    /// The fields that can be read, defaults in place of the others: enough to tell what is wrong
    /// where people look.
    pub rest: Option<Box<Config>>,
}

/// Reads the configuration in a file.
///
/// # Errors
/// [`Refused`]: the file is unreadable, a directory, larger than [`MAX_FILE_BYTES`] or not UTF-8,
/// or what it says cannot work; then with all problems.
pub fn load(path: &Path) -> Result<Config, Refused> {
    let text = text(path).map_err(|error| Refused { error, rest: None })?;
    read_all(&text).map_err(|refused| Refused {
        error: refused.error.in_file(path),
        ..refused
    })
}

fn text(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(ConfigError::Directory {
            path: path.to_owned(),
        });
    }
    let too_large = || ConfigError::TooLarge {
        path: path.to_owned(),
    };
    if metadata.len() > MAX_FILE_BYTES {
        return Err(too_large());
    }
    // A pipe has no length.
    let bytes = read_at_most(file, MAX_FILE_BYTES + 1).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(too_large());
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let byte = error.as_bytes().get(offset).copied().unwrap_or_default();
        ConfigError::NotUtf8 {
            path: path.to_owned(),
            offset,
            byte,
        }
    })
}

fn read_at_most(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the configuration in a text.
///
/// # Errors
/// [`ConfigError::Invalid`] with all problems; for a text that is not YAML with the first.
pub fn parse(text: &str) -> Result<Config, ConfigError> {
    read_all(text).map_err(|refused| refused.error)
}

fn read_all(text: &str) -> Result<Config, Refused> {
    let read = read::read(text).map_err(|problem| Refused {
        error: ConfigError::invalid(vec![problem]),
        rest: None,
    })?;
    let mut problems = read.problems;
    if let Err(mut more) = validate::validate(&read.config) {
        for problem in &mut more {
            problem.line = read.lines.of(&problem.field);
            if let Some(text) = read.texts.get(&problem.field) {
                problem.as_written(text);
            }
        }
        more.retain(|problem| !read.meant.contains(&problem.field));
        validate::add(&mut problems, more);
    }
    if problems.is_empty() {
        Ok(read.config)
    } else {
        Err(Refused {
            error: ConfigError::invalid(problems),
            rest: Some(Box::new(read.config)),
        })
    }
}

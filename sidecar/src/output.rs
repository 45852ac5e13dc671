//! Standard output and standard error, which may be full, closed or gone.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;

/// Prints to standard output. A reader that went away wanted no more: that is no failure.
///
/// # Errors
/// [`Failure`] where it can't be written.
pub fn print(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error, as far as anybody is there.
pub fn complain(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "siding: {text}");
}

/// Prints a line to standard error as it is, for what accompanies a document on standard output.
pub fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

//! Standard output and standard error, which may be full, closed or gone; and files that users name.

mod file;

use std::fmt;
use std::io::{self, ErrorKind, Write};

pub use self::file::write_file;
use crate::failure::Failure;

/// Lines of a message on standard error, at most.
const MOST_LINES: usize = 100;
/// Letters of one of its lines, at most.
const MOST_LETTERS: usize = 1000;

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

/// A text as one line, with what would steer a terminal, turn letters round, or end a line, written
/// out.
#[must_use]
pub fn plain(text: &str) -> String {
    let shown = |letter: char| match is_unseen(letter) {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Control characters, and those that end a line, set its direction, or are not seen.
fn is_unseen(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(letter, '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Prints a message to standard error, as far as anybody is there. It may quote what others wrote.
pub fn complain(text: impl fmt::Display) {
    let _ = writeln!(
        io::stderr().lock(),
        "siding: {}",
        message(&text.to_string())
    );
}

/// A message's lines, each plain, and cut where they are many or long: what is told last, what
/// would work, stays.
fn message(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut shown: Vec<String> = lines
        .iter()
        .take(MOST_LINES)
        .map(|line| cut(&plain(line)))
        .collect();
    if lines.len() > MOST_LINES {
        shown.push(format!("… and {} lines more", lines.len() - MOST_LINES));
    }
    shown.join("\n")
}

fn cut(line: &str) -> String {
    let letters: Vec<char> = line.chars().collect();
    if letters.len() <= MOST_LETTERS {
        return line.to_owned();
    }
    let (begin, end) = (MOST_LETTERS / 2, letters.len() - MOST_LETTERS / 2);
    let (head, tail) = (&letters[..begin], &letters[end..]);
    head.iter().chain(&['…']).chain(tail).collect()
}

/// Prints a line to standard error as it is, for what accompanies a document on standard output.
pub fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_steers_no_terminal() {
        assert_eq!(plain("ä\u{1b}[31m\ta\nb"), "ä\\u{1b}[31m\\ta\\nb");
        for letter in "\u{7}\u{9b}\u{202e}\u{2028}\u{2029}\u{2066}\u{200b}\u{feff}".chars() {
            let shown = plain(&letter.to_string());
            assert_eq!(shown, letter.escape_default().to_string());
        }
        assert_eq!(message("a\u{1b}]0;b\u{7}\nc"), "a\\u{1b}]0;b\\u{7}\nc");
    }

    #[test]
    fn a_message_is_bounded_and_its_end_is_kept() {
        let line = format!("--x: '{}' is none; write y", "9".repeat(1 << 20));
        let shown = message(&line);
        assert_eq!(shown.chars().count(), MOST_LETTERS + 1);
        assert!(shown.starts_with("--x: '999") && shown.ends_with("9' is none; write y"));
        let shown = message(&"x\n".repeat(1 << 20));
        assert!(shown.ends_with("\nx\n… and 1048476 lines more"), "{shown}");
        assert_eq!(shown.lines().count(), MOST_LINES + 1);
        assert_eq!(message(&"ä".repeat(MOST_LETTERS)), "ä".repeat(MOST_LETTERS));
    }
}

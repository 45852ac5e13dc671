//! The buffers of a rank, as a file tells them.

use siding_crds::{parse_bytes, quoted};

/// Most buffers of one rank: unbounded, each has a thread.
pub const MOST_BUFFERS: usize = 16_384;
/// What the kernel pins as one buffer, bytes.
pub const MOST_BUFFER_BYTES: u64 = 1 << 30;
/// The longest file of buffers, bytes.
pub const MOST_FILE_BYTES: u64 = 1 << 20;

/// A file of buffers: a size and, where there are several, a count a line; `#` begins a comment.
///
/// # Errors
/// The line, what is wrong with it and what would work.
pub fn parse_buffers(bytes: &[u8]) -> Result<Vec<u64>, String> {
    let text = text(bytes)?;
    let mut buffers = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let (size, count) = match words[..] {
            [] => continue,
            [size] => (size, "1"),
            [size, count] => (size, count),
            _ => {
                return Err(format!(
                    "line {number}: write SIZE or SIZE COUNT, e.g. '391M 48'"
                ));
            }
        };
        let bytes = parse_bytes(size).map_err(|error| format!("line {number}: {error}"))?;
        let count: usize = count
            .parse()
            .ok()
            .filter(|count| (1..=MOST_BUFFERS).contains(count))
            .ok_or_else(|| {
                format!(
                    "line {number}: {} is no count; write a whole number from 1 to {MOST_BUFFERS}",
                    quoted(count)
                )
            })?;
        if !(1..=MOST_BUFFER_BYTES).contains(&bytes) {
            return Err(format!(
                "line {number}: a buffer of {bytes} bytes; write 1 to {MOST_BUFFER_BYTES} (1Gi), which is \
                 what the kernel pins at once"
            ));
        }
        if buffers.len() + count > MOST_BUFFERS {
            return Err(format!(
                "line {number}: more than {MOST_BUFFERS} buffers; write fewer or larger ones"
            ));
        }
        buffers.extend(std::iter::repeat_n(bytes, count));
    }
    if buffers.is_empty() {
        return Err("no buffer: write a size a line, e.g. '64Mi 16'".to_owned());
    }
    Ok(buffers)
}

/// The file as text. A byte order mark, which some editors begin a file with, says nothing.
fn text(bytes: &[u8]) -> Result<&str, String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    str::from_utf8(bytes).map_err(|error| {
        let (right, wrong) = bytes.split_at(error.valid_up_to());
        let line = 1 + right.iter().filter(|byte| **byte == b'\n').count();
        format!(
            "line {line}: the byte {:#04x} is no UTF-8; write plain text: a size a line, e.g. '64Mi 16'",
            wrong.first().copied().unwrap_or_default()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_be_no_text() {
        assert_eq!(
            parse_buffers(b"\xef\xbb\xbf4Ki\r\n8Ki 1"),
            Ok(vec![4096, 8192])
        );
        assert_eq!(
            parse_buffers(b"4Ki\n8Ki \xff\n").unwrap_err(),
            "line 2: the byte 0xff is no UTF-8; write plain text: a size a line, e.g. '64Mi 16'"
        );
        let utf16 = parse_buffers(b"\xff\xfe4\0K\0").unwrap_err();
        assert!(
            utf16.starts_with("line 1: the byte 0xff is no UTF-8"),
            "{utf16}"
        );
    }

    #[test]
    fn what_a_message_quotes_is_short_and_steers_nothing() {
        for text in [
            "1 \u{1b}[31m".to_owned(),
            format!("1 {}", "9".repeat(1_000_000)),
            format!("1{}", "9".repeat(1_000_000)),
            "\u{1b}[31m".to_owned(),
        ] {
            let error = parse_buffers(text.as_bytes()).unwrap_err();
            assert!(error.len() < 200 && !error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn buffers_are_sizes_with_counts() {
        let parse_buffers = |text: &str| parse_buffers(text.as_bytes());
        assert_eq!(
            parse_buffers("4Ki 2 # small\n\n1Mi\n"),
            Ok(vec![4096, 4096, 1 << 20])
        );
        assert_eq!(parse_buffers("1Gi 16384").map(|all| all.len()), Ok(16_384));
        for (text, says) in [
            ("", "no buffer"),
            ("# x\n", "no buffer"),
            ("4Ki\nx\n", "line 2"),
            ("0", "a buffer of 0 bytes; write 1 to 1073741824"),
            ("1073741825", "line 1: a buffer of 1073741825 bytes"),
            ("4Ki 0", "'0' is no count"),
            (
                "4Ki 16385",
                "'16385' is no count; write a whole number from 1 to 16384",
            ),
            ("4Ki 16384\n1", "line 2: more than 16384 buffers"),
            ("4Ki 1 1", "SIZE COUNT"),
            ("1.5", "line 1"),
        ] {
            let error = parse_buffers(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}

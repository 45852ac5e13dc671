//! The small grammar that `/proc` and `/sys` share: whole numbers and `Key:   12 kB` lines.

use std::fmt;

/// A decimal number and nothing else: no sign, no blanks, no overflow.
pub(crate) fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// The text after `key:` in the first line that starts with it, trimmed.
pub(crate) fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix(key)?;
        rest.strip_prefix(':').map(str::trim)
    })
}

/// The bytes of a `key:  12 kB` line.
pub(crate) fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let count = value(text, key)?.strip_suffix("kB")?.trim_end();
    number(count)?.checked_mul(1024)
}

/// One name in a path, as a file tells it: nothing that leads elsewhere, and nothing of which a part
/// was replaced as it is not UTF-8.
pub(crate) fn name(text: &str) -> Option<&str> {
    const MOST_BYTES: usize = 255;
    let text = text.trim();
    let is_name = (1..=MOST_BYTES).contains(&text.len())
        && !matches!(text, "." | "..")
        && !text.contains(['/', char::REPLACEMENT_CHARACTER]);
    is_name.then_some(text)
}

/// "expected X, found Y", with no more of Y than a line can hold.
pub(crate) fn unexpected(wanted: &str, found: &str) -> String {
    format!("expected {wanted}, found {}", cut(found))
}

/// As many letters of a text that was read as a line can hold.
const SHOWN: usize = 60;

/// A text that was read as a message quotes it, with no more of it than a line can hold.
pub(crate) fn cut(text: &str) -> String {
    let text = text.trim();
    let shown: String = text.chars().take(SHOWN).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{shown:?}{more}")
}

/// The same without quotes, for what is no junk: a list of CPUs, a path.
pub(crate) fn short(what: impl fmt::Display) -> String {
    at_most(SHOWN, &what.to_string())
}

/// The first letters of a text, and that there were more.
pub(crate) fn at_most(letters: usize, text: &str) -> String {
    match text.char_indices().nth(letters) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// One word of printable ASCII that is no longer than any that is meant.
pub(crate) fn word(text: &str) -> Option<&str> {
    let text = text.trim();
    let is_word =
        (1..=SHOWN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_word.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_digits_only() {
        for (text, want) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("+1", None),
            ("-1", None),
            (" 1", None),
            ("1k", None),
            ("٣", None),
        ] {
            assert_eq!(number(text), want, "{text:?}");
        }
    }

    #[test]
    fn kilobytes_of_a_line() {
        let text = "MemTotal:   100 kB\nMemFree: 7 kB\nHugePages_Total:  3\n\
                    Big: 18446744073709551615 kB\n";
        assert_eq!(kilobytes(text, "MemTotal"), Some(102_400));
        assert_eq!(kilobytes(text, "MemFree"), Some(7168));
        assert_eq!(kilobytes(text, "Mem"), None, "a prefix of a key is no key");
        assert_eq!(kilobytes(text, "HugePages_Total"), None, "no unit");
        assert_eq!(kilobytes(text, "Big"), None, "overflow");
        assert_eq!(value(text, "HugePages_Total"), Some("3"));
    }

    #[test]
    fn names_lead_nowhere_else() {
        assert_eq!(name(" ens5\n"), Some("ens5"));
        assert_eq!(name(&"x".repeat(255)).map(str::len), Some(255));
        let long = "x".repeat(256);
        for text in ["", "\n", ".", "..", "a/b", "/", "a\u{fffd}", &long] {
            assert_eq!(name(text), None, "{text:?}");
        }
    }

    #[test]
    fn long_junk_is_cut() {
        assert_eq!(unexpected("a", " b\n"), "expected a, found \"b\"");
        assert!(unexpected("a", &"é".repeat(1000)).chars().count() < 100);
        assert_eq!(short("é".repeat(60)), "é".repeat(60));
        assert_eq!(short("é".repeat(61)), "é".repeat(60) + "…");
    }

    #[test]
    fn words_are_printable_and_short() {
        assert_eq!(word(" InfiniBand\n"), Some("InfiniBand"));
        let long = "x".repeat(61);
        for text in ["", " ", "a b", "a\u{1b}", "é", &long] {
            assert_eq!(word(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "(?s).{0,80}", key in ".{0,4}") {
            number(&text);
            kilobytes(&text, &key);
            unexpected(&key, &text);
        }
    }
}

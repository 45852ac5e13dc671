//! Text of others, made fit to be published.

/// At most so many characters of it, on one line.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut kept: String = text.chars().take(most).map(clean).collect();
    if text.chars().nth(most).is_some() {
        kept.pop();
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_cleaned() {
        assert_eq!(cut("a\nb\u{1b}[31m", 20), "a b [31m");
        assert_eq!(cut("äöüß", 4), "äöüß");
        assert_eq!(cut("äöüßx", 4), "äöü…");
    }
}

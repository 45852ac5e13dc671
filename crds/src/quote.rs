//! Values of users in messages.

/// Characters of a value that a message shows at most.
const SHOWN: usize = 48;

/// A user's value as a message shows it: in single quotes, control characters escaped, cut where it
/// is long.
#[must_use]
pub fn quoted(value: &str) -> String {
    let mut shown = String::from("'");
    for (index, c) in value.chars().enumerate() {
        if index == SHOWN {
            shown.push('…');
            break;
        }
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown.push('\'');
    shown
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn short_escaped_and_long() {
        assert_eq!(quoted("1Gi"), "'1Gi'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a\n\u{1b}[1mü"), "'a\\n\\u{1b}[1mü'");
        assert_eq!(quoted(&"9".repeat(48)), format!("'{}'", "9".repeat(48)));
        assert_eq!(
            quoted(&"9".repeat(1 << 20)),
            format!("'{}…'", "9".repeat(48))
        );
    }
}

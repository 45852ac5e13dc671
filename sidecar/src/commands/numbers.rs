//! Numbers on the command line, refused in plain words.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// Parses a whole number within bounds.
pub(super) fn whole<T: FromStr>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text: &str| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let of_its_type = number.and_then(|_: u64| text.parse().ok());
        of_its_type.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            format!("write a whole number from {least} to {most}")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    #[test]
    fn only_whole_numbers_within_bounds() {
        let parse = whole::<NonZeroU16>(1..=4096);
        assert_eq!(parse("1"), Ok(NonZeroU16::MIN));
        assert_eq!(parse("4096").map(NonZeroU16::get), Ok(4096));
        for text in [
            "",
            "x",
            "0",
            "-1",
            "1.5",
            "4097",
            "99999999999999999999",
            " 1",
        ] {
            let refused = Err("write a whole number from 1 to 4096".to_owned());
            assert_eq!(parse(text), refused, "{text:?}");
        }
    }
}

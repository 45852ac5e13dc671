use proptest::prelude::*;

use super::*;

#[test]
fn exact() {
    for (text, bytes) in [
        ("0", 0),
        ("-0", 0),
        ("+0.000Ei", 0),
        ("0e999999999999999999999", 0),
        ("1", 1),
        ("+1", 1),
        ("1.", 1),
        (".5Ki", 512),
        ("007", 7),
        ("1.5Gi", 1_610_612_736),
        ("0.5Gi", 536_870_912),
        ("100G", 100_000_000_000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("1E", 1_000_000_000_000_000_000),
        ("9E", 9_000_000_000_000_000_000),
        ("129e6", 129_000_000),
        ("1.5e1", 15),
        ("1500e-2", 15),
        ("1k", 1000),
        ("1M", 1_000_000),
        ("1T", 1_000_000_000_000),
        ("1P", 1_000_000_000_000_000),
        ("1Ki", 1 << 10),
        ("1Mi", 1 << 20),
        ("1Ti", 1 << 40),
        ("1Pi", 1 << 50),
        ("7Ei", 7 << 60),
        ("128974848000m", 128_974_848),
        ("5000000u", 5),
        ("7000000000n", 7),
        ("9223372036854775807", MAX_BYTES),
        ("9223372036854775.807k", MAX_BYTES),
        (
            "0.000000000000000000867361737988403547205962240695953369140625Ei",
            1,
        ),
    ] {
        let whole = if text == "1500e-3" {
            Err(())
        } else {
            Ok(bytes)
        };
        assert_eq!(parse_bytes(text).map_err(drop), whole, "{text}");
    }
    let zeros = "0".repeat(100_000);
    assert_eq!(parse_bytes(&format!("{zeros}5.{zeros}Gi")), Ok(5 << 30));
    assert_eq!(parse_bytes(&format!("1{zeros}e-100000")), Ok(1));
    assert_eq!(parse_bytes(&format!("0.{zeros}1e100001")), Ok(1));
}

#[test]
fn refused_with_what_would_work() {
    let examples = "write digits and a unit, e.g. '1Gi', '512Mi' or '100Gi'";
    let not_a_number =
        |text: &str| format!("'{text}' is not a quantity: it must start with a digit; {examples}");
    let unit = |text: &str, unit: &str, works: &str| {
        format!("'{text}' is not a quantity: '{unit}' is not a unit; write {works}")
    };
    let too_large = |text: &str| {
        format!(
            "'{text}' is too large: the most is 9223372036854775807 bytes (2^63-1); write less, \
             e.g. '1Ti'"
        )
    };
    for (text, message) in [
        ("", format!("'' is not a quantity: it is empty; {examples}")),
        ("abc", not_a_number("abc")),
        ("-", not_a_number("-")),
        (".", not_a_number(".")),
        ("Gi", not_a_number("Gi")),
        ("--1", not_a_number("--1")),
        ("٣Gi", not_a_number("٣Gi")),
        (
            " 1Gi",
            "' 1Gi' is not a quantity: it must start with a digit; write '1Gi'".to_owned(),
        ),
        ("1Gi ", unit("1Gi ", "Gi ", "'1Gi'")),
        ("1 Gi", unit("1 Gi", " Gi", "'1Gi'")),
        ("1Gi+1", unit("1Gi+1", "Gi+1", "'1Gi'")),
        ("0x10", unit("0x10", "x10", "'16'")),
        ("1gi", unit("1gi", "gi", "'1Gi'")),
        ("1GB", unit("1GB", "GB", "'1Gi' or '1G'")),
        ("1GiB", unit("1GiB", "GiB", "'1Gi'")),
        ("1K", unit("1K", "K", "'1Ki' or '1k'")),
        ("64kb", unit("64kb", "kb", "'64Ki' or '64k'")),
        ("512b", unit("512b", "b", "'512'")),
        ("8x", unit("8x", "x", "'8Gi'")),
        ("1e", unit("1e", "e", "'1Ei' or '1E'")),
        ("9e", unit("9e", "e", "'9E'")),
        ("1e1.5", unit("1e1.5", "e1.5", "'1Gi'")),
        ("1e3Gi", unit("1e3Gi", "e3Gi", "'1Gi'")),
        (
            "1.2.3",
            format!("'1.2.3' is not a quantity: '.3' is not a unit; {examples}"),
        ),
        ("1ü", unit("1ü", "ü", "'1Gi'")),
        ("-1Gi", "'-1Gi' is negative; write '1Gi'".to_owned()),
        ("-1e999", "'-1e999' is negative; write '1Gi'".to_owned()),
        ("-0.5", "'-0.5' is negative; write '1Gi'".to_owned()),
        (
            "1.5",
            "'1.5' is not a whole number of bytes; the nearest are '1' and '2', or with a unit: \
             '1.5Gi'"
                .to_owned(),
        ),
        ("0.5k1", unit("0.5k1", "k1", "'0.5Gi'")),
        (
            "1m",
            "'1m' is not a whole number of bytes; the nearest is '1'".to_owned(),
        ),
        (
            "1.0001Ki",
            "'1.0001Ki' is not a whole number of bytes; the nearest are '1024' and '1025'"
                .to_owned(),
        ),
        (
            "1e-999999999",
            "'1e-999999999' is not a whole number of bytes; the nearest is '1'".to_owned(),
        ),
        (
            "9223372036854775807.5",
            "'9223372036854775807.5' is not a whole number of bytes; the nearest is \
             '9223372036854775807'"
                .to_owned(),
        ),
        ("9223372036854775808", too_large("9223372036854775808")),
        ("18446744073709551616", too_large("18446744073709551616")),
        ("8Ei", too_large("8Ei")),
        ("9999999999999999999Ei", too_large("9999999999999999999Ei")),
        ("1e999999999", too_large("1e999999999")),
        (
            "1e99999999999999999999",
            too_large("1e99999999999999999999"),
        ),
    ] {
        assert_eq!(
            parse_bytes(text).unwrap_err().to_string(),
            message,
            "{text}"
        );
    }
    let long = "9".repeat(1 << 20);
    assert_eq!(
        parse_bytes(&long).unwrap_err().to_string(),
        too_large(&format!("{}…", "9".repeat(48)))
    );
}

#[test]
fn shortest() {
    for (bytes, text) in [
        (0, "0"),
        (1, "1"),
        (1000, "1000"),
        (1024, "1Ki"),
        (1536, "1536"),
        (1536 << 20, "1536Mi"),
        (1 << 30, "1Gi"),
        (100_000_000_000, "97656250Ki"),
        (MAX_BYTES, "9223372036854775807"),
    ] {
        assert_eq!(format_bytes(bytes), text);
    }
    assert_eq!(format!("{:>6}", Bytes::new(1 << 30)), "   1Gi");
}

#[test]
fn json() {
    let read = |text: &str| serde_json::from_str::<Bytes>(text).map_err(|e| e.to_string());
    assert_eq!(read("\"1.5Gi\""), Ok(Bytes::new(3 << 29)));
    assert_eq!(read("\"1e3\""), Ok(Bytes::new(1000)));
    assert_eq!(read("4096"), Ok(Bytes::new(4096)));
    assert_eq!(
        serde_json::to_string(&Bytes::new(3 << 29)).unwrap(),
        "\"1536Mi\""
    );
    for (text, message) in [
        ("-1", "'-1' is negative; write '1'"),
        (
            "1.5",
            "1.5 is a floating-point number, which is not taken: it may be rounded; write the \
             quantity as a string, e.g. \"1.5Gi\"",
        ),
        ("1e3", "1000.0 is a floating-point number"),
        ("9223372036854775808", "'9223372036854775808' is too large"),
        ("99999999999999999999", "1e20 is a floating-point number"),
        ("true", "expected a quantity of bytes such as \"1Gi\""),
        ("null", "expected a quantity of bytes such as \"1Gi\""),
        (
            "\"1GB\"",
            "'1GB' is not a quantity: 'GB' is not a unit; write '1Gi' or '1G'",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(message), "{text}: {error}");
    }
}

#[cfg(feature = "schema")]
#[test]
fn schema_says_how_it_is_written() {
    let schema = schemars::schema_for!(Bytes);
    assert_eq!(schema.get("pattern").unwrap(), PATTERN);
    assert_eq!(schema.get("x-kubernetes-int-or-string").unwrap(), true);
    assert!(
        schema
            .get("description")
            .unwrap()
            .as_str()
            .unwrap()
            .contains("1.5Gi")
    );
}

proptest! {
    #[test]
    fn round_trips(bytes in 0..=MAX_BYTES, shift in 0_u32..63) {
        for bytes in [bytes, bytes >> shift, bytes >> shift << shift] {
            prop_assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
            prop_assert_eq!(parse_bytes(&bytes.to_string()), Ok(bytes));
        }
    }

    /// Against integer arithmetic on numbers that fit it.
    #[test]
    fn as_integers_say(
        whole in 0_u64..1 << 40,
        fraction in "[0-9]{0,9}",
        (unit, twos, tens) in prop::sample::select(vec![
            ("", 0, 0), ("Ki", 10, 0), ("Mi", 20, 0), ("Gi", 30, 0), ("Ti", 40, 0),
            ("k", 0, 3), ("M", 0, 6), ("G", 0, 9), ("m", 0, -3), ("u", 0, -6), ("e2", 0, 2),
            ("E-1", 0, -1),
        ]),
    ) {
        let places = i32::try_from(fraction.len()).unwrap();
        let digits: u128 = format!("{whole}{fraction}").parse().unwrap();
        let power = tens - places;
        let scaled = (digits << twos) * 10_u128.pow(power.max(0).unsigned_abs());
        let divisor = 10_u128.pow(power.min(0).unsigned_abs());
        let (floor, exact) = (scaled / divisor, scaled.is_multiple_of(divisor));
        let text = format!("{whole}.{fraction}{unit}");
        match parse_bytes(&text) {
            Ok(bytes) => {
                prop_assert!(exact, "{}", text);
                prop_assert_eq!(u128::from(bytes), floor);
            }
            Err(QuantityError::NotWhole { below, .. }) => {
                prop_assert!(!exact, "{}", text);
                prop_assert_eq!(u128::from(below), floor);
            }
            Err(QuantityError::TooLarge { .. }) => prop_assert!(floor > u128::from(MAX_BYTES)),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn never_panics_and_names_only_what_works(text in "[-+. 0-9a-zA-Zü]{0,12}|\\PC*") {
        match parse_bytes(&text) {
            Ok(bytes) => prop_assert!(bytes <= MAX_BYTES),
            Err(QuantityError::UnknownUnit { works, .. }) => {
                for text in works {
                    prop_assert!(parse_bytes(&text).is_ok(), "{}", text);
                }
            }
            Err(QuantityError::Negative { works, .. }) => {
                prop_assert!(parse_bytes(&works).is_ok(), "{}", works);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

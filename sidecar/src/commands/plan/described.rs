//! A node as a file describes it.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Deserialize as _;
use siding_topology::node::Node;

use crate::failure::Failure;
use crate::output::plain;

/// A description of the largest node that is planned for is far smaller.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// As many values as such a description has, most of them distances, twice over: what bounds them
/// is the length of the file.
const MAX_YAML_VALUES: usize = 4_000_000;

/// Reads the node that a file describes; `-` is standard input.
///
/// # Errors
/// [`Failure`] where it can't be read or describes none, with the field.
pub(super) fn read(path: &Path) -> Result<Node, Failure> {
    let wrong = |what: String| Failure::input(format!("--topology: {}: {what}", path.display()));
    let mut text = String::new();
    // A pipe has no length.
    let read = if path == Path::new("-") {
        let input = io::stdin().lock();
        input.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
    };
    read.map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong("larger than 16 MiB".to_owned()));
    }
    parse(&text).map_err(|error| {
        wrong(format!(
            "{error}; write what `siding topology -o json` or `-o yaml` prints"
        ))
    })
}

pub(super) fn parse(text: &str) -> Result<Node, String> {
    if text.trim_start().starts_with('{') {
        let mut json = serde_json::Deserializer::from_str(text);
        let node = serde_path_to_error::deserialize(&mut json).map_err(|error| said(&error))?;
        json.end().map_err(|error| plain(&error.to_string()))?;
        return Ok(node);
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: MAX_YAML_VALUES,
            max_nodes: MAX_YAML_VALUES,
        },
        with_snippet: false,
    };
    let mut track = serde_path_to_error::Track::new();
    let node = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
        Node::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
    });
    node.map_err(|error| at(&track.path().to_string(), &error))
}

fn said<E: Display>(error: &serde_path_to_error::Error<E>) -> String {
    at(&error.path().to_string(), error.inner())
}

/// The field and what is wrong with it, as one line.
fn at(field: &str, error: &impl Display) -> String {
    let words = in_words(&error.to_string());
    match field {
        // The whole, and what no field is left of.
        "." | "?" => plain(&words),
        field => plain(&format!("{field}: {words}")),
    }
}

/// What is expected by the names that Rust and the readers have for it, by how these begin, and as
/// a user knows it.
const EXPECTED: [(&str, &str); 13] = [
    ("a nonzero u", "a whole number above 0"),
    ("usize", "a whole number, 0 or more"),
    ("u64", "a whole number, 0 or more"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u16", "a whole number from 0 to 65535"),
    ("a string", "a text in quotes"),
    ("a sequence", "a list"),
    ("sequence start", "a list"),
    ("a tuple of size 2", "a list of two numbers"),
    ("struct ", "an object with keys"),
    ("mapping start", "an object with keys"),
    ("string scalar", "one word or number"),
    ("enum ", "one word"),
];
const FOUND: [(&str, &str); 9] = [
    ("floating point ", "the number "),
    ("integer ", "the number "),
    ("boolean ", ""),
    ("string ", "the text "),
    ("sequence", "a list"),
    ("map", "an object with keys"),
    ("unit value", "null"),
    ("unit", "null"),
    ("Option value", "null"),
];

/// `invalid type: floating point `1.5`, expected u32 at line 3 column 5` and its like in plain words.
fn in_words(error: &str) -> String {
    // Where it is comes last.
    let (what, place) = error
        .rfind(" at line ")
        .map_or((error, ""), |at| error.split_at(at));
    let typed = ["invalid type: ", "invalid value: "];
    let typed = typed.iter().find_map(|start| what.strip_prefix(start));
    let what = match typed.and_then(|typed| typed.rsplit_once(", expected ")) {
        Some((found, expected)) => format!("expected {}, found {}", wanted(expected), value(found)),
        None if what.starts_with("cannot deserialize null") => {
            "null is nothing that it can be".to_owned()
        }
        None => ["invalid ", "expected "]
            .iter()
            .find_map(|start| known(what.strip_prefix(start)?))
            .map_or_else(|| what.to_owned(), |words| format!("expected {words}")),
    };
    format!("{what}{place}")
}

fn known(expected: &str) -> Option<&'static str> {
    let mut names = EXPECTED.iter();
    let (_, words) = names.find(|(name, _)| expected.starts_with(name))?;
    Some(words)
}

fn wanted(expected: &str) -> &str {
    known(expected).unwrap_or(expected)
}

fn value(found: &str) -> String {
    let mut names = FOUND.iter();
    let found = names
        .find_map(|(name, words)| Some(format!("{words}{}", found.strip_prefix(name)?)))
        .unwrap_or_else(|| found.to_owned());
    found.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use siding_fixtures::instances;
    use siding_topology::{ReadOptions, Root, read_node};

    fn p5() -> Node {
        let planted = instances::of("p5.48xlarge").unwrap().planted();
        read_node(&Root::at(planted.path()), &ReadOptions::default())
    }

    #[test]
    fn a_node_as_json_or_yaml() {
        let node = p5();
        let json = serde_json::to_string_pretty(&node).unwrap();
        assert_eq!(parse(&json).as_ref(), Ok(&node));
        let yaml = serde_saphyr::to_string(&node).unwrap();
        assert_eq!(parse(&yaml).as_ref(), Ok(&node));
        assert_eq!(
            parse("{}"),
            Err("missing field `gpus` at line 1 column 2".to_owned())
        );
        assert!(parse("").is_err());
        assert!(parse(&(json + "{}")).unwrap_err().contains("trailing"));
    }

    /// The node with another value somewhere, as JSON and as YAML: what is said of either.
    fn refusals(at: &str, value: Value) -> [String; 2] {
        let mut node = serde_json::to_value(p5()).unwrap();
        *node.pointer_mut(at).unwrap() = value;
        let json = serde_json::to_string_pretty(&node).unwrap();
        let yaml = serde_saphyr::to_string(&node).unwrap();
        [json, yaml].map(|text| {
            let said = parse(&text).unwrap_err();
            let (said, place) = said.split_at(said.rfind(" at line ").unwrap());
            assert!(place.len() < 40, "{place}");
            said.to_owned()
        })
    }

    /// Both forms name the field, in words that are none of a programmer's.
    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        let cores = |count: Value| json!({"count": count, "source": "Online"});
        let some_cores = "cores.count: expected a whole number from 1 to 65535, found the number";
        for (at, value, want) in [
            ("/cores", cores(json!(1.5)), format!("{some_cores} 1.5")),
            ("/cores", cores(json!(0)), format!("{some_cores} 0")),
            ("/cores", cores(json!(65536)), format!("{some_cores} 65536")),
            (
                "/gpus/3/place/address",
                json!("x"),
                "gpus[3].place.address: \"x\" is not a PCI address; write it as 0000:53:00.0"
                    .to_owned(),
            ),
        ] {
            assert_eq!(refusals(at, value), [want.clone(), want]);
        }
        for (at, value, json, yaml) in [
            (
                "/cores",
                json!(5),
                "cores: expected the cores: an object with count and source, found the number 5",
                "cores: expected an object with keys",
            ),
            (
                "/cores/source",
                json!("Guess"),
                "cores.source: unknown variant `Guess`, expected one of `Allocatable`, `KubepodsCpuset`, `Online`",
                "cores.source: unknown variant `Guess`, expected one of Allocatable, KubepodsCpuset, Online",
            ),
            (
                "/gpus/3/vendor",
                json!(65536),
                "gpus[3].vendor: expected a whole number from 0 to 65535, found the number 65536",
                "gpus[3].vendor: expected a whole number from 0 to 65535",
            ),
            (
                "/gpus/3/place/numa",
                json!(-1),
                "gpus[3].place.numa: expected a whole number from 0 to 4294967295, found the number -1",
                "gpus[3].place.numa: expected a whole number from 0 to 4294967295",
            ),
            (
                "/nics/0/rateGbps",
                json!([1]),
                "nics[0].rateGbps: expected a whole number from 0 to 4294967295, found a list",
                "nics[0].rateGbps: expected one word or number",
            ),
            (
                "/nics",
                json!(5),
                "nics: expected a list, found the number 5",
                "nics: expected a list",
            ),
            (
                "/nics/0/name",
                json!(null),
                "nics[0].name: expected a text in quotes, found null",
                "nics[0].name: null is nothing that it can be",
            ),
        ] {
            assert_eq!(refusals(at, value), [json, yaml]);
        }
    }

    #[test]
    fn what_is_quoted_stays_one_line() {
        for text in [
            json!({"gpus": null, "nics": null, "a\n\u{1b}": 1}).to_string(),
            "gpus: null\nnics: null\n\"a\\n\\e\": 1\n".to_owned(),
        ] {
            let said = parse(&text).unwrap_err();
            assert!(said.contains("unknown field `a\\n\\u{1b}`"), "{said}");
        }
    }

    /// All that is printed of the largest node that is planned for, as either is read back.
    #[test]
    fn the_largest_node_is_read_back() {
        let mut node = serde_json::to_value(p5()).unwrap();
        let many = |one: &Value, count: u32, field: &str, name: &dyn Fn(u32) -> String| -> Value {
            let all = (0..count).map(|index| {
                let mut one = one.clone();
                *one.pointer_mut(field).unwrap() = json!(name(index));
                one
            });
            all.collect()
        };
        let address = |index: u32| format!("0000:{index:02x}:00.0");
        let nic = |index: u32| format!("rdmap{index}s0");
        node["gpus"] = many(&node["gpus"][0], 256, "/place/address", &address);
        node["nics"][0]["uverbs"] = Value::Null;
        node["nics"] = many(&node["nics"][0], 1024, "/name", &nic);
        let nics: Value = (0..1024).map(|index| (nic(index), json!("SYS"))).collect();
        node["distances"] = (0..256)
            .map(|index| (address(index), nics.clone()))
            .collect();
        let json = serde_json::to_string_pretty(&node).unwrap();
        let yaml = serde_saphyr::to_string(&node).unwrap();
        for text in [json, yaml] {
            assert!((text.len() as u64) < MAX_FILE_BYTES);
            let read = parse(&text).unwrap();
            assert_eq!(
                (read.known_gpus().len(), read.known_nics().len()),
                (256, 1024)
            );
        }
    }
}

//! From a YAML tree to a configuration, noting every problem on the way.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;

use siding_crds::{Bytes, quoted};

use super::Config;
use super::problem::{Problem, Refusal};
use super::segment::Segment;
use super::tree::{self, Node, Value};
use super::validate::{self, grace_refusal, no_segments, segment_path};
use super::words::{self, Whole, alternatives, nearest, whole};

/// Each section of the file with its fields.
pub(super) const SECTIONS: [(&str, &[&str]); 8] = [
    (
        "",
        &[
            "segments",
            "storage",
            "registration",
            "transfer",
            "listen",
            "onFailure",
            "shutdown",
            "logging",
        ],
    ),
    ("segments", &["name", "size", "page", "numa", "directory"]),
    ("storage", &["directory"]),
    ("registration", &["backend", "cap", "order", "touchThreads"]),
    ("transfer", &[]),
    ("listen", &["http"]),
    ("shutdown", &["graceSeconds"]),
    ("logging", &["format", "level"]),
];

/// What was read, problems included: a field that has one holds its default.
pub(super) struct Read {
    pub(super) config: Config,
    pub(super) problems: Vec<Problem>,
    /// Fields that are missing only because their names are misspelt.
    pub(super) meant: HashSet<String>,
    pub(super) lines: Lines,
    /// The values of fields as written, by path.
    pub(super) texts: HashMap<String, String>,
}

/// The lines of fields, by path.
#[derive(Default)]
pub(super) struct Lines(HashMap<String, usize>);

impl Lines {
    /// The line of a field, or of what it lies in.
    pub(super) fn of(&self, field: &str) -> Option<usize> {
        let parent = || {
            field
                .rsplit_once('.')
                .and_then(|(parent, _)| self.0.get(parent))
        };
        self.0.get(field).or_else(parent).copied()
    }
}

/// Reads a text. The error is that of a text which is not one YAML document, or an empty one.
pub(super) fn read(text: &str) -> Result<Read, Problem> {
    let root = tree::document(text)?.ok_or_else(|| {
        let mut problem = no_segments(None);
        "the file is empty: no segment is declared".clone_into(&mut problem.what);
        problem
    })?;
    let mut reader = Reader::default();
    let config = reader.config(&root);
    let Reader {
        problems,
        meant,
        lines,
        texts,
    } = reader;
    Ok(Read {
        config,
        problems,
        meant,
        lines,
        texts,
    })
}

#[derive(Default)]
struct Reader {
    problems: Vec<Problem>,
    meant: HashSet<String>,
    lines: Lines,
    texts: HashMap<String, String>,
}

/// The fields of a mapping that are known, each at most once.
struct Section<'n> {
    path: String,
    fields: Vec<(&'n str, &'n Node)>,
}

impl<'n> Section<'n> {
    fn get(&self, key: &str) -> Option<&'n Node> {
        self.fields
            .iter()
            .find(|(known, _)| *known == key)
            .map(|(_, node)| *node)
    }

    fn field(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }
}

impl Reader {
    fn config(&mut self, root: &Node) -> Config {
        let mut config = Config::default();
        let top = self.section(root, "", "");
        if let Some(node) = top.get("segments") {
            config.segments = self.segments(node);
        }
        let storage = self.inner(&top, "storage");
        self.set(&storage, "directory", &mut config.storage.directory, path);
        let registration = self.inner(&top, "registration");
        let to = &mut config.registration;
        self.set(&registration, "backend", &mut to.backend, FromStr::from_str);
        self.set(&registration, "cap", &mut to.cap, FromStr::from_str);
        self.set(&registration, "order", &mut to.order, FromStr::from_str);
        self.set(
            &registration,
            "touchThreads",
            &mut to.touch_threads,
            FromStr::from_str,
        );
        self.inner(&top, "transfer");
        let listen = self.inner(&top, "listen");
        self.set(&listen, "http", &mut config.listen.http, words::address);
        self.set(&top, "onFailure", &mut config.on_failure, FromStr::from_str);
        let shutdown = self.inner(&top, "shutdown");
        self.set(
            &shutdown,
            "graceSeconds",
            &mut config.shutdown.grace_seconds,
            seconds,
        );
        let logging = self.inner(&top, "logging");
        self.set(
            &logging,
            "format",
            &mut config.logging.format,
            FromStr::from_str,
        );
        self.set(&logging, "level", &mut config.logging.level, |text| {
            Ok(text.to_owned())
        });
        config
    }

    fn segments(&mut self, node: &Node) -> Vec<Segment> {
        let items: &[Rc<Node>] = match &node.value {
            Value::List(items) => items,
            Value::Null => &[],
            Value::Map(_) | Value::Scalar(_) => {
                let remedy = "write a list: segments: [{name: kv, size: 1Gi}]";
                self.mistyped(node, "segments", "a list", remedy);
                return Vec::new();
            }
        };
        let names: Vec<&str> = items.iter().map(|item| name_of(item)).collect();
        items
            .iter()
            .enumerate()
            .map(|(index, item)| self.segment(item, &segment_path(index, name_of(item), &names)))
            .collect()
    }

    fn segment(&mut self, node: &Node, path_here: &str) -> Segment {
        self.lines.0.insert(path_here.to_owned(), node.line);
        let section = self.section(node, path_here, "segments");
        let mut segment = Segment::new("", Bytes::new(0));
        let is_map = matches!(node.value, Value::Map(_) | Value::Null);
        for (key, example) in [("name", "name: kv"), ("size", "size: 1Gi")] {
            let field = section.field(key);
            if is_map && section.get(key).is_none() && !self.meant.contains(&field) {
                let remedy = format!("add it, e.g. '{example}'");
                self.problems
                    .push(Problem::new(field, Some(node.line), "missing", remedy));
            }
        }
        self.set(&section, "name", &mut segment.name, name);
        self.set(&section, "size", &mut segment.size, |text| {
            Ok(text.parse::<Bytes>()?)
        });
        self.set(&section, "page", &mut segment.page, FromStr::from_str);
        self.set(&section, "numa", &mut segment.numa, FromStr::from_str);
        if section
            .get("directory")
            .is_some_and(|node| !matches!(node.value, Value::Null))
        {
            let mut directory = PathBuf::new();
            self.set(&section, "directory", &mut directory, path);
            segment.directory = Some(directory);
        }
        segment
    }

    /// The section of this name; without fields where it is left out.
    fn inner<'n>(&mut self, top: &Section<'n>, name: &'static str) -> Section<'n> {
        match top.get(name) {
            Some(node) => self.section(node, name, name),
            None => Section {
                path: name.to_owned(),
                fields: Vec::new(),
            },
        }
    }

    /// Takes a mapping apart; `kind` is its name in [`SECTIONS`].
    fn section<'n>(&mut self, node: &'n Node, path: &str, kind: &str) -> Section<'n> {
        let known = fields_of(kind);
        let mut section = Section {
            path: path.to_owned(),
            fields: Vec::new(),
        };
        let entries = match &node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null => &[],
            Value::List(_) | Value::Scalar(_) => {
                let remedy = match known.first() {
                    Some(first) => format!("write fields, e.g. '{first}: …'"),
                    None => "write '{}'".to_owned(),
                };
                self.mistyped(node, path, "a mapping of fields", &remedy);
                &[]
            }
        };
        for (key, node) in entries {
            let field = section.field(&key.text);
            if !known.contains(&key.text.as_str()) {
                self.unknown(&section, &key.text, key.line, kind);
            } else if section.get(&key.text).is_some() {
                let what = format!("{} is given twice", quoted(&key.text));
                self.problems
                    .push(Problem::new(field, Some(key.line), what, "give it once"));
            } else {
                self.lines.0.insert(field, key.line);
                section.fields.push((key.text.as_str(), node));
            }
        }
        section
    }

    fn unknown(&mut self, section: &Section<'_>, key: &str, line: usize, kind: &str) {
        let known = fields_of(kind);
        let elsewhere = SECTIONS
            .iter()
            .find(|(other, fields)| *other != kind && fields.contains(&key));
        let remedy = match (nearest(key, known), elsewhere) {
            (Some(known), _) => {
                self.meant.insert(section.field(known));
                format!("did you mean {}?", quoted(known))
            }
            (None, Some(("", _))) => format!("{} stands at the top, not indented", quoted(key)),
            (None, Some((other, _))) => format!("{} belongs under {}", quoted(key), quoted(other)),
            (None, None) if known.is_empty() => {
                format!("{} has no fields yet: remove it", quoted(kind))
            }
            (None, None) => format!("write {}", alternatives(known.iter().copied())),
        };
        let what = format!("unknown field {}", quoted(key));
        let field = section.field(quoted(key).trim_matches('\''));
        let mut problem = Problem::new(field, Some(line), what, remedy);
        problem.value = Some(key.to_owned());
        self.problems.push(problem);
    }

    /// Sets a field from its text, where it is there.
    fn set<T>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        to: &mut T,
        parse: impl Fn(&str) -> Result<T, Refusal>,
    ) {
        let Some(node) = section.get(key) else { return };
        let field = section.field(key);
        let text = match &node.value {
            Value::Scalar(text) => text,
            // What an empty text is told: left out without a word is not what was meant.
            Value::Null => "",
            Value::List(_) | Value::Map(_) => {
                return self.mistyped(node, &field, "a single value", "write one value");
            }
        };
        let refused = match parse(text) {
            Ok(_) if text.is_empty() => {
                let remedy = "write a value or remove the line for the default";
                Refusal::new(text, "'' is no value: it is empty".to_owned(), remedy)
            }
            Ok(value) => {
                *to = value;
                self.texts.insert(field, text.to_owned());
                return;
            }
            Err(refusal) => refusal,
        };
        let mut problem = refused.at(field);
        problem.line = self.lines.of(&problem.field);
        self.problems.push(problem);
    }

    fn mistyped(&mut self, node: &Node, field: &str, expected: &str, remedy: &str) {
        let found = match &node.value {
            Value::Null => "nothing".to_owned(),
            Value::Scalar(text) => quoted(text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        };
        let what = format!("{found} stands where {expected} is needed");
        let line = self.lines.of(field).unwrap_or(node.line);
        let mut problem = Problem::new(field, Some(line), what, remedy);
        if let Value::Scalar(text) = &node.value {
            problem.value = Some(text.clone());
        }
        self.problems.push(problem);
    }
}

fn fields_of(kind: &str) -> &'static [&'static str] {
    SECTIONS
        .iter()
        .find(|(name, _)| *name == kind)
        .map_or(&[], |(_, fields)| *fields)
}

/// A segment's name, where it has one.
fn name_of(segment: &Node) -> &str {
    let Value::Map(entries) = &segment.value else {
        return "";
    };
    let name = entries.iter().find(|(key, _)| key.text == "name");
    match name.map(|(_, node)| &node.value) {
        Some(Value::Scalar(name)) => name,
        _ => "",
    }
}

fn name(text: &str) -> Result<String, Refusal> {
    validate::name(text).map(|()| text.to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "a field's parser")]
fn path(text: &str) -> Result<PathBuf, Refusal> {
    Ok(PathBuf::from(text))
}

fn seconds(text: &str) -> Result<u32, Refusal> {
    let number = match whole(text) {
        Whole::Is(number) => u32::try_from(number).ok(),
        Whole::TooLarge | Whole::No => None,
    };
    number.ok_or_else(|| grace_refusal(text))
}

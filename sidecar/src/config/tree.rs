//! A YAML text as a tree whose scalars are their text, as written, each node with its line.
//!
//! Built from the parser's events, so that no number is read before its field is known, and within
//! bounds, so that no text costs more than a bounded stack and memory.

use std::collections::HashMap;
use std::rc::Rc;

use serde_saphyr::granit_parser::{self, ErrorKind, Event, Parser, ScalarStyle, ScanError};
use siding_crds::quoted;

use super::problem::Problem;

/// Levels of nesting; a configuration has 4.
pub(super) const MAX_DEPTH: usize = 16;
/// Values in a text; a configuration has dozens.
pub(super) const MAX_NODES: usize = 20_000;

/// A value with the line that it starts on.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
    /// Levels of nesting in it; 0 for a scalar.
    height: usize,
}

#[derive(Debug)]
pub(super) enum Value {
    /// Nothing: left out, `~` or `null`.
    Null,
    /// A text, quotes and escapes resolved.
    Scalar(String),
    List(Vec<Rc<Node>>),
    /// In order, duplicates included.
    Map(Vec<(Key, Rc<Node>)>),
}

#[derive(Debug)]
pub(super) struct Key {
    pub(super) text: String,
    pub(super) line: usize,
}

/// The text's one document; `None` where there is nothing in it.
pub(super) fn document(text: &str) -> Result<Option<Rc<Node>>, Problem> {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut tree = Tree::default();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| syntax(&error))?;
        tree.take(event, span.start.line())?;
    }
    Ok(tree.root.filter(|root| !matches!(root.value, Value::Null)))
}

#[derive(Default)]
struct Tree {
    root: Option<Rc<Node>>,
    documents: usize,
    nodes: usize,
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
}

/// A list or mapping whose end has not come yet.
struct Open {
    line: usize,
    anchor: usize,
    height: usize,
    content: Content,
}

enum Content {
    List(Vec<Rc<Node>>),
    Map {
        entries: Vec<(Key, Rc<Node>)>,
        key: Option<Key>,
    },
}

impl Tree {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), Problem> {
        if let Some(tag) = event.tag() {
            let what = format!("the tag {} is not taken", quoted(&tag.to_string()));
            return Err(whole_text(
                line,
                what,
                "remove it; values are read as their field needs",
            ));
        }
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let remedy = "keep one; remove the '---' and what follows";
                    return Err(whole_text(line, "a second document starts here", remedy));
                }
            }
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == ScalarStyle::Plain;
                let null = plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let value = if null {
                    Value::Null
                } else {
                    Value::Scalar(text.into_owned())
                };
                let node = Rc::new(Node {
                    line,
                    value,
                    height: 0,
                });
                self.finish(node, anchor)?;
            }
            Event::SequenceStart(_, anchor, _) => {
                self.start(line, anchor, Content::List(Vec::new()))?;
            }
            Event::MappingStart(_, anchor, _) => {
                self.start(
                    line,
                    anchor,
                    Content::Map {
                        entries: Vec::new(),
                        key: None,
                    },
                )?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    let remedy = "write the value out";
                    return Err(whole_text(
                        line,
                        "an alias stands within its own anchor",
                        remedy,
                    ));
                };
                self.add(Rc::clone(node))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, line: usize, anchor: usize, content: Content) -> Result<(), Problem> {
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(line));
        }
        self.open.push(Open {
            line,
            anchor,
            height: 0,
            content,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Problem> {
        let Some(Open {
            line,
            anchor,
            height,
            content,
        }) = self.open.pop()
        else {
            return Ok(());
        };
        let value = match content {
            Content::List(items) => Value::List(items),
            Content::Map { entries, .. } => Value::Map(entries),
        };
        self.finish(
            Rc::new(Node {
                line,
                value,
                height: height + 1,
            }),
            anchor,
        )
    }

    fn finish(&mut self, node: Rc<Node>, anchor: usize) -> Result<(), Problem> {
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.add(node)
    }

    /// Puts a complete node where it belongs.
    fn add(&mut self, node: Rc<Node>) -> Result<(), Problem> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let what = format!("there are more than {MAX_NODES} values up to here");
            return Err(whole_text(
                node.line,
                what,
                "a configuration has dozens: is it the right file?",
            ));
        }
        if self.open.len() + node.height > MAX_DEPTH {
            return Err(too_deep(node.line));
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.height = parent.height.max(node.height);
        match &mut parent.content {
            Content::List(items) => items.push(node),
            Content::Map { entries, key } => match key.take() {
                Some(key) => entries.push((key, node)),
                None => *key = Some(field_name(&node)?),
            },
        }
        Ok(())
    }
}

fn field_name(node: &Node) -> Result<Key, Problem> {
    match &node.value {
        Value::Scalar(text) => Ok(Key {
            text: text.clone(),
            line: node.line,
        }),
        _ => {
            let what = "a field has no name, or one that is a list or mapping";
            Err(whole_text(node.line, what, "write 'name: value'"))
        }
    }
}

fn whole_text(line: usize, what: impl Into<String>, remedy: &str) -> Problem {
    Problem::new("", Some(line), what, remedy)
}

fn too_deep(line: usize) -> Problem {
    let what = format!("values are nested deeper than {MAX_DEPTH} levels");
    whole_text(line, what, "a configuration has 4: is a bracket left open?")
}

fn syntax(error: &ScanError) -> Problem {
    let line = error.marker().line();
    let what = format!(
        "not YAML: {} (column {})",
        error.info(),
        error.marker().col() + 1
    );
    match error.kind() {
        ErrorKind::RecursionLimitExceeded => too_deep(line),
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabAtBlockScalarStart
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar => whole_text(line, what, "use spaces, not tabs"),
        ErrorKind::UnknownAnchor => whole_text(line, what, "write the value out"),
        _ => whole_text(
            line,
            what,
            "check indentation, brackets and quotes on and above this line",
        ),
    }
}

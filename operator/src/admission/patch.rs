//! JSON patches of `add` operations.

use serde::Serialize;
use serde_json::{Map, Value};

/// An operation of a JSON patch (RFC 6902).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PatchOperation {
    /// What it does.
    pub op: Op,
    /// Where, a JSON pointer.
    pub path: String,
    /// What is put there.
    pub value: Value,
}

/// What an operation does: nothing but adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Adds a member or an item.
    Add,
}

/// A patch in the making, of a document whose shape was checked.
#[derive(Debug)]
pub(super) struct Patch<'a> {
    document: &'a Value,
    operations: Vec<PatchOperation>,
}

impl<'a> Patch<'a> {
    pub(super) fn of(document: &'a Value) -> Self {
        Self {
            document,
            operations: Vec::new(),
        }
    }

    pub(super) fn into_operations(self) -> Vec<PatchOperation> {
        self.operations
    }

    /// Members of the object at `pointer`, whose parent exists. What is there as it should be stays.
    pub(super) fn merge(&mut self, pointer: &str, members: Map<String, Value>) {
        let Some(there) = self.document.pointer(pointer).and_then(Value::as_object) else {
            if !members.is_empty() {
                self.add(pointer.to_owned(), Value::Object(members));
            }
            return;
        };
        for (key, value) in members {
            if there.get(&key) != Some(&value) {
                self.add(format!("{pointer}/{}", escape(&key)), value);
            }
        }
    }

    /// Items behind those of the array at `pointer`, whose parent exists.
    pub(super) fn append(&mut self, pointer: &str, items: Vec<Value>) {
        if items.is_empty() {
            return;
        }
        if !self.document.pointer(pointer).is_some_and(Value::is_array) {
            self.add(pointer.to_owned(), Value::Array(items));
            return;
        }
        for item in items {
            self.add(format!("{pointer}/-"), item);
        }
    }

    /// An item before those of the array at `pointer`, whose parent exists.
    pub(super) fn prepend(&mut self, pointer: &str, item: Value) {
        if self.document.pointer(pointer).is_some_and(Value::is_array) {
            self.add(format!("{pointer}/0"), item);
        } else {
            self.add(pointer.to_owned(), Value::Array(vec![item]));
        }
    }

    fn add(&mut self, path: String, value: Value) {
        let op = Op::Add;
        self.operations.push(PatchOperation { op, path, value });
    }
}

/// A key as part of a JSON pointer.
fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// A map of strings as JSON.
pub(super) fn members<K: Into<String>, V: Into<Value>>(
    pairs: impl IntoIterator<Item = (K, V)>,
) -> Map<String, Value> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}

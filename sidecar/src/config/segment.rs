//! Segments: declared in the file, by the builder, or as `NAME=SIZE[,page=…][,numa=…]`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use siding_crds::quantity::MAX_BYTES;
use siding_crds::{Bytes, format_bytes, parse_bytes, quoted};

use super::problem::{ConfigError, Problem, Refusal};
use super::validate;
use super::words::{Whole, alternatives, nearest, same, whole};

/// The smallest page of any machine, bytes.
pub const SMALLEST_PAGE_BYTES: u64 = 4096;

/// A piece of memory to mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Segment {
    /// Its name, unique: lowercase letters, digits and `-`, at most 63 characters.
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"), length(max = 63))]
    pub name: String,
    /// Its size: whole pages, more than 0. It is never padded.
    pub size: Bytes,
    /// Its pages: `auto` takes the largest that the machine can give now and says why;
    /// `transparent`; or a page size such as `4Ki`, `2Mi`, `1Gi`.
    #[schemars(default)]
    pub page: Page,
    /// Where it lies: `local` (near this process), `interleave` (over all nodes in turn) or a
    /// node's number.
    #[schemars(default)]
    pub numa: Numa,
    /// Directory of its file, an absolute path. Default: a mounted hugetlbfs of the page size, else
    /// `storage.directory`.
    #[schemars(default)]
    pub directory: Option<PathBuf>,
}

impl Segment {
    /// A segment of this name and size in bytes, on pages and a node of the default's choice.
    /// Nothing is checked before [`ConfigBuilder::build`](super::ConfigBuilder::build).
    #[must_use]
    pub fn new(name: impl Into<String>, size: impl Into<Bytes>) -> Self {
        Self {
            name: name.into(),
            size: size.into(),
            page: Page::Auto,
            numa: Numa::Local,
            directory: None,
        }
    }

    /// With these pages.
    #[must_use]
    pub fn page(mut self, page: Page) -> Self {
        self.page = page;
        self
    }

    /// On these nodes.
    #[must_use]
    pub fn numa(mut self, numa: Numa) -> Self {
        self.numa = numa;
        self
    }

    /// With its file in this directory, an absolute path.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }
}

impl FromStr for Segment {
    type Err = ConfigError;

    /// `NAME=SIZE[,page=…][,numa=…]`, checked as in a file.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let Some((name, size)) = first.split_once('=') else {
            let what = format!("{} has no size", quoted(text));
            let name = if validate::name(first).is_ok() {
                first
            } else {
                "kv"
            };
            let remedy = format!("write NAME=SIZE, e.g. '{name}=1Gi'");
            return Err(ConfigError::invalid(vec![
                Refusal::new(text, what, remedy).at("segment"),
            ]));
        };
        let path = validate::segment_path(0, name, &[]);
        let mut segment = Self::new(name, 0);
        let mut problems = Vec::new();
        match parse_bytes(size) {
            Ok(bytes) => segment.size = Bytes::new(bytes),
            Err(error) => problems.push(Refusal::from(error).at(format!("{path}.size"))),
        }
        let mut seen = Vec::new();
        for part in parts {
            problems.extend(segment.set(part, &path, &mut seen).err());
        }
        let mut more = validate::segment(&segment, &path);
        for problem in more
            .iter_mut()
            .filter(|problem| problem.field.ends_with(".size"))
        {
            problem.as_written(size);
        }
        validate::add(&mut problems, more);
        if problems.is_empty() {
            Ok(segment)
        } else {
            Err(ConfigError::invalid(problems))
        }
    }
}

impl Segment {
    /// Takes one `key=value` of the command-line form.
    fn set<'a>(
        &mut self,
        part: &'a str,
        path: &str,
        seen: &mut Vec<&'a str>,
    ) -> Result<(), Problem> {
        const KEYS: [&str; 2] = ["page", "numa"];
        let Some((key, value)) = part.split_once('=') else {
            let what = format!("{} is not KEY=VALUE", quoted(part));
            return Err(Refusal::new(part, what, "write 'page=2Mi' or 'numa=0'").at(path));
        };
        let field = format!("{path}.{key}");
        if seen.contains(&key) {
            let what = format!("{} is given twice", quoted(key));
            return Err(Refusal::new(value, what, "give it once").at(field));
        }
        seen.push(key);
        match key {
            "page" => {
                self.page = value
                    .parse()
                    .map_err(|refusal: Refusal| refusal.at(field))?
            }
            "numa" => {
                self.numa = value
                    .parse()
                    .map_err(|refusal: Refusal| refusal.at(field))?
            }
            _ => {
                let what = format!("unknown field {}", quoted(key));
                let remedy = match nearest(key, &KEYS) {
                    Some(known) => format!("did you mean {}?", quoted(known)),
                    None => format!("write {}", alternatives(KEYS)),
                };
                return Err(Refusal::new(key, what, remedy).at(field));
            }
        }
        Ok(())
    }
}

/// The pages of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Page {
    /// The largest that the machine can give now.
    #[default]
    Auto,
    /// Base pages that the kernel joins to huge ones where it can.
    Transparent,
    /// Pages of so many bytes: a power of two of at least [`SMALLEST_PAGE_BYTES`].
    Size(u64),
}

impl Page {
    /// Whether a page can have so many bytes; on the message, `text` stands for them.
    pub(super) fn check(bytes: u64, text: &str) -> Result<(), Refusal> {
        let refused = |why: &str, remedy: String| {
            Err(Refusal::new(
                text,
                format!("{} is not a page size: {why}", quoted(text)),
                remedy,
            ))
        };
        if bytes < SMALLEST_PAGE_BYTES {
            return refused("it is too small", "the smallest is '4Ki'".to_owned());
        }
        if bytes.is_power_of_two() {
            return Ok(());
        }
        let below = 1 << bytes.ilog2();
        let above = Some(below << 1).filter(|bytes| *bytes <= MAX_BYTES);
        let near: Vec<String> = [below].into_iter().chain(above).map(format_bytes).collect();
        let near = alternatives(near.iter().map(String::as_str));
        refused("it is not a power of two", format!("write {near}"))
    }
}

impl FromStr for Page {
    type Err = Refusal;

    /// `auto`, `transparent` (in any case) or a size such as `2Mi`.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        if same(text, "auto") {
            return Ok(Self::Auto);
        }
        if same(text, "transparent") {
            return Ok(Self::Transparent);
        }
        let bytes = parse_bytes(text).map_err(|_| {
            let what = format!("{} is not a page size", quoted(text));
            let remedy = "write 'auto', 'transparent' or a size such as '4Ki', '2Mi' or '1Gi'";
            Refusal::new(text, what, remedy)
        })?;
        Self::check(bytes, text)?;
        Ok(Self::Size(bytes))
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Transparent => f.pad("transparent"),
            Self::Size(bytes) => f.pad(&format_bytes(*bytes)),
        }
    }
}

impl Serialize for Page {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where a segment's memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Numa {
    /// Near this process.
    #[default]
    Local,
    /// Over all nodes in turn.
    Interleave,
    /// On the node of this number.
    Node(u32),
}

impl FromStr for Numa {
    type Err = Refusal;

    /// `local`, `interleave` (in any case) or a node's number.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        if same(text, "local") {
            return Ok(Self::Local);
        }
        if same(text, "interleave") {
            return Ok(Self::Interleave);
        }
        let node = match whole(text) {
            Whole::Is(node) => u32::try_from(node).ok(),
            Whole::TooLarge | Whole::No => None,
        };
        node.map(Self::Node).ok_or_else(|| {
            let what = format!("{} is not a NUMA policy", quoted(text));
            let remedy = "write 'local', 'interleave' or a node's number, e.g. '0'";
            Refusal::new(text, what, remedy)
        })
    }
}

impl fmt::Display for Numa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.pad("local"),
            Self::Interleave => f.pad("interleave"),
            Self::Node(node) => node.fmt(f),
        }
    }
}

impl Serialize for Numa {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Local | Self::Interleave => serializer.collect_str(self),
            Self::Node(node) => serializer.serialize_u32(*node),
        }
    }
}

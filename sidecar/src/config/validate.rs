//! What a configuration must hold, whatever it was made from: pure.

use std::collections::HashSet;
use std::path::Path;

use siding_crds::quantity::MAX_BYTES;
use siding_crds::{format_bytes, quoted};

use super::Config;
use super::problem::{Problem, Refusal};
use super::segment::{Page, SMALLEST_PAGE_BYTES, Segment};
use super::service::GRACE_SECONDS;
use super::words::alternatives;

/// Characters of a segment's name.
const NAME_LENGTH: usize = 63;

/// Checks all that can be known without looking at the machine.
///
/// # Errors
/// All problems, each with its field, value and remedy.
pub fn validate(config: &Config) -> Result<(), Vec<Problem>> {
    let mut problems = segments(&config.segments);
    problems.extend(directory(&config.storage.directory, "storage.directory"));
    let seconds = config.shutdown.grace_seconds;
    if !GRACE_SECONDS.contains(&seconds) {
        problems.push(grace_refusal(&seconds.to_string()).at("shutdown.graceSeconds"));
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

fn segments(segments: &[Segment]) -> Vec<Problem> {
    if segments.is_empty() {
        return vec![no_segments(None)];
    }
    let names: Vec<&str> = segments
        .iter()
        .map(|segment| segment.name.as_str())
        .collect();
    let mut problems = Vec::new();
    for (index, each) in segments.iter().enumerate() {
        let path = segment_path(index, &each.name, &names);
        problems.extend(segment(each, &path));
        if let Some(first) = names.iter().position(|name| *name == each.name)
            && first < index
            && name(&each.name).is_ok()
        {
            let what = format!(
                "{} is the name of segments[{first}] too",
                quoted(&each.name)
            );
            let remedy = format!(
                "names are unique: write e.g. {}",
                quoted(&unused(&names, first))
            );
            problems.push(Refusal::new(&each.name, what, remedy).at(format!("{path}.name")));
        }
    }
    let total: u128 = segments
        .iter()
        .map(|segment| u128::from(segment.size.get()))
        .sum();
    if problems.is_empty() && total > u128::from(MAX_BYTES) {
        let what = format!("their sizes add up to {total} bytes");
        let remedy = format!("declare at most {MAX_BYTES} bytes together");
        problems.push(Problem::new("segments", None, what, remedy));
    }
    problems
}

/// What a file that declares nothing is told.
pub(super) fn no_segments(line: Option<usize>) -> Problem {
    let remedy = "declare at least one, e.g. segments: [{name: kv, size: 1Gi}]";
    Problem::new("segments", line, "no segment is declared", remedy)
}

/// How messages call a segment: by its name where that names it and no earlier one, else by index.
pub(super) fn segment_path(index: usize, called: &str, names: &[&str]) -> String {
    let is_earlier = || names.iter().take(index).any(|other| *other == called);
    if name(called).is_ok() && !is_earlier() {
        format!("segments[{called}]")
    } else {
        format!("segments[{index}]")
    }
}

/// Adds problems, but those of a field that has one already, or of what lies in such a field: they
/// follow from it.
pub(super) fn add(problems: &mut Vec<Problem>, more: Vec<Problem>) {
    let known: HashSet<String> = problems
        .iter()
        .map(|problem| problem.field.clone())
        .collect();
    let follows = |field: &str| {
        let mut around = field
            .match_indices(['.', '['])
            .filter_map(|(end, _)| field.get(..end));
        // A problem of the text as a whole is one of every field.
        known.contains("") || known.contains(field) || around.any(|outer| known.contains(outer))
    };
    problems.extend(more.into_iter().filter(|problem| !follows(&problem.field)));
}

/// What is wrong with one segment by itself.
pub(super) fn segment(segment: &Segment, path: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(
        name(&segment.name)
            .err()
            .map(|refusal| refusal.at(format!("{path}.name"))),
    );
    let page = match segment.page {
        Page::Auto | Page::Transparent => Ok(SMALLEST_PAGE_BYTES),
        Page::Size(bytes) => Page::check(bytes, &format_bytes(bytes)).map(|()| bytes),
    };
    match page {
        Ok(page) => {
            let refusal = size(segment.size.get(), page, segment.page).err();
            problems.extend(refusal.map(|refusal| refusal.at(format!("{path}.size"))));
        }
        Err(refusal) => problems.push(refusal.at(format!("{path}.page"))),
    }
    if let Some(path_to_file) = &segment.directory {
        problems.extend(directory(path_to_file, &format!("{path}.directory")));
    }
    problems
}

/// A segment's name: it becomes part of file names, metrics and Kubernetes fields.
pub(super) fn name(text: &str) -> Result<(), Refusal> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let wrong = text.chars().find(|c| !allowed(*c));
    let why = match wrong {
        _ if text.is_empty() => "it is empty".to_owned(),
        Some(c) => format!("it has {}", quoted(&c.to_string())),
        None if text.len() > NAME_LENGTH => {
            format!(
                "it has {} characters, at most {NAME_LENGTH} are allowed",
                text.len()
            )
        }
        None if text.starts_with('-') || text.ends_with('-') => {
            "it must start and end with a letter or digit".to_owned()
        }
        None => return Ok(()),
    };
    let remedy = format!(
        "use lowercase letters, digits and '-', e.g. {}",
        quoted(&cleaned(text))
    );
    Err(Refusal::new(
        text,
        format!("{} is not a segment's name: {why}", quoted(text)),
        remedy,
    ))
}

/// The allowed name that is most like this one.
fn cleaned(text: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let mapped: String = text.chars().map(allowed).collect();
    let cut: String = mapped.trim_matches('-').chars().take(NAME_LENGTH).collect();
    let cut = cut.trim_end_matches('-');
    if cut.is_empty() {
        "kv".to_owned()
    } else {
        cut.to_owned()
    }
}

/// A name like that at `first` which no segment has.
fn unused(names: &[&str], first: usize) -> String {
    let base: String = names
        .get(first)
        .unwrap_or(&"kv")
        .chars()
        .take(NAME_LENGTH - 6)
        .collect();
    let base = base.trim_end_matches('-');
    let candidates = (2..=names.len() + 2).map(|n| format!("{base}-{n}"));
    let mut free = candidates.filter(|name| !names.contains(&name.as_str()));
    free.next().unwrap_or_else(|| "kv".to_owned())
}

fn size(bytes: u64, page_bytes: u64, page: Page) -> Result<(), Refusal> {
    let text = format_bytes(bytes);
    let page_name = format_bytes(page_bytes);
    if bytes == 0 {
        let remedy = format!("write at least one page, e.g. {}", quoted(&page_name));
        return Err(Refusal::new(
            &text,
            "'0' is no size: nothing to mount".to_owned(),
            remedy,
        ));
    }
    if bytes > MAX_BYTES {
        let what = format!("'{bytes}' is too large: the most is {MAX_BYTES} bytes (2^63-1)");
        return Err(Refusal::new(
            &bytes.to_string(),
            what,
            "write less, e.g. '1Ti'",
        ));
    }
    if bytes.is_multiple_of(page_bytes) {
        return Ok(());
    }
    let below = bytes - bytes % page_bytes;
    let above = Some(below + page_bytes).filter(|bytes| *bytes <= MAX_BYTES);
    let near: Vec<String> = Some(below)
        .filter(|bytes| *bytes > 0)
        .into_iter()
        .chain(above)
        .map(format_bytes)
        .collect();
    let smallest = if matches!(page, Page::Size(_)) {
        ""
    } else {
        ", the smallest there are"
    };
    let what = format!(
        "{} is not a whole number of pages of {page_name}{smallest}",
        quoted(&text)
    );
    let remedy = format!(
        "the nearest that works: {}",
        alternatives(near.iter().map(String::as_str))
    );
    Err(Refusal::new(&text, what, remedy))
}

fn directory(path: &Path, field: &str) -> Option<Problem> {
    let text = path.to_string_lossy();
    let why = match () {
        () if path.as_os_str().is_empty() => "it is empty",
        () if !path.is_absolute() => "it depends on where the process was started",
        () if text.contains('\0') => "it has a NUL character",
        () => return None,
    };
    let what = format!("{} is not an absolute path: {why}", quoted(&text));
    let works = format!("/run/siding/{}", text.trim_start_matches(['.', '/']));
    let remedy = match why {
        "it depends on where the process was started" => format!("write e.g. {}", quoted(&works)),
        _ => "write e.g. '/run/siding'".to_owned(),
    };
    Some(Refusal::new(&text, what, remedy).at(field))
}

/// Why `shutdown.graceSeconds` cannot be this.
pub(super) fn grace_refusal(text: &str) -> Refusal {
    let (least, most) = (GRACE_SECONDS.start(), GRACE_SECONDS.end());
    let what = format!(
        "{} is not a number of seconds from {least} to {most}",
        quoted(text)
    );
    Refusal::new(text, what, "write whole seconds, e.g. '30'")
}

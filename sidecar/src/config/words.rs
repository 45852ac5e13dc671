//! Words and numbers as users write them.

use std::net::{Ipv6Addr, SocketAddr};

use siding_crds::quoted;

use super::problem::Refusal;

/// The same for `touchThreads`, `touch_threads` and `Touch-Threads`.
fn plain(word: &str) -> String {
    word.chars()
        .filter(|c| !matches!(c, '-' | '_'))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Whether two spellings are of one word, regardless of case.
pub(super) fn same(left: &str, right: &str) -> bool {
    left.eq_ignore_ascii_case(right)
}

/// Longer words are no misspellings.
const LONGEST_WORD: usize = 64;

/// The known word that was probably meant.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    if word.len() > LONGEST_WORD {
        return None;
    }
    let word = plain(word);
    let distance = |candidate: &str| {
        let candidate = plain(candidate);
        let (short, long) = if word.len() < candidate.len() {
            (&word, &candidate)
        } else {
            (&candidate, &word)
        };
        if short.len() >= 3 && long.contains(short.as_str()) {
            return Some(if long.starts_with(short.as_str()) {
                1
            } else {
                2
            });
        }
        let limit = (word.chars().count() / 3).max(1);
        Some(strsim::osa_distance(&word, &candidate)).filter(|distance| *distance <= limit)
    };
    known
        .iter()
        .filter_map(|candidate| Some((distance(candidate)?, *candidate)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `'a', 'b' or 'c'`.
pub(super) fn alternatives<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut quoted: Vec<String> = words.into_iter().map(quoted).collect();
    match quoted.pop() {
        Some(last) if quoted.is_empty() => last,
        Some(last) => format!("{} or {last}", quoted.join(", ")),
        None => String::new(),
    }
}

/// One of a few words, e.g. a back end.
pub(super) fn pick<T: Copy>(
    text: &str,
    noun: &str,
    choices: &[(&'static str, T)],
) -> Result<T, Refusal> {
    match choices.iter().find(|(word, _)| same(word, text)) {
        Some((_, choice)) => Ok(*choice),
        None => Err(Refusal::new(
            text,
            format!("{} is not {noun}", quoted(text)),
            format!(
                "write {}",
                alternatives(choices.iter().map(|(word, _)| *word))
            ),
        )),
    }
}

/// What a text is as a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whole {
    /// This one.
    Is(u64),
    /// One that no `u64` holds.
    TooLarge,
    /// Not one, or a negative one.
    No,
}

pub(super) fn whole(text: &str) -> Whole {
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Whole::No;
    }
    digits.parse().map_or(Whole::TooLarge, Whole::Is)
}

/// A listening address, `host:port`.
pub(super) fn address(text: &str) -> Result<SocketAddr, Refusal> {
    text.parse().map_err(|_| {
        Refusal::new(
            text,
            format!("{} is not an IP address and a port", quoted(text)),
            format!("write {}", quoted(&likely_address(text))),
        )
    })
}

fn likely_address(text: &str) -> String {
    let bracketed = text
        .parse::<Ipv6Addr>()
        .ok()
        .map(|host| format!("[{host}]:9600"));
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    let port = text.rsplit_once(':').map_or(text, |(_, port)| port);
    let port = port
        .parse::<u16>()
        .map_or("9600".to_owned(), |port| port.to_string());
    let host = match host {
        "" | "*" => "0.0.0.0",
        host => host,
    };
    let candidates = [
        bracketed.unwrap_or_default(),
        format!("{host}:{port}"),
        format!("[{host}]:{port}"),
    ];
    let works = candidates
        .into_iter()
        .find(|text| text.parse::<SocketAddr>().is_ok());
    works.unwrap_or_else(|| format!("127.0.0.1:{port}"))
}

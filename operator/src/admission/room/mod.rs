//! What a namespace's LimitRanges and ResourceQuotas let through: the API server refuses a pod that breaks one, after
//! all webhooks. It is counted here as it counts; what its own configuration limits by default is not known here.

mod bound;
mod limit_range;
mod load;
mod misfit;
mod quota;
mod scope;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;
use siding_crds::quoted;
use siding_crds::reasons::Skip;

use super::pod::Pod;
use super::skip::Skipped;
use load::{Load, Needs, Side};

pub use limit_range::LimitRange;
pub use quota::Quota;

/// The limits of a namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Room {
    /// Its LimitRanges.
    pub limit_ranges: Vec<Arc<LimitRange>>,
    /// Its ResourceQuotas.
    pub quotas: Vec<Arc<Quota>>,
}

/// A limit that a pod breaks.
#[derive(Debug)]
struct Broken<'a> {
    reason: Skip,
    /// The name of the object.
    object: &'a str,
    /// Which of its rules.
    rule: (&'static str, &'static str),
    resource: &'a str,
    /// What it allows and what the pod has, behind the object's name.
    what: String,
    /// What of the object would have to be another.
    mend: String,
    /// What of the sidecar might be another instead.
    sidecar: Option<(Change, Side, &'a str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Less,
    More,
}

/// Looks for a limit that a pod breaks with its sidecar and not without it: that would be because of us.
pub(super) fn check(
    pod: &Pod<'_>,
    sidecar: &Value,
    pool: &str,
    room: &Room,
) -> Result<(), Skipped> {
    if room.limit_ranges.is_empty() && room.quotas.is_empty() {
        return Ok(());
    }
    let mut ranges: Vec<&LimitRange> = room.limit_ranges.iter().map(Arc::as_ref).collect();
    // Which of several gives a container what it does not state is left to chance: each is tried as the first.
    for _ in 0..ranges.len().max(1) {
        let before = Load::of(pod, None, &ranges);
        let after = Load::of(pod, Some(sidecar), &ranges);
        let known = room.broken(&before);
        let mut all = room.broken(&after).into_iter();
        if let Some(ours) = all.find(|one| !known.iter().any(|other| one.is_same(other))) {
            return Err(ours.into_skipped(&after, pool));
        }
        if !ranges.is_empty() {
            ranges.rotate_left(1);
        }
    }
    Ok(())
}

impl Room {
    /// What a pod breaks, in the order in which the API server looks.
    fn broken<'a>(&'a self, load: &Load<'a>) -> Vec<Broken<'a>> {
        let misfits = load.sidecar().map(misfit::misfits);
        let mut all = misfits.unwrap_or_default();
        all.extend(
            self.limit_ranges
                .iter()
                .flat_map(|range| range.broken(load)),
        );
        all.extend(self.quotas.iter().flat_map(|quota| quota.broken(load)));
        all
    }
}

impl Broken<'_> {
    fn is_same(&self, other: &Self) -> bool {
        self.reason == other.reason
            && self.object == other.object
            && self.rule == other.rule
            && self.resource == other.resource
    }

    fn into_skipped(self, load: &Load<'_>, pool: &str) -> Skipped {
        let alternative = load
            .sidecar()
            .and_then(|sidecar| self.alternative(sidecar, pool));
        let mut message = format!(
            "{} {} {}; {}",
            self.reason,
            quoted(self.object),
            self.what,
            self.mend
        );
        if let Some(alternative) = alternative {
            message.push_str(", or ");
            message.push_str(&alternative);
        }
        Skipped::new(self.reason, message)
    }

    /// What would mend it on the side of the sidecar, where that has a part in it.
    fn alternative(&self, sidecar: &Needs<'_>, pool: &str) -> Option<String> {
        let (change, side, resource) = self.sidecar?;
        let pool = quoted(pool);
        let verb = match change {
            Change::Less => "lower",
            Change::More => "raise",
        };
        let mut given = sidecar.given.iter();
        if let Some(given) = given.find(|given| (given.side, given.resource) == (side, resource)) {
            let range = quoted(given.by);
            return Some(format!("{verb} default.{resource} of LimitRange {range}"));
        }
        sidecar.get(side, resource)?;
        if resource == "cpu" {
            Some(format!("{verb} spec.sidecar.cpu of StorePool {pool}"))
        } else if resource == "memory" || resource.starts_with("hugepages-") {
            let smaller = || format!("make the segments of StorePool {pool} smaller");
            (change == Change::Less).then(smaller)
        } else {
            Some(format!(
                "{verb} spec.deviceAccess.count of StorePool {pool}"
            ))
        }
    }
}

//! Bounds that LimitRanges set: min, max and the most that a limit is to its request.

use siding_crds::reasons::Skip;

use super::super::amount::{UNIT, shown};
use super::limit_range::Of;
use super::load::{Amounts, Needs, Side};
use super::{Broken, Change};

/// A container, or a pod.
#[derive(Debug)]
pub(super) struct Subject<'l> {
    pub(super) container: Option<&'l Needs<'l>>,
    pub(super) requests: &'l Amounts,
    pub(super) limits: &'l Amounts,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    Min,
    Max,
    /// The most that a limit is to its request.
    Ratio,
}

/// One bound of one resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound<'a> {
    pub(super) of: Of,
    pub(super) rule: Rule,
    pub(super) resource: &'a str,
    pub(super) bound: i128,
}

/// How a bound is broken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    side: Side,
    /// None is there, but has to be.
    has: Option<i128>,
    /// A bound that would let it through.
    would_do: i128,
}

impl Fault {
    fn none(side: Side, would_do: i128) -> Self {
        Self {
            side,
            has: None,
            would_do,
        }
    }

    fn has(side: Side, has: i128, would_do: i128) -> Self {
        Self {
            side,
            has: Some(has),
            would_do,
        }
    }

    fn told(self, resource: &str) -> String {
        let side = self.side.as_str();
        match self.has {
            Some(has) => format!("has a {side} of {}", shown(resource, has)),
            None => format!("has no {side} of it"),
        }
    }
}

impl<'a> Bound<'a> {
    /// How a container or a pod breaks it.
    pub(super) fn fault(&self, subject: &Subject<'_>) -> Option<Fault> {
        let request = subject.requests.get(self.resource).copied();
        let limit = subject.limits.get(self.resource).copied();
        match self.rule {
            Rule::Min => below(self.bound, request, limit),
            Rule::Max => above(self.bound, request, limit),
            Rule::Ratio => too_far(self.bound, request, limit),
        }
    }

    pub(super) fn broken(&self, range: &'a str, subject: &Subject<'_>, fault: Fault) -> Broken<'a> {
        let change = match self.rule {
            Rule::Min => Change::More,
            Rule::Max | Rule::Ratio => Change::Less,
        };
        Broken {
            reason: Skip::LimitRange,
            object: range,
            rule: (self.field(), self.kind()),
            resource: self.resource,
            what: format!(
                "{}, and {} {}",
                self.told(),
                subject.told(),
                fault.told(self.resource)
            ),
            mend: self.mend(fault),
            sidecar: Some((change, fault.side, self.resource)),
        }
    }

    fn field(&self) -> &'static str {
        match self.rule {
            Rule::Min => "min",
            Rule::Max => "max",
            Rule::Ratio => "maxLimitRequestRatio",
        }
    }

    /// The item's `type`.
    fn kind(&self) -> &'static str {
        match self.of {
            Of::Container => "Container",
            Of::Pod => "Pod",
        }
    }

    fn told(&self) -> String {
        let resource = self.resource;
        let of = match self.of {
            Of::Container => "a container",
            Of::Pod => "a pod",
        };
        match self.rule {
            Rule::Min => format!(
                "wants {of} to have {} of {resource} at least",
                shown(resource, self.bound)
            ),
            Rule::Max => format!(
                "allows {of} {} of {resource} at most",
                shown(resource, self.bound)
            ),
            Rule::Ratio => format!(
                "allows {of} a limit of {resource} of {} times its request at most",
                shown("", self.bound)
            ),
        }
    }

    fn mend(&self, fault: Fault) -> String {
        let (resource, field, kind) = (self.resource, self.field(), self.kind());
        let would_do = match (self.rule, fault.has) {
            (Rule::Ratio, Some(_)) => shown("", fault.would_do),
            _ => shown(resource, fault.would_do),
        };
        let verb = match (self.rule, fault.has) {
            (Rule::Ratio, None) => {
                return format!(
                    "give its type Container a default.{resource} of {would_do} at most"
                );
            }
            (_, None) => return format!("give its type Container a default.{resource}"),
            (Rule::Min, Some(_)) => "lower",
            (Rule::Max | Rule::Ratio, Some(_)) => "raise",
        };
        let mut mend = format!("{verb} its {field}.{resource} of type {kind} to {would_do}");
        // The limits of a pod are of those containers alone that have one.
        if matches!(
            (self.rule, self.of, fault.side),
            (Rule::Min, Of::Pod, Side::Limit)
        ) {
            let more = format!(", or give the pod's own containers limits of {resource}");
            mend.push_str(&more);
        }
        mend
    }
}

impl Subject<'_> {
    fn told(&self) -> String {
        self.container.map_or_else(
            || "the pod with its sidecar".to_owned(),
            |container| container.told(),
        )
    }
}

/// What the request or the limit is below.
fn below(least: i128, request: Option<i128>, limit: Option<i128>) -> Option<Fault> {
    let Some(request) = request else {
        return Some(Fault::none(Side::Request, least));
    };
    let lower = limit.map_or(request, |limit| limit.min(request));
    if request < least {
        Some(Fault::has(Side::Request, request, lower))
    } else if lower < least {
        Some(Fault::has(Side::Limit, lower, lower))
    } else {
        None
    }
}

/// What the limit or the request is above.
fn above(most: i128, request: Option<i128>, limit: Option<i128>) -> Option<Fault> {
    let Some(limit) = limit else {
        return Some(Fault::none(Side::Limit, most));
    };
    let higher = request.map_or(limit, |request| request.max(limit));
    if limit > most {
        Some(Fault::has(Side::Limit, limit, higher))
    } else if higher > most {
        Some(Fault::has(Side::Request, higher, higher))
    } else {
        None
    }
}

/// What is too far above the request: 0 is as good as none.
fn too_far(ratio: i128, request: Option<i128>, limit: Option<i128>) -> Option<Fault> {
    let there = |amount: Option<i128>| amount.filter(|amount| *amount > 0);
    let Some(request) = there(request) else {
        return Some(Fault::none(Side::Request, 0));
    };
    let most = request.saturating_mul(ratio) / UNIT;
    let Some(limit) = there(limit) else {
        return Some(Fault::none(Side::Limit, most));
    };
    // In whole times, rounded up.
    let times = limit.saturating_add(request - 1) / request;
    (limit > most).then(|| Fault::has(Side::Limit, limit, times.saturating_mul(UNIT)))
}

//! LimitRanges: what they give to containers, and what they let through.

use k8s_openapi::api::core::v1;
use kube::ResourceExt;
use siding_crds::reasons::Skip;

use super::super::amount::{UNIT, shown};
use super::load::{Amounts, Given, Load, Needs, Side, amounts, is_extended};
use super::{Broken, Change};

/// What is kept of a LimitRange: what it says of pods and containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitRange {
    name: String,
    items: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    of: Of,
    min: Amounts,
    max: Amounts,
    ratio: Amounts,
    default: Amounts,
    default_request: Amounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Container,
    Pod,
}

impl LimitRange {
    /// Of an object of the API.
    #[must_use]
    pub fn of(range: &v1::LimitRange) -> Self {
        let items = range.spec.iter().flat_map(|spec| &spec.limits);
        Self {
            name: range.name_any(),
            items: items.filter_map(Item::of).collect(),
        }
    }

    /// Gives a container what it does not state.
    pub(super) fn complete<'a>(&'a self, needs: &mut Needs<'a>) {
        let by = &self.name;
        for item in self.items.iter().filter(|item| item.of == Of::Container) {
            for (side, defaults) in [
                (Side::Limit, &item.default),
                (Side::Request, &item.default_request),
            ] {
                for (resource, amount) in defaults {
                    needs.take(Given { by, side, resource }, *amount);
                }
            }
        }
    }

    /// What a pod breaks.
    pub(super) fn broken<'a>(&'a self, load: &Load<'_>) -> Vec<Broken<'a>> {
        let of_item = |item: &'a Item| item.broken(&self.name, load);
        self.items.iter().flat_map(of_item).collect()
    }
}

impl Item {
    /// None of what is about neither.
    fn of(item: &v1::LimitRangeItem) -> Option<Self> {
        let of = match item.type_.as_str() {
            "Container" => Of::Container,
            "Pod" => Of::Pod,
            _ => return None,
        };
        let mut item = Self {
            of,
            min: amounts(item.min.as_ref()),
            max: amounts(item.max.as_ref()),
            ratio: amounts(item.max_limit_request_ratio.as_ref()),
            default: amounts(item.default.as_ref()),
            default_request: amounts(item.default_request.as_ref()),
        };
        if of == Of::Container {
            item.complete();
        }
        Some(item)
    }

    /// As the API server completes what it stores: the largest limit is the default one, that is the default
    /// request, and else the smallest request is.
    fn complete(&mut self) {
        let fill = |to: &mut Amounts, from: &Amounts| {
            for (resource, amount) in from {
                to.entry(resource.clone()).or_insert(*amount);
            }
        };
        fill(&mut self.default, &self.max);
        fill(&mut self.default_request, &self.default);
        fill(&mut self.default_request, &self.min);
    }

    fn broken<'a>(&'a self, range: &'a str, load: &Load<'_>) -> Vec<Broken<'a>> {
        let subjects = self.subjects(load);
        let bounds = [
            (Rule::Min, &self.min),
            (Rule::Max, &self.max),
            (Rule::Ratio, &self.ratio),
        ];
        let mut all = Vec::new();
        for (rule, bounds) in bounds {
            for (resource, bound) in bounds {
                let bound = Bound {
                    of: self.of,
                    rule,
                    resource,
                    bound: *bound,
                };
                let fault = |subject| Some((subject, bound.fault(subject)?));
                if let Some((subject, fault)) = subjects.iter().find_map(fault) {
                    all.push(bound.broken(range, subject, fault));
                }
            }
        }
        all
    }

    /// Whom it binds: each container, or all together.
    fn subjects<'l>(&self, load: &'l Load<'_>) -> Vec<Subject<'l>> {
        let container = |needs: &'l Needs<'_>| Subject {
            container: Some(needs),
            requests: &needs.requests,
            limits: &needs.limits,
        };
        match self.of {
            Of::Container => load.containers().map(container).collect(),
            Of::Pod => vec![Subject {
                container: None,
                requests: &load.requests,
                limits: &load.limits,
            }],
        }
    }
}

/// A container, or a pod.
#[derive(Debug)]
struct Subject<'l> {
    container: Option<&'l Needs<'l>>,
    requests: &'l Amounts,
    limits: &'l Amounts,
}

#[derive(Clone, Copy, Debug)]
enum Rule {
    Min,
    Max,
    /// The most that a limit is to its request.
    Ratio,
}

/// One bound of one resource.
#[derive(Clone, Copy, Debug)]
struct Bound<'a> {
    of: Of,
    rule: Rule,
    resource: &'a str,
    bound: i128,
}

/// How a bound is broken.
#[derive(Clone, Copy, Debug)]
struct Fault {
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
    fn fault(&self, subject: &Subject<'_>) -> Option<Fault> {
        let request = subject.requests.get(self.resource).copied();
        let limit = subject.limits.get(self.resource).copied();
        match self.rule {
            Rule::Min => below(self.bound, request, limit),
            Rule::Max => above(self.bound, request, limit),
            Rule::Ratio => too_far(self.bound, request, limit),
        }
    }

    fn broken(&self, range: &'a str, subject: &Subject<'_>, fault: Fault) -> Broken<'a> {
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

/// Defaults that don't go with what a container states. Nobody else's are looked at: what they state they are
/// tried with anyway.
pub(super) fn misfits<'a>(sidecar: &Needs<'a>) -> Vec<Broken<'a>> {
    let broken = |given: &Given<'a>| misfit(sidecar, given);
    sidecar.given.iter().filter_map(broken).collect()
}

fn misfit<'a>(sidecar: &Needs<'a>, given: &Given<'a>) -> Option<Broken<'a>> {
    let resource = given.resource;
    let amount = sidecar.get(given.side, resource)?;
    let request = sidecar.get(Side::Request, resource).unwrap_or_default();
    let limit = sidecar.get(Side::Limit, resource).unwrap_or(request);
    let (what, mend) = if is_exclusive(resource) && amount > 0 {
        // Without a limit the API server refuses it; with one it takes a GPU, say, from the engine.
        (
            format!(
                "gives the sidecar {} of {resource}, which it has no use for",
                shown(resource, amount)
            ),
            format!("take {resource} out of its type Container"),
        )
    } else if request > limit {
        let (request, limit) = (shown(resource, request), shown(resource, limit));
        (
            format!(
                "gives the sidecar a limit of {limit} of {resource}, less than its request of {request}"
            ),
            format!("raise its default.{resource} of type Container to {request}"),
        )
    } else {
        return None;
    };
    Some(Broken {
        reason: Skip::LimitRange,
        object: given.by,
        rule: ("default", given.side.as_str()),
        resource,
        what,
        mend,
        sidecar: Some((Change::Less, Side::Request, resource)),
    })
}

/// Whether a resource is given to one container alone, of which a request and a limit are the same.
fn is_exclusive(resource: &str) -> bool {
    resource.starts_with("hugepages-") || is_extended(resource)
}

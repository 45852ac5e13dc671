//! What a pod asks for, as the API server counts it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;
use siding_crds::names::CONTAINER;

use super::super::amount::{amount, parse};
use super::super::pod::{Pod, name_of};
use super::limit_range::LimitRange;

/// Amounts by resource, in units of 10^-9.
pub(super) type Amounts = BTreeMap<String, i128>;

/// The amounts of an object of the API; what is no quantity is none.
pub(super) fn amounts(quantities: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let all = quantities.into_iter().flatten();
    all.filter_map(|(resource, quantity)| Some((resource.clone(), parse(&quantity.0)?)))
        .collect()
}

/// The amounts of a pod's map.
fn read(map: Option<&Value>) -> Amounts {
    let all = map.and_then(Value::as_object).into_iter().flatten();
    all.filter_map(|(resource, quantity)| Some((resource.clone(), amount(quantity)?)))
        .collect()
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        let sum = to.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

/// Raises each amount to another that is larger.
fn raise(to: &mut Amounts, other: &Amounts) {
    for (resource, amount) in other {
        let most = to.entry(resource.clone()).or_insert(*amount);
        *most = (*most).max(*amount);
    }
}

/// What is asked for at least, or allowed at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Limit,
}

impl Side {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Limit => "limit",
        }
    }
}

/// What a container asks for.
#[derive(Debug)]
pub(super) struct Needs<'a> {
    pub(super) name: &'a str,
    /// A native sidecar: it goes on while others start and run.
    goes_on: bool,
    pub(super) requests: Amounts,
    pub(super) limits: Amounts,
    /// What it states not itself: which LimitRange gave it what.
    pub(super) given: Vec<Given<'a>>,
}

/// What a LimitRange gave to a container.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Given<'a> {
    pub(super) by: &'a str,
    pub(super) side: Side,
    pub(super) resource: &'a str,
}

impl<'a> Needs<'a> {
    /// As they are stated, then as the API server and, in this order, LimitRanges complete them.
    fn of(container: &'a Value, ranges: &[&'a LimitRange]) -> Self {
        let stated = |kind: &str| read(container.get("resources").and_then(|all| all.get(kind)));
        let mut needs = Self {
            name: name_of(container),
            goes_on: container.get("restartPolicy").and_then(Value::as_str) == Some("Always"),
            requests: stated("requests"),
            limits: stated("limits"),
            given: Vec::new(),
        };
        for (resource, limit) in &needs.limits {
            needs.requests.entry(resource.clone()).or_insert(*limit);
        }
        for range in ranges {
            range.complete(&mut needs);
        }
        needs
    }

    /// Takes a default where nothing is stated.
    pub(super) fn take(&mut self, given: Given<'a>, amount: i128) {
        let stated = match given.side {
            Side::Request => &mut self.requests,
            Side::Limit => &mut self.limits,
        };
        if !stated.contains_key(given.resource) {
            stated.insert(given.resource.to_owned(), amount);
            self.given.push(given);
        }
    }

    pub(super) fn all(&self, side: Side) -> &Amounts {
        match side {
            Side::Request => &self.requests,
            Side::Limit => &self.limits,
        }
    }

    pub(super) fn get(&self, side: Side, resource: &str) -> Option<i128> {
        self.all(side).get(resource).copied()
    }

    pub(super) fn is_sidecar(&self) -> bool {
        self.name == CONTAINER
    }

    /// As messages call it.
    pub(super) fn told(&self) -> String {
        if self.is_sidecar() {
            "the sidecar".to_owned()
        } else {
            format!("container {}", siding_crds::quoted(self.name))
        }
    }

    fn is_best_effort(&self) -> bool {
        let is_none = |side, resource| self.get(side, resource).is_none_or(|amount| amount == 0);
        ["cpu", "memory"]
            .iter()
            .all(|resource| is_none(Side::Request, resource) && is_none(Side::Limit, resource))
    }
}

/// What a pod asks for.
#[derive(Debug)]
pub(super) struct Load<'a> {
    pub(super) pod: Pod<'a>,
    ordinary: Vec<Needs<'a>>,
    init: Vec<Needs<'a>>,
    /// Of all containers together.
    pub(super) requests: Amounts,
    /// Of all containers together, of those that state one.
    pub(super) limits: Amounts,
    overhead: Amounts,
}

impl<'a> Load<'a> {
    /// Of a pod, with a sidecar before its other init containers or without.
    pub(super) fn of(pod: &Pod<'a>, sidecar: Option<&'a Value>, ranges: &[&'a LimitRange]) -> Self {
        let needs = |container: &'a Value| Needs::of(container, ranges);
        let ordinary: Vec<Needs<'a>> = pod.containers().iter().map(needs).collect();
        let init = sidecar.into_iter().chain(pod.init_containers());
        let init: Vec<Needs<'a>> = init.map(needs).collect();
        Self {
            pod: *pod,
            requests: most(&ordinary, &init, Side::Request),
            limits: most(&ordinary, &init, Side::Limit),
            overhead: read(pod.spec("/overhead")),
            ordinary,
            init,
        }
    }

    pub(super) fn containers(&self) -> impl Iterator<Item = &Needs<'a>> {
        self.init.iter().chain(&self.ordinary)
    }

    pub(super) fn sidecar(&self) -> Option<&Needs<'a>> {
        self.init.first().filter(|needs| needs.is_sidecar())
    }

    /// What counts towards a quota: with what the pod itself takes, which a LimitRange leaves out.
    pub(super) fn counted(&self, side: Side, resource: &str) -> i128 {
        let amount = match side {
            Side::Request => self.requests.get(resource),
            Side::Limit => self.limits.get(resource),
        };
        let amount = amount.copied().unwrap_or_default();
        // No limit stays none.
        if side == Side::Limit && amount == 0 {
            return 0;
        }
        let overhead = self.overhead.get(resource).copied().unwrap_or_default();
        amount.saturating_add(overhead)
    }

    /// Whether it is of the class BestEffort.
    pub(super) fn is_best_effort(&self) -> bool {
        self.containers().all(Needs::is_best_effort)
    }
}

/// The most that containers ask for at one time: those that run together, or one that has to end before others
/// start, beside the native sidecars that were started before it.
fn most(ordinary: &[Needs<'_>], init: &[Needs<'_>], side: Side) -> Amounts {
    let mut running = Amounts::new();
    for container in ordinary {
        add(&mut running, container.all(side));
    }
    let (mut beside, mut starting) = (Amounts::new(), Amounts::new());
    for container in init {
        let mut now = beside.clone();
        add(&mut now, container.all(side));
        raise(&mut starting, &now);
        if container.goes_on {
            add(&mut running, container.all(side));
            beside = now;
        }
    }
    raise(&mut running, &starting);
    running
}

/// Whether a resource is a device plugin's, or one that a DeviceClass stands for.
pub(super) fn is_extended(resource: &str) -> bool {
    resource.starts_with("deviceclass.resource.kubernetes.io/")
        || (resource.contains('/') && !resource.contains("kubernetes.io/"))
}

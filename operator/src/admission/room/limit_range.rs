//! LimitRanges: what they give to containers, and what they let through.

use k8s_openapi::api::core::v1;
use kube::ResourceExt;

use super::Broken;
use super::bound::{Bound, Rule, Subject};
use super::load::{Amounts, Given, Load, Needs, Side, amounts};

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
pub(super) enum Of {
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

//! ResourceQuotas: what they leave, and what they demand.

use k8s_openapi::api::core::v1::{self, ScopedResourceSelectorRequirement};
use kube::ResourceExt;
use siding_crds::reasons::Skip;

use super::super::amount::{UNIT, shown};
use super::load::{Amounts, Load, Side, amounts, is_extended};
use super::{Broken, Change, scope};

/// Resources of which each container has to state its request or limit where a quota has them.
const DEMANDED: [&str; 6] = [
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];

/// What is kept of a ResourceQuota.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quota {
    name: String,
    hard: Amounts,
    used: Amounts,
    scopes: Vec<ScopedResourceSelectorRequirement>,
}

/// What a resource of a quota counts of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted<'n> {
    /// That it is there.
    Pod,
    /// What it asks for.
    Resource(Side, &'n str),
}

impl Quota {
    /// Of an object of the API.
    ///
    /// The API server goes by the status, which follows the spec a moment later, and not at all by a quota without
    /// one. That moment may be over before the pod is there, so that such a quota counts here by its spec.
    #[must_use]
    pub fn of(quota: &v1::ResourceQuota) -> Self {
        let (spec, status) = (quota.spec.as_ref(), quota.status.as_ref());
        let declared = spec.and_then(|spec| spec.hard.as_ref());
        let in_force = status.and_then(|status| status.hard.as_ref());
        Self {
            name: quota.name_any(),
            hard: amounts(in_force.or(declared)),
            used: amounts(status.and_then(|status| status.used.as_ref())),
            scopes: spec.map(scope::selectors).unwrap_or_default(),
        }
    }

    /// What a pod breaks.
    pub(super) fn broken<'a>(&'a self, load: &Load<'_>) -> Vec<Broken<'a>> {
        if !self.scopes.iter().all(|scope| scope::matches(scope, load)) {
            return Vec::new();
        }
        let demands = self
            .hard
            .keys()
            .filter_map(|name| self.unstated(name, load));
        let amounts = self.hard.iter();
        let amounts = amounts.filter_map(|(name, hard)| self.exceeded(name, *hard, load));
        demands.chain(amounts).collect()
    }

    fn unstated<'a>(&'a self, name: &'a str, load: &Load<'_>) -> Option<Broken<'a>> {
        let counted = DEMANDED.contains(&name).then(|| counted(name))?;
        let Counted::Resource(side, resource) = counted? else {
            return None;
        };
        let mut containers = load.containers();
        let silent = containers.find(|needs| needs.get(side, resource).is_none())?;
        let (who, side) = (silent.told(), side.as_str());
        Some(Broken {
            rule: ("demand", ""),
            what: format!(
                "{}has {name}, so that each container must have a {side} of {resource}, and {who} has none",
                self.scopes_told()
            ),
            mend: format!(
                "let a LimitRange give it one (default.{resource} of type Container), or take {name} out of the quota"
            ),
            ..self.of_resource(name)
        })
    }

    /// Where it is not known yet how much is used, nothing is taken for used: what is more than all of it does
    /// not fit, and of the rest nothing can be said.
    fn exceeded<'a>(&'a self, name: &'a str, hard: i128, load: &Load<'_>) -> Option<Broken<'a>> {
        let counted = counted(name)?;
        let (takes, unit) = match counted {
            Counted::Pod => (UNIT, ""),
            Counted::Resource(side, resource) => (load.counted(side, resource), resource),
        };
        let used = self.used.get(name).copied();
        let sum = used.unwrap_or_default().saturating_add(takes);
        // What takes nothing is let through where all is taken.
        if takes <= 0 || sum <= hard {
            return None;
        }
        let left = match used {
            Some(used) => format!(
                "{} of {} of {name} left",
                shown(unit, hard.saturating_sub(used).max(0)),
                shown(unit, hard)
            ),
            None => format!("{} of {name} in all", shown(unit, hard)),
        };
        Some(Broken {
            what: format!(
                "{}has {left}, and the pod with its sidecar takes {}",
                self.scopes_told(),
                shown(unit, takes)
            ),
            mend: format!("raise its spec.hard of {name} to {}", shown(unit, sum)),
            sidecar: match counted {
                Counted::Pod => None,
                Counted::Resource(side, resource) => Some((Change::Less, side, resource)),
            },
            ..self.of_resource(name)
        })
    }

    fn of_resource<'a>(&'a self, name: &'a str) -> Broken<'a> {
        Broken {
            reason: Skip::ResourceQuota,
            object: &self.name,
            rule: ("hard", ""),
            resource: name,
            what: String::new(),
            mend: String::new(),
            sidecar: None,
        }
    }

    /// Which pods it counts: a sidecar may make the pod one of them.
    fn scopes_told(&self) -> String {
        let scopes: Vec<&str> = self
            .scopes
            .iter()
            .map(|scope| scope.scope_name.as_str())
            .collect();
        match scopes.as_slice() {
            [] => String::new(),
            scopes => format!("(scope {}) ", scopes.join(", ")),
        }
    }
}

/// `None` for what is not counted of pods.
fn counted(name: &str) -> Option<Counted<'_>> {
    let is_huge_page = |resource: &str| resource.starts_with("hugepages-");
    let is_plain = |resource: &str| matches!(resource, "cpu" | "memory" | "ephemeral-storage");
    if matches!(name, "pods" | "count/pods") {
        return Some(Counted::Pod);
    }
    if let Some(resource) = name.strip_prefix("limits.") {
        return is_plain(resource).then_some(Counted::Resource(Side::Limit, resource));
    }
    let resource = name.strip_prefix("requests.");
    // Devices are counted by the long name alone.
    let is_device = resource.is_some_and(is_extended);
    let resource = resource.unwrap_or(name);
    let is_counted = is_plain(resource) || is_huge_page(resource) || is_device;
    is_counted.then_some(Counted::Resource(Side::Request, resource))
}

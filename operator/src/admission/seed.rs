//! What a pod is created with, before it has a node. A variable that comes from an annotation is fixed when
//! its container starts, and an empty or absent one would mean *unbounded* to an engine: so each has a safe
//! value from the start, which binding improves.

use std::num::{NonZeroU32, NonZeroUsize};

use serde_json::Value;
use siding_crds::names::{CAP, INJECTION};
use siding_crds::plan::{ANNOTATION_VERSION, Injection, NodePlan, PlanSource};
use siding_crds::quoted;
use siding_topology::plan;
use siding_topology::size::count;

use super::World;
use super::amount::amount;
use super::devices::Access;
use super::pod::{Pod, limit_of, resources_of};
use super::wish::Wish;

/// One device, in [`amount`]'s unit.
const ONE: i128 = 1_000_000_000;

/// What is known of a pod before it has a node.
#[derive(Debug)]
pub(super) struct Seed {
    pub(super) plan: NodePlan,
    pub(super) injection: Injection,
    /// What the user wrote into the pod and is not followed.
    pub(super) warning: Option<String>,
}

impl Seed {
    pub(super) fn of(
        pod: &Pod<'_>,
        wish: &Wish<'_>,
        access: &Access<'_>,
        world: &World<'_>,
    ) -> Self {
        let gpus_per_rank = wish.spec.gpus_per_rank.number().unwrap_or(NonZeroU32::MIN);
        let ranks = ranks(pod, wish, gpus_per_rank);
        // What came with an earlier sidecar, e.g. in a copied manifest, was not written by hand.
        let written = pod
            .annotation(CAP)
            .filter(|_| pod.annotation(INJECTION).is_none());
        let own = written.and_then(|text| text.trim().parse::<NonZeroU32>().ok());
        let fixed = own.or(wish.spec.registration.cap.number());
        let (cap, cap_reason) = match (own, fixed) {
            (Some(cap), _) => (cap, format!("annotation {CAP} of the pod")),
            (None, Some(cap)) => (
                cap,
                format!("spec.registration.cap of StorePool {}", quoted(wish.pool)),
            ),
            (None, None) => safe_cap(ranks, gpus_per_rank, world),
        };
        let ignored = written.filter(|_| own.is_none());
        let warning = ignored.map(|text| {
            format!(
                "siding: annotation {CAP} is {}, not a whole number from 1: {cap} is used",
                quoted(text)
            )
        });
        Self {
            plan: NodePlan {
                version: ANNOTATION_VERSION,
                source: PlanSource::Seed,
                node: None,
                cap,
                cap_reason,
                ranks: None,
                cores: None,
                rails: None,
            },
            injection: Injection {
                version: ANNOTATION_VERSION,
                pool: wish.pool.to_owned(),
                pool_generation: wish.generation,
                ranks,
                gpus_per_rank,
                cap: fixed,
                image: wish.image.to_owned(),
                devices: access.kind(),
            },
            warning,
        }
    }
}

/// The planner's cap on the smallest node, as if the ranks of the node with most GPUs were on it.
fn safe_cap(
    ranks: NonZeroU32,
    gpus_per_rank: NonZeroU32,
    world: &World<'_>,
) -> (NonZeroU32, String) {
    let room = world
        .most_gpus
        .and_then(|gpus| NonZeroU32::new(gpus / gpus_per_rank));
    let ranks = room.map_or(ranks, |room| room.max(ranks));
    let Some(cores) = world.fewest_cores else {
        return (
            NonZeroU32::MIN,
            "the nodes' cores are unknown: 1 works on any".to_owned(),
        );
    };
    let counted = usize::try_from(ranks.get())
        .ok()
        .and_then(NonZeroUsize::new);
    let (cap, _) = plan::cap(
        cores,
        counted.unwrap_or(NonZeroUsize::MIN),
        world.defaults.factor,
    );
    let cap = u32::try_from(cap.get())
        .ok()
        .and_then(NonZeroU32::new)
        .unwrap_or(NonZeroU32::MIN);
    let reason = format!(
        "before it has a node: {} x {} of the smallest / {}, at least 1",
        world.defaults.factor,
        count(cores, "core"),
        count(ranks, "rank")
    );
    (cap, reason)
}

/// Ranks of a pod: as the pool says, or as many as its GPUs have room for.
fn ranks(pod: &Pod<'_>, wish: &Wish<'_>, gpus_per_rank: NonZeroU32) -> NonZeroU32 {
    let by_gpus = || {
        let gpus: u32 = pod
            .containers()
            .iter()
            .map(gpus)
            .fold(0, u32::saturating_add);
        NonZeroU32::new(gpus / gpus_per_rank).unwrap_or(NonZeroU32::MIN)
    };
    wish.spec.ranks.number().unwrap_or_else(by_gpus)
}

/// GPUs that a container asks for. Those of a ResourceClaim are known only to its driver.
pub(super) fn gpus(container: &Value) -> u32 {
    let mut names: Vec<&str> = resources_of(container)
        .filter(|name| is_gpu(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    let counts = names
        .into_iter()
        .filter_map(|name| amount(limit_of(container, name)?));
    let sum: i128 = counts
        .map(|nanos| (nanos / ONE).max(0))
        .fold(0, i128::saturating_add);
    u32::try_from(sum).unwrap_or(u32::MAX)
}

/// `nvidia.com/gpu`, `amd.com/gpu`, shared and sliced ones, `gpu.intel.com/i915`.
fn is_gpu(resource: &str) -> bool {
    let Some((domain, name)) = resource.split_once('/') else {
        return false;
    };
    name == "gpu"
        || name.starts_with("gpu.")
        || name.starts_with("mig-")
        || domain.starts_with("gpu.")
}

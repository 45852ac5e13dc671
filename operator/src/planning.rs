//! A node's plan for a pod, pure: what binding writes on it and what a controller completes.

use std::num::{NonZeroU32, NonZeroUsize};

use siding_crds::plan::{ANNOTATION_VERSION, Injection, NodePlan, PlanSource};
use siding_topology::catalogue::{Catalogue, CatalogueEntry};
use siding_topology::factor::{DEFAULT_FACTOR, Factor};
use siding_topology::plan;
use siding_topology::size::count;

use crate::caches::facts::{NodeFacts, TopologyFacts};

/// What is known of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeKnowledge<'a> {
    /// Its name.
    pub name: &'a str,
    /// What Kubernetes says of it.
    pub node: Option<&'a NodeFacts>,
    /// What its agent read.
    pub topology: Option<&'a TopologyFacts>,
    /// Ranks of our pods that are bound to it, the one that is planned for left out.
    pub other_ranks: u32,
}

/// The plan of a pod on a node; none where nothing is known of the node's cores.
#[must_use]
pub fn node_plan(
    injection: &Injection,
    known: NodeKnowledge<'_>,
    catalogue: &Catalogue,
) -> Option<NodePlan> {
    let entry = entry(known, catalogue);
    let read = known.topology.filter(|topology| topology.cores.is_some());
    let cores = read
        .and_then(|topology| topology.cores)
        .or_else(|| known.node.and_then(|node| node.cores))
        .or_else(|| published_cores(entry));
    let ranks = ranks(injection, known, entry);
    let rails = read.map(|topology| topology.rails.clone());
    let planned = cores.map(|cores| cap(cores, ranks, factor(entry)));
    let (cap, cap_reason) = match (injection.cap, planned) {
        (Some(cap), _) => (cap, "fixed by the pool (registration.cap)".to_owned()),
        (None, planned) => planned?,
    };
    Some(NodePlan {
        version: ANNOTATION_VERSION,
        source: if read.is_some() {
            PlanSource::Node
        } else {
            PlanSource::Catalogue
        },
        node: Some(known.name.to_owned()),
        cap,
        cap_reason,
        ranks: Some(ranks),
        cores,
        rails,
    })
}

fn entry<'a>(known: NodeKnowledge<'_>, catalogue: &'a Catalogue) -> Option<&'a CatalogueEntry> {
    let by_label = known.node.and_then(|node| node.instance_type.as_deref());
    let by_agent = known
        .topology
        .and_then(|topology| topology.instance_type.as_deref());
    catalogue.entry(by_label.or(by_agent)?)
}

fn factor(entry: Option<&CatalogueEntry>) -> Factor {
    entry
        .and_then(|entry| entry.factor.as_ref())
        .map_or(DEFAULT_FACTOR, |own| own.factor)
}

fn published_cores(entry: Option<&CatalogueEntry>) -> Option<NonZeroU32> {
    u32::try_from(entry?.vcpus?.get())
        .ok()
        .and_then(NonZeroU32::new)
}

/// The larger of the ranks that are bound, this pod's included, and what the node's GPUs have room
/// for: neither the order of arrival nor a second replica matters.
fn ranks(
    injection: &Injection,
    known: NodeKnowledge<'_>,
    entry: Option<&CatalogueEntry>,
) -> NonZeroU32 {
    let gpus = [
        known.topology.and_then(|topology| topology.gpus),
        known.node.map(|node| node.gpus),
        entry.and_then(|entry| u32::try_from(entry.gpus?).ok()),
    ];
    // A node whose device plugin is not up yet has fewer GPUs than it will have.
    let gpus = gpus.into_iter().flatten().max().unwrap_or(0);
    let room = gpus.div_ceil(injection.gpus_per_rank.get());
    let bound = injection.ranks.saturating_add(known.other_ranks);
    bound.max(NonZeroU32::new(room).unwrap_or(NonZeroU32::MIN))
}

/// The planner's cap, and how it came about.
#[must_use]
pub fn cap(cores: NonZeroU32, ranks: NonZeroU32, factor: Factor) -> (NonZeroU32, String) {
    let wide = |number: NonZeroU32| NonZeroUsize::try_from(number).unwrap_or(NonZeroUsize::MIN);
    let (cap, _) = plan::cap(wide(cores), wide(ranks), factor);
    let cap = u32::try_from(cap.get()).ok().and_then(NonZeroU32::new);
    let cap = cap.unwrap_or(NonZeroU32::MIN);
    (
        cap,
        format!(
            "{factor} x {} / {}, rounded, at least 1, at most the cores of a rank",
            count(cores, "core"),
            count(ranks, "rank")
        ),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use siding_crds::plan::GpuRail;

    use super::*;

    fn number(value: u32) -> NonZeroU32 {
        NonZeroU32::new(value).unwrap()
    }

    fn injection(ranks: u32, gpus_per_rank: u32) -> Injection {
        serde_json::from_value(serde_json::json!({
            "version": 1, "pool": "kv", "poolGeneration": 1, "ranks": ranks,
            "gpusPerRank": gpus_per_rank, "image": "i",
        }))
        .unwrap()
    }

    fn p5() -> TopologyFacts {
        TopologyFacts {
            cores: Some(number(192)),
            gpus: Some(8),
            instance_type: Some("p5.48xlarge".to_owned()),
            rails: vec![GpuRail {
                gpu: "0000:53:00.0".to_owned(),
                uuid: None,
                nics: vec!["rdmap79s0".to_owned()],
                evidence: "SameSwitch".to_owned(),
            }],
        }
    }

    fn known<'a>(
        node: Option<&'a NodeFacts>,
        topology: Option<&'a TopologyFacts>,
        other_ranks: u32,
    ) -> NodeKnowledge<'a> {
        NodeKnowledge {
            name: "n1",
            node,
            topology,
            other_ranks,
        }
    }

    #[test]
    fn a_node_that_was_read_gives_its_cap_and_its_table() {
        let topology = p5();
        let plan = node_plan(
            &injection(1, 1),
            known(None, Some(&topology), 0),
            &Catalogue::published(),
        )
        .unwrap();
        assert_eq!((plan.cap.get(), plan.ranks.unwrap().get()), (23, 8));
        assert_eq!(plan.source, PlanSource::Node);
        assert_eq!(plan.rails.unwrap()[0].nics, ["rdmap79s0"]);
        assert_eq!(
            plan.cap_reason,
            "0.95 x 192 cores / 8 ranks, rounded, at least 1, at most the cores of a rank"
        );
    }

    #[test]
    fn without_an_agent_the_nodes_capacity_counts_and_the_table_is_unknown() {
        let node = NodeFacts {
            cores: Some(number(190)),
            gpus: 4,
            instance_type: Some("p5.48xlarge".to_owned()),
            ..NodeFacts::default()
        };
        let plan = node_plan(
            &injection(1, 1),
            known(Some(&node), None, 0),
            &Catalogue::published(),
        )
        .unwrap();
        // 8 GPUs by the catalogue: the device plugin has told of 4 so far.
        assert_eq!((plan.cap.get(), plan.ranks.unwrap().get()), (23, 8));
        assert_eq!((plan.source, plan.rails), (PlanSource::Catalogue, None));
    }

    #[test]
    fn of_an_unknown_node_there_is_no_plan_unless_the_pool_fixes_the_cap() {
        let unknown = known(None, None, 0);
        let catalogue = Catalogue::published();
        assert_eq!(node_plan(&injection(1, 1), unknown, &catalogue), None);
        let fixed = Injection {
            cap: Some(number(6)),
            ..injection(1, 1)
        };
        let plan = node_plan(&fixed, unknown, &catalogue).unwrap();
        assert_eq!((plan.cap.get(), plan.cores), (6, None));
        assert_eq!(plan.cap_reason, "fixed by the pool (registration.cap)");
    }

    #[test]
    fn an_instance_types_own_factor_counts() {
        let topology = TopologyFacts {
            instance_type: Some("p6-b300.48xlarge".to_owned()),
            ..p5()
        };
        let plan = node_plan(
            &injection(1, 1),
            known(None, Some(&topology), 0),
            &Catalogue::published(),
        )
        .unwrap();
        assert_eq!(plan.cap.get(), 8);
    }

    proptest! {
        /// Whatever pods are bound one by one, in any order, by any replica: no more than the cores.
        #[test]
        fn caps_of_pods_bound_one_by_one_stay_within_the_cores(
            cores in 1_u32..512,
            gpus in 0_u32..17,
            gpus_per_rank in 1_u32..9,
            pods in prop::collection::vec(1_u32..5, 1..16),
        ) {
            let topology = TopologyFacts { cores: Some(number(cores)), gpus: Some(gpus), ..TopologyFacts::default() };
            let room = gpus.div_ceil(gpus_per_rank).max(1);
            let mut bound = 0;
            let mut sum = 0;
            for ranks in pods {
                if bound + ranks > room { break }
                let plan = node_plan(&injection(ranks, gpus_per_rank), known(None, Some(&topology), bound), &Catalogue::published()).unwrap();
                bound += ranks;
                sum += plan.cap.get() * ranks;
            }
            prop_assert!(sum <= cores.max(bound));
        }
    }
}

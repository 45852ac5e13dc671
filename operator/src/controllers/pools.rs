//! A pool's status: what became of its pods. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use siding_crds::api::{
    FailureCount, MountPhase, PageSize, PodCounts, PoolNode, SlowestRegistration, StorePool,
    StorePoolStatus,
};
use siding_crds::format_bytes;
use siding_crds::plan::NodePlan;
use siding_crds::reasons::Reason;

use super::conditions::Said;
use crate::admission::{Defaults, Demand};
use crate::caches::facts::{MountFacts, NodeFacts, PodFacts};
use crate::caches::slim::Key;

/// Most nodes that are listed.
const MOST_NODES: usize = 64;
/// A certificate that ends so soon is told.
const CERTIFICATE_DAYS: f64 = 7.0;

/// What was observed of a pool.
#[derive(Debug)]
pub struct Observed<'a> {
    /// The pool.
    pub pool: &'a StorePool,
    /// The pods that carry its sidecar.
    pub pods: &'a [(Key, Arc<PodFacts>)],
    /// What became of their mounts, by pod name.
    pub mounts: &'a BTreeMap<String, Arc<MountFacts>>,
    /// The cluster's nodes.
    pub nodes: &'a [(Key, Arc<NodeFacts>)],
    /// What pods get where their pool does not tell.
    pub defaults: &'a Defaults,
    /// Days until the webhooks' certificate ends, where that is known.
    pub certificate_days: Option<f64>,
}

/// The status that it should have.
#[must_use]
pub fn status(observed: &Observed<'_>, now: Timestamp) -> StorePoolStatus {
    let living: Vec<_> = observed
        .pods
        .iter()
        .filter(|(_, pod)| !pod.has_ended)
        .map(|(key, pod)| {
            let mount = observed.mounts.get(&key.name).map(Arc::as_ref);
            Living {
                name: &key.name,
                pod,
                mount: mount.filter(|mount| mount.pod_uid == pod.uid),
            }
        })
        .collect();
    let pods = counts(observed, &living);
    let failures = failures(&living);
    let (nodes, node_count) = nodes(&living);
    let generation = observed.pool.metadata.generation;
    let old = observed
        .pool
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let conditions = [
        accepted(observed),
        ready(pods, &failures),
        certificate(observed.certificate_days),
    ];
    StorePoolStatus {
        observed_generation: generation,
        segments: Some(segments(observed.pool)),
        pods,
        failures,
        nodes,
        node_count,
        slowest_registration: slowest(&living),
        conditions: conditions
            .into_iter()
            .map(|said| said.after(old, generation, now))
            .collect(),
    }
}

/// A pod that has not ended, and its own mount.
struct Living<'a> {
    name: &'a str,
    pod: &'a PodFacts,
    mount: Option<&'a MountFacts>,
}

impl Living<'_> {
    fn phase(&self) -> MountPhase {
        self.mount.map(|mount| mount.phase).unwrap_or_default()
    }
}

fn counts(observed: &Observed<'_>, living: &[Living<'_>]) -> PodCounts {
    let number = |is_it: &dyn Fn(&Living<'_>) -> bool| {
        let found = living.iter().filter(|one| is_it(one));
        u32::try_from(found.count()).unwrap_or(u32::MAX)
    };
    let sidecar = &observed.pool.spec.sidecar;
    let image = sidecar.image.as_ref().unwrap_or(&observed.defaults.image);
    let in_phase = |wanted: MountPhase| number(&|one| one.phase() == wanted);
    PodCounts {
        desired: number(&|_| true),
        ready: in_phase(MountPhase::Ready),
        degraded: in_phase(MountPhase::Degraded),
        failed: in_phase(MountPhase::Failed),
        outdated: number(&|one| {
            let injection = &one.pod.injection;
            injection.image != *image
                || Some(injection.pool_generation) != observed.pool.metadata.generation
        }),
    }
}

/// Failed and degraded pods by reason, the most frequent first.
fn failures(living: &[Living<'_>]) -> Vec<FailureCount> {
    let mut by_reason: BTreeMap<String, FailureCount> = BTreeMap::new();
    for one in living {
        if !matches!(one.phase(), MountPhase::Failed | MountPhase::Degraded) {
            continue;
        }
        let reason = one.mount.and_then(|mount| mount.reason.clone());
        let reason = reason.unwrap_or_else(|| Reason::Other.to_string());
        let entry = by_reason.entry(reason.clone()).or_insert_with(|| {
            let summary = one.mount.and_then(|mount| mount.summary.clone());
            FailureCount {
                reason,
                count: 0,
                summary: summary.unwrap_or_default(),
            }
        });
        entry.count += 1;
    }
    let mut all: Vec<_> = by_reason.into_values().collect();
    all.sort_by_key(|failure| std::cmp::Reverse(failure.count));
    all.truncate(64);
    all
}

fn nodes(living: &[Living<'_>]) -> (Vec<PoolNode>, u32) {
    let mut by_name: BTreeMap<&str, Option<&NodePlan>> = BTreeMap::new();
    for one in living {
        if let Some(node) = &one.pod.node {
            let plan = one.pod.plan.as_deref();
            by_name.insert(node, plan.filter(|plan| plan.node.is_some()));
        }
    }
    let count = u32::try_from(by_name.len()).unwrap_or(u32::MAX);
    let listed = by_name.into_iter().take(MOST_NODES);
    let listed = listed.map(|(name, plan)| PoolNode {
        name: name.to_owned(),
        summary: plan.map_or_else(|| "not planned yet".to_owned(), plan_in_a_line),
    });
    (listed.collect(), count)
}

/// Cap and rails in a line.
fn plan_in_a_line(plan: &NodePlan) -> String {
    let rails = match plan.rails.as_deref() {
        None => "rails unknown: no agent told".to_owned(),
        Some([]) => "no GPU".to_owned(),
        Some(rails) => {
            let nics: BTreeSet<_> = rails.iter().map(|rail| rail.nics.len()).collect();
            let evidence: BTreeSet<_> = rails.iter().map(|rail| rail.evidence.as_str()).collect();
            let nics: Vec<_> = nics.iter().map(ToString::to_string).collect();
            let evidence: Vec<_> = evidence.into_iter().collect();
            format!("{} NICs a GPU ({})", nics.join(" or "), evidence.join(", "))
        }
    };
    format!("cap {}; {rails}", plan.cap)
}

fn segments(pool: &StorePool) -> String {
    let one = |segment: &siding_crds::api::SegmentSpec| {
        let size = segment.size.bytes().map_or_else(
            |_| segment.size.to_string(),
            |bytes| format_bytes(bytes).to_string(),
        );
        format!("{} {size}/{}", segment.name, segment.page_size.as_str())
    };
    let all: Vec<_> = pool.spec.segments.iter().map(one).collect();
    all.join(", ")
}

fn slowest(living: &[Living<'_>]) -> Option<SlowestRegistration> {
    let seconds = |one: &Living<'_>| Some((one.name.to_owned(), one.mount?.register_seconds?));
    let slowest = living.iter().filter_map(seconds);
    let slowest = slowest.max_by(|a, b| a.1.total_cmp(&b.1));
    slowest.map(|(pod, seconds)| SlowestRegistration {
        summary: format!("{seconds:.3} s ({pod})"),
        pod,
        seconds,
    })
}

/// Whether its pods get a sidecar, by the judgement of admission, and a node can hold one.
fn accepted(observed: &Observed<'_>) -> Said {
    let (status, reason, message) = match Demand::of(observed.pool, observed.defaults) {
        Err(why) => (false, Reason::InvalidConfiguration, why),
        Ok(demand) => match unheld(&demand, observed.nodes) {
            Some((reason, why)) => (false, reason, why),
            None => (
                true,
                Reason::AsDeclared,
                "a node can hold its segments".to_owned(),
            ),
        },
    };
    Said {
        type_: "Accepted",
        status: Some(status),
        reason,
        message,
    }
}

/// Why no node can hold it, where none can.
fn unheld(demand: &Demand, nodes: &[(Key, Arc<NodeFacts>)]) -> Option<(Reason, String)> {
    let holds = |node: &NodeFacts| {
        let pages = |(page, bytes): &(PageSize, u64)| pages_of(node, *page) >= *bytes;
        // What a node does not tell is no shortage.
        let has_memory = node
            .memory_bytes
            .is_none_or(|has| has >= demand.memory_bytes);
        has_memory && demand.huge_pages.iter().all(pages)
    };
    if nodes.iter().any(|(_, node)| holds(node)) {
        return None;
    }
    let short = demand.huge_pages.iter().find_map(|(page, bytes)| {
        let most = nodes.iter().map(|(_, node)| pages_of(node, *page)).max();
        pages_short(*page, *bytes, most.unwrap_or_default())
    });
    let most = nodes.iter().filter_map(|(_, node)| node.memory_bytes).max();
    Some(
        short
            .or_else(|| memory_short(demand.memory_bytes, most.unwrap_or_default()))
            .unwrap_or_else(|| apart(demand)),
    )
}

fn pages_of(node: &NodeFacts, page: PageSize) -> u64 {
    node.huge_pages
        .get(page.as_str())
        .copied()
        .unwrap_or_default()
}

fn pages_short(page: PageSize, bytes: u64, most: u64) -> Option<(Reason, String)> {
    let has = match most {
        0 => "none has any".to_owned(),
        most => format!("the most that one has is {}", format_bytes(most)),
    };
    (most < bytes).then(|| {
        let message = format!(
            "no node has {} of {} pages ({has}): its pods will stay Pending. Reserve \
             pages on a node (hugepagesz and hugepages on the kernel's command line, or \
             nr_hugepages before the kubelet starts), or declare less",
            format_bytes(bytes),
            page.as_str()
        );
        (Reason::NoSuchHugePages, message)
    })
}

fn memory_short(bytes: u64, most: u64) -> Option<(Reason, String)> {
    (most < bytes).then(|| {
        let message = format!(
            "no node has the {} of memory that its sidecar asks for, segments on 4Ki and Transparent \
             pages among it (the most that pods may use of one is {}): its pods will stay Pending. Declare less, or put \
             segments on huge pages",
            format_bytes(bytes),
            format_bytes(most)
        );
        (Reason::MemoryShort, message)
    })
}

fn apart(demand: &Demand) -> (Reason, String) {
    let pages = demand
        .huge_pages
        .iter()
        .map(|(page, bytes)| format!("{} of {} pages", format_bytes(*bytes), page.as_str()));
    let memory = format!("{} of memory", format_bytes(demand.memory_bytes));
    let all: Vec<_> = pages.chain([memory]).collect();
    let message = format!(
        "no node has all of {}, though each can be had on one: its pods will stay Pending. Reserve pages where \
         there is memory enough beside them, or declare less",
        all.join(", ")
    );
    (Reason::NoSuchHugePages, message)
}

fn ready(pods: PodCounts, failures: &[FailureCount]) -> Said {
    let outdated = match pods.outdated {
        0 => String::new(),
        outdated => format!(
            "; {outdated} of an earlier image or version of the pool keep what they have until their pods are made anew \
             (kubectl rollout restart)"
        ),
    };
    let counted = format!(
        "{} of {} pods are ready{outdated}",
        pods.ready, pods.desired
    );
    let (status, reason, message) = match failures.first() {
        _ if pods.desired == 0 => (
            None,
            Reason::Pending,
            "no pod carries its sidecar. One that it selects and that got none says why in its annotation \
             siding.dev/skipped and in an Event of its owner; pods made before the pool, or without the label \
             siding.dev/inject=enabled on them or their namespace, are left as they are"
                .to_owned(),
        ),
        _ if pods.ready == pods.desired => (Some(true), Reason::AsDeclared, counted),
        Some(first) => (
            Some(false),
            Reason::ALL.iter().copied().find(|one| one.as_str() == first.reason).unwrap_or(Reason::Other),
            format!("{counted}; {} {}: {}", first.count, first.reason, first.summary),
        ),
        None => (Some(false), Reason::Pending, counted),
    };
    Said {
        type_: "Ready",
        status,
        reason,
        message,
    }
}

fn certificate(days: Option<f64>) -> Said {
    let (status, reason, message) = match days {
        None => (
            None,
            Reason::Pending,
            "the webhooks' certificate is not known yet".to_owned(),
        ),
        Some(days) if days < CERTIFICATE_DAYS => (
            Some(false),
            Reason::CertificateExpiring,
            format!(
                "the webhooks' certificate ends within {CERTIFICATE_DAYS} days and is not renewed: pods would get no sidecar; see the operator's log"
            ),
        ),
        Some(_) => (
            Some(true),
            Reason::AsDeclared,
            format!("the webhooks' certificate is good for more than {CERTIFICATE_DAYS} days"),
        ),
    };
    Said {
        type_: "CertificateValid",
        status,
        reason,
        message,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::caches::facts::SidecarState;

    fn pool() -> StorePool {
        serde_json::from_value(json!({
            "apiVersion": "siding.dev/v1alpha1", "kind": "StorePool",
            "metadata": {"name": "kv", "namespace": "team-a", "generation": 3},
            "spec": {"podSelector": {}, "segments": [
                {"name": "kv", "size": "1536Mi"}, {"name": "meta", "size": "8192", "pageSize": "4Ki"},
            ]},
        }))
        .unwrap()
    }

    fn pod(name: &str, generation: i64, image: &str) -> (Key, Arc<PodFacts>) {
        let facts = PodFacts {
            uid: format!("uid-{name}"),
            node: Some("n1".to_owned()),
            injection: Arc::new(serde_json::from_value(json!({
                "version": 1, "pool": "kv", "poolGeneration": generation, "ranks": 1,
                "gpusPerRank": 1, "image": image,
            }))
            .unwrap()),
            plan: Some(Arc::new(serde_json::from_value(json!({
                "version": 1, "source": "Node", "node": "n1", "cap": 23, "capReason": "r", "rails": [
                    {"gpu": "0000:53:00.0", "nics": ["a", "b"], "evidence": "SameSwitch"},
                    {"gpu": "0000:64:00.0", "nics": ["c", "d"], "evidence": "SameSwitch"},
                ],
            })).unwrap())),
            sidecar: SidecarState::Running,
            has_started: true,
            has_ended: false,
        };
        (Key::new("team-a", name), Arc::new(facts))
    }

    fn mount(name: &str, status: Value) -> (String, Arc<MountFacts>) {
        let mount = json!({
            "apiVersion": "siding.dev/v1alpha1", "kind": "StoreMount",
            "metadata": {"name": name, "namespace": "team-a"},
            "spec": {"pool": "kv", "poolGeneration": 3, "podUid": format!("uid-{name}"), "node": "n1"},
            "status": status,
        });
        let facts = MountFacts::of(&serde_json::from_value(mount).unwrap()).unwrap();
        (name.to_owned(), Arc::new(facts))
    }

    fn node(bytes: u64) -> (Key, Arc<NodeFacts>) {
        let facts = NodeFacts {
            huge_pages: BTreeMap::from([("2Mi".to_owned(), bytes)]),
            ..NodeFacts::default()
        };
        (Key::new("", "n1"), Arc::new(facts))
    }

    fn told(
        pods: &[(Key, Arc<PodFacts>)],
        mounts: BTreeMap<String, Arc<MountFacts>>,
        bytes: u64,
    ) -> StorePoolStatus {
        let pool = pool();
        let observed = Observed {
            pool: &pool,
            pods,
            mounts: &mounts,
            nodes: &[node(bytes)],
            defaults: &Defaults::new("i"),
            certificate_days: Some(80.0),
        };
        status(&observed, Timestamp::UNIX_EPOCH)
    }

    fn condition<'a>(status: &'a StorePoolStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
        let found = status
            .conditions
            .iter()
            .find(|one| one.type_ == type_)
            .unwrap();
        (&found.status, &found.reason, &found.message)
    }

    fn segment(register: f64) -> Value {
        json!({"name": "kv", "phase": "ready", "bytes": 1, "registeredBytes": 1, "summary": "", "seconds": {"register": register}})
    }

    #[test]
    fn pods_are_counted_and_the_slowest_is_named() {
        let pods = [
            pod("a", 3, "i"),
            pod("b", 2, "i"),
            pod("c", 3, "old"),
            pod("d", 3, "i"),
        ];
        let mounts = BTreeMap::from([
            mount("a", json!({"phase": "Ready", "segments": [segment(0.25)]})),
            mount("b", json!({"phase": "Ready", "segments": [segment(1.5)]})),
            mount(
                "c",
                json!({"phase": "Failed", "reason": "HugePagesShort", "summary": "512 pages short"}),
            ),
        ]);
        let status = told(&pods, mounts, 2 << 30);
        let counts = PodCounts {
            desired: 4,
            ready: 2,
            degraded: 0,
            failed: 1,
            outdated: 2,
        };
        assert_eq!(status.pods, counts);
        assert_eq!(
            status.slowest_registration.as_ref().unwrap().summary,
            "1.500 s (b)"
        );
        assert_eq!(
            status.segments.as_deref(),
            Some("kv 1536Mi/2Mi, meta 8Ki/4Ki")
        );
        assert_eq!(status.nodes[0].summary, "cap 23; 2 NICs a GPU (SameSwitch)");
        assert_eq!(status.observed_generation, Some(3));
        assert_eq!(
            condition(&status, "Ready"),
            (
                "False",
                "HugePagesShort",
                "2 of 4 pods are ready; 2 of an earlier image or version of the pool keep what they have until \
                 their pods are made anew (kubectl rollout restart); 1 HugePagesShort: 512 pages short"
            )
        );
        assert_eq!(condition(&status, "Accepted").0, "True");
    }

    #[test]
    fn the_mount_of_an_earlier_pod_of_the_same_name_does_not_count() {
        let mut mounts = BTreeMap::from([mount(
            "a",
            json!({"phase": "Ready", "segments": [segment(0.25)]}),
        )]);
        Arc::make_mut(mounts.get_mut("a").unwrap()).pod_uid = "other".to_owned();
        let status = told(&[pod("a", 3, "i")], mounts, 2 << 30);
        assert_eq!((status.pods.desired, status.pods.ready), (1, 0));
        assert_eq!(status.slowest_registration, None);
    }

    #[test]
    fn a_pool_that_no_node_can_hold_says_so_and_what_mends_it() {
        let status = told(&[], BTreeMap::new(), 1 << 30);
        let (accepted, reason, message) = condition(&status, "Accepted");
        assert_eq!((accepted, reason), ("False", "NoSuchHugePages"));
        assert!(
            message.starts_with("no node has 1536Mi of 2Mi pages (the most that one has is 1Gi)"),
            "{message}"
        );
        assert_eq!(condition(&status, "Ready").0, "Unknown");
    }

    /// Nodes of so many GiB of 2Mi pages and of memory each.
    fn nodes_of(nodes: &[(u64, Option<u64>)]) -> Vec<(Key, Arc<NodeFacts>)> {
        let node = |(at, (pages, memory)): (usize, &(u64, Option<u64>))| {
            let facts = NodeFacts {
                huge_pages: BTreeMap::from([("2Mi".to_owned(), pages << 30)]),
                memory_bytes: memory.map(|memory| memory << 30),
                ..NodeFacts::default()
            };
            (Key::new("", format!("n{at}")), Arc::new(facts))
        };
        nodes.iter().enumerate().map(node).collect()
    }

    #[test]
    fn a_pool_is_accepted_where_its_pods_get_a_sidecar_and_one_node_can_hold_it() {
        let segments = json!([
            {"name": "a", "size": "1Gi"}, {"name": "b", "size": "1Gi"},
            {"name": "c", "size": "3Gi", "pageSize": "4Ki"}, {"name": "d", "size": "3Gi", "pageSize": "Transparent"},
        ]);
        let twice = json!([{"name": "a", "size": "1Gi"}, {"name": "a", "size": "1Gi"}]);
        let broken = json!({"matchExpressions": [{"key": "app", "operator": "In"}]});
        let all = json!({});
        for (selector, segments, nodes, reason, told) in [
            (
                &all,
                &segments,
                vec![(2, Some(7))],
                "AsDeclared",
                "a node can hold",
            ),
            (
                &all,
                &segments,
                vec![(2, None)],
                "AsDeclared",
                "a node can hold",
            ),
            (
                &all,
                &segments,
                vec![(1, Some(7)), (0, Some(9))],
                "NoSuchHugePages",
                "no node has 2Gi of 2Mi pages (the most that one has is 1Gi)",
            ),
            (
                &all,
                &segments,
                vec![(0, None)],
                "NoSuchHugePages",
                "no node has 2Gi of 2Mi pages (none has any)",
            ),
            (
                &all,
                &segments,
                vec![],
                "NoSuchHugePages",
                "no node has 2Gi of 2Mi pages (none has any)",
            ),
            (
                &all,
                &segments,
                vec![(2, Some(6)), (1, Some(6))],
                "MemoryShort",
                "no node has the 6270Mi of memory",
            ),
            (
                &all,
                &segments,
                vec![(2, Some(6)), (1, Some(7))],
                "NoSuchHugePages",
                "no node has all of 2Gi of 2Mi pages, 6270Mi of memory",
            ),
            (
                &all,
                &twice,
                vec![(9, Some(9))],
                "InvalidConfiguration",
                "StorePool 'kv': spec.segments[a]: two have this name",
            ),
            (
                &broken,
                &segments,
                vec![(9, Some(9))],
                "InvalidConfiguration",
                "spec.podSelector of StorePool 'kv' can't be used",
            ),
        ] {
            let mut pool = pool();
            pool.spec.pod_selector = serde_json::from_value(selector.clone()).unwrap();
            pool.spec.segments = serde_json::from_value(segments.clone()).unwrap();
            let said = accepted(&Observed {
                pool: &pool,
                pods: &[],
                mounts: &BTreeMap::new(),
                nodes: &nodes_of(&nodes),
                defaults: &Defaults::new("i"),
                certificate_days: None,
            });
            assert_eq!(said.reason.as_str(), reason, "{}", said.message);
            assert_eq!(said.status, Some(reason == "AsDeclared"));
            assert!(said.message.starts_with(told), "{}", said.message);
        }
    }

    #[test]
    fn a_certificate_that_is_not_renewed_is_told() {
        assert_eq!(certificate(Some(3.0)).reason, Reason::CertificateExpiring);
        assert_eq!(certificate(Some(30.0)).status, Some(true));
        assert_eq!(certificate(None).status, None);
    }

    #[test]
    fn nodes_beyond_the_bound_are_counted_and_not_listed() {
        let pods: Vec<_> = (0..70)
            .map(|at| {
                let (key, facts) = pod(&format!("p{at}"), 3, "i");
                let facts = PodFacts {
                    node: Some(format!("n{at:02}")),
                    ..(*facts).clone()
                };
                (key, Arc::new(facts))
            })
            .collect();
        let status = told(&pods, BTreeMap::new(), 2 << 30);
        assert_eq!((status.nodes.len(), status.node_count), (64, 70));
    }
}

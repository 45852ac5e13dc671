//! Writing to the API server: server-side apply, and patience with each object that fails.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use siding_crds::api::NodeTopology;
use siding_crds::names::{GROUP, VERSION};
use tokio::time::timeout;

use crate::FIELD_MANAGER;

/// Nobody else writes what is applied here.
fn apply() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

/// The longest that the API server may take.
const LONGEST: Duration = Duration::from_secs(15);

/// Why something is not on the API server.
#[derive(Debug, thiserror::Error)]
pub enum NotPublished {
    /// It refused, or can't be reached.
    #[error("{0}")]
    Kubernetes(#[from] kube::Error),
    /// It took too long.
    #[error("the API server did not answer within {} s", LONGEST.as_secs())]
    TooSlow,
}

async fn patiently<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, NotPublished> {
    let answered = timeout(LONGEST, request).await;
    Ok(answered.map_err(|_| NotPublished::TooSlow)??)
}

/// Reads a Node.
///
/// # Errors
/// [`NotPublished`].
pub async fn node(api: &Api<Node>, name: &str) -> Result<Node, NotPublished> {
    patiently(api.get(name)).await
}

/// What is needed of the Node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    /// For its NodeTopology to go with it.
    pub owner: OwnerReference,
    /// Its label `node.kubernetes.io/instance-type`.
    pub instance_type: Option<String>,
    /// CPUs that the kubelet lets pods allocate, whole ones.
    pub allocatable_cores: Option<NonZeroUsize>,
}

impl NodeFacts {
    /// What is needed of a Node; none before the API server gave it a uid.
    #[must_use]
    pub fn of(node: &Node) -> Option<Self> {
        let owner = OwnerReference {
            api_version: Node::api_version(&()).into_owned(),
            kind: Node::kind(&()).into_owned(),
            name: node.name_any(),
            uid: node.uid()?,
            ..OwnerReference::default()
        };
        let label = node.labels().get("node.kubernetes.io/instance-type");
        let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
        let cpu = allocatable.and_then(|all| all.get("cpu"));
        Some(Self {
            owner,
            instance_type: label.filter(|label| !label.is_empty()).cloned(),
            allocatable_cores: cpu.and_then(|cpu| whole_cores(&cpu.0)),
        })
    }
}

/// `192` or `191450m`; less than one is one: 0 would be unknown to a planner.
fn whole_cores(quantity: &str) -> Option<NonZeroUsize> {
    let cores = match quantity.strip_suffix('m') {
        Some(milli) => milli.parse::<usize>().ok()? / 1000,
        None => quantity.parse::<usize>().ok()?,
    };
    NonZeroUsize::new(cores.max(1))
}

/// Makes the node's NodeTopology where it is not there, and gives it as it is.
///
/// # Errors
/// [`NotPublished`].
pub async fn node_topology(
    api: &Api<NodeTopology>,
    name: &str,
    owner: &OwnerReference,
) -> Result<NodeTopology, NotPublished> {
    let object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "NodeTopology",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {},
    });
    patiently(api.patch(name, &apply(), &Patch::Apply(object))).await
}

/// Applies a status.
///
/// # Errors
/// [`NotPublished`].
pub async fn status<K>(api: &Api<K>, name: &str, status: &impl Serialize) -> Result<K, NotPublished>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let object = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": name},
        "status": status,
    });
    patiently(api.patch_status(name, &apply(), &Patch::Apply(object))).await
}

/// When an object that failed is tried again: after 1 s, then twice as long each time up to a
/// minute.
#[derive(Debug, Clone, Copy, Default)]
pub struct Patience {
    failures: u32,
    until: Option<Instant>,
}

impl Patience {
    /// Whether its time has come.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// It went well.
    pub fn good(&mut self) {
        *self = Self::default();
    }

    /// It failed.
    pub fn failed(&mut self, now: Instant) {
        const LONGEST: Duration = Duration::from_secs(60);
        let pause = Duration::from_secs(1 << self.failures.min(6)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.until = now.checked_add(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_whole_and_never_none() {
        for (text, cores) in [
            ("192", Some(192)),
            ("191450m", Some(191)),
            ("500m", Some(1)),
            ("0", Some(1)),
            ("", None),
            ("many", None),
            ("-1", None),
        ] {
            assert_eq!(whole_cores(text).map(NonZeroUsize::get), cores, "{text}");
        }
    }

    #[test]
    fn facts_of_a_node() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n1", "uid": "u", "labels": {"node.kubernetes.io/instance-type": "p5.48xlarge"}},
            "status": {"allocatable": {"cpu": "191450m"}},
        }))
        .unwrap();
        let facts = NodeFacts::of(&node).unwrap();
        assert_eq!(facts.instance_type.as_deref(), Some("p5.48xlarge"));
        assert_eq!(facts.allocatable_cores.unwrap().get(), 191);
        let owner = &facts.owner;
        assert_eq!(
            [&owner.api_version, &owner.kind, &owner.name, &owner.uid],
            ["v1", "Node", "n1", "u"]
        );
        assert_eq!(NodeFacts::of(&Node::default()), None);
    }

    #[test]
    fn patience_grows_to_a_minute() {
        let start = Instant::now();
        let mut patience = Patience::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(patience.is_due(start + Duration::from_secs(61)));
            patience.failed(start);
            pauses.push((patience.until.unwrap() - start).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(!patience.is_due(start));
        patience.good();
        assert!(patience.is_due(start));
    }
}

//! What the cluster has, as the operator needs it, kept up by watches.

pub mod facts;
pub mod lean;
mod shared;
pub mod slim;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{self, Namespace, Node, ResourceQuota};
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use siding_crds::api::{NodeTopology, StoreMount, StorePool};
use siding_crds::names;
use tokio::task::JoinSet;
use tracing::warn;

use crate::admission::{LimitRange, Quota};
use facts::{MountFacts, NodeFacts, PodFacts, Sayings, TopologyFacts};
use lean::LeanPod;
use slim::{Key, Slim};

/// All caches.
#[derive(Debug)]
pub struct Caches {
    /// Pools.
    pub pools: Slim<StorePool>,
    /// Labels of namespaces.
    pub namespaces: Slim<BTreeMap<String, String>>,
    /// Pods that carry the sidecar.
    pub pods: Slim<PodFacts>,
    /// Nodes.
    pub nodes: Slim<NodeFacts>,
    /// What agents read.
    pub topologies: Slim<TopologyFacts>,
    /// What became of mounts.
    pub mounts: Slim<MountFacts>,
    /// What limits containers and pods.
    pub limit_ranges: Slim<LimitRange>,
    /// What limits namespaces.
    pub quotas: Slim<Quota>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            pools: Slim::default(),
            namespaces: Slim::default(),
            pods: Slim::grouped(|pod| pod.node.as_deref()),
            nodes: Slim::default(),
            topologies: Slim::default(),
            mounts: Slim::default(),
            limit_ranges: Slim::default(),
            quotas: Slim::default(),
        }
    }
}

impl Caches {
    /// Whether every first list is complete.
    #[must_use]
    pub fn are_complete(&self) -> bool {
        self.can_admit() && self.mounts.is_complete()
    }

    /// Whether the first lists of all that the webhooks look at are complete. They look at no mount.
    #[must_use]
    pub fn can_admit(&self) -> bool {
        self.pools.is_complete()
            && self.namespaces.is_complete()
            && self.pods.is_complete()
            && self.nodes.is_complete()
            && self.topologies.is_complete()
            && self.limit_ranges.is_complete()
            && self.quotas.is_complete()
    }

    /// Ranks of our pods on a node, a pod left out.
    #[must_use]
    pub fn other_ranks(&self, node: &str, except_uid: &str) -> u32 {
        let pods = self.pods.of_group(node);
        pods.iter()
            .filter(|(_, pod)| pod.uid != except_uid && !pod.has_ended)
            .map(|(_, pod)| pod.injection.ranks.get())
            .fold(0, u32::saturating_add)
    }

    /// Follows the cluster until dropped; each kind in a task of its own, so that they are read on several cores.
    pub async fn follow(self: Arc<Self>, client: Client) {
        let mut watches = JoinSet::new();
        watches.spawn(self.clone().follow_pools(client.clone()));
        watches.spawn(self.clone().follow_namespaces(client.clone()));
        watches.spawn(self.clone().follow_pods(client.clone()));
        watches.spawn(self.clone().follow_nodes(client.clone()));
        watches.spawn(self.clone().follow_topologies(client.clone()));
        watches.spawn(self.clone().follow_mounts(client.clone()));
        watches.spawn(self.clone().follow_limit_ranges(client.clone()));
        watches.spawn(self.follow_quotas(client));
        watches.join_all().await;
    }

    async fn follow_pools(self: Arc<Self>, client: Client) {
        let api: Api<DeserializeGuard<StorePool>> = Api::all(client);
        let watch = watcher(api, watcher::Config::default()).default_backoff();
        let facts_of = |pool: &DeserializeGuard<StorePool>| {
            let pool = readable("StorePool", pool)?;
            let key = facts::key(&pool);
            Some((key, without_managed_fields(pool)))
        };
        self.pools.follow("StorePool", watch, facts_of).await;
    }

    async fn follow_namespaces(self: Arc<Self>, client: Client) {
        let api: Api<PartialObjectMeta<Namespace>> = Api::all(client);
        let watch = watcher(api, watcher::Config::default()).default_backoff();
        let facts_of = |namespace: &PartialObjectMeta<Namespace>| {
            let key = Key::new("", namespace.name_any());
            Some((key, namespace.labels().clone()))
        };
        self.namespaces.follow("Namespace", watch, facts_of).await;
    }

    async fn follow_pods(self: Arc<Self>, client: Client) {
        let api: Api<LeanPod> = Api::all(client);
        let ours = watcher::Config::default().labels(names::POOL);
        let watch = watcher(api, ours).default_backoff();
        let sayings = Sayings::default();
        let facts_of = |pod: &LeanPod| facts::of_pod(pod, &sayings);
        self.pods.follow("Pod", watch, facts_of).await;
    }

    async fn follow_nodes(self: Arc<Self>, client: Client) {
        let api: Api<Node> = Api::all(client);
        let watch = watcher(api, watcher::Config::default()).default_backoff();
        let facts_of = |node: &Node| Some(facts::of_node(node));
        self.nodes.follow("Node", watch, facts_of).await;
    }

    async fn follow_topologies(self: Arc<Self>, client: Client) {
        let api: Api<DeserializeGuard<NodeTopology>> = Api::all(client);
        let watch = watcher(api, watcher::Config::default()).default_backoff();
        let facts_of = |topology: &DeserializeGuard<NodeTopology>| {
            Some(facts::of_topology(&readable("NodeTopology", topology)?))
        };
        self.topologies
            .follow("NodeTopology", watch, facts_of)
            .await;
    }

    /// After the pods: readiness waits for those, and the API server would give half of itself to each list.
    async fn follow_mounts(self: Arc<Self>, client: Client) {
        self.pods.wait_until_complete().await;
        let api: Api<DeserializeGuard<StoreMount>> = Api::all(client);
        let watch = watcher(api, watcher::Config::default()).default_backoff();
        let facts_of = |mount: &DeserializeGuard<StoreMount>| {
            let mount = readable("StoreMount", mount)?;
            let key = facts::key(&mount);
            Some((key, MountFacts::of(&without_managed_fields(mount)).ok()?))
        };
        self.mounts.follow("StoreMount", watch, facts_of).await;
    }

    async fn follow_limit_ranges(self: Arc<Self>, client: Client) {
        let api: Api<v1::LimitRange> = Api::all(client);
        let watch = watcher(api, watcher::Config::default()).default_backoff();
        let facts_of = |range: &v1::LimitRange| Some((facts::key(range), LimitRange::of(range)));
        self.limit_ranges
            .follow("LimitRange", watch, facts_of)
            .await;
    }

    async fn follow_quotas(self: Arc<Self>, client: Client) {
        let api: Api<ResourceQuota> = Api::all(client);
        let watch = watcher(api, watcher::Config::default()).default_backoff();
        let facts_of = |quota: &ResourceQuota| Some((facts::key(quota), Quota::of(quota)));
        self.quotas.follow("ResourceQuota", watch, facts_of).await;
    }
}

/// One object that can't be read must not stop the others from being seen.
fn readable<K: Clone>(kind: &str, object: &DeserializeGuard<K>) -> Option<K> {
    match &object.0 {
        Ok(object) => Some(object.clone()),
        Err(error) => {
            let name = error.metadata.name.as_deref().unwrap_or_default();
            let namespace = error.metadata.namespace.as_deref().unwrap_or_default();
            warn!(kind, namespace, name, error = %error.error, "an object can't be read and is left out");
            None
        }
    }
}

fn without_managed_fields<K: ResourceExt>(mut object: K) -> K {
    object.managed_fields_mut().clear();
    object
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;

    use super::*;

    fn list<V: PartialEq + Send + Sync + 'static>(slim: &Slim<V>) {
        slim.take(Event::<()>::Init, |()| None);
        slim.take(Event::<()>::InitDone, |()| None);
    }

    #[test]
    fn all_lists_are_waited_for() {
        let caches = Caches::default();
        let lists: [fn(&Caches); 8] = [
            |caches| list(&caches.pools),
            |caches| list(&caches.namespaces),
            |caches| list(&caches.pods),
            |caches| list(&caches.nodes),
            |caches| list(&caches.topologies),
            |caches| list(&caches.limit_ranges),
            |caches| list(&caches.quotas),
            |caches| list(&caches.mounts),
        ];
        for (n, list) in lists.into_iter().enumerate() {
            assert_eq!(caches.can_admit(), n == 7, "only mounts are missing");
            assert!(!caches.are_complete());
            list(&caches);
        }
        assert!(caches.are_complete());
    }
}

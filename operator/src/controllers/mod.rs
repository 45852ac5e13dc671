//! Controllers: observe, plan purely, apply. One replica runs them.

pub mod backlog;
pub mod conditions;
pub mod mounts;
pub mod pools;
pub mod skips;
pub mod tell;

mod apply;

use std::collections::BTreeMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use siding_crds::names;
use siding_topology::catalogue::Catalogue;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::admission::Defaults;
use crate::caches::Caches;
use crate::caches::facts::{MountFacts, PodFacts};
use crate::caches::slim::{Change, Key};
use crate::metrics::Metrics;
use crate::planning::{self, NodeKnowledge};
use apply::ApplyError;
use backlog::Backlog;
use tell::Teller;

/// Keys in work at once, of one controller.
const AT_ONCE: usize = 16;
/// Pods of a pool that start together change its status once.
const TOGETHER: Duration = Duration::from_millis(500);
/// Everything is looked at again so often, whatever was missed.
const RESYNC: Duration = Duration::from_secs(300);

/// What controllers work with.
#[derive(Clone)]
pub struct Controllers {
    /// The API.
    pub client: Client,
    /// The cluster.
    pub caches: Arc<Caches>,
    /// What is published of instance types.
    pub catalogue: Arc<Catalogue>,
    /// What pods get where their pool does not tell.
    pub defaults: Arc<Defaults>,
    /// What happened is counted.
    pub metrics: Metrics,
    /// Writes Events.
    pub teller: Arc<Teller>,
}

impl Controllers {
    /// Runs them whenever this replica leads, until `leads` is closed.
    pub async fn run(self, mut leads: watch::Receiver<bool>) {
        while leads.wait_for(|leads| *leads).await.is_ok() {
            self.metrics.leader(true);
            let lost = async {
                let _ = leads.wait_for(|leads| !*leads).await;
            };
            tokio::select! {
                () = self.all() => {}
                () = lost => {}
            }
            self.metrics.leader(false);
        }
    }

    async fn all(&self) {
        while !self.caches.are_complete() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::join!(self.mounts(), self.pools(), self.skips());
    }

    /// Tells the owners of pods that got no sidecar.
    async fn skips(&self) {
        let api: Api<PartialObjectMeta<Pod>> = Api::all(self.client.clone());
        let skipped = watcher::Config::default().labels(names::SKIP);
        let pods = watcher(api, skipped).default_backoff().applied_objects();
        let mut pods = std::pin::pin!(pods);
        while let Some(pod) = pods.next().await {
            let news = match &pod {
                Ok(pod) => skips::news(pod),
                Err(error) => {
                    debug!(%error, "pods without a sidecar can't be watched; trying again");
                    None
                }
            };
            let Some(news) = news else { continue };
            let told = self.teller.once(&news).await;
            if let Err(error) = told {
                warn!(%error, reason = news.reason, "an Event can't be written");
            }
        }
    }

    async fn mounts(&self) {
        let (requests, backlog) = mpsc::unbounded_channel();
        let by_pod = forward(self.caches.pods.subscribe(), &requests, itself);
        let by_mount = forward(self.caches.mounts.subscribe(), &requests, itself);
        let all = || {
            let keys = self.caches.pods.all().into_iter().map(|(key, _)| key);
            let mounts = self.caches.mounts.all().into_iter().map(|(key, _)| key);
            keys.chain(mounts).collect()
        };
        let work = work("mounts", backlog, all, self.metrics.clone(), |key: Key| {
            let this = self.clone();
            async move { this.reconcile_mount(&key).await }
        });
        tokio::join!(by_pod, by_mount, work);
    }

    async fn reconcile_mount(&self, key: &Key) -> Result<bool, ApplyError> {
        let pod = self.caches.pods.get(key);
        let mount = self.caches.mounts.get(key);
        let mount = mount.map(|mount| mount.object()).transpose()?;
        let plan = pod.as_ref().and_then(|pod| {
            let node = pod.node.as_deref()?;
            let node_key = Key::new("", node);
            let facts = self.caches.nodes.get(&node_key);
            let topology = self.caches.topologies.get(&node_key);
            let known = NodeKnowledge {
                name: node,
                node: facts.as_deref(),
                topology: topology.as_deref(),
                other_ranks: self.caches.other_ranks(node, &pod.uid),
            };
            planning::node_plan(&pod.injection, known, &self.catalogue)
        });
        let observed = mounts::Observed {
            key,
            pod: pod.as_deref(),
            mount: mount.as_ref(),
            plan: plan.as_ref(),
        };
        let actions = mounts::actions(&observed, Timestamp::now());
        let has_changes = actions
            .iter()
            .any(|one| !matches!(one, mounts::Action::Tell(_)));
        // An Event that can't be written keeps no status from being written.
        let mut done = Ok(has_changes);
        for action in actions {
            if let Err(error) = apply::mount(&self.client, &self.teller, key, action).await {
                done = done.and(Err(error));
            }
        }
        done
    }

    async fn pools(&self) {
        let (requests, backlog) = mpsc::unbounded_channel();
        let by_pool = forward(self.caches.pools.subscribe(), &requests, itself);
        let by_pod = forward(self.caches.pods.subscribe(), &requests, pools_of_pod);
        let by_mount = forward(self.caches.mounts.subscribe(), &requests, pools_of_mount);
        let all = || {
            self.caches
                .pools
                .all()
                .into_iter()
                .map(|(key, _)| key)
                .collect()
        };
        let work = work("pools", backlog, all, self.metrics.clone(), |key: Key| {
            let this = self.clone();
            async move { this.reconcile_pool(&key).await }
        });
        tokio::join!(by_pool, by_pod, by_mount, work);
    }

    async fn reconcile_pool(&self, key: &Key) -> Result<bool, ApplyError> {
        let Some(pool) = self.caches.pools.get(key) else {
            // Running pods are left alone; their mounts say which pool they had.
            return Ok(false);
        };
        let mut pods = self.caches.pods.of_namespace(&key.namespace);
        pods.retain(|(_, pod)| pod.injection.pool == key.name);
        let mounts: BTreeMap<_, _> = self
            .caches
            .mounts
            .of_namespace(&key.namespace)
            .into_iter()
            .filter(|(_, mount)| mount.pool == key.name)
            .map(|(key, mount)| (key.name, mount))
            .collect();
        let observed = pools::Observed {
            pool: &pool,
            pods: &pods,
            mounts: &mounts,
            nodes: &self.caches.nodes.all(),
            defaults: &self.defaults,
            certificate_days: self.metrics.certificate_left_days(),
        };
        let status = pools::status(&observed, Timestamp::now());
        if pool.status.as_ref() == Some(&status) {
            return Ok(false);
        }
        apply::pool_status(&self.client, key, &status).await?;
        Ok(true)
    }
}

/// What a controller is asked to look at.
#[derive(Clone, Debug)]
enum Requested<K> {
    /// One key, after a pause.
    One(K, Duration),
    /// All that there are: changes were missed.
    Everything,
}

fn itself<V>(change: &Change<V>) -> Vec<(Key, Duration)> {
    vec![(change.key.clone(), Duration::ZERO)]
}

fn pools_of_pod(change: &Change<PodFacts>) -> Vec<(Key, Duration)> {
    let pods = change.before.iter().chain(&change.after);
    let pool = |pod: &Arc<PodFacts>| Key::new(&change.key.namespace, &pod.injection.pool);
    pods.map(|pod| (pool(pod), TOGETHER)).collect()
}

fn pools_of_mount(change: &Change<MountFacts>) -> Vec<(Key, Duration)> {
    let mounts = change.before.iter().chain(&change.after);
    let pool = |mount: &Arc<MountFacts>| Key::new(&change.key.namespace, &mount.pool);
    mounts.map(|mount| (pool(mount), TOGETHER)).collect()
}

/// Passes the changes of a cache on as requests.
async fn forward<V: Send + Sync>(
    mut changes: broadcast::Receiver<Change<V>>,
    requests: &mpsc::UnboundedSender<Requested<Key>>,
    keys_of: impl Fn(&Change<V>) -> Vec<(Key, Duration)>,
) {
    loop {
        match changes.recv().await {
            Ok(change) => {
                for (key, pause) in keys_of(&change) {
                    let _ = requests.send(Requested::One(key, pause));
                }
            }
            Err(broadcast::error::RecvError::Lagged(_)) => {
                let _ = requests.send(Requested::Everything);
            }
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

/// Works a controller's backlog off until dropped.
async fn work<K, F>(
    controller: &'static str,
    mut requests: mpsc::UnboundedReceiver<Requested<K>>,
    all: impl Fn() -> Vec<K>,
    metrics: Metrics,
    reconcile: impl Fn(K) -> F,
) where
    K: Clone + Ord + Hash + Send + std::fmt::Display + 'static,
    F: Future<Output = Result<bool, ApplyError>> + Send + 'static,
{
    let mut backlog: Backlog<K> = Backlog::default();
    let mut working: JoinSet<(K, Result<bool, ApplyError>)> = JoinSet::new();
    let mut resync = tokio::time::interval(RESYNC);
    loop {
        while working.len() < AT_ONCE
            && let Some(key) = backlog.take(Instant::now())
        {
            let work = reconcile(key.clone());
            working.spawn(async move { (key, work.await) });
        }
        let next = backlog.next().filter(|_| working.len() < AT_ONCE);
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(request) = requests.recv() => match request {
                Requested::One(key, pause) => backlog.add(key, Instant::now() + pause),
                Requested::Everything => add_all(&mut backlog, all()),
            },
            _ = resync.tick() => add_all(&mut backlog, all()),
            Some(done) = working.join_next() => match done {
                Ok((key, Ok(has_changes))) => {
                    metrics.reconciliation(controller, if has_changes { "changed" } else { "unchanged" });
                    debug!(controller, %key, has_changes, "looked at");
                    backlog.done(&key, None);
                }
                Ok((key, Err(error))) => {
                    metrics.reconciliation(controller, "failed");
                    warn!(controller, %key, %error, "could not be brought about; it is tried again");
                    backlog.failed(&key, Instant::now());
                }
                Err(error) => warn!(controller, %error, "a round broke off"),
            },
            () = due => {}
        }
    }
}

fn add_all<K: Clone + Ord + Hash>(backlog: &mut Backlog<K>, keys: Vec<K>) {
    for key in keys {
        backlog.add(key, Instant::now());
    }
}

//! The two webhooks. Whatever goes wrong, a pod is admitted: nothing of ours keeps one from running.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use siding_crds::reasons::Skip;
use siding_topology::catalogue::Catalogue;
use tokio::time::timeout;
use tracing::{debug, info};

use crate::admission::{self, Asked, BadReview, Defaults, Review, Reviewed, Room, Verdict, World};
use crate::binding::{self, Binding};
use crate::caches::Caches;
use crate::caches::facts::PodFacts;
use crate::caches::slim::Key;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::planning::{self, NodeKnowledge};

/// A pod of the API server's limit comes twice in a review, and JSON inside JSON grows.
const MOST_BYTES: usize = 16 << 20;
/// How long a pod that the scheduler knows and we do not yet is waited for: well within the
/// webhook's own limit of 1 s.
const POD_SEEN: Duration = Duration::from_millis(400);

/// What the webhooks answer from.
#[derive(Clone, Debug)]
pub struct Webhooks {
    /// The cluster.
    pub caches: Arc<Caches>,
    /// The API server, for what the caches do not have yet.
    pub live: Arc<Live>,
    /// What is published of instance types.
    pub catalogue: Arc<Catalogue>,
    /// What the operator was told.
    pub defaults: Arc<Defaults>,
    /// What happened is counted.
    pub metrics: Metrics,
}

/// `/pods` and `/bindings`.
pub fn router(webhooks: Webhooks) -> Router {
    Router::new()
        .route("/pods", post(pods))
        .route("/bindings", post(bindings))
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .with_state(webhooks)
}

async fn pods(State(webhooks): State<Webhooks>, body: Bytes) -> Response {
    let started = Instant::now();
    let (outcome, response) = match webhooks.review(&body).await {
        Ok(reviewed) => {
            let outcome = outcome_of(&reviewed.verdict);
            if let Verdict::Skip {
                reason, message, ..
            } = &reviewed.verdict
            {
                let namespace = &reviewed.namespace;
                info!(namespace, %reason, message, "a pod gets no sidecar");
            }
            (outcome, json_bytes(reviewed.body))
        }
        Err(problem) => ("malformed", refused(&problem.to_string())),
    };
    webhooks
        .metrics
        .admission("pods", outcome, started.elapsed());
    response
}

/// One word of few, for a metric's label.
fn outcome_of(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Patch { .. } => "patched",
        Verdict::Skip { reason, .. } => reason.as_str(),
        Verdict::Untouched => "untouched",
        Verdict::Malformed(_) => "malformed",
    }
}

async fn bindings(State(webhooks): State<Webhooks>, body: Bytes) -> Response {
    let started = Instant::now();
    let (outcome, response) = match serde_json::from_slice::<Value>(&body) {
        Ok(review) if review["request"]["uid"].is_string() => {
            let (outcome, patch) = webhooks.bind(&review["request"]).await;
            let uid = &review["request"]["uid"];
            (
                outcome,
                json_response(&binding::answer(uid, patch.as_ref())),
            )
        }
        _ => (
            "malformed",
            refused("not an AdmissionReview: there is no request.uid"),
        ),
    };
    webhooks
        .metrics
        .admission("bindings", outcome, started.elapsed());
    response
}

impl Webhooks {
    async fn review(&self, body: &[u8]) -> Result<Reviewed, BadReview> {
        let review = Review::read(body)?;
        let verdict = match review.asked() {
            Ok(asked) => self.judge(&asked).await,
            Err(verdict) => verdict,
        };
        review.answer(verdict)
    }

    async fn judge(&self, asked: &Asked<'_>) -> Verdict {
        let mut world = self.world(asked).await;
        let verdict = admission::judge(asked, &world);
        if !matches!(verdict.skip(), Some(Skip::NoPool)) {
            return verdict;
        }
        // A pod is skipped for good, and a pool that was applied together with it may be newer than the cache.
        match self.live.pools(asked.namespace, &world.pools).await {
            Some(pools) => {
                world.pools = pools.into();
                admission::judge(asked, &world)
            }
            None => verdict,
        }
    }

    async fn world(&self, asked: &Asked<'_>) -> World<'_> {
        let namespace = Key::new("", asked.namespace);
        let labels = match self.caches.namespaces.get(&namespace) {
            Some(labels) => Some(labels.as_ref().clone()),
            // A namespace may be newer than the cache.
            None => self.live.labels(asked.namespace).await,
        };
        let pools = self.caches.pools.of_namespace(asked.namespace);
        let (fewest, most_gpus) = self.caches.nodes.fold((None, None), |(cores, gpus), node| {
            let fewer = match (cores, node.cores) {
                (Some(so_far), Some(of_node)) => Some(std::cmp::min(so_far, of_node)),
                (one, other) => one.or(other),
            };
            (fewer, gpus.max(Some(node.gpus)))
        });
        let fewest = fewest.and_then(|cores| NonZeroUsize::try_from(cores).ok());
        World {
            pools: pools
                .into_iter()
                .map(|(_, pool)| pool)
                .collect::<Vec<_>>()
                .into(),
            namespace_labels: labels.map(Cow::Owned),
            room: self.room(asked.namespace),
            defaults: &self.defaults,
            fewest_cores: fewest,
            most_gpus,
        }
    }

    fn room(&self, namespace: &str) -> Room {
        let limit_ranges = self.caches.limit_ranges.of_namespace(namespace);
        let quotas = self.caches.quotas.of_namespace(namespace);
        Room {
            limit_ranges: limit_ranges.into_iter().map(|(_, range)| range).collect(),
            quotas: quotas.into_iter().map(|(_, quota)| quota).collect(),
        }
    }

    async fn bind(&self, request: &Value) -> (&'static str, Option<Value>) {
        let Some(binding) = Binding::of_request(request) else {
            return ("untouched", None);
        };
        let Some(pod) = self.pod_of(&binding).await else {
            return ("untouched", None);
        };
        let plan = self.plan(&binding.node, &pod);
        let patch = plan.as_ref().and_then(|plan| binding.patch(plan).ok());
        match (plan, patch) {
            (Some(plan), Some(patch)) => {
                info!(
                    namespace = binding.namespace,
                    pod = binding.pod,
                    node = binding.node,
                    cap = plan.cap,
                    "planned at binding"
                );
                ("patched", Some(patch))
            }
            _ => {
                debug!(
                    namespace = binding.namespace,
                    pod = binding.pod,
                    node = binding.node,
                    "nothing is known of the node: the pod keeps its safe value"
                );
                ("untouched", None)
            }
        }
    }

    /// The pod that is bound. The scheduler may have seen it a moment before us.
    async fn pod_of(&self, binding: &Binding) -> Option<Arc<PodFacts>> {
        let key = Key::new(&binding.namespace, &binding.pod);
        let is_it = |pod: &Arc<PodFacts>| binding.uid.as_ref().is_none_or(|uid| *uid == pod.uid);
        let seen = self
            .caches
            .pods
            .wait_for(|pods| pods.get(&key).filter(is_it));
        timeout(POD_SEEN, seen).await.ok()
    }

    fn plan(&self, node: &str, pod: &PodFacts) -> Option<siding_crds::plan::NodePlan> {
        let key = Key::new("", node);
        let (facts, topology) = (
            self.caches.nodes.get(&key),
            self.caches.topologies.get(&key),
        );
        let known = NodeKnowledge {
            name: node,
            node: facts.as_deref(),
            topology: topology.as_deref(),
            other_ranks: self.caches.other_ranks(node, &pod.uid),
        };
        planning::node_plan(&pod.injection, known, &self.catalogue)
    }
}

fn json_response(value: &Value) -> Response {
    json_bytes(value.to_string().into_bytes())
}

fn json_bytes(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn refused(why: &str) -> Response {
    (
        StatusCode::BAD_REQUEST,
        json_response(&json!({"error": why})),
    )
        .into_response()
}

#[cfg(test)]
mod tests;

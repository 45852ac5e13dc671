//! Publishing what the node has.

use std::time::Instant;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use siding_crds::api::{NodeTopology, NodeTopologyStatus};
use siding_topology::catalogue::Catalogue;
use siding_topology::rails::rails;
use siding_topology::{ReadOptions, Root, read_node};
use tokio::time::{MissedTickBehavior, interval};

use super::{Context, REFRESH, now};
use crate::conditions::Moment;
use crate::metrics::NODE_TOPOLOGY;
use crate::publish::{self, NodeFacts, NotPublished, Patience};
use crate::topology::status_of;

/// Reads and publishes for ever.
pub(super) async fn publish(context: &Context) {
    let mut state = State::new(context);
    let mut ticks = interval(context.options.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if !state.patience.is_due(Instant::now()) {
            continue;
        }
        match state.round().await {
            Ok(()) => state.patience.good(),
            Err(error) => {
                let words = format!("the node can't be published: {error}");
                tracing::warn!("{words}");
                context.metrics.trouble(words);
                context.metrics.published(NODE_TOPOLOGY, false);
                state.patience.failed(Instant::now());
            }
        }
    }
}

/// What is on the API server.
struct Published {
    status: NodeTopologyStatus,
    generation: Option<i64>,
    at: Instant,
}

struct State<'a> {
    context: &'a Context,
    topologies: Api<NodeTopology>,
    nodes: Api<Node>,
    facts: Option<(NodeFacts, Instant)>,
    published: Option<Published>,
    patience: Patience,
}

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    NotPublished(#[from] NotPublished),
    #[error("the Node has no uid")]
    NoUid,
    #[error("reading it panicked")]
    Panicked,
}

impl<'a> State<'a> {
    fn new(context: &'a Context) -> Self {
        Self {
            context,
            topologies: Api::all(context.client.clone()),
            nodes: Api::all(context.client.clone()),
            facts: None,
            published: None,
            patience: Patience::default(),
        }
    }

    async fn round(&mut self) -> Result<(), Trouble> {
        let facts = self.facts().await?;
        let (node, rails) = self.read(&facts).await?;
        let host_root = &self.context.options.host_root;
        let status = |generation, before: &_| {
            let moment = Moment {
                now: now(),
                generation,
                before,
            };
            status_of(&node, &rails, host_root, moment)
        };
        if let Some(published) = &self.published {
            let same = status(published.generation, &published.status.conditions);
            if same == published.status && published.at.elapsed() < REFRESH {
                self.context.metrics.node(&same);
                return Ok(());
            }
        }
        let name = &self.context.node;
        let object = publish::node_topology(&self.topologies, name, &facts.owner).await?;
        let before = object.status.unwrap_or_default().conditions;
        let generation = object.metadata.generation;
        let status = status(generation, &before);
        publish::status(&self.topologies, name, &status).await?;
        self.context.metrics.published(NODE_TOPOLOGY, true);
        self.context.metrics.node(&status);
        self.published = Some(Published {
            status,
            generation,
            at: Instant::now(),
        });
        Ok(())
    }

    /// What the Node says, looked up anew now and then: its label comes with the cloud's
    /// controller, after the kubelet.
    async fn facts(&mut self) -> Result<NodeFacts, Trouble> {
        if let Some((facts, at)) = &self.facts
            && at.elapsed() < REFRESH
            && (facts.instance_type.is_some() && facts.allocatable_cores.is_some()
                || at.elapsed() < self.context.options.interval * 3)
        {
            return Ok(facts.clone());
        }
        let node = publish::node(&self.nodes, &self.context.node).await?;
        let facts = NodeFacts::of(&node).ok_or(Trouble::NoUid)?;
        self.facts = Some((facts.clone(), Instant::now()));
        Ok(facts)
    }

    async fn read(
        &self,
        facts: &NodeFacts,
    ) -> Result<(siding_topology::node::Node, siding_topology::rails::Rails), Trouble> {
        let root = self.context.options.host_root.clone();
        let options = ReadOptions {
            allocatable_cores: facts.allocatable_cores,
            allow_soft_rdma: self.context.options.allow_soft_rdma,
            instance_type: facts.instance_type.clone(),
        };
        let read = move || {
            let node = read_node(&Root::at(root), &options);
            let catalogue = Catalogue::published();
            let named = node.instance_type.as_deref();
            let rails = rails(&node, named.and_then(|name| catalogue.entry(name)));
            (node, rails)
        };
        // Hundreds of small files: the sidecars are looked at meanwhile.
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|_| Trouble::Panicked)
    }
}

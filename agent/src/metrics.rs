//! What Prometheus sees of the agent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prometheus::{Gauge, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};
use siding_crds::api::NodeTopologyStatus;

/// Kinds that are published, as labels.
pub const NODE_TOPOLOGY: &str = "NodeTopology";
/// See [`NODE_TOPOLOGY`].
pub const STORE_MOUNT: &str = "StoreMount";

/// How the sidecars of a round stood.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Round {
    /// They answered.
    pub answering: i64,
    /// They did not.
    pub silent: i64,
    /// Their socket is not there.
    pub absent: i64,
}

/// The metrics, and what the probes go by. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Registry,
    sidecars: IntGaugeVec,
    published: IntCounterVec,
    nics: IntGaugeVec,
    gpus: IntGauge,
    age: Gauge,
    kubelet: IntGauge,
    health: Mutex<Health>,
}

/// What readiness goes by.
#[derive(Debug, Clone, Default)]
struct Health {
    node_published: Option<Instant>,
    mounts_listed: bool,
    trouble: Option<String>,
}

impl Metrics {
    /// Metrics of which nothing has happened yet.
    ///
    /// # Errors
    /// A name or label that can't be one, which would be a defect.
    pub fn new() -> Result<Self, prometheus::Error> {
        let inner = Inner {
            registry: Registry::new(),
            sidecars: IntGaugeVec::new(
                Opts::new(
                    "siding_agent_sidecars",
                    "Sidecars of this node (a count) by how they stood at the last look: answering, silent, or absent (no socket yet).",
                ),
                &["state"],
            )?,
            published: IntCounterVec::new(
                Opts::new(
                    "siding_agent_publish_total",
                    "Writes of a status to the API server, by kind of object and outcome (ok or error).",
                ),
                &["kind", "outcome"],
            )?,
            nics: IntGaugeVec::new(
                Opts::new(
                    "siding_node_nics",
                    "NICs of this node (a count) by state: Usable, or the reason why they can't be used.",
                ),
                &["state"],
            )?,
            gpus: IntGauge::new("siding_node_gpus", "GPUs of this node (a count).")?,
            age: Gauge::new(
                "siding_agent_status_age_seconds",
                "Seconds since what is published of this node was last known to be true; absent until it is published.",
            )?,
            kubelet: IntGauge::new(
                "siding_agent_pod_resources_up",
                "1 while the kubelet tells which devices pods got, else 0.",
            )?,
            health: Mutex::default(),
        };
        for collector in [
            Box::new(inner.sidecars.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(inner.published.clone()),
            Box::new(inner.nics.clone()),
            Box::new(inner.gpus.clone()),
            Box::new(inner.kubelet.clone()),
        ] {
            inner.registry.register(collector)?;
        }
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// A write ended.
    pub fn published(&self, kind: &str, ok: bool) {
        let outcome = if ok { "ok" } else { "error" };
        if let Ok(counter) = self
            .inner
            .published
            .get_metric_with_label_values(&[kind, outcome])
        {
            counter.inc();
        }
    }

    /// The node is as this status says, and that is published.
    pub fn node(&self, status: &NodeTopologyStatus) {
        self.inner.nics.reset();
        for nic in &status.nics {
            let state = nic.reason.as_deref().unwrap_or("Usable");
            if let Ok(gauge) = self.inner.nics.get_metric_with_label_values(&[state]) {
                gauge.inc();
            }
        }
        self.inner.gpus.set(status.gpu_count.unwrap_or(0).into());
        self.health(|health| {
            health.node_published = Some(Instant::now());
            health.trouble = None;
        });
    }

    /// The node could not be published.
    pub fn trouble(&self, words: String) {
        self.health(|health| health.trouble = Some(words));
    }

    /// The StoreMounts of the node are known.
    pub fn mounts_listed(&self) {
        self.health(|health| health.mounts_listed = true);
    }

    /// A round over the sidecars ended.
    pub fn round(&self, round: Round) {
        for (state, count) in [
            ("answering", round.answering),
            ("silent", round.silent),
            ("absent", round.absent),
        ] {
            if let Ok(gauge) = self.inner.sidecars.get_metric_with_label_values(&[state]) {
                gauge.set(count);
            }
        }
    }

    /// Whether the kubelet tells.
    pub fn kubelet(&self, tells: bool) {
        self.inner.kubelet.set(tells.into());
    }

    /// Everything in the text format 0.0.4.
    ///
    /// # Errors
    /// When it can't be written, which would be a defect.
    pub fn encode(&self) -> Result<String, prometheus::Error> {
        let mut families = self.inner.registry.gather();
        if let Some(published) = self.read().node_published {
            self.inner.age.set(published.elapsed().as_secs_f64());
            families.extend(prometheus::core::Collector::collect(&self.inner.age));
        }
        families.sort_by(|a, b| a.name().cmp(b.name()));
        TextEncoder::new().encode_to_string(&families)
    }

    /// Why it is not ready; none where it is.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        let health = self.read();
        match health {
            Health {
                node_published: None,
                trouble,
                ..
            } => Some(trouble.unwrap_or_else(|| "the node is not published yet".to_owned())),
            Health {
                mounts_listed: false,
                ..
            } => Some("the StoreMounts of the node are not listed yet".to_owned()),
            _ => None,
        }
    }

    fn health(&self, change: impl FnOnce(&mut Health)) {
        let mut health = self.inner.health.lock();
        change(
            health
                .as_deref_mut()
                .unwrap_or_else(|poisoned| poisoned.get_mut()),
        );
    }

    fn read(&self) -> Health {
        let health = self.inner.health.lock();
        health.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use siding_crds::api::NicStatus;

    use super::*;

    fn nic(reason: Option<&str>) -> NicStatus {
        NicStatus {
            name: "n".to_owned(),
            address: None,
            numa: None,
            state: None,
            link_layer: None,
            usable: reason.is_none(),
            reason: reason.map(str::to_owned),
            summary: String::new(),
        }
    }

    #[test]
    fn what_is_unknown_is_absent_and_what_is_gone_goes() {
        let metrics = Metrics::new().unwrap();
        assert!(!metrics.encode().unwrap().contains("status_age"));
        assert_eq!(
            metrics.not_ready().unwrap(),
            "the node is not published yet"
        );
        metrics.trouble("refused".to_owned());
        assert_eq!(metrics.not_ready().unwrap(), "refused");
        let status = |nics| NodeTopologyStatus {
            nics,
            gpu_count: Some(8),
            ..NodeTopologyStatus::default()
        };
        metrics.node(&status(vec![nic(None), nic(Some("Down")), nic(None)]));
        let text = metrics.encode().unwrap();
        for line in [
            "siding_node_nics{state=\"Usable\"} 2",
            "siding_node_nics{state=\"Down\"} 1",
            "siding_node_gpus 8",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(text.contains("siding_agent_status_age_seconds "));
        metrics.node(&status(vec![nic(None)]));
        assert!(!metrics.encode().unwrap().contains("Down"));
        assert!(metrics.not_ready().unwrap().contains("StoreMounts"));
        metrics.mounts_listed();
        metrics.published(STORE_MOUNT, false);
        metrics.round(Round {
            answering: 2,
            ..Round::default()
        });
        let text = metrics.encode().unwrap();
        assert!(
            text.contains("siding_agent_publish_total{kind=\"StoreMount\",outcome=\"error\"} 1")
        );
        assert!(text.contains("siding_agent_sidecars{state=\"answering\"} 2"));
        assert_eq!(metrics.not_ready(), None);
    }
}

//! What the operator tells Prometheus. Labels are bounded: webhook, outcome, reason, controller.

use std::time::Duration;

use prometheus::{
    Encoder, Gauge, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};

/// Seconds of an admission: from 50 us to the API server's patience.
const ADMISSION_BUCKETS: [f64; 12] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0,
];

/// All metrics; a clone is the same ones.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    admissions: IntCounterVec,
    admission_seconds: HistogramVec,
    reconciliations: IntCounterVec,
    certificate_left_seconds: Gauge,
    is_leader: IntGauge,
    caches_complete: IntGauge,
}

impl Metrics {
    /// New ones.
    ///
    /// # Errors
    /// A name that the library refuses, which none is.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let metrics = Self {
            admissions: IntCounterVec::new(
                Opts::new(
                    "siding_operator_admissions_total",
                    "Admission requests answered, by webhook and outcome (patched, untouched, malformed, or the reason for a skip).",
                ),
                &["webhook", "outcome"],
            )?,
            admission_seconds: HistogramVec::new(
                HistogramOpts::new(
                    "siding_operator_admission_seconds",
                    "Seconds from a request's last byte to its answer.",
                )
                .buckets(ADMISSION_BUCKETS.to_vec()),
                &["webhook"],
            )?,
            reconciliations: IntCounterVec::new(
                Opts::new(
                    "siding_operator_reconciliations_total",
                    "Rounds of the controllers, by controller and outcome (unchanged, changed, failed).",
                ),
                &["controller", "outcome"],
            )?,
            certificate_left_seconds: Gauge::new(
                "siding_operator_certificate_left_seconds",
                "Seconds until the webhooks' certificate ends.",
            )?,
            is_leader: IntGauge::new(
                "siding_operator_leader",
                "1 where this replica runs the controllers.",
            )?,
            caches_complete: IntGauge::new(
                "siding_operator_caches_complete",
                "1 once every cache has seen the whole cluster.",
            )?,
            registry,
        };
        let all: [Box<dyn prometheus::core::Collector>; 6] = [
            Box::new(metrics.admissions.clone()),
            Box::new(metrics.admission_seconds.clone()),
            Box::new(metrics.reconciliations.clone()),
            Box::new(metrics.certificate_left_seconds.clone()),
            Box::new(metrics.is_leader.clone()),
            Box::new(metrics.caches_complete.clone()),
        ];
        for collector in all {
            metrics.registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// An admission was answered.
    pub fn admission(&self, webhook: &str, outcome: &str, took: Duration) {
        self.admissions.with_label_values(&[webhook, outcome]).inc();
        let seconds = self.admission_seconds.with_label_values(&[webhook]);
        seconds.observe(took.as_secs_f64());
    }

    /// A controller's round ended.
    pub fn reconciliation(&self, controller: &str, outcome: &str) {
        let rounds = self
            .reconciliations
            .with_label_values(&[controller, outcome]);
        rounds.inc();
    }

    /// The webhooks' certificate ends after this.
    pub fn certificate_left(&self, left: Duration) {
        self.certificate_left_seconds.set(left.as_secs_f64());
    }

    /// Days until the webhooks' certificate ends; none before the first look.
    #[must_use]
    pub fn certificate_left_days(&self) -> Option<f64> {
        let seconds = self.certificate_left_seconds.get();
        (seconds > 0.0).then_some(seconds / 86_400.0)
    }

    /// Whether this replica leads.
    pub fn leader(&self, is_leader: bool) {
        self.is_leader.set(i64::from(is_leader));
    }

    /// Whether the caches are complete.
    pub fn caches_complete(&self, are_complete: bool) {
        self.caches_complete.set(i64::from(are_complete));
    }

    /// The text that Prometheus scrapes.
    ///
    /// # Errors
    /// What the encoder says.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut bytes = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

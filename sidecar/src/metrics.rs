//! What Prometheus sees.
//!
//! Counts and durations are kept from when they happen; everything that is a state (sizes, phases,
//! pools) is read from a [`Status`] at each scrape, so that a series goes with its subject.

use std::env::consts::ARCH;
use std::fmt;
use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntGauge, Opts, Registry, Result, TextEncoder,
};
use siding_topology::hugepages::Pool;
use siding_topology::size::page_name;

use crate::board::{SegmentStatus, State, Status};

/// The content type of [`Metrics::encode`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// From 1 ms, which a small region takes, to 300 s, after which engines give up.
const SECONDS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0,
];

const CAP: &str = "siding_registration_cap";

/// The metrics of one process, in a registry of their own. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    /// Names and labels are constants, so that this is an error only if one of them is wrong; then
    /// every scrape says so.
    kept: Arc<Result<Kept>>,
}

/// What is kept between scrapes.
struct Kept {
    registry: Registry,
    registration: HistogramVec,
    queue: Histogram,
    in_flight: IntGauge,
}

impl Kept {
    fn new() -> Result<Self> {
        let registration = HistogramVec::new(
            histogram(
                "siding_registration_seconds",
                "Seconds that registering one memory region took, by back end, NIC, memory (host or device) and outcome (ok or the reason of the failure).",
            ),
            &["backend", "nic", "memory", "outcome"],
        )?;
        let queue = Histogram::with_opts(histogram(
            "siding_registration_queue_seconds",
            "Seconds that a memory region waited for its turn to be registered.",
        ))?;
        let in_flight = IntGauge::new(
            "siding_registration_inflight",
            "Registrations in flight now (a count).",
        )?;
        let registry = Registry::new();
        registry.register(Box::new(registration.clone()))?;
        registry.register(Box::new(queue.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        Ok(Self {
            registry,
            registration,
            queue,
            in_flight,
        })
    }
}

fn histogram(name: &str, help: &str) -> HistogramOpts {
    HistogramOpts::new(name, help).buckets(SECONDS.to_vec())
}

/// A registration in flight; it is counted until this is dropped.
#[derive(Debug)]
#[must_use = "the registration counts as in flight only until this is dropped"]
pub struct InFlight(Option<IntGauge>);

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(gauge) = &self.0 {
            gauge.dec();
        }
    }
}

impl Metrics {
    /// Metrics of which nothing has happened yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            kept: Arc::new(Kept::new()),
        }
    }

    /// A registration ended: of `memory` (`host` or `device`), with an `outcome` that is `ok` or
    /// one of the few reasons that a back end has.
    pub fn registration(
        &self,
        backend: &str,
        nic: &str,
        memory: &str,
        outcome: &str,
        seconds: f64,
    ) {
        if let Ok(kept) = self.kept.as_ref()
            && let Ok(series) = kept
                .registration
                .get_metric_with_label_values(&[backend, nic, memory, outcome])
        {
            series.observe(seconds);
        }
    }

    /// A registration's turn came after this many seconds.
    pub fn registration_queue(&self, seconds: f64) {
        if let Ok(kept) = self.kept.as_ref() {
            kept.queue.observe(seconds);
        }
    }

    /// A registration begins; it is in flight until what is returned is dropped.
    pub fn registration_started(&self) -> InFlight {
        let gauge = self.kept.as_ref().as_ref().ok();
        let gauge = gauge.map(|kept| kept.in_flight.clone());
        if let Some(gauge) = &gauge {
            gauge.inc();
        }
        InFlight(gauge)
    }

    /// Everything in the text format 0.0.4, with the states from `status` and the machine's
    /// huge-page `pools` as they are now.
    ///
    /// # Errors
    /// When a metric can't be made or written, which would be a defect.
    pub fn encode(&self, status: &Status, pools: &[Pool]) -> Result<String> {
        let kept = self.kept.as_ref().as_ref().map_err(copy)?;
        let states = Registry::new();
        for gauges in states_of(status, pools)? {
            states.register(gauges)?;
        }
        let mut families = kept.registry.gather();
        families.extend(states.gather());
        families.sort_by(|a, b| a.name().cmp(b.name()));
        let text = TextEncoder::new().encode_to_string(&families)?;
        // The crate writes an infinite gauge as `inf`, the format's own spelling is `+Inf`. In a
        // label's value a line can't end, so that this finds the sample alone.
        Ok(text.replace(&format!("\n{CAP} inf\n"), &format!("\n{CAP} +Inf\n")))
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn copy(error: &prometheus::Error) -> prometheus::Error {
    prometheus::Error::Msg(error.to_string())
}

/// Gauges of one name, filled for one scrape.
struct Gauges(GaugeVec);

impl Gauges {
    fn new(name: &str, help: &str, labels: &[&str]) -> Result<Self> {
        Ok(Self(GaugeVec::new(Opts::new(name, help), labels)?))
    }

    fn set(&self, labels: &[&str], value: f64) -> Result<()> {
        self.0.get_metric_with_label_values(labels)?.set(value);
        Ok(())
    }

    fn boxed(self) -> Box<dyn Collector> {
        Box::new(self.0)
    }
}

fn states_of(status: &Status, pools: &[Pool]) -> Result<Vec<Box<dyn Collector>>> {
    let mut all = vec![
        build_info(&status.version)?,
        ready(status.state)?,
        cap(status)?,
        planned_cap(status)?,
        pinned(status.pinned_bytes)?,
        huge_pages_free(pools)?,
    ];
    all.extend(segments(&status.segments)?);
    Ok(all)
}

fn build_info(version: &str) -> Result<Box<dyn Collector>> {
    let gauges = Gauges::new(
        "siding_build_info",
        "Always 1; the labels say which Siding this is and for which processor architecture.",
        &["version", "arch"],
    )?;
    gauges.set(&[version, ARCH], 1.0)?;
    Ok(gauges.boxed())
}

fn ready(state: State) -> Result<Box<dyn Collector>> {
    let gauges = Gauges::new(
        "siding_ready",
        "1 while all segments are mounted, and registered as far as the back end goes; else 0.",
        &[],
    )?;
    gauges.set(&[], f64::from(u8::from(state == State::Ready)))?;
    Ok(gauges.boxed())
}

fn cap(status: &Status) -> Result<Box<dyn Collector>> {
    let gauges = Gauges::new(
        CAP,
        "Most registrations in flight at once (a count): +Inf where unbounded, absent while not chosen.",
        &[],
    )?;
    if let Some(registration) = &status.registration {
        let cap = registration.cap.map_or(f64::INFINITY, |cap| cap as f64);
        gauges.set(&[], cap)?;
    }
    Ok(gauges.boxed())
}

fn planned_cap(status: &Status) -> Result<Box<dyn Collector>> {
    let gauges = Gauges::new(
        "siding_registration_cap_planned",
        "Most registrations in flight at once (a count) as the node's plan says, in force or not; absent without a plan.",
        &[],
    )?;
    if let Some(cap) = status.plan.as_ref().and_then(|plan| plan.cap) {
        gauges.set(&[], cap.into())?;
    }
    Ok(gauges.boxed())
}

fn pinned(bytes: Option<u64>) -> Result<Box<dyn Collector>> {
    let gauges = Gauges::new(
        "siding_pinned_bytes",
        "Bytes that the kernel says this process has pinned (VmPin); absent where it does not say.",
        &[],
    )?;
    if let Some(bytes) = bytes {
        gauges.set(&[], bytes as f64)?;
    }
    Ok(gauges.boxed())
}

/// One series per page size and NUMA node, so that a sum over `page` is right everywhere: where
/// the kernel does not tell the nodes apart there is one series whose node is `unknown`.
fn huge_pages_free(pools: &[Pool]) -> Result<Box<dyn Collector>> {
    let gauges = Gauges::new(
        "siding_hugepages_free",
        "Huge pages of the machine that nothing has touched, in pages of the size in the label, those promised to mappings included; by NUMA node, or unknown where the kernel does not tell.",
        &["page", "node"],
    )?;
    for pool in pools {
        let page = page_name(pool.page_bytes);
        if pool.nodes.is_empty() {
            gauges.set(&[&page, "unknown"], pool.free as f64)?;
        }
        for node in &pool.nodes {
            gauges.set(&[&page, &node.node.to_string()], node.free as f64)?;
        }
    }
    Ok(gauges.boxed())
}

fn segments(segments: &[SegmentStatus]) -> Result<[Box<dyn Collector>; 3]> {
    let bytes = Gauges::new(
        "siding_segment_bytes",
        "Size of a segment in bytes, by the pages that it got; absent until they are chosen.",
        &["segment", "page"],
    )?;
    let registered = Gauges::new(
        "siding_segment_registered_bytes",
        "Bytes of a segment that are registered.",
        &["segment"],
    )?;
    let seconds = Gauges::new(
        "siding_segment_phase_seconds",
        "Seconds that a finished phase of mounting took (map, touch, register, publish); absent for a phase that was not needed.",
        &["segment", "phase"],
    )?;
    for segment in segments {
        let name = segment.name.as_str();
        if let Some(page) = &segment.page {
            bytes.set(&[name, page], segment.size_bytes as f64)?;
        }
        registered.set(&[name], segment.registered_bytes as f64)?;
        for (phase, took) in &segment.seconds {
            seconds.set(&[name, phase.as_str()], *took)?;
        }
    }
    Ok([bytes.boxed(), registered.boxed(), seconds.boxed()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{Board, Phase, RegistrationStatus};
    use crate::node_plan::PlanStatus;
    use siding_topology::hugepages::NodePool;

    fn board() -> Board {
        Board::new([("kv", 4 << 30), ("in\"dex\n", 1 << 21)], Metrics::new())
    }

    fn chosen(cap: Option<usize>) -> RegistrationStatus {
        RegistrationStatus {
            backend: "io_uring".to_owned(),
            reason: "usable".to_owned(),
            cap,
            cap_reason: "8 cores".to_owned(),
            rings: Some(2),
        }
    }

    fn pool(page_bytes: u64, free: u64, nodes: &[(u32, u64)]) -> Pool {
        let node = |&(node, free)| NodePool {
            node,
            total: free + 1,
            free,
        };
        Pool {
            page_bytes,
            total: free + 1,
            free,
            reserved: 1,
            surplus: 0,
            overcommit: 0,
            nodes: nodes.iter().map(node).collect(),
        }
    }

    /// The series of one name: labels and value, as written.
    fn series(text: &str, name: &str) -> Vec<(String, String)> {
        let sample = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let whole = labels.is_empty() || labels.starts_with('{');
            whole.then(|| (labels.to_owned(), value.to_owned()))
        };
        text.lines().filter_map(sample).collect()
    }

    fn one(labels: &str, value: &str) -> Vec<(String, String)> {
        vec![(labels.to_owned(), value.to_owned())]
    }

    #[test]
    fn nothing_unknown_is_written() {
        let board = board();
        let text = board.metrics().encode(&board.snapshot(), &[]).unwrap();
        for absent in [
            "siding_registration_cap",
            "siding_registration_cap_planned",
            "siding_pinned_bytes",
            "siding_hugepages_free",
            "siding_segment_bytes",
            "siding_segment_phase_seconds",
            "siding_registration_seconds",
        ] {
            assert!(!text.contains(absent), "{absent} in {text}");
        }
        assert_eq!(series(&text, "siding_ready"), one("", "0"));
        assert_eq!(series(&text, "siding_registration_inflight"), one("", "0"));
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            series(&text, "siding_build_info"),
            one(&format!("{{arch=\"{ARCH}\",version=\"{version}\"}}"), "1")
        );
        assert_eq!(
            series(&text, "siding_segment_registered_bytes"),
            [
                (r#"{segment="in\"dex\n"}"#.to_owned(), "0".to_owned()),
                (r#"{segment="kv"}"#.to_owned(), "0".to_owned()),
            ]
        );
    }

    #[test]
    fn states_are_those_of_the_scrape() {
        let board = board();
        board.update(|status| {
            status.state = State::Ready;
            status.registration = Some(chosen(Some(6)));
            status.pinned_bytes = Some(0);
            status.plan = Some(PlanStatus {
                cap: Some(5),
                ..PlanStatus::default()
            });
        });
        board.segment(0, |kv| {
            kv.page = Some("2Mi".to_owned());
            kv.registered_bytes = 3 << 30;
            kv.seconds = [(Phase::Map, 0.25), (Phase::Register, 2.0)].into();
        });
        let pools = [
            pool(2 << 20, 9, &[(0, 4), (1, 5)]),
            pool(1 << 30, 3, &[]),
            pool(64 << 10, 0, &[(0, 0)]),
        ];
        let mut status = board.snapshot();
        let text = board.metrics().encode(&status, &pools).unwrap();
        assert_eq!(series(&text, "siding_ready"), one("", "1"));
        assert_eq!(series(&text, "siding_registration_cap"), one("", "6"));
        assert_eq!(
            series(&text, "siding_registration_cap_planned"),
            one("", "5")
        );
        assert_eq!(series(&text, "siding_pinned_bytes"), one("", "0"));
        assert_eq!(
            series(&text, "siding_segment_bytes"),
            one(r#"{page="2Mi",segment="kv"}"#, "4294967296")
        );
        assert_eq!(
            series(&text, "siding_segment_registered_bytes")[1],
            (r#"{segment="kv"}"#.to_owned(), "3221225472".to_owned())
        );
        assert_eq!(
            series(&text, "siding_segment_phase_seconds"),
            [("map", "0.25"), ("register", "2")].map(|(phase, seconds)| (
                format!(r#"{{phase="{phase}",segment="kv"}}"#),
                seconds.to_owned()
            ))
        );
        assert_eq!(
            series(&text, "siding_hugepages_free"),
            [
                ("0", "2Mi", "4"),
                ("0", "64Ki", "0"),
                ("1", "2Mi", "5"),
                ("unknown", "1Gi", "3"),
            ]
            .map(|(node, page, free)| (
                format!(r#"{{node="{node}",page="{page}"}}"#),
                free.to_owned()
            ))
        );

        // Whatever is gone leaves nothing behind.
        status.segments.remove(0);
        status.pinned_bytes = None;
        status.registration = None;
        status.plan = None;
        let text = board.metrics().encode(&status, &pools[1..2]).unwrap();
        assert!(!text.contains("\"kv\""), "{text}");
        assert!(!text.contains("siding_pinned_bytes"), "{text}");
        assert!(!text.contains(CAP), "{text}");
        assert_eq!(series(&text, "siding_hugepages_free").len(), 1);
    }

    #[test]
    fn an_unbounded_cap_is_infinite() {
        let board = board();
        board.update(|status| status.registration = Some(chosen(None)));
        board.segment(0, |kv| kv.name = format!("x\n{CAP} inf\n"));
        let text = board.metrics().encode(&board.snapshot(), &[]).unwrap();
        assert_eq!(series(&text, CAP), one("", "+Inf"));
        assert!(text.contains(&format!("x\\n{CAP} inf\\n")), "{text}");
    }

    #[test]
    fn registrations_are_counted_by_their_labels() {
        let board = board();
        let metrics = board.metrics();
        metrics.registration("io_uring", "ring", "host", "ok", 0.002);
        metrics.registration("io_uring", "ring", "host", "ok", 400.0);
        metrics.registration("io_uring", "ring", "host", "pinnedMemory", 0.001);
        metrics.registration_queue(0.5);
        let in_flight = (
            metrics.registration_started(),
            metrics.registration_started(),
        );
        let scrape = || board.metrics().encode(&board.snapshot(), &[]).unwrap();
        let text = scrape();
        let ok = r#"backend="io_uring",memory="host",nic="ring",outcome="ok""#;
        let count = |le: &str| {
            let labels = format!("{{{ok},le=\"{le}\"}}");
            let all = series(&text, "siding_registration_seconds_bucket");
            let found = all.into_iter().find(|(with, _)| *with == labels);
            found.map(|(_, value)| value)
        };
        for (le, want) in [("0.001", "0"), ("0.0025", "1"), ("300", "1"), ("+Inf", "2")] {
            assert_eq!(count(le).as_deref(), Some(want), "{le} in {text}");
        }
        assert_eq!(
            series(&text, "siding_registration_seconds_sum"),
            [
                (ok, "400.002"),
                (&ok.replace("ok", "pinnedMemory"), "0.001")
            ]
            .map(|(labels, sum)| (format!("{{{labels}}}"), sum.to_owned()))
        );
        assert_eq!(
            series(&text, "siding_registration_queue_seconds_sum"),
            one("", "0.5")
        );
        assert_eq!(series(&text, "siding_registration_inflight"), one("", "2"));
        drop(in_flight.0);
        assert_eq!(
            series(&scrape(), "siding_registration_inflight"),
            one("", "1")
        );
        drop(in_flight.1);
        assert_eq!(
            series(&scrape(), "siding_registration_inflight"),
            one("", "0")
        );
    }
}

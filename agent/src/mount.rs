//! From what a sidecar says to the status of its StoreMount: pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use siding_crds::api::{MountPhase, MountedSegment, PhaseSeconds, StoreMountStatus};
use siding_crds::names;
use siding_crds::plan::PlanSource;
use siding_crds::reasons::Reason;
use siding_topology::size::{binary, count};

use crate::conditions::{Moment, Truth};
use crate::report::{
    ReportedPlan, ReportedRegistration, ReportedSegment, ReportedState, SidecarReport,
};
use crate::text::cut;

/// What is published of a sidecar's words, in characters.
const WORD: usize = 64;
const LINE: usize = 512;
/// As many as the definition of StoreMount allows.
const SEGMENTS: usize = 16;
const NICS: usize = 128;
/// Numbers in JSON that the API server takes.
const MOST_BYTES: u64 = i64::MAX as u64;
const MOST_CAP: u64 = i32::MAX as u64;
const MOST_SECONDS: f64 = 1e9;

/// What was heard of a sidecar.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// Its status.
    Report(Box<SidecarReport>),
    /// Nothing, for longer than a start takes.
    Silence {
        /// Since when.
        since: Timestamp,
        /// Why.
        why: String,
    },
}

/// The conditions that the agent writes; the rest are the operator's.
const OWN_CONDITIONS: [&str; 3] = ["Mounted", "Planned", "Registered"];

/// The status to publish; what a silent sidecar said before (`old`) stays. `now` is what the object
/// has, by whomever.
#[must_use]
pub fn mount_status(
    heard: &Heard,
    old: Option<&StoreMountStatus>,
    now: Option<&StoreMountStatus>,
    moment: Moment<'_>,
) -> StoreMountStatus {
    match heard {
        Heard::Report(report) => of_report(report, moment),
        Heard::Silence { since, why } => {
            let mut status = old.cloned().unwrap_or_default();
            let words = format!(
                "the sidecar has not answered since {since}: {}",
                cut(why, LINE)
            );
            let silent =
                |kind| moment.condition(kind, Truth::Unknown, Reason::SidecarSilent, &words);
            status.conditions = OWN_CONDITIONS.map(silent).into();
            // Of a sidecar that ended, the operator knows from the pod why.
            if let Some(ended) = now.filter(|now| has_ended(now)) {
                status.phase = ended.phase;
                status.reason.clone_from(&ended.reason);
                status.summary.clone_from(&ended.summary);
            } else {
                status.phase = MountPhase::Pending;
                status.reason = Some(Reason::SidecarSilent.as_str().to_owned());
                status.summary = Some(words);
            }
            status
        }
    }
}

fn has_ended(now: &StoreMountStatus) -> bool {
    now.phase == MountPhase::Failed
        && (now.conditions.iter())
            .any(|one| one.type_ == names::SIDECAR_RUNNING && one.status == "False")
}

/// Whether what the object has is what was published, but for what others write.
#[must_use]
pub fn says_so(now: &StoreMountStatus, published: &StoreMountStatus) -> bool {
    now.phase == published.phase
        && now.reason == published.reason
        && now.summary == published.summary
}

fn of_report(report: &SidecarReport, moment: Moment<'_>) -> StoreMountStatus {
    let segments = segments(&report.segments);
    let (phase, reason, words) = verdict(report);
    let registration = report.registration.as_ref();
    let plan = report.plan.as_ref();
    let conditions = vec![
        mounted(phase, reason, &words, moment),
        planned(plan, registration, moment),
        registered(report, moment),
    ];
    let cap = registration
        .and_then(|r| r.cap)
        .map(|cap| cap.clamp(1, MOST_CAP));
    StoreMountStatus {
        phase,
        reason: (reason != Reason::AsDeclared).then(|| reason.as_str().to_owned()),
        summary: Some(words),
        cap: cap.and_then(|cap| u32::try_from(cap).ok()),
        cap_reason: registration.map(|r| cut(&r.cap_reason, LINE)),
        plan_source: plan.and_then(ReportedPlan::source),
        nics: plan.map(|plan| nics(&plan.nics)).unwrap_or_default(),
        backend: registration.map(|r| cut(&r.backend, WORD)),
        registration_summary: registration_summary(&segments),
        segments,
        conditions,
    }
}

/// The phase, its reason, and all of it in a line.
fn verdict(report: &SidecarReport) -> (MountPhase, Reason, String) {
    let left_out = report.segments.iter().find_map(|s| s.left_out.as_ref());
    match report.state {
        ReportedState::Mounting => (MountPhase::Mounting, Reason::Pending, progress(report)),
        ReportedState::Ready => match left_out {
            Some(left_out) => {
                let words = format!("{}; {}", total(report), cut(left_out, LINE));
                (MountPhase::Degraded, Reason::PartlyRegistered, words)
            }
            None => (MountPhase::Ready, Reason::AsDeclared, total(report)),
        },
        ReportedState::Failed => {
            let failure = report.failure.clone().unwrap_or_default();
            let words = match failure.message.as_str() {
                "" => "mounting failed; the sidecar does not say why".to_owned(),
                message => cut(message, LINE),
            };
            (MountPhase::Failed, known_reason(&failure.reason), words)
        }
        ReportedState::Stopping => {
            let words = "the sidecar is stopping: segments are being unregistered and unmapped";
            (MountPhase::Pending, Reason::Pending, words.to_owned())
        }
        ReportedState::Unknown => {
            let words =
                "the sidecar is in a state that this agent does not know: upgrade the agent";
            (MountPhase::Pending, Reason::Other, words.to_owned())
        }
    }
}

/// A word of the sidecar's, where it is one that we have: labels are made of it.
fn known_reason(word: &str) -> Reason {
    let mut all = Reason::ALL.iter();
    let found = all.find(|reason| reason.as_str() == word);
    found.copied().unwrap_or(Reason::Other)
}

fn progress(report: &SidecarReport) -> String {
    let ready = report
        .segments
        .iter()
        .filter(|s| s.state == "ready")
        .count();
    let all = count(report.segments.len(), "segment");
    let now = report.segments.iter().find(|s| s.state != "ready");
    let now = now.map(|s| {
        let (name, state) = (cut(&s.name, WORD), cut(&s.state, WORD));
        let done = match s.state.as_str() {
            "touch" => format!(", {} of {} bytes", s.touched_bytes, s.size_bytes),
            "register" => format!(", {} of {} bytes", s.registered_bytes, s.size_bytes),
            _ => String::new(),
        };
        format!("; {name}: {state}{done}")
    });
    format!("{ready} of {all} mounted{}", now.unwrap_or_default())
}

fn total(report: &SidecarReport) -> String {
    let bytes = report
        .segments
        .iter()
        .fold(0_u64, |sum, s| sum.saturating_add(s.size_bytes));
    let all = count(report.segments.len(), "segment");
    let took: f64 = report
        .segments
        .iter()
        .flat_map(|s| [s.seconds.map, s.seconds.touch, s.seconds.register])
        .filter_map(seconds)
        .sum();
    format!("{all}, {}, mounted in {took:.3} s", binary(bytes))
}

fn mounted(phase: MountPhase, reason: Reason, words: &str, moment: Moment<'_>) -> Condition {
    let (truth, reason) = match phase {
        // What is left out of registration is mounted all the same.
        MountPhase::Ready | MountPhase::Degraded => (Truth::True, Reason::AsDeclared),
        MountPhase::Failed => (Truth::False, reason),
        MountPhase::Mounting | MountPhase::Pending => (Truth::False, Reason::Pending),
    };
    moment.condition("Mounted", truth, reason, words)
}

fn planned(
    plan: Option<&ReportedPlan>,
    registration: Option<&ReportedRegistration>,
    moment: Moment<'_>,
) -> Condition {
    let cap_reason = plan.and_then(|plan| plan.cap_reason.as_deref());
    let mut words = cap_reason.unwrap_or("the sidecar has no plan").to_owned();
    let (truth, reason) = match plan.and_then(ReportedPlan::source) {
        Some(PlanSource::Node) => (Truth::True, Reason::AsDeclared),
        Some(PlanSource::Catalogue) => (Truth::True, Reason::PlanFromCatalogue),
        Some(PlanSource::Seed) | None => (Truth::False, Reason::Pending),
    };
    if let Some(r) = registration.filter(|r| cap_reason.is_none_or(|c| !r.cap_reason.contains(c))) {
        words = format!("{words}; in force: {}", cut(&r.cap_reason, LINE));
    }
    for finding in plan.iter().flat_map(|plan| &plan.findings).take(4) {
        words = format!("{words}; {}", cut(finding, LINE));
    }
    moment.condition("Planned", truth, reason, &words)
}

fn registered(report: &SidecarReport, moment: Moment<'_>) -> Condition {
    let registration = report.registration.clone().unwrap_or_default();
    let (backend, why) = (
        cut(&registration.backend, WORD),
        cut(&registration.reason, LINE),
    );
    let left_out = report.segments.iter().find_map(|s| s.left_out.as_ref());
    let (truth, reason, words) = match report.state {
        ReportedState::Ready if backend == "none" => (
            Truth::False,
            Reason::NotRegistered,
            format!("memory is served without being registered: {why}"),
        ),
        ReportedState::Ready => match left_out {
            Some(left_out) => (Truth::False, Reason::PartlyRegistered, left_out.clone()),
            None => (
                Truth::True,
                Reason::AsDeclared,
                format!("all segments, by {backend}: {why}"),
            ),
        },
        _ => (
            Truth::False,
            Reason::Pending,
            "the segments are not mounted".to_owned(),
        ),
    };
    moment.condition("Registered", truth, reason, &words)
}

fn nics(nics: &[String]) -> Vec<String> {
    nics.iter().take(NICS).map(|nic| cut(nic, WORD)).collect()
}

/// Each name once: the list is a map of names.
fn segments(reported: &[ReportedSegment]) -> Vec<MountedSegment> {
    let mut segments: Vec<MountedSegment> = Vec::new();
    for segment in reported {
        let segment = mounted_segment(segment);
        let is_new = segments.iter().all(|other| other.name != segment.name);
        if is_new && segments.len() < SEGMENTS {
            segments.push(segment);
        }
    }
    segments
}

fn mounted_segment(reported: &ReportedSegment) -> MountedSegment {
    let name = cut(&reported.name, WORD);
    let page_size = reported.page.as_ref().map(|page| cut(page, WORD));
    let phase = cut(&reported.state, WORD);
    let seconds = PhaseSeconds {
        map: seconds(reported.seconds.map),
        touch: seconds(reported.seconds.touch),
        register: seconds(reported.seconds.register),
    };
    let bytes = reported.size_bytes.min(MOST_BYTES);
    let pages = page_size.as_ref().map(|page| match page.as_str() {
        "transparent" => " on transparent huge pages".to_owned(),
        page => format!(" on {page} pages"),
    });
    let mut summary = format!(
        "{name}: {}{}, {phase}",
        binary(bytes),
        pages.unwrap_or_default()
    );
    let phases = [
        ("map", seconds.map),
        ("touch", seconds.touch),
        ("register", seconds.register),
    ];
    let took: Vec<String> = phases
        .into_iter()
        .filter_map(|(word, took)| took.map(|took| format!("{word} {took:.3} s")))
        .collect();
    if !took.is_empty() {
        summary = format!("{summary}; {}", took.join(", "));
    }
    if let Some(left_out) = &reported.left_out {
        summary = format!("{summary}; {}", cut(left_out, LINE));
    }
    MountedSegment {
        name,
        phase,
        bytes,
        registered_bytes: reported.registered_bytes.min(MOST_BYTES),
        page_size,
        seconds,
        summary,
    }
}

/// Seconds that can be seconds.
fn seconds(reported: Option<f64>) -> Option<f64> {
    reported.filter(|s| s.is_finite() && (0.0..=MOST_SECONDS).contains(s))
}

fn registration_summary(segments: &[MountedSegment]) -> Option<String> {
    let took: Vec<f64> = segments.iter().filter_map(|s| s.seconds.register).collect();
    (!took.is_empty()).then(|| format!("{:.3} s", took.iter().sum::<f64>()))
}

#[cfg(test)]
#[path = "mount_tests.rs"]
mod tests;

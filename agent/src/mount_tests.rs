use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::*;

/// As `siding run` says it, shortened.
fn ready() -> Value {
    json!({
        "version": "0.1.0", "state": "ready", "failure": null, "pinnedBytes": 536870912,
        "plan": {"source": "Node", "cap": 22, "capReason": "0.9 x 192 / 8", "node": "n1",
                 "gpus": ["GPU-aa"], "nics": ["rdmap79s0", "rdmap80s0"], "findings": []},
        "registration": {"backend": "io_uring", "reason": "it is usable here", "cap": 22,
                         "capReason": "by the plan of node n1: 0.9 x 192 / 8", "rings": 2},
        "segments": [{"name": "kv", "sizeBytes": 536870912, "page": "2Mi", "state": "ready",
            "seconds": {"map": 0.0012345678901234567, "touch": 0.12, "register": 0.0042},
            "touchedBytes": 536870912, "registeredBytes": 536870912, "regions": 2, "leftOut": null}],
    })
}

fn report(value: Value) -> Heard {
    Heard::Report(serde_json::from_value(value).unwrap())
}

fn with(changes: &[(&str, Value)]) -> Value {
    let mut value = ready();
    for (pointer, change) in changes {
        *value.pointer_mut(pointer).unwrap() = change.clone();
    }
    value
}

fn status(value: Value) -> StoreMountStatus {
    mount_status(&report(value), None, None, moment(&[]))
}

fn moment(before: &[Condition]) -> Moment<'_> {
    Moment {
        now: Timestamp::from_second(1_790_000_000).unwrap(),
        generation: Some(3),
        before,
    }
}

fn conditions(status: &StoreMountStatus) -> Vec<(&str, &str, &str)> {
    status
        .conditions
        .iter()
        .map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str()))
        .collect()
}

#[test]
fn a_mount_as_declared_reads_well_and_keeps_every_second() {
    let status = status(ready());
    assert_eq!(status.phase, MountPhase::Ready);
    assert_eq!(status.reason, None);
    assert_eq!(
        status.summary.as_deref(),
        Some("1 segment, 512Mi, mounted in 0.125 s")
    );
    assert_eq!(
        (status.cap, status.plan_source),
        (Some(22), Some(PlanSource::Node))
    );
    assert_eq!(status.nics, ["rdmap79s0", "rdmap80s0"]);
    assert_eq!(status.registration_summary.as_deref(), Some("0.004 s"));
    let kv = &status.segments[0];
    assert_eq!(
        kv.summary,
        "kv: 512Mi on 2Mi pages, ready; map 0.001 s, touch 0.120 s, register 0.004 s"
    );
    assert_eq!(kv.seconds.map, Some(0.001_234_567_890_123_456_7));
    assert_eq!(
        conditions(&status),
        [
            ("Mounted", "True", "AsDeclared"),
            ("Planned", "True", "AsDeclared"),
            ("Registered", "True", "AsDeclared"),
        ]
    );
    assert_eq!(status.conditions[1].message, "0.9 x 192 / 8");
    assert!(
        status
            .conditions
            .iter()
            .all(|c| c.observed_generation == Some(3))
    );
}

/// What is changed in the sidecar's report; phase, reason, message and the conditions' reasons.
type Case<'a> = (
    &'a [(&'a str, Value)],
    MountPhase,
    Option<&'a str>,
    &'a str,
    [&'a str; 3],
);

#[test]
fn table_of_states() {
    let failure =
        json!({"reason": "HugePagesShort", "message": "segments[kv].page: 256 are needed"});
    let strange = json!({"reason": "NoSuchWord", "message": ""});
    let cases: [Case; 9] = [
        (
            &[
                ("/state", json!("mounting")),
                ("/segments/0/state", json!("touch")),
            ],
            MountPhase::Mounting,
            Some("Pending"),
            "0 of 1 segment mounted; kv: touch, 536870912 of 536870912 bytes",
            ["Pending", "AsDeclared", "Pending"],
        ),
        (
            &[("/segments/0/leftOut", json!("4Mi not registered"))],
            MountPhase::Degraded,
            Some("PartlyRegistered"),
            "1 segment, 512Mi, mounted in 0.125 s; 4Mi not registered",
            ["AsDeclared", "AsDeclared", "PartlyRegistered"],
        ),
        (
            &[("/registration/backend", json!("none"))],
            MountPhase::Ready,
            None,
            "1 segment, 512Mi, mounted in 0.125 s",
            ["AsDeclared", "AsDeclared", "NotRegistered"],
        ),
        (
            &[("/state", json!("failed")), ("/failure", failure)],
            MountPhase::Failed,
            Some("HugePagesShort"),
            "segments[kv].page: 256 are needed",
            ["HugePagesShort", "AsDeclared", "Pending"],
        ),
        (
            &[("/state", json!("failed")), ("/failure", strange)],
            MountPhase::Failed,
            Some("Other"),
            "mounting failed; the sidecar does not say why",
            ["Other", "AsDeclared", "Pending"],
        ),
        (
            &[("/state", json!("dancing"))],
            MountPhase::Pending,
            Some("Other"),
            "the sidecar is in a state that this agent does not know: upgrade the agent",
            ["Pending", "AsDeclared", "Pending"],
        ),
        (
            &[("/plan/source", json!("Catalogue"))],
            MountPhase::Ready,
            None,
            "1 segment, 512Mi, mounted in 0.125 s",
            ["AsDeclared", "PlanFromCatalogue", "AsDeclared"],
        ),
        (
            &[("/plan/source", json!("Seed"))],
            MountPhase::Ready,
            None,
            "1 segment, 512Mi, mounted in 0.125 s",
            ["AsDeclared", "Pending", "AsDeclared"],
        ),
        (
            &[("/plan/source", json!("Oracle"))],
            MountPhase::Ready,
            None,
            "1 segment, 512Mi, mounted in 0.125 s",
            ["AsDeclared", "Pending", "AsDeclared"],
        ),
    ];
    for (changes, phase, reason, summary, reasons) in cases {
        let status = status(with(changes));
        assert_eq!(status.phase, phase, "{changes:?}");
        assert_eq!(status.reason.as_deref(), reason, "{changes:?}");
        assert_eq!(status.summary.as_deref(), Some(summary), "{changes:?}");
        let found: Vec<&str> = conditions(&status).iter().map(|c| c.2).collect();
        assert_eq!(found, reasons, "{changes:?}");
    }
}

#[test]
fn a_cap_that_is_not_the_plans_is_said() {
    let status = status(with(&[(
        "/registration/capReason",
        json!("by registration.cap"),
    )]));
    assert_eq!(
        status.conditions[1].message,
        "0.9 x 192 / 8; in force: by registration.cap"
    );
}

#[test]
fn what_a_silent_sidecar_said_stays_and_is_marked() {
    let before = status(ready());
    let silence = Heard::Silence {
        since: Timestamp::from_second(1_789_999_960).unwrap(),
        why: "its socket can't be connected to".to_owned(),
    };
    let status = mount_status(&silence, Some(&before), None, moment(&before.conditions));
    assert_eq!(status.phase, MountPhase::Pending);
    assert_eq!(status.reason.as_deref(), Some("SidecarSilent"));
    assert_eq!(status.segments, before.segments);
    for (kind, truth, reason) in conditions(&status) {
        assert_eq!((truth, reason), ("Unknown", "SidecarSilent"), "{kind}");
    }
    // Told again it is the same: no write follows.
    let again = mount_status(&silence, Some(&status), None, moment(&status.conditions));
    assert_eq!(again, status);
}

/// The pod's own state tells more than silence, which is all that the agent hears.
#[test]
fn silence_does_not_hide_why_a_sidecar_ended() {
    let before = status(ready());
    let silence = Heard::Silence {
        since: Timestamp::from_second(1_789_999_960).unwrap(),
        why: "its socket can't be connected to".to_owned(),
    };
    let mut now = before.clone();
    now.phase = MountPhase::Failed;
    now.reason = Some("OutOfMemoryKilled".to_owned());
    now.summary = Some("the kernel killed the sidecar".to_owned());
    now.conditions = vec![moment(&[]).condition(
        "SidecarRunning",
        Truth::False,
        Reason::OutOfMemoryKilled,
        "the kernel killed the sidecar",
    )];
    let told = |now: &StoreMountStatus| {
        let status = mount_status(
            &silence,
            Some(&before),
            Some(now),
            moment(&before.conditions),
        );
        assert!(
            status
                .conditions
                .iter()
                .all(|c| c.type_ != "SidecarRunning")
        );
        (status.phase, status.reason.unwrap())
    };
    assert_eq!(
        told(&now),
        (MountPhase::Failed, "OutOfMemoryKilled".to_owned())
    );
    now.conditions[0].status = "True".to_owned();
    assert_eq!(
        told(&now),
        (MountPhase::Pending, "SidecarSilent".to_owned())
    );
}

#[test]
fn what_others_wrote_over_is_published_again() {
    let published = status(ready());
    let mut now = published.clone();
    now.conditions.clear();
    assert!(
        says_so(&now, &published),
        "conditions are each writer's own"
    );
    now.reason = Some("SidecarFailed".to_owned());
    assert!(!says_so(&now, &published));
}

#[test]
fn what_a_hostile_sidecar_says_is_bounded() {
    let long = "x\n".repeat(100_000);
    let segment = |name: &str| {
        json!({"name": name, "sizeBytes": u64::MAX, "registeredBytes": u64::MAX, "page": long,
               "state": long, "seconds": {"map": -1.0, "touch": 1e300}, "leftOut": long})
    };
    let mut segments = vec![segment("twin"), segment("twin")];
    segments.extend((0..1000).map(|n| segment(&format!("{n}"))));
    let report = json!({
        "state": "ready", "segments": segments,
        "failure": {"reason": long, "message": long},
        "plan": {"source": long, "capReason": long, "nics": vec![&long; 1000], "findings": vec![&long; 1000]},
        "registration": {"backend": long, "reason": long, "cap": u64::MAX, "capReason": long},
    });
    let status = status(report);
    assert_eq!((status.segments.len(), status.nics.len()), (SEGMENTS, NICS));
    let mut names: Vec<&str> = status.segments.iter().map(|s| s.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), SEGMENTS, "names are the list's keys");
    assert_eq!(status.cap, Some(i32::MAX as u32));
    assert_eq!(status.segments[0].bytes, i64::MAX as u64);
    assert_eq!(status.segments[0].seconds, PhaseSeconds::default());
    let text = serde_json::to_string(&status).unwrap();
    assert!(text.len() < 64 << 10, "{}", text.len());
    assert!(!text.contains("\\n"));
}

#[test]
fn an_empty_report_is_one_of_a_start() {
    let status = status(json!({}));
    assert_eq!(status.phase, MountPhase::Mounting);
    assert_eq!(status.cap, None);
    assert_eq!(status.conditions[1].message, "the sidecar has no plan");
}

//! Probes of the sidecar.
//!
//! Nothing after a native sidecar starts before its startup probe succeeds, and its readiness is the
//! pod's. So with `onFailure: Degrade` both ask no more than whether the process answers: the engine
//! starts beside a mount that is still on its way, or failed. With `Block` they ask for the mount. There is
//! no liveness probe: a restart mends nothing, and the segments would be looked through again.

use serde_json::{Value, json};
use siding_crds::api::OnFailure;
use siding_crds::names::HTTP_PORT;

/// What a mount of nothing may take: starting, reading the machine, waiting for pages that are being freed.
const BASE_SECONDS: u64 = 60;
/// Bytes that the slowest machine mounts in a second: 4 KiB pages that were never touched since boot,
/// by one thread.
const BYTES_PER_SECOND: u64 = 1 << 30;
const PERIOD_SECONDS: u64 = 1;
/// For the process to answer at all.
const ANSWER_SECONDS: u64 = BASE_SECONDS;

/// Seconds that a mount of so many bytes may take: 60, and one for each GiB. Then the container is started
/// again.
#[must_use]
pub fn mount_budget_seconds(bytes: u64) -> u64 {
    BASE_SECONDS + bytes.div_ceil(BYTES_PER_SECOND)
}

/// The probes of a sidecar's container, by the name of their field.
pub(super) fn probes(on_failure: OnFailure, bytes: u64) -> Vec<(&'static str, Value)> {
    match on_failure {
        OnFailure::Degrade => vec![("startupProbe", probe("/healthz", ANSWER_SECONDS))],
        OnFailure::Block => vec![
            (
                "startupProbe",
                probe("/startupz", mount_budget_seconds(bytes)),
            ),
            ("readinessProbe", readiness()),
        ],
    }
}

fn probe(path: &str, seconds: u64) -> Value {
    let failures = seconds
        .div_ceil(PERIOD_SECONDS)
        .min(i32::MAX.unsigned_abs().into());
    json!({
        "httpGet": {"path": path, "port": HTTP_PORT},
        "periodSeconds": PERIOD_SECONDS,
        "timeoutSeconds": 1,
        "failureThreshold": failures,
    })
}

fn readiness() -> Value {
    json!({
        "httpGet": {"path": "/readyz", "port": HTTP_PORT},
        "periodSeconds": 5,
        "timeoutSeconds": 1,
        "failureThreshold": 3,
    })
}

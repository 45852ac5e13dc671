//! The port that the sidecar serves.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::asked::Asked;

/// Where ports come from that the pool can't fix: of pods on the host's network, of which a node may have
/// several, and where a container of the pod has the pool's port. They are below the ports that Kubernetes
/// gives to Services (30000 to 32767) and Linux to connections (32768 to 60999).
pub const DYNAMIC_PORTS: RangeInclusive<u16> = 20_000..=29_999;

/// The pool's port, or one of [`DYNAMIC_PORTS`] by a hash of the request: probes must know it, so it can't
/// be left to the process, and replicas of one template have nothing else that differs. On the host's
/// network it is a host port as well, of which the scheduler puts no two on a node.
pub(super) fn http_port(asked: &Asked<'_>, wished: u16) -> u16 {
    let taken: Vec<u64> = asked.pod.all_containers().flat_map(declared).collect();
    let is_free = |port: u16| !taken.contains(&u64::from(port));
    if !asked.pod.is_on_host_network() && is_free(wished) {
        return wished;
    }
    let (first, last) = (*DYNAMIC_PORTS.start(), *DYNAMIC_PORTS.end());
    let start = first + (hash(asked) % u64::from(last - first + 1)) as u16;
    let mut candidates = (start..=last).chain(first..start);
    candidates.find(|port| is_free(*port)).unwrap_or(wished)
}

fn declared(container: &Value) -> impl Iterator<Item = u64> {
    let ports = container.get("ports").and_then(Value::as_array);
    let numbers = |port: &Value| {
        let number = |field: &str| port.get(field).and_then(Value::as_u64);
        [number("containerPort"), number("hostPort")]
    };
    ports.into_iter().flatten().flat_map(numbers).flatten()
}

/// FNV-1a.
fn hash(asked: &Asked<'_>) -> u64 {
    let parts = [
        asked.uid,
        asked.namespace,
        asked.pod.name(),
        asked.pod.generate_name(),
    ];
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

//! The sidecar's container.

use serde_json::{Map, Value, json};
use siding_crds::format_bytes;
use siding_crds::names::{
    AGENT_SOCKET, CONFIG_FILE, CONTAINER, HTTP_PORT, PLAN_FILE, POD_INFO_DIRECTORY, RUN_DIRECTORY,
};

use super::amount::amount;
use super::asked::Asked;
use super::devices::Access;
use super::pod::Pod;
use super::probes;
use super::security::Identity;
use super::volumes::Volume;
use super::wish::Wish;

/// What the container is made from.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    pub(super) asked: &'a Asked<'a>,
    pub(super) wish: &'a Wish<'a>,
    pub(super) access: &'a Access<'a>,
    pub(super) identity: Identity,
    pub(super) volumes: &'a [Volume],
    pub(super) port: u16,
}

/// A native sidecar: an init container that goes on.
pub(super) fn container(parts: &Parts<'_>) -> Value {
    let wish = parts.wish;
    let mut port = json!({"name": HTTP_PORT, "containerPort": parts.port, "protocol": "TCP"});
    if parts.asked.pod.is_on_host_network() {
        insert(&mut port, "hostPort", json!(parts.port));
    }
    let mut container = json!({
        "name": CONTAINER,
        "image": wish.image,
        "args": [
            "run",
            "--config", format!("{POD_INFO_DIRECTORY}/{CONFIG_FILE}"),
            "--plan", format!("{POD_INFO_DIRECTORY}/{PLAN_FILE}"),
            "--agent-socket", format!("{RUN_DIRECTORY}/{AGENT_SOCKET}"),
        ],
        "restartPolicy": "Always",
        "ports": [port],
        "resources": resources(&parts.asked.pod, wish, parts.access),
        "securityContext": parts.identity.security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": parts.volumes.iter().map(Volume::mount).collect::<Vec<_>>(),
    });
    if let Some(policy) = wish.pull_policy {
        insert(&mut container, "imagePullPolicy", json!(policy));
    }
    for (field, probe) in probes::probes(wish.spec.on_failure, wish.bytes()) {
        insert(&mut container, field, probe);
    }
    container
}

fn insert(object: &mut Value, field: &str, value: Value) {
    if let Value::Object(fields) = object {
        fields.insert(field.to_owned(), value);
    }
}

/// Requests and limits. There is no limit of CPUs, which would slow down what the engine waits for, unless
/// the pod would lose its Guaranteed class without one.
fn resources(pod: &Pod<'_>, wish: &Wish<'_>, access: &Access<'_>) -> Value {
    let mut same = Map::new();
    same.insert("memory".to_owned(), json!(format_bytes(wish.memory_bytes)));
    for (page, bytes) in wish.huge_pages() {
        same.insert(
            format!("hugepages-{}", page.as_str()),
            json!(format_bytes(bytes)),
        );
    }
    if let Access::DevicePlugin { resource, count } = access {
        same.insert((*resource).to_owned(), json!(count.to_string()));
    }
    let mut requests = same.clone();
    let mut limits = same;
    let cpu = json!(wish.spec.sidecar.cpu);
    if is_guaranteed(pod) {
        limits.insert("cpu".to_owned(), cpu.clone());
    }
    requests.insert("cpu".to_owned(), cpu);
    let mut resources = json!({"requests": requests, "limits": limits});
    if let Access::Claims(names) = access {
        let claims: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        insert(&mut resources, "claims", json!(claims));
    }
    resources
}

/// Whether the pod is of the class Guaranteed: each container has limits of CPUs and memory, and asks for
/// as much, which it does too where it says nothing.
fn is_guaranteed(pod: &Pod<'_>) -> bool {
    let is_guaranteed = |container: &Value, resource: &str| {
        let of = |kind: &str| {
            container
                .get("resources")?
                .get(kind)?
                .get(resource)
                .and_then(amount)
        };
        match (of("limits"), of("requests")) {
            (Some(limit), request) => limit > 0 && request.is_none_or(|request| request == limit),
            (None, _) => false,
        }
    };
    let mut containers = pod.all_containers();
    containers
        .all(|container| is_guaranteed(container, "cpu") && is_guaranteed(container, "memory"))
}

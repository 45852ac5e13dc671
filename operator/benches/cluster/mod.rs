//! The objects of a large cluster: 5,000 nodes of eight GPUs with their topologies, 50,000 pods with their mounts.

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use siding_crds::api::{NodeTopology, StoreMount, StorePool};

pub(crate) const NODES: usize = 5_000;
pub(crate) const PODS: usize = 50_000;

const IMAGE: &str = "registry.example.com/siding:0.1.0";
const CAP_REASON: &str =
    "0.95 x 192 cores / 8 ranks, rounded, at least 1, at most the cores of a rank";

pub(crate) fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// The name of the node that a pod is on, and of the node of this number.
pub(crate) fn node_of(pod: usize) -> String {
    let n = pod % NODES;
    format!("ip-10-0-{}-{}.example.internal", n / 256, n % 256)
}

pub(crate) fn uid(n: usize) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

pub(crate) fn pool(namespace: &str) -> StorePool {
    read(json!({
        "apiVersion": "siding.dev/v1alpha1", "kind": "StorePool",
        "metadata": {"name": "kv", "namespace": namespace, "uid": "p", "generation": 1},
        "spec": {"podSelector": {"matchLabels": {"app": "engine"}}, "segments": [{"name": "kv", "size": "64Gi"}]},
    }))
}

pub(crate) fn node(n: usize) -> Node {
    let has = json!({"cpu": "192", "memory": "2Ti", "pods": "250", "nvidia.com/gpu": "8", "hugepages-2Mi": "1Ti"});
    read(json!({
        "metadata": {"name": node_of(n), "labels": {"node.kubernetes.io/instance-type": "p5.48xlarge"}},
        "status": {"capacity": has, "allocatable": has},
    }))
}

fn nics(gpu: usize) -> Vec<String> {
    (0..4)
        .map(|nic| format!("rdmap{}s0", 79 + gpu * 4 + nic))
        .collect()
}

fn address(gpu: usize) -> String {
    format!("0000:{gpu:02x}:00.0")
}

pub(crate) fn topology(n: usize) -> NodeTopology {
    let rail = |gpu| {
        json!({
            "name": address(gpu), "nics": nics(gpu), "evidence": "SameSwitch", "summary": "4 NICs (SameSwitch)",
        })
    };
    read(json!({
        "apiVersion": "siding.dev/v1alpha1", "kind": "NodeTopology",
        "metadata": {"name": node_of(n)}, "spec": {},
        "status": {
            "cores": {"count": 192, "source": "Allocatable"}, "gpuCount": 8, "instanceType": "p5.48xlarge",
            "rails": (0..8).map(rail).collect::<Vec<_>>(),
        },
    }))
}

/// With its plan and its rails, as it is after binding, its sidecar running.
pub(crate) fn pod(n: usize, namespace: &str) -> Pod {
    let rail = |gpu| json!({"gpu": address(gpu), "nics": nics(gpu), "evidence": "SameSwitch"});
    let plan = json!({
        "version": 1, "source": "Node", "node": node_of(n), "cap": 23, "ranks": 8, "cores": 192,
        "capReason": CAP_REASON, "rails": (0..8).map(rail).collect::<Vec<_>>(),
    });
    let injection = json!({
        "version": 1, "pool": "kv", "poolGeneration": 1, "ranks": 1, "gpusPerRank": 1, "image": IMAGE, "devices": "None",
    });
    read(json!({
        "metadata": {
            "name": format!("engine-{n}"), "namespace": namespace, "uid": uid(n),
            "labels": {"app": "engine", "siding.dev/pool": "kv"},
            "annotations": {"siding.dev/injection": injection.to_string(), "siding.dev/plan": plan.to_string()},
        },
        "spec": {
            "nodeName": node_of(n), "containers": [{"name": "engine", "image": "engine"}],
            // Nobody is to evict it from a node that does not answer.
            "tolerations": [{"operator": "Exists"}],
        },
        "status": {"phase": "Running", "initContainerStatuses": [{
            "name": "siding", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "started": true,
            "state": {"running": {}},
        }]},
    }))
}

/// As the agent and the operator leave it.
pub(crate) fn mount(n: usize, namespace: &str) -> StoreMount {
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": "AsDeclared", "observedGeneration": 1,
            "message": "as declared", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let name = format!("engine-{n}");
    read(json!({
        "apiVersion": "siding.dev/v1alpha1", "kind": "StoreMount",
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid(n), "generation": 1, "labels": {"siding.dev/pool": "kv"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"pool": "kv", "poolGeneration": 1, "podUid": uid(n), "node": node_of(n)},
        "status": {
            "phase": "Ready", "summary": "64Gi on 2Mi pages, registered", "cap": 23, "capReason": CAP_REASON,
            "planSource": "Node", "nics": nics(0), "backend": "io_uring", "registrationSummary": "0.412 s",
            "segments": [{
                "name": "kv", "phase": "ready", "bytes": 64_u64 << 30, "registeredBytes": 64_u64 << 30,
                "summary": "64Gi/2Mi", "seconds": {"map": 0.001, "touch": 3.2, "register": 0.412},
            }],
            "conditions": (["PlanWritten", "SidecarRunning", "Planned", "Mounted", "Registered"].map(condition)),
        },
    }))
}

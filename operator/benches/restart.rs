//! The operator's restart on a large cluster: 5,000 nodes with their topologies and 50,000 pods with their mounts in
//! a real API server; then the operator is started and killed again some times.
//!
//!     tests/cluster/build && tests/cluster/cluster up
//!     cargo build --release --locked -p siding-operator
//!     KUBECONFIG=$(tests/cluster/cluster kubeconfig) cargo bench -p siding-operator --bench restart
//!
//! The last line has the seconds from exec to `/readyz`, and what is resident then. The cluster is left as it is: take
//! it down afterwards.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Debug;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use siding_crds::api::{NodeTopology, StoreMount, StorePool};

const NODES: usize = 5_000;
const PODS: usize = 50_000;
const STARTS: usize = 5;
/// Requests at once while the cluster is filled.
const AT_ONCE: usize = 32;
const PATIENCE: Duration = Duration::from_secs(120);
/// Of no cluster's tests.
const NAMESPACE: &str = "restart-bench";

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let begin = Instant::now();
    runtime.block_on(fill());
    let filled_seconds = begin.elapsed().as_secs_f64();
    let mut ready_seconds: Vec<f64> = Vec::new();
    let mut resident_bytes: Vec<u64> = Vec::new();
    for start in 0..STARTS {
        let (seconds, bytes) = started(start);
        eprintln!(
            "start {start}: ready after {seconds:.2} s, {} MiB resident",
            bytes >> 20
        );
        ready_seconds.push(seconds);
        resident_bytes.push(bytes);
    }
    ready_seconds.sort_by(f64::total_cmp);
    println!(
        "siding-operator-restart: nodes={NODES} pods={PODS} filled_seconds={filled_seconds:.0} \
         ready_seconds_min={:.2} ready_seconds_max={:.2} resident_mib_max={}",
        ready_seconds[0],
        ready_seconds[STARTS - 1],
        resident_bytes.iter().max().unwrap() >> 20,
    );
}

// --- The operator ---

struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds until it is ready, and what is resident a second later, when all that came has been taken in.
fn started(start: usize) -> (f64, u64) {
    let port = 19_602 + u16::try_from(start).unwrap();
    let begin = Instant::now();
    let operator = Started(
        command(port, start)
            .spawn()
            .expect("cargo build --release -p siding-operator"),
    );
    while !is_ready(port) {
        assert!(begin.elapsed() < PATIENCE, "it does not get ready");
        std::thread::sleep(Duration::from_millis(10));
    }
    let seconds = begin.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_secs(1));
    (seconds, resident_bytes(operator.0.id()))
}

fn command(port: u16, start: usize) -> Command {
    let mut command = Command::new(binary());
    command
        .arg(format!("--listen=127.0.0.1:{port}"))
        .arg("--webhooks=127.0.0.1:0")
        .arg(format!("--namespace={NAMESPACE}"))
        .arg(format!("--identity=restart-{start}"))
        .args([
            "--sidecar-image=registry.example.com/siding:0.1.0",
            "--log-level=error",
        ])
        .stdin(Stdio::null());
    command
}

fn binary() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
        PathBuf::from,
    );
    target.join("release/siding-operator")
}

fn is_ready(port: u16) -> bool {
    use std::io::{Read, Write};
    let address = ([127, 0, 0, 1], port).into();
    let Ok(mut stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1))
    else {
        return false;
    };
    let mut answer = String::new();
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.starts_with("HTTP/1.1 200")
}

fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

// --- The cluster ---

async fn fill() {
    let client = Client::try_default()
        .await
        .expect("KUBECONFIG of a cluster that is up");
    define(&client).await;
    let namespace: Namespace = read(json!({"metadata": {"name": NAMESPACE}}));
    create(&Api::all(client.clone()), [namespace]).await;
    let pool: StorePool = read(json!({
        "apiVersion": "siding.dev/v1alpha1", "kind": "StorePool", "metadata": {"name": "kv"},
        "spec": {"podSelector": {"matchLabels": {"app": "engine"}}, "segments": [{"name": "kv", "size": "64Gi"}]},
    }));
    create(&Api::namespaced(client.clone(), NAMESPACE), [pool]).await;
    create(&Api::all(client.clone()), (0..NODES).map(node)).await;
    let topologies: Api<NodeTopology> = Api::all(client.clone());
    create(&topologies, (0..NODES).map(topology)).await;
    each((0..NODES).map(|n| patched(&topologies, node_of(n), topology_status()))).await;
    // Pods need their namespace's account, which a controller makes.
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let begin = Instant::now();
    while pods.create(&PostParams::default(), &pod(0)).await.is_err() {
        assert!(begin.elapsed() < PATIENCE, "no pod can be made");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    create(&pods, (1..PODS).map(pod)).await;
    let mounts: Api<StoreMount> = Api::namespaced(client, NAMESPACE);
    create(&mounts, (0..PODS).map(mount)).await;
    each((0..PODS).map(|n| patched(&mounts, format!("engine-{n}"), mount_status()))).await;
}

/// The definitions that the chart brings.
async fn define(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/siding/crds");
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let definition: CustomResourceDefinition = serde_saphyr::from_str(&text).unwrap();
        create(&api, [definition]).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
}

async fn create<K>(api: &Api<K>, objects: impl IntoIterator<Item = K>)
where
    K: Resource + Clone + Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    each(objects.into_iter().map(|object| async move {
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => {}
            // Of an earlier run.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{error}"),
        }
    }))
    .await;
}

async fn patched<K>(api: &Api<K>, name: String, status: Value)
where
    K: Resource + Clone + Debug + serde::de::DeserializeOwned,
{
    let merge = Patch::Merge(json!({"status": status}));
    api.patch_status(&name, &PatchParams::default(), &merge)
        .await
        .unwrap();
}

async fn each<F: Future<Output = ()>>(work: impl Iterator<Item = F>) {
    stream::iter(work)
        .buffer_unordered(AT_ONCE)
        .collect::<()>()
        .await;
}

fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn node_of(n: usize) -> String {
    let n = n % NODES;
    format!("ip-10-0-{}-{}.example.internal", n / 256, n % 256)
}

fn node(n: usize) -> Node {
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

fn rails() -> Vec<Value> {
    let rail = |gpu| json!({"gpu": format!("0000:{gpu:02x}:00.0"), "nics": nics(gpu), "evidence": "SameSwitch"});
    (0..8).map(rail).collect()
}

fn topology(n: usize) -> NodeTopology {
    read(json!({
        "apiVersion": "siding.dev/v1alpha1", "kind": "NodeTopology",
        "metadata": {"name": node_of(n)}, "spec": {},
    }))
}

fn topology_status() -> Value {
    let rail = |gpu| {
        json!({
            "name": format!("0000:{gpu:02x}:00.0"), "nics": nics(gpu), "evidence": "SameSwitch",
            "summary": "4 NICs (SameSwitch)",
        })
    };
    json!({
        "cores": {"count": 192, "source": "Allocatable"}, "gpuCount": 8, "instanceType": "p5.48xlarge",
        "rails": (0..8).map(rail).collect::<Vec<_>>(),
    })
}

/// As it is after binding, on a node that no kubelet serves.
fn pod(n: usize) -> Pod {
    let plan = json!({
        "version": 1, "source": "Node", "node": node_of(n), "cap": 23, "ranks": 8, "cores": 192,
        "capReason": "0.95 x 192 cores / 8 ranks, rounded, at least 1, at most the cores of a rank", "rails": rails(),
    });
    let injection = json!({
        "version": 1, "pool": "kv", "poolGeneration": 1, "ranks": 1, "gpusPerRank": 1,
        "image": "registry.example.com/siding:0.1.0", "devices": "None",
    });
    read(json!({
        "metadata": {
            "name": format!("engine-{n}"), "labels": {"app": "engine", "siding.dev/pool": "kv"},
            "annotations": {"siding.dev/injection": injection.to_string(), "siding.dev/plan": plan.to_string()},
        },
        "spec": {
            "nodeName": node_of(n), "containers": [{"name": "engine", "image": "engine"}],
            // Nobody is to evict it from a node that does not answer.
            "tolerations": [{"operator": "Exists"}],
        },
    }))
}

fn mount(n: usize) -> StoreMount {
    read(json!({
        "apiVersion": "siding.dev/v1alpha1", "kind": "StoreMount",
        "metadata": {"name": format!("engine-{n}"), "labels": {"siding.dev/pool": "kv"}},
        "spec": {"pool": "kv", "poolGeneration": 1, "podUid": "00000000-0000-4000-8000-000000000000", "node": node_of(n)},
    }))
}

fn mount_status() -> Value {
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": "AsDeclared", "observedGeneration": 1,
            "message": "as declared", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!({
        "phase": "Ready", "summary": "64Gi on 2Mi pages, registered", "cap": 23,
        "capReason": "0.95 x 192 cores / 8 ranks, rounded, at least 1, at most the cores of a rank",
        "planSource": "Node", "nics": nics(0), "backend": "io_uring", "registrationSummary": "0.412 s",
        "segments": [{
            "name": "kv", "phase": "ready", "bytes": 64_u64 << 30, "registeredBytes": 64_u64 << 30,
            "summary": "64Gi/2Mi", "seconds": {"map": 0.001, "touch": 3.2, "register": 0.412},
        }],
        "conditions": (["PlanWritten", "SidecarRunning", "Planned", "Mounted", "Registered"].map(condition)),
    })
}

//! The operator's restart on a large cluster: 5,000 nodes with their topologies and 50,000 pods with their mounts in
//! a real API server; then the operator is started and killed again some times.
//!
//!     tests/cluster/build && tests/cluster/cluster up
//!     cargo build --release --locked -p siding-operator
//!     KUBECONFIG=$(tests/cluster/cluster kubeconfig) cargo bench -p siding-operator --bench restart
//!
//! The last line has the seconds from exec to `/readyz`, those until every cache has seen the whole cluster, and what is
//! resident a second after that. The cluster is left as it is: take it down afterwards.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;

use std::fmt::Debug;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use siding_crds::api::{NodeTopology, StoreMount};

use cluster::{NODES, PODS, mount, node, pod, pool, read, topology};

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
    let mut complete_seconds: Vec<f64> = Vec::new();
    let mut resident_bytes: Vec<u64> = Vec::new();
    for start in 0..STARTS {
        let (ready, complete, bytes) = started(start);
        eprintln!(
            "start {start}: ready after {ready:.2} s, all seen after {complete:.2} s, {} MiB resident",
            bytes >> 20
        );
        ready_seconds.push(ready);
        complete_seconds.push(complete);
        resident_bytes.push(bytes);
    }
    ready_seconds.sort_by(f64::total_cmp);
    complete_seconds.sort_by(f64::total_cmp);
    println!(
        "siding-operator-restart: nodes={NODES} pods={PODS} filled_seconds={filled_seconds:.0} \
         ready_seconds_min={:.2} ready_seconds_max={:.2} complete_seconds_min={:.2} complete_seconds_max={:.2} \
         resident_mib_max={}",
        ready_seconds[0],
        ready_seconds[STARTS - 1],
        complete_seconds[0],
        complete_seconds[STARTS - 1],
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

/// Seconds until it is ready and until it has seen all, and what is resident a second later, when all that came has been
/// taken in.
fn started(start: usize) -> (f64, f64, u64) {
    let port = 19_602 + u16::try_from(start).unwrap();
    let begin = Instant::now();
    let operator = Started(
        command(port, start)
            .spawn()
            .expect("cargo build --release -p siding-operator"),
    );
    let until = |what: &str, path: &str, says: &str| {
        while !answer(port, path).is_some_and(|answer| answer.contains(says)) {
            assert!(begin.elapsed() < PATIENCE, "it does not get {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
        begin.elapsed().as_secs_f64()
    };
    let ready = until("ready", "/readyz", "HTTP/1.1 200");
    let seen = "\nsiding_operator_caches_complete 1\n";
    let complete = until("complete", "/metrics", seen);
    std::thread::sleep(Duration::from_secs(1));
    (ready, complete, resident_bytes(operator.0.id()))
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

fn answer(port: u16, path: &str) -> Option<String> {
    use std::io::{Read, Write};
    let address = ([127, 0, 0, 1], port).into();
    let mut stream = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
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
    create(
        &Api::namespaced(client.clone(), NAMESPACE),
        [pool(NAMESPACE)],
    )
    .await;
    create(&Api::all(client.clone()), (0..NODES).map(node)).await;
    let topologies: Api<NodeTopology> = Api::all(client.clone());
    create(&topologies, (0..NODES).map(topology)).await;
    each((0..NODES).map(|n| patched(&topologies, topology(n)))).await;
    // Pods need their namespace's account, which a controller makes.
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let begin = Instant::now();
    while pods
        .create(&PostParams::default(), &pod(0, NAMESPACE))
        .await
        .is_err()
    {
        assert!(begin.elapsed() < PATIENCE, "no pod can be made");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    create(&pods, (1..PODS).map(|n| pod(n, NAMESPACE))).await;
    let mounts: Api<StoreMount> = Api::namespaced(client, NAMESPACE);
    create(&mounts, (0..PODS).map(|n| mount(n, NAMESPACE))).await;
    each((0..PODS).map(|n| patched(&mounts, mount(n, NAMESPACE)))).await;
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

/// Writes the status, which creating an object leaves out.
async fn patched<K>(api: &Api<K>, object: K)
where
    K: Resource + Clone + Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let name = object.meta().name.clone().unwrap();
    let status = serde_json::to_value(&object).unwrap()["status"].take();
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

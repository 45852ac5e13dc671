//! The operator's webhooks on a large cluster: 5,000 nodes with their topologies and 50,000 pods with their mounts in the caches, then 500 pods and 500
//! bindings a second over HTTPS, answered by one thread.
//!
//!     cargo bench -p siding-operator --bench load
//!
//! Latency counts from when a request was due, not from when it was sent: what waits behind a slow one is counted, too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::runtime::watcher::Event;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use siding_crds::api::StoreMount;
use siding_operator::admission::Defaults;
use siding_operator::caches::Caches;
use siding_operator::caches::facts::{self, MountFacts, Sayings};
use siding_operator::caches::lean::LeanPod;
use siding_operator::caches::slim::{Key, Slim};
use siding_operator::certificates::serving::InUse;
use siding_operator::certificates::{Bundle, renewed};
use siding_operator::live::{Labels, Live, LookError, Pools, Source};
use siding_operator::metrics::Metrics;
use siding_operator::server::{Webhooks, router, serve_tls};
use siding_topology::catalogue::Catalogue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use cluster::{NODES, PODS, mount, node, node_of, pod, pool, read, topology, uid};

const PER_SECOND: u32 = 500;
const CONNECTIONS: u32 = 8;
const LASTS: Duration = Duration::from_secs(10);
/// The timer's grain, and the time for the other lanes' turn.
const TIMER: Duration = Duration::from_millis(3);
/// Where the pods are.
const NAMESPACE: &str = "models";
const NAME: &str = "siding-operator.siding-system.svc";

fn main() {
    let caches = Arc::new(Caches::default());
    let (before, started) = (resident_bytes(), Instant::now());
    fill(&caches);
    let filled = started.elapsed();
    let caches_bytes = resident_bytes().saturating_sub(before);

    let names = [NAME.to_owned()];
    let (bundle, _) = renewed(None, &names, SystemTime::now()).unwrap();
    let address = serve(caches, &bundle);
    let [pods, bindings] = load(address, &bundle);
    let ms = |of: &[Duration], share: f64| quantile(of, share).as_secs_f64() * 1e3;
    println!(
        "siding-operator-load: nodes={NODES} pods={PODS} filled_seconds={:.2} caches_mib={} resident_mib={} \
         pod_p50_ms={:.2} pod_p99_ms={:.2} binding_p50_ms={:.2} binding_p99_ms={:.2} answered={}",
        filled.as_secs_f64(),
        caches_bytes >> 20,
        resident_bytes() >> 20,
        ms(&pods, 0.5),
        ms(&pods, 0.99),
        ms(&bindings, 0.5),
        ms(&bindings, 0.99),
        pods.len() + bindings.len(),
    );
}

// --- The cluster ---

fn fill(caches: &Caches) {
    caches.pools.take(Event::Apply(pool(NAMESPACE)), |pool| {
        Some((facts::key(pool), pool.clone()))
    });
    let labels = [("siding.dev/inject".to_owned(), "enabled".to_owned())];
    let namespace = Key::new("", NAMESPACE);
    let of = |_: &()| Some((namespace.clone(), labels.clone().into()));
    caches.namespaces.take(Event::Apply(()), of);

    let sayings = Sayings::default();
    let of_mount = |mount: &StoreMount| Some((facts::key(mount), MountFacts::of(mount).unwrap()));
    list(&caches.nodes, (0..NODES).map(node), |node| {
        Some(facts::of_node(node))
    });
    list(&caches.topologies, (0..NODES).map(topology), |one| {
        Some(facts::of_topology(one))
    });
    let lean = |n| read::<LeanPod>(serde_json::to_value(pod(n, NAMESPACE)).unwrap());
    list(&caches.pods, (0..PODS).map(lean), |pod| {
        facts::of_pod(pod, &sayings)
    });
    list(
        &caches.mounts,
        (0..PODS).map(|n| mount(n, NAMESPACE)),
        of_mount,
    );
    assert_eq!(caches.pods.all().len(), PODS);
    assert_eq!(caches.mounts.all().len(), PODS);
    assert_eq!(caches.nodes.all().len(), NODES);
}

/// As a first list comes.
fn list<K, V: PartialEq + Send + Sync + 'static>(
    cache: &Slim<V>,
    objects: impl Iterator<Item = K>,
    facts_of: impl Fn(&K) -> Option<(Key, V)>,
) {
    cache.take(Event::Init::<K>, &facts_of);
    for object in objects {
        cache.take(Event::InitApply(object), &facts_of);
    }
    cache.take(Event::InitDone::<K>, &facts_of);
}

/// An API server that knows no more than the caches.
#[derive(Debug)]
struct Nothing;

impl Source for Nothing {
    fn labels<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<Labels>, LookError>> {
        async { Ok(None) }.boxed()
    }

    fn pools<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Pools, LookError>> {
        async { Ok(Vec::new()) }.boxed()
    }
}

// --- The endpoint ---

/// One thread answers.
fn serve(caches: Arc<Caches>, bundle: &Bundle) -> std::net::SocketAddr {
    let in_use = Arc::new(InUse::default());
    in_use.set(&bundle.leaf).unwrap();
    let webhooks = Webhooks {
        caches,
        live: Arc::new(Live::new(Arc::new(Nothing))),
        catalogue: Arc::new(Catalogue::published()),
        defaults: Arc::new(Defaults::new("registry.example.com/siding:0.1.0")),
        metrics: Metrics::new().unwrap(),
    };
    let listener = siding_service::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        runtime().block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            serve_tls(listener, router(webhooks), in_use, std::future::pending()).await
        })
    });
    address
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

// --- The API server's side ---

/// Latencies of pods and of bindings.
fn load(address: std::net::SocketAddr, bundle: &Bundle) -> [Vec<Duration>; 2] {
    let mut roots = rustls::RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(bundle.ca.certificate.as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(
        rustls::crypto::ring::default_provider().into(),
    )
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_root_certificates(roots)
    .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    runtime().block_on(async move {
        let begin = Instant::now() + Duration::from_millis(500);
        let mut tasks = [Vec::new(), Vec::new()];
        for (kind, tasks) in tasks.iter_mut().enumerate() {
            for lane in 0..CONNECTIONS {
                let connector = connector.clone();
                tasks.push(tokio::spawn(async move {
                    let stream = TcpStream::connect(address).await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    let name = ServerName::try_from(NAME).unwrap();
                    let stream = connector.connect(name, stream).await.unwrap();
                    lane_of(stream, kind, lane, begin).await
                }));
            }
        }
        let mut all = [Vec::new(), Vec::new()];
        for (tasks, all) in tasks.into_iter().zip(&mut all) {
            for task in tasks {
                all.extend(task.await.unwrap());
            }
        }
        all
    })
}

async fn lane_of(
    mut stream: TlsStream<TcpStream>,
    kind: usize,
    lane: u32,
    begin: Instant,
) -> Vec<Duration> {
    let every = Duration::from_secs(1) / PER_SECOND * CONNECTIONS;
    let count = u32::try_from(LASTS.as_nanos() / every.as_nanos()).unwrap();
    let mut took = Vec::new();
    for n in 0..count {
        let due = begin + every * n + every * lane / CONNECTIONS;
        let seed = usize::try_from(n * CONNECTIONS + lane).unwrap();
        let (path, body) = match kind {
            0 => ("/pods", review_of_pod(seed)),
            _ => ("/bindings", review_of_binding(seed)),
        };
        tokio::time::sleep_until(due.into()).await;
        // The timer wakes up to a millisecond late, which is not the operator's; an earlier answer that is late is.
        let woken = Instant::now();
        let from = if woken - due > TIMER { due } else { woken };
        let answer = ask(&mut stream, path, &body).await;
        took.push(from.elapsed());
        assert!(answer["response"]["patch"].is_string(), "{answer}");
    }
    took
}

fn review_of_pod(n: usize) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": uid(n), "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE", "namespace": "models", "dryRun": false,
            "object": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"generateName": "engine-", "labels": {"app": "engine"}},
                "spec": {"containers": [{
                    "name": "engine", "image": "vllm",
                    "env": (0..40).map(|n| json!({"name": format!("V{n}"), "value": "x".repeat(40)})).collect::<Vec<_>>(),
                    "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "64Gi"}},
                }]},
            },
        },
    })
    .to_string()
}

fn review_of_binding(n: usize) -> String {
    let pod = n * 7 % PODS;
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": uid(n), "kind": {"group": "", "version": "v1", "kind": "Binding"},
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "binding",
            "operation": "CREATE", "namespace": "models", "name": format!("engine-{pod}"), "dryRun": false,
            "object": {
                "apiVersion": "v1", "kind": "Binding",
                "metadata": {"name": format!("engine-{pod}"), "namespace": "models", "uid": uid(pod)},
                "target": {"kind": "Node", "name": node_of(pod)},
            },
        },
    })
    .to_string()
}

async fn ask(stream: &mut TlsStream<TcpStream>, path: &str, body: &str) -> Value {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {NAME}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .unwrap();
    let mut got = Vec::new();
    loop {
        if let Some(body) = whole(&got) {
            return serde_json::from_slice(body).unwrap();
        }
        let read = stream.read_buf(&mut got).await.unwrap();
        assert!(read > 0, "cut: {}", String::from_utf8_lossy(&got));
    }
}

/// The body, once all of it is there.
fn whole(got: &[u8]) -> Option<&[u8]> {
    let end = got.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&got[..end])
        .unwrap()
        .to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))?;
    got.get(end + 4..end + 4 + length.parse::<usize>().unwrap())
}

// --- Numbers ---

fn quantile(of: &[Duration], share: f64) -> Duration {
    let mut sorted = of.to_vec();
    sorted.sort();
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let kib = line.trim().strip_suffix(" kB").unwrap();
    kib.parse::<u64>().unwrap() << 10
}

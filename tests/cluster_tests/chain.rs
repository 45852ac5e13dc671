//! From a StorePool to registered memory in a real pod, and the same seconds wherever one looks.

use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;
use siding_tests::cluster::{BUSYBOX, Cluster, Namespace};
use siding_tests::product::{NAMESPACE, Product, condition, pool};
use siding_tests::{Said, eventually, scratch};

use super::golden;

const BYTES: u64 = 512 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

/// `CAP_IPC_LOCK` alone.
const IPC_LOCK: &str = "0000000000004000";

#[test]
fn a_pool_becomes_registered_memory_and_all_tell_the_same() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("chain");
    let pod = deployed(product, &namespace);
    let cluster = product.cluster;
    let mount = product.until(&["-n", namespace.name(), "storemount", &pod], |mount| {
        mount["status"]["phase"] == "Ready"
    });

    let segment = &mount["status"]["segments"][0];
    assert_eq!(segment["name"], "kv");
    assert_eq!(segment["pageSize"], "2Mi");
    assert_eq!(segment["bytes"], BYTES);
    assert_eq!(segment["registeredBytes"], BYTES);
    assert_eq!(mount["status"]["backend"], "io_uring");
    assert_eq!(mount["spec"]["node"], "node-1");
    for kind in [
        "PlanWritten",
        "SidecarRunning",
        "Planned",
        "Mounted",
        "Registered",
    ] {
        let [status, reason, message] = condition(&mount, kind).unwrap();
        assert_eq!(
            (status, reason),
            ("True", "AsDeclared"),
            "{kind}: {message}"
        );
    }

    scraped_the_same(cluster, &namespace, &pod, segment);
    has_no_more_than_it_needs(cluster, &mount);
    the_engine_has_its_cap(cluster, &namespace, &pod, &mount);
    reads_well(product, &namespace, &pod);

    // What is made with a pod goes with it.
    let deleted = cluster.kubectl(&["-n", namespace.name(), "delete", "deployment", "engine"]);
    assert_eq!(deleted.code, Some(0), "{}", deleted.err);
    product.until(&["-n", namespace.name(), "storemounts"], |mounts| {
        mounts["items"].as_array().is_some_and(Vec::is_empty)
    });
}

/// The name of a pod whose engine runs beside a sidecar.
fn deployed(product: &Product, namespace: &Namespace) -> String {
    let cluster = product.cluster;
    cluster.apply(&pool(
        namespace,
        "kv",
        "segments: [{name: kv, size: 512Mi}]",
    ));
    cluster.apply(&format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: engine, namespace: {0}}}
spec:
  selector: {{matchLabels: {{app: kv}}}}
  template:
    metadata: {{labels: {{app: kv}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: engine
        image: {BUSYBOX}
        command: [sh, -c, "env; sleep 100000"]
"#,
        namespace.name()
    ));
    cluster.wait_for(
        namespace.name(),
        "deployment/engine",
        "condition=Available",
        PATIENCE,
    );
    let pods = cluster.get(&["-n", namespace.name(), "pods", "-l", "siding.dev/pool=kv"]);
    pods["items"][0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Prometheus scrapes the sidecar as the pod's annotations ask, and has the seconds of the status.
fn scraped_the_same(cluster: &Cluster, namespace: &Namespace, pod: &str, segment: &Value) {
    let found = cluster.get(&["-n", namespace.name(), "pod", pod]);
    let prometheus = Prometheus::start(cluster, &found);
    let query = format!("siding_segment_phase_seconds{{pod=\"{pod}\"}}");
    for (labels, scraped) in prometheus.until(&query, 3) {
        let phase = labels["phase"].as_str().unwrap();
        let told = segment["seconds"][phase].as_f64().unwrap();
        assert_eq!(labels["segment"], "kv");
        assert!(
            scraped == told && told > 0.0,
            "{phase}: {scraped} and {told}"
        );
    }
}

/// Of capabilities it has the one that pinning needs, of the API no token; and what it says is pinned, the kernel
/// says is pinned.
fn has_no_more_than_it_needs(cluster: &Cluster, mount: &Value) {
    let uid = mount["spec"]["podUid"].as_str().unwrap();
    let find = format!(
        "for p in $(pgrep -x siding); do if grep -q {uid} /proc/$p/cgroup; then \
         cat /proc/$p/status; ls -A /proc/$p/root/var/run/secrets/kubernetes.io/serviceaccount | sed 's/^/Token: /'; fi; done"
    );
    let said = Said::of(cluster.inside("sh").args(["-c", &find]));
    let field = |name: &str| {
        let line = said.out.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {}{}", said.out, said.err))
            .trim()
            .to_owned()
    };
    for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
        assert_eq!(field(set), IPC_LOCK, "{set}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2", "a filter");
    assert_eq!(field("VmPin:"), format!("{} kB", BYTES >> 10));
    assert!(!said.out.contains("Token:"), "{}", said.out);
}

fn the_engine_has_its_cap(cluster: &Cluster, namespace: &Namespace, pod: &str, mount: &Value) {
    let logs = cluster.kubectl(&["-n", namespace.name(), "logs", pod, "-c", "engine"]);
    let cap = format!("MC_MAX_CONCURRENT_REG_MR={}", mount["status"]["cap"]);
    assert!(
        logs.out.lines().any(|line| line == cap),
        "{cap}: {}",
        logs.out
    );
}

fn reads_well(product: &Product, namespace: &Namespace, pod: &str) {
    let cluster = product.cluster;
    product.until(&["-n", namespace.name(), "storepool", "kv"], |pool| {
        pool["status"]["pods"]["ready"] == 1
    });
    let say = |arguments: &[&str]| {
        let said = cluster.kubectl(&[&["-n", namespace.name()], arguments].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        let text = said.out.replace(pod, "POD");
        text.replace(namespace.name(), "NAMESPACE")
    };
    // The sidecar's part of the pod's description: the rest is the user's and the kubelet's.
    let described = say(&["describe", "pod", pod]);
    let (_, ours) = described.split_once("Init Containers:\n").unwrap();
    let (ours, _) = ours.split_once("\nContainers:\n").unwrap();
    let table = ["get", "storepools,storemounts", "-o", "wide"];
    golden::compare(&[
        ("describe-storemount", say(&["describe", "storemount", pod])),
        ("describe-storepool", say(&["describe", "storepool", "kv"])),
        ("describe-pod", ours.to_owned()),
        ("get-wide", say(&table)),
    ]);
    // How many devices and NUMA nodes there are is the machine's; what is said of them is tested with fixtures.
    let node = say(&["describe", "nodetopology", "node-1"]);
    for words in [
        "Huge Page Summary:  2Mi: ",
        "Source:  Allocatable",
        "NICs",
        "node0",
    ] {
        assert!(node.contains(words), "{words:?} is not in {node}");
    }
    let pods = cluster.get(&[
        "-n",
        NAMESPACE,
        "pods",
        "-l",
        "app.kubernetes.io/component=agent",
    ]);
    assert_eq!(
        pods["items"][0]["status"]["containerStatuses"][0]["restartCount"],
        0
    );
}

/// A real Prometheus beside the cluster.
struct Prometheus {
    child: Child,
    cluster: &'static Cluster,
    _directory: tempfile::TempDir,
}

const PROMETHEUS: &str = "127.0.0.1:9390";

impl Prometheus {
    /// Debian's has no discovery in Kubernetes: what that would read of the pod is read here.
    fn start(cluster: &Cluster, pod: &Value) -> Self {
        let directory = scratch();
        let config = directory.path().join("prometheus.yml");
        let asked = |key: &str| {
            let key = format!("prometheus.io/{key}");
            pod["metadata"]["annotations"][&key].as_str().unwrap()
        };
        assert_eq!(asked("scrape"), "true");
        let text = format!(
            r#"
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: pods
  metrics_path: {}
  static_configs:
  - {{targets: ["{}:{}"], labels: {{pod: {}}}}}
"#,
            asked("path"),
            pod["status"]["podIP"].as_str().unwrap(),
            asked("port"),
            pod["metadata"]["name"]
        );
        std::fs::write(&config, text).unwrap();
        let mut command = cluster.inside("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.path().display()
            ))
            .arg(format!("--web.listen-address={PROMETHEUS}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self {
            child: command.spawn().unwrap(),
            cluster: Cluster::up(),
            _directory: directory,
        }
    }

    /// Labels and value of each series of an answer, once it has so many.
    fn until(&self, query: &str, count: usize) -> Vec<(Value, f64)> {
        let url = format!("http://{PROMETHEUS}/api/v1/query");
        let query = format!("query={query}");
        eventually(|| {
            let mut curl = self.cluster.inside("curl");
            let said = Said::of(curl.args(["-s", "-G", &url, "--data-urlencode", &query]));
            let answer: Value = serde_json::from_str(&said.out).unwrap_or_default();
            let result = answer["data"]["result"].as_array();
            let series: Vec<(Value, f64)> = (result.into_iter().flatten())
                .map(|one| {
                    let value = one["value"][1].as_str().unwrap();
                    (one["metric"].clone(), value.parse().unwrap())
                })
                .collect();
            if series.len() == count {
                return Ok(series);
            }
            Err(format!("{query}: {}{}", said.out, said.err))
        })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = Said::of(self.cluster.inside("pkill").args(["-x", "prometheus"]));
        let _ = self.child.wait();
    }
}

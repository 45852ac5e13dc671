//! The sidecar as it runs in a pod: a plan that the kubelet mounts, a socket for the node's agent,
//! and a failure that is served.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use siding_tests::{PATIENCE, Server, http, scratch, siding, whole_machine};
use tempfile::TempDir;

/// What a pod has: configuration and plan in a volume of the downward API, a folder for sockets.
struct Pod {
    folder: TempDir,
}

impl Pod {
    fn new(config: &str) -> Self {
        let folder = scratch();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("run")).unwrap();
        let storage = at("storage");
        let text = format!(
            "{config}\nstorage: {{directory: {}}}\nlisten: {{http: '127.0.0.1:0'}}\n",
            storage.display()
        );
        fs::write(at("config.yaml"), text).unwrap();
        Self { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.at("run/agent.sock")
    }

    /// Brings a plan as the kubelet does: a folder beside the last one, and a link that is swapped.
    fn plan(&self, generation: u32, plan: &Value) {
        let name = format!("..{generation}");
        fs::create_dir(self.at(&name)).unwrap();
        fs::write(self.at(&name).join("plan.json"), plan.to_string()).unwrap();
        symlink(&name, self.at("..tmp")).unwrap();
        fs::rename(self.at("..tmp"), self.at("..data")).unwrap();
        let _ = symlink("..data/plan.json", self.at("plan.json"));
    }

    fn start(&self) -> Server {
        let mut command = siding();
        command
            .arg("run")
            .arg("--config")
            .arg(self.at("config.yaml"));
        command.arg("--plan").arg(self.at("plan.json"));
        command.arg("--agent-socket").arg(self.socket());
        Server::start(&mut command)
    }
}

fn ask(socket: &Path, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (code, body) = http::over_socket(socket, method, path, body).unwrap();
    (code, serde_json::from_str(&body).unwrap())
}

fn seed() -> Value {
    json!({"version": 1, "source": "Seed", "cap": 2, "capReason": "safe anywhere"})
}

fn of_node() -> Value {
    let rail =
        |gpu: &str, nics: [&str; 2]| json!({"gpu": gpu, "nics": nics, "evidence": "SameSwitch"});
    json!({
        "version": 1, "source": "Node", "node": "n1", "cap": 22, "capReason": "0.9 x 192 / 8",
        "ranks": 8, "cores": 192,
        "rails": [rail("0000:53:00.0", ["r0", "r1"]), rail("0000:64:00.0", ["r2", "r3"])],
    })
}

#[test]
fn plan_and_gpus_reach_a_running_sidecar() {
    let _alone = whole_machine();
    let pod = Pod::new("segments: [{name: kv, size: 4Mi, page: 4Ki}]");
    pod.plan(1, &seed());
    let mut server = pod.start();
    let status = server.ready();
    assert_eq!(status["registration"]["cap"], 2);
    assert_eq!(
        status["registration"]["capReason"],
        "by the plan: safe anywhere"
    );
    assert_eq!(status["plan"]["source"], "Seed");
    let socket = pod.socket();
    let mode = fs::symlink_metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(ask(&socket, "GET", "/readyz", "").0, 200);

    pod.plan(2, &of_node());
    let deadline = Instant::now() + PATIENCE;
    while ask(&socket, "GET", "/v1/status", "").1["plan"]["source"] != "Node" {
        assert!(Instant::now() < deadline, "the plan is not seen");
        thread::sleep(Duration::from_millis(50));
    }
    let (code, plan) = ask(&socket, "PUT", "/v1/gpus", r#"{"gpus":["0000:64:00.0"]}"#);
    assert_eq!((code, &plan["nics"]), (200, &json!(["r2", "r3"])));
    let (_, status) = ask(&socket, "GET", "/v1/status", "");
    assert_eq!(status["plan"], plan);
    assert_eq!(status["registration"]["cap"], 22);
    let (_, metrics) = http::get(&server.address, "/metrics").unwrap();
    for line in [
        "siding_registration_cap 22",
        "siding_registration_cap_planned 22",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in\n{metrics}");
    }
    // What only the agent may tell is not on the port that the whole cluster reaches.
    assert_eq!(http::get(&server.address, "/v1/gpus").unwrap().0, 404);

    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn a_killed_sidecar_leaves_a_socket_that_the_next_one_replaces() {
    let _alone = whole_machine();
    let pod = Pod::new("segments: [{name: kv, size: 64Ki, page: 4Ki}]");
    let mut server = pod.start();
    let status = server.ready();
    let finding = status["plan"]["findings"][0].as_str().unwrap();
    assert!(
        finding.contains("plan.json") && finding.contains("No such file"),
        "{finding}"
    );
    let reason = status["registration"]["capReason"].as_str().unwrap();
    assert!(reason.starts_with("auto: "), "{reason}");
    server.end(Signal::KILL);
    assert!(pod.socket().exists());
    let server = pod.start();
    let _ = server.ready();
    assert_eq!(ask(&pod.socket(), "GET", "/healthz", "").0, 200);
}

#[test]
fn a_failure_is_served_until_the_pod_goes() {
    let _alone = whole_machine();
    for (segments, reason, words) in [
        (
            "{name: kv, size: 100Ti, page: 4Ki}",
            "MemoryShort",
            "segments[kv].size",
        ),
        ("{name: kv, size: 5}", "InvalidConfiguration", "config.yaml"),
    ] {
        let pod = Pod::new(&format!("segments: [{segments}]\nonFailure: serve"));
        let mut server = pod.start();
        let problem = server.until("/readyz", 503);
        assert!(problem.contains(words), "{problem}");
        let (_, status) = ask(&pod.socket(), "GET", "/v1/status", "");
        assert_eq!(status["state"], "failed");
        assert_eq!(status["failure"]["reason"], reason, "{status}");
        for (path, code) in [("/healthz", 200), ("/startupz", 503), ("/readyz", 503)] {
            assert_eq!(http::get(&server.address, path).unwrap().0, code, "{path}");
        }
        assert_eq!(server.end(Signal::TERM).code(), Some(0));
    }
}

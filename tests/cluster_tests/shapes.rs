//! Bound by the real scheduler, on nodes of several shapes: what pods carry from the moment that they have a node.
//! The nodes are made up; what they have is read by the real agent from generated trees (tests/fixtures).

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use siding_fixtures::{Machine, instances};
use siding_tests::cluster::{Cluster, Namespace};
use siding_tests::product::{NAMESPACE, Product, condition, engine, pool};
use siding_tests::{PATIENCE, Said, controller, eventually, scratch};

/// The real agent for a node, which reads a generated tree.
struct Agent {
    cluster: &'static Cluster,
    node: String,
    process: Child,
    tree: tempfile::TempDir,
}

impl Agent {
    fn new(cluster: &'static Cluster, node: &str, machine: &Machine, arguments: &[String]) -> Self {
        let tree = machine.planted();
        let process = cluster
            .inside(controller("siding-agent").to_str().unwrap())
            .arg(format!("--node-name={node}"))
            .arg(format!("--host-root={}", tree.path().display()))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            cluster,
            node: node.to_owned(),
            process,
            tree,
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let pattern = format!("node-name={}", self.node);
        let _ = Said::of(self.cluster.inside("pkill").args(["-f", &pattern]));
        let _ = self.process.wait();
    }
}

/// A node that the API knows, with an agent that reads a tree.
struct MadeUp(Agent);

impl MadeUp {
    fn new(product: &'static Product, name: &str, machine: &Machine, gpus: u32, port: u16) -> Self {
        let cluster = product.cluster;
        cluster.apply(
            &json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"shape": name}},
                "spec": {"taints": [{"key": "made-up", "effect": "NoSchedule"}]},
            })
            .to_string(),
        );
        let has = json!({
            "cpu": "192", "memory": "2Ti", "pods": "110", "hugepages-2Mi": "1Ti",
            "nvidia.com/gpu": gpus.to_string(),
        });
        let status = json!({"status": {"capacity": has, "allocatable": has, "conditions": [
            {"type": "Ready", "status": "True", "reason": "MadeUp", "message": ""},
        ]}});
        let patch = [
            "patch",
            "node",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
        ];
        let said = cluster.kubectl(&[&patch[..], &[&status.to_string()]].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        let nowhere = scratch();
        let made = Self(Agent::new(
            cluster,
            name,
            machine,
            &[
                format!("--kubelet-directory={}", nowhere.path().display()),
                format!("--pod-resources-socket={}/none", nowhere.path().display()),
                format!("--listen=127.0.0.1:{port}"),
            ],
        ));
        product.until(&["nodetopology", name], |topology| {
            condition(topology, "Ready").is_some_and(|[status, ..]| status == "True")
        });
        made
    }
}

impl Drop for MadeUp {
    fn drop(&mut self) {
        let delete = ["delete", "node", &self.0.node];
        let _ = self.0.cluster.kubectl(&delete);
    }
}

const POOL: &str = "segments: [{name: kv, size: 64Gi}], gpusPerRank: 1";

/// An engine's pod that only nodes of this shape take.
fn engine_on(namespace: &Namespace, name: &str, shape: &str, gpus: u32) -> String {
    let mut pod = engine(namespace, name, "kv");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    pod["spec"]["nodeSelector"] = json!({"shape": shape});
    pod["spec"]["tolerations"] = json!([{"key": "made-up", "operator": "Exists"}]);
    if gpus > 0 {
        let limits = json!({"nvidia.com/gpu": gpus.to_string()});
        pod["spec"]["containers"][0]["resources"] = json!({"limits": limits});
    }
    pod.to_string()
}

/// What a pod carries once it has a node.
fn bound(product: &Product, namespace: &Namespace, pod: &str) -> (u64, Value) {
    let pod = product.until(&["-n", namespace.name(), "pod", pod], |pod| {
        pod["spec"]["nodeName"].is_string()
    });
    let annotation = |key: &str| {
        pod["metadata"]["annotations"][key]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let plan: Value = serde_json::from_str(&annotation("siding.dev/plan")).unwrap();
    (annotation("siding.dev/cap").parse().unwrap(), plan)
}

#[test]
fn a_bound_pod_carries_its_nodes_cap_and_rails() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("shapes");
    product.cluster.apply(&pool(&namespace, "kv", POOL));
    let of = |name: &str| instances::of(name).unwrap();
    let bare = Machine::bare("Example", "plain", 192, 2);
    let _nodes = [
        MadeUp::new(product, "p5", &of("p5.48xlarge"), 8, 9701),
        MadeUp::new(product, "p5en", &of("p5en.48xlarge"), 8, 9702),
        MadeUp::new(product, "no-nic", &bare, 0, 9703),
    ];
    // 0.95 x 192 / 8 is 22.8; a node without GPUs has the ranks that are bound to it.
    for (shape, gpus, cap, rails, nics) in [
        ("p5", 8, 23, 8, 4),
        ("p5en", 8, 23, 8, 2),
        ("no-nic", 0, 182, 0, 0),
    ] {
        product
            .cluster
            .apply(&engine_on(&namespace, shape, shape, gpus));
        let (found, plan) = bound(product, &namespace, shape);
        assert_eq!(found, cap, "{shape}: {plan}");
        assert_eq!(
            (&plan["source"], &plan["node"]),
            (&json!("Node"), &json!(shape))
        );
        assert_eq!(plan["cap"], cap);
        let table = plan["rails"].as_array().unwrap();
        assert_eq!(table.len(), rails, "{shape}: {plan}");
        let mut users: BTreeMap<&str, usize> = BTreeMap::new();
        for rail in table {
            assert_eq!(rail["evidence"], "SameSwitch");
            let of_rail = rail["nics"].as_array().unwrap();
            assert_eq!(of_rail.len(), nics, "{shape}: {rail}");
            for nic in of_rail {
                *users.entry(nic.as_str().unwrap()).or_default() += 1;
            }
        }
        assert!(
            users.values().all(|&users| users == 1),
            "{shape}: {users:?}"
        );
    }
}

/// Two replicas answer, in whatever order; what counts is the node and not who came first.
#[test]
fn caps_of_pods_that_are_bound_one_by_one_fit_the_node() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("one-by-one");
    product.cluster.apply(&pool(&namespace, "kv", POOL));
    let machine = instances::of("p5.48xlarge").unwrap();
    let _node = MadeUp::new(product, "crowd", &machine, 8, 9704);
    let names: Vec<String> = (0..8).map(|n| format!("engine-{n}")).collect();
    for name in &names {
        product
            .cluster
            .apply(&engine_on(&namespace, name, "crowd", 1));
    }
    let caps: Vec<u64> = names
        .iter()
        .map(|name| bound(product, &namespace, name).0)
        .collect();
    assert_eq!(caps, [23; 8]);
    assert!(caps.iter().sum::<u64>() <= 192);
    let pods = product.cluster.get(&[
        "-n",
        NAMESPACE,
        "pods",
        "-l",
        "app.kubernetes.io/component=operator",
    ]);
    assert_eq!(pods["items"].as_array().unwrap().len(), 2, "replicas");
}

/// A real kubelet divides the GPUs that a device plugin of the tests offers, and tells of it by its pod-resources socket.
#[test]
fn two_pods_of_a_node_use_the_rails_of_their_own_gpus() {
    let product = Product::installed();
    let _alone = product.alone();
    let cluster = product.cluster;
    let _back = Back(product);
    product.install(&["agent.nodeSelector.nowhere=yes"]);
    let machine = instances::of("p5.48xlarge").unwrap();
    let agent = Agent::new(cluster, "node-1", &machine, &[]);
    let is_gpu = |rail: &Value| rail["uuid"].as_str().map(str::to_owned);
    let node = siding_topology::read_node(
        &siding_topology::Root::at(agent.tree.path()),
        &siding_topology::ReadOptions::default(),
    );
    let ids: Vec<String> = node
        .known_gpus()
        .iter()
        .filter_map(|gpu| gpu.uuid.clone())
        .collect();
    assert_eq!(ids.len(), 8);
    let _plugin = Plugin::new(product, &ids);
    product.until(&["nodetopology", "node-1"], |topology| {
        topology["status"]["gpus"]
            .as_array()
            .is_some_and(|gpus| gpus.len() == 8)
    });

    let namespace = product.namespace("own-rails");
    let fields = "segments: [{name: kv, size: 16Mi}], gpusPerRank: 1";
    cluster.apply(&pool(&namespace, "kv", fields));
    let mut seen = BTreeSet::new();
    for name in ["one", "two"] {
        let mut pod = engine(&namespace, name, "kv");
        let limits = json!({"nvidia.com/gpu": "4"});
        pod["spec"]["containers"][0]["resources"] = json!({"limits": limits});
        cluster.apply(&pod.to_string());
        let mount = product.until(&["-n", namespace.name(), "storemount", name], |mount| {
            mount["status"]["phase"] == "Ready"
                && mount["status"]["nics"]
                    .as_array()
                    .is_some_and(|nics| nics.len() == 16)
        });
        let (cap, plan) = bound(product, &namespace, name);
        // The kubelet's node has this machine's cores, whatever the tree says.
        assert_eq!(mount["status"]["cap"], cap);

        let got = eventually(|| {
            let logs = cluster.kubectl(&["-n", namespace.name(), "logs", name, "-c", "engine"]);
            let mut lines = logs.out.lines();
            let got = lines.find_map(|line| line.strip_prefix("NVIDIA_VISIBLE_DEVICES="));
            got.map(str::to_owned).ok_or(logs.out.clone() + &logs.err)
        });
        let got: BTreeSet<&str> = got.split(',').collect();
        assert_eq!(got.len(), 4);
        let table = plan["rails"].as_array().unwrap();
        let own = table
            .iter()
            .filter(|rail| is_gpu(rail).is_some_and(|id| got.contains(&*id)));
        let names = |nics: &Value| -> Vec<String> {
            let nics = nics.as_array().unwrap().iter();
            nics.map(|nic| nic.as_str().unwrap().to_owned()).collect()
        };
        let expected: BTreeSet<String> = own.flat_map(|rail| names(&rail["nics"])).collect();
        let used: BTreeSet<String> = names(&mount["status"]["nics"]).into_iter().collect();
        assert_eq!(used, expected, "{name} with {got:?}");
        assert_eq!(used.len(), 16);
        seen.extend(used);
    }
    assert_eq!(seen.len(), 32, "no NIC is used by both");
}

/// A device plugin that offers GPUs to the kubelet: equipment, tests/cluster/gpus.
struct Plugin {
    product: &'static Product,
    process: Child,
}

impl Plugin {
    fn new(product: &'static Product, ids: &[String]) -> Self {
        let mut command = product.cluster.inside("gpus");
        command.args(ids).stdout(Stdio::null());
        let plugin = Self {
            product,
            process: command.spawn().unwrap(),
        };
        plugin.until_there_are("8");
        plugin
    }

    fn until_there_are(&self, gpus: &str) {
        self.product.until(&["node", "node-1"], |node| {
            node["status"]["allocatable"]["nvidia.com/gpu"] == gpus
        });
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = Said::of(self.product.cluster.inside("pkill").args(["-x", "gpus"]));
        let _ = self.process.wait();
    }
}

/// The binding webhook is gone from creation to start, and comes back.
#[test]
fn without_the_binding_webhook_no_container_sees_an_empty_value_and_the_rest_is_completed() {
    let product = Product::installed();
    let _alone = product.alone();
    let cluster = product.cluster;
    let webhooks = cluster.get(&["mutatingwebhookconfiguration", "siding"]);
    let of_bindings = webhooks["webhooks"].as_array().unwrap().iter();
    let at = of_bindings
        .clone()
        .position(|one| one["name"] == "bindings.siding.dev")
        .unwrap();
    let _back = Back(product);
    let remove = json!([{"op": "remove", "path": format!("/webhooks/{at}")}]).to_string();
    let patch = [
        "patch",
        "mutatingwebhookconfiguration",
        "siding",
        "--type=json",
        "-p",
        &remove,
    ];
    assert_eq!(cluster.kubectl(&patch).code, Some(0));

    let namespace = product.namespace("late");
    cluster.apply(&pool(
        &namespace,
        "kv",
        "segments: [{name: kv, size: 16Mi}]",
    ));
    cluster.apply(&engine(&namespace, "engine", "kv").to_string());
    cluster.wait_for(namespace.name(), "pod/engine", "condition=Ready", PATIENCE);
    let logs = cluster.kubectl(&["-n", namespace.name(), "logs", "engine", "-c", "engine"]);
    let cap = logs
        .out
        .lines()
        .find_map(|line| line.strip_prefix("MC_MAX_CONCURRENT_REG_MR="));
    let cap: u64 = cap.unwrap().parse().unwrap();
    assert!(cap >= 1, "the safe cap");

    // The controller completes what the webhook would have written, and the sidecar sees it.
    let mount = product.until(&["-n", namespace.name(), "storemount", "engine"], |mount| {
        mount["status"]["planSource"] == "Node" && mount["status"]["phase"] == "Ready"
    });
    let [status, _, message] = condition(&mount, "PlanWritten").unwrap();
    assert_eq!(status, "True", "{message}");
    let (_, plan) = bound(product, &namespace, "engine");
    assert_eq!(
        (&plan["source"], &plan["node"]),
        (&json!("Node"), &json!("node-1"))
    );
}

/// Without an operator pods run, without a sidecar.
#[test]
fn without_the_operator_new_pods_get_ready() {
    let product = Product::installed();
    let _alone = product.alone();
    let cluster = product.cluster;
    let scale = |replicas: &str| {
        let scale = [
            "-n",
            NAMESPACE,
            "scale",
            "deployment/siding-operator",
            replicas,
        ];
        let said = cluster.kubectl(&scale);
        assert_eq!(said.code, Some(0), "{}", said.err);
    };
    let _back = Back(product);
    scale("--replicas=0");
    product.until(
        &[
            "-n",
            NAMESPACE,
            "pods",
            "-l",
            "app.kubernetes.io/component=operator",
        ],
        |pods| pods["items"].as_array().is_some_and(Vec::is_empty),
    );
    let namespace = product.namespace("down");
    cluster.apply(&engine(&namespace, "engine", "kv").to_string());
    cluster.wait_for(namespace.name(), "pod/engine", "condition=Ready", PATIENCE);
    let pod = cluster.get(&["-n", namespace.name(), "pod", "engine"]);
    assert_eq!(pod["spec"]["initContainers"], Value::Null);
}

/// Puts what a test took away back.
struct Back(&'static Product);

impl Drop for Back {
    fn drop(&mut self) {
        self.0.install(&[]);
    }
}

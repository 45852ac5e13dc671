//! What happens to pods and to us as time goes by: restarts, kills, ends, edits.

use std::thread;

use serde_json::{Value, json};
use siding_tests::cluster::{BUSYBOX, Namespace};
use siding_tests::product::{NAMESPACE, Product, condition, engine, pool};
use siding_tests::{PATIENCE, Said, eventually};

const SMALL: &str = "segments: [{name: kv, size: 16Mi}]";

/// The sidecar of a pod, as the kubelet tells of it.
fn sidecar_status(pod: &Value) -> &Value {
    &pod["status"]["initContainerStatuses"][0]
}

/// What `GET path` of a pod's sidecar says.
fn ask(product: &Product, namespace: &Namespace, pod: &str, path: &str) -> Said {
    let found = product.cluster.get(&["-n", namespace.name(), "pod", pod]);
    let address = found["status"]["podIP"].as_str().unwrap();
    let ports = found["spec"]["initContainers"][0]["ports"].as_array();
    let http = ports
        .unwrap()
        .iter()
        .find(|port| port["name"] == "siding-http");
    let url = format!("http://{address}:{}{path}", http.unwrap()["containerPort"]);
    Said::of(product.cluster.inside("curl").args(["-sS", "-m5", &url]))
}

/// A workload in YAML's flow style, of pods that the pool of this name selects.
fn workload(namespace: &Namespace, kind: &str, name: &str, fields: &str, command: &str) -> String {
    let api = if kind == "Job" { "batch/v1" } else { "apps/v1" };
    format!(
        r#"
apiVersion: {api}
kind: {kind}
metadata: {{name: {name}, namespace: {}}}
spec:
  {fields}
  template:
    metadata: {{labels: {{app: kv}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{{name: engine, image: {BUSYBOX}, command: [sh, -c, "{command}"]}}]
"#,
        namespace.name()
    )
}

#[test]
fn a_sidecar_that_is_killed_comes_back_with_the_memory_that_it_had() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("killed");
    let cluster = product.cluster;
    cluster.apply(&pool(&namespace, "kv", SMALL));
    cluster.apply(&engine(&namespace, "kv", "kv").to_string());
    cluster.wait_for(namespace.name(), "pod/kv", "condition=Ready", PATIENCE);
    let content = |said: &Said| said.json()["segments"][0]["content"].clone();
    let before = ask(product, &namespace, "kv", "/v1/status");
    assert_eq!(content(&before), "fresh", "{}", before.out);

    let pod = cluster.get(&["-n", namespace.name(), "pod", "kv"]);
    let id = sidecar_status(&pod)["containerID"].as_str().unwrap();
    let id = id.strip_prefix("containerd://").unwrap();
    let kill = ["-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", id];
    let said = Said::of(cluster.inside("ctr").args(kill));
    assert_eq!(said.code, Some(0), "{}", said.err);

    let pod = product.until(&["-n", namespace.name(), "pod", "kv"], |pod| {
        let sidecar = sidecar_status(pod);
        sidecar["restartCount"] == 1 && sidecar["ready"] == true
    });
    let engine = &pod["status"]["containerStatuses"][0];
    assert_eq!(engine["restartCount"], 0, "the engine goes on");
    let after = ask(product, &namespace, "kv", "/v1/status");
    assert_eq!(content(&after), "kept", "{}", after.out);
    product.until(&["-n", namespace.name(), "storemount", "kv"], |mount| {
        mount["status"]["phase"] == "Ready"
            && condition(mount, "SidecarRunning").is_some_and(|[status, ..]| status == "True")
    });
}

#[test]
fn a_job_beside_a_sidecar_completes() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("job");
    let cluster = product.cluster;
    cluster.apply(&pool(&namespace, "kv", SMALL));
    let fields = "backoffLimit: 0";
    let mut job = workload(&namespace, "Job", "once", fields, "true");
    job.push_str("      restartPolicy: Never\n");
    cluster.apply(&job);
    cluster.wait_for(namespace.name(), "job/once", "condition=Complete", PATIENCE);
    let pods = cluster.get(&["-n", namespace.name(), "pods", "-l", "siding.dev/pool=kv"]);
    assert_eq!(pods["items"][0]["status"]["phase"], "Succeeded");
    let ended = &sidecar_status(&pods["items"][0])["state"]["terminated"];
    assert_eq!(ended["exitCode"], 0, "{ended}");
}

#[test]
fn a_stateful_sets_new_pod_of_the_same_name_has_a_mount_of_its_own() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("again");
    let cluster = product.cluster;
    cluster.apply(&pool(&namespace, "kv", SMALL));
    let fields = "selector: {matchLabels: {app: kv}}";
    let set = workload(&namespace, "StatefulSet", "set", fields, "sleep 100000");
    cluster.apply(&set);
    let at = ["-n", namespace.name(), "storemount", "set-0"];
    let first = product.until(&at, |mount| mount["status"]["phase"] == "Ready");
    let deleted = cluster.kubectl(&["-n", namespace.name(), "delete", "pod", "set-0"]);
    assert_eq!(deleted.code, Some(0), "{}", deleted.err);
    let second = product.until(&at, |mount| {
        mount["spec"]["podUid"] != first["spec"]["podUid"] && mount["status"]["phase"] == "Ready"
    });
    let pod = cluster.get(&["-n", namespace.name(), "pod", "set-0"]);
    assert_eq!(second["spec"]["podUid"], pod["metadata"]["uid"]);
}

/// Their sidecars share the node's ports with each other.
#[test]
fn two_pods_on_the_host_network_are_ready_beside_each_other() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("host");
    product.cluster.apply(&pool(&namespace, "kv", SMALL));
    for name in ["one", "two"] {
        let mut pod = engine(&namespace, name, "kv");
        pod["spec"]["hostNetwork"] = json!(true);
        product.cluster.apply(&pod.to_string());
    }
    for name in ["one", "two"] {
        let pod = format!("pod/{name}");
        product
            .cluster
            .wait_for(namespace.name(), &pod, "condition=Ready", PATIENCE);
        product.until(&["-n", namespace.name(), "storemount", name], |mount| {
            mount["status"]["phase"] == "Ready"
        });
    }
}

/// The memory limit is what the formula says, and base pages count in full.
#[test]
fn the_memory_limit_is_enough_for_pages_that_it_counts() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("formula");
    let segments = "segments: [{name: kv, size: 1Gi, pageSize: 4Ki}, {name: huge, size: 64Mi}]";
    product.cluster.apply(&pool(&namespace, "kv", segments));
    product
        .cluster
        .apply(&engine(&namespace, "kv", "kv").to_string());
    let mount = product.until(&["-n", namespace.name(), "storemount", "kv"], |mount| {
        mount["status"]["phase"] == "Ready"
    });
    for segment in mount["status"]["segments"].as_array().unwrap() {
        assert_eq!(segment["registeredBytes"], segment["bytes"], "{segment}");
    }
    let pod = product.cluster.get(&["-n", namespace.name(), "pod", "kv"]);
    assert_eq!(sidecar_status(&pod)["restartCount"], 0);
    let limit = &pod["spec"]["initContainers"][0]["resources"]["limits"]["memory"];
    let mebibytes = limit.as_str().unwrap().strip_suffix("Mi").unwrap();
    let mebibytes: u64 = mebibytes.parse().unwrap();
    // It is a limit and no licence.
    assert!((1025..1024 + 128).contains(&mebibytes), "{limit}");
}

/// One of two replicas goes away while pods are made; each pod gets its sidecar all the same.
#[test]
fn no_pod_misses_its_sidecar_while_a_replica_goes() {
    let product = Product::installed();
    let _alone = product.alone();
    let cluster = product.cluster;
    let namespace = product.namespace("rolling");
    cluster.apply(&pool(&namespace, "kv", "segments: [{name: kv, size: 2Mi}]"));
    product.until(&["-n", namespace.name(), "storepool", "kv"], |pool| {
        condition(pool, "Accepted").is_some()
    });
    let of_operator = "app.kubernetes.io/component=operator";
    let replicas = ["-n", NAMESPACE, "pods", "-l", of_operator];
    let pods = cluster.get(&replicas);
    let victim = pods["items"][0]["metadata"]["name"].as_str().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let delete = ["-n", NAMESPACE, "delete", "pod", victim];
            let said = cluster.kubectl(&delete);
            assert_eq!(said.code, Some(0), "{}", said.err);
        });
        for number in 0..30 {
            let mut pod = engine(&namespace, &format!("engine-{number}"), "kv");
            // It needs no node to have been looked at.
            pod["spec"]["nodeSelector"] = json!({"nowhere": "yes"});
            cluster.apply(&pod.to_string());
        }
    });
    let pods = cluster.get(&["-n", namespace.name(), "pods"]);
    let pods = pods["items"].as_array().unwrap();
    assert_eq!(pods.len(), 30);
    for pod in pods {
        let first = &pod["spec"]["initContainers"][0]["name"];
        assert_eq!(first, "siding", "{}", pod["metadata"]["name"]);
    }
    product.until(&replicas, |pods| {
        let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
        let ready = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(is_ready))
        };
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        pods.len() == 2 && pods.iter().all(ready)
    });
}

/// What the operator wrote in a namespace since so many audit events.
fn writes(product: &Product, namespace: &Namespace, since: usize) -> Vec<String> {
    let user = format!("system:serviceaccount:{NAMESPACE}:siding-operator");
    let audit = product.cluster.audit();
    let ours = audit.iter().skip(since).filter(|event| {
        event["user"]["username"] == user.as_str()
            && event["objectRef"]["namespace"] == namespace.name()
            && ["create", "update", "patch", "delete"]
                .iter()
                .any(|verb| event["verb"] == *verb)
    });
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ours.map(|event| {
        let of = &event["objectRef"];
        format!(
            "{} {}/{}",
            word(&event["verb"]),
            word(&of["resource"]),
            word(&of["name"])
        )
    })
    .collect()
}

/// An edit that says nothing of running pods costs the pool's own status one write.
#[test]
fn a_pools_edit_touches_no_more_than_it_must() {
    let product = Product::installed();
    let _alone = product.alone();
    let cluster = product.cluster;
    let namespace = product.namespace("edit");
    cluster.apply(&pool(&namespace, "kv", SMALL));
    for name in ["one", "two", "three"] {
        cluster.apply(&engine(&namespace, name, "kv").to_string());
    }
    let pool_at = ["-n", namespace.name(), "storepool", "kv"];
    product.until(&pool_at, |pool| pool["status"]["pods"]["ready"] == 3);
    settled(product, &namespace);

    let since = cluster.audit().len();
    let patch = json!({"spec": {"onFailure": "Block"}}).to_string();
    let edit = ["-n", namespace.name(), "patch", "storepool", "kv"];
    let said = cluster.kubectl(&[&edit[..], &["--type=merge", "-p", &patch]].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    product.until(&pool_at, |pool| {
        pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
    });
    settled(product, &namespace);
    let written = writes(product, &namespace, since);
    let of_pool = |one: &String| one.ends_with("storepools/kv");
    assert!(
        !written.is_empty() && written.len() <= 2 && written.iter().all(of_pool),
        "{written:?}"
    );
}

/// Waits until the operator has written nothing in a namespace for some rounds of its own.
fn settled(product: &Product, namespace: &Namespace) {
    let mut last = usize::MAX;
    let mut same = 0;
    eventually(|| {
        let now = writes(product, namespace, 0).len();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        if same >= 10 {
            Ok(())
        } else {
            Err(format!("the operator goes on writing: {now} so far"))
        }
    });
}

/// Namespace, pool and workload in one go: nobody waits between them.
#[test]
fn what_is_applied_at_once_works_at_once() {
    let product = Product::installed();
    let _shared = product.shared();
    let cluster = product.cluster;
    let mut namespaces = Vec::new();
    for level in ["privileged", "baseline", "restricted"] {
        let name = format!("once-{level}-{}", std::process::id());
        let labels =
            format!("{{siding.dev/inject: enabled, pod-security.kubernetes.io/enforce: {level}}}");
        let namespace = cluster.adopted(&name);
        let mut pod = engine(&namespace, "kv", "kv");
        pod["spec"]["securityContext"] = json!({
            "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"},
        });
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        pod["spec"]["containers"][0]["securityContext"] = json!({
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "kv", "namespace": name},
            "spec": {
                "selector": {"matchLabels": {"app": "kv"}},
                "template": {"metadata": {"labels": {"app": "kv"}}, "spec": pod["spec"]},
            },
        });
        let manifest = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {labels}}}\n---{}---\n{deployment}\n",
            pool(&namespace, "kv", "segments: [{name: kv, size: 8Mi}]")
        );
        cluster.apply(&manifest);
        namespaces.push(namespace);
    }
    for namespace in &namespaces {
        let name = namespace.name();
        cluster.wait_for(name, "deployment/kv", "condition=Available", PATIENCE);
        let pods = cluster.get(&["-n", name, "pods", "-l", "app=kv"]);
        let pod = &pods["items"][0];
        let first = &pod["spec"]["initContainers"][0]["name"];
        assert_eq!(first, "siding", "{name}: {}", pod["metadata"]);
    }
}

//! What can't work, explained in kubectl's own output.

use serde_json::{Value, json};
use siding_tests::cluster::{BUSYBOX, Namespace};
use siding_tests::product::{Product, condition, engine, pool};
use siding_tests::{Said, eventually};

/// Declares a pool and waits until the operator has looked at it.
fn declare(product: &Product, namespace: &Namespace, name: &str, fields: &str) -> Value {
    product.cluster.apply(&pool(namespace, name, fields));
    product.until(&["-n", namespace.name(), "storepool", name], |pool| {
        condition(pool, "Accepted").is_some()
    })
}

/// The Events of an object, as a user sees them: reason and message.
fn events(product: &Product, namespace: &Namespace, object: &str) -> Vec<(String, String)> {
    let of = format!("involvedObject.name={object}");
    let events = product
        .cluster
        .get(&["-n", namespace.name(), "events", "--field-selector", &of]);
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let events = events["items"].as_array().cloned().unwrap_or_default();
    events
        .iter()
        .map(|event| (word(&event["reason"]), word(&event["message"])))
        .collect()
}

/// The message of an Event of this reason, once there is one.
fn told(product: &Product, namespace: &Namespace, object: &str, reason: &str) -> String {
    eventually(|| {
        let events = events(product, namespace, object);
        let mut of_reason = events.iter().filter(|(found, _)| found == reason);
        let Some((_, message)) = of_reason.next() else {
            return Err(format!("no {reason} of {object}: {events:?}"));
        };
        assert_eq!(of_reason.next(), None, "told once");
        Ok(message.clone())
    })
}

/// What the API server would make of a pod now.
fn tried(product: &Product, pod: &Value) -> Said {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pod.to_string()).unwrap();
    let path = file.path().to_str().unwrap();
    let create = ["create", "--dry-run=server", "-o", "json", "-f", path];
    product.cluster.kubectl(&create)
}

/// As the webhook makes it, for changing what it set and creating that.
fn injected(product: &Product, pod: &Value) -> Value {
    let mut pod = tried(product, pod).json();
    let made = pod["metadata"].as_object_mut().unwrap();
    for field in [
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "managedFields",
        "generation",
    ] {
        made.remove(field);
    }
    pod.as_object_mut().unwrap().remove("status");
    pod
}

#[test]
fn a_size_that_no_machine_has_is_refused_with_what_would_work() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("size");
    for (size, words) in [
        (
            "1Pi",
            "1Pi is not a whole number with a unit, from 1 byte to 99Ti",
        ),
        ("1.5Gi", "write for example 512Mi, or 1536Mi for 1.5Gi"),
        (
            "3Mi",
            "segment kv: size 3Mi is not a whole number of 2Mi pages; 2048Ki or 4096Ki is",
        ),
        ("'0'", "0 is not a whole number"),
        (
            "many",
            "many is not a quantity; write for example 2Gi or 512Mi",
        ),
    ] {
        let said = product.cluster.try_apply(&pool(
            &namespace,
            "kv",
            &format!("segments: [{{name: kv, size: {size}}}]"),
        ));
        assert_eq!(said.code, Some(1), "{size}");
        assert!(said.err.contains(words), "{words:?} is not in {}", said.err);
    }
    // The largest that there is.
    let said = product.cluster.try_apply(&pool(
        &namespace,
        "kv",
        "segments: [{name: kv, size: 99Ti}]",
    ));
    assert_eq!(said.code, Some(0), "{}", said.err);
}

#[test]
fn pages_that_no_node_has_are_a_condition_of_the_pool() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("pages");
    for (name, segments, words) in [
        (
            "gigantic",
            "segments: [{name: kv, size: 512Gi, pageSize: 1Gi}]",
            "no node has 512Gi of 1Gi pages",
        ),
        (
            "much",
            "segments: [{name: kv, size: 90Ti}]",
            "no node has 90Ti of 2Mi pages (the most that one has is ",
        ),
    ] {
        let pool = declare(product, &namespace, name, segments);
        let [status, reason, message] = condition(&pool, "Accepted").unwrap();
        assert_eq!((status, reason), ("False", "NoSuchHugePages"), "{message}");
        assert!(message.contains(words), "{words:?} is not in {message}");
    }
    // Its pods are made all the same, and the scheduler says what they wait for.
    let pod = engine(&namespace, "gigantic", "gigantic");
    product.cluster.apply(&pod.to_string());
    let message = told(product, &namespace, "gigantic", "FailedScheduling");
    assert!(message.contains("Insufficient hugepages-1Gi"), "{message}");
}

#[test]
fn a_limit_that_is_too_small_is_told_and_the_engine_starts_without_its_cache() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("limit");
    declare(
        product,
        &namespace,
        "small",
        "segments: [{name: kv, size: 256Mi, pageSize: 4Ki}]",
    );
    let mut pod = injected(product, &engine(&namespace, "small", "small"));
    for which in ["limits", "requests"] {
        pod["spec"]["initContainers"][0]["resources"][which]["memory"] = json!("100Mi");
    }
    product.cluster.apply(&pod.to_string());
    product.cluster.wait_for(
        namespace.name(),
        "pod/small",
        "condition=Ready",
        siding_tests::PATIENCE,
    );
    let mount = product.until(&["-n", namespace.name(), "storemount", "small"], |mount| {
        mount["status"]["phase"] == "Failed"
    });
    assert_eq!(mount["status"]["reason"], "MemoryLimit");
    let [status, reason, message] = condition(&mount, "Mounted").unwrap();
    assert_eq!((status, reason), ("False", "MemoryLimit"));
    let words = "raise the container's resources.limits.memory to ";
    assert!(message.contains(words), "{message}");
    assert!(told(product, &namespace, "small", "MemoryLimit").contains(words));
    let pool = product.until(&["-n", namespace.name(), "storepool", "small"], |pool| {
        pool["status"]["pods"]["failed"] == 1
    });
    assert_eq!(pool["status"]["failures"][0]["reason"], "MemoryLimit");
}

/// Where a mount must not fail, the engine waits for it; and where the kernel ends the sidecar, no word of its own
/// tells why.
#[test]
fn a_sidecar_that_the_kernel_kills_is_told_and_holds_a_blocking_pools_engine() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("killed");
    let segments = "segments: [{name: kv, size: 64Mi, pageSize: 4Ki}], onFailure: Block";
    declare(product, &namespace, "killed", segments);
    let mut pod = injected(product, &engine(&namespace, "killed", "killed"));
    let sidecar = &mut pod["spec"]["initContainers"][0];
    for which in ["limits", "requests"] {
        sidecar["resources"][which]["memory"] = json!("32Mi");
    }
    // A program in its place that takes more than it may.
    sidecar["image"] = json!(BUSYBOX);
    sidecar["command"] = json!([
        "sh",
        "-c",
        "sleep 1; dd if=/dev/zero of=/dev/null bs=256M count=1"
    ]);
    sidecar["args"] = json!([]);
    product.cluster.apply(&pod.to_string());
    let mount = product.until(&["-n", namespace.name(), "storemount", "killed"], |mount| {
        mount["status"]["phase"] == "Failed"
    });
    assert_eq!(mount["status"]["reason"], "OutOfMemoryKilled", "{mount:#}");
    let message = told(product, &namespace, "killed", "OutOfMemoryKilled");
    assert!(
        message.contains("its memory limit is smaller than what it needs"),
        "{message}"
    );
    let pod = product
        .cluster
        .get(&["-n", namespace.name(), "pod", "killed"]);
    let engine = &pod["status"]["containerStatuses"][0]["state"];
    assert_eq!(engine["waiting"]["reason"], "PodInitializing", "{engine}");
}

#[test]
fn owners_of_pods_without_a_sidecar_hear_why() {
    let product = Product::installed();
    let _shared = product.shared();
    let namespace = product.namespace("skipped");
    product.cluster.apply(&format!(
        r"
apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: other, namespace: {0}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: other}}}}
  template:
    metadata: {{labels: {{app: other}}}}
    spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: engine, image: {BUSYBOX}, command: [sleep, '100000']}}]}}
",
        namespace.name()
    ));
    let words = format!("namespace '{}' has no StorePool", namespace.name());
    let message = told(product, &namespace, "other", "NoPool");
    assert!(
        message.starts_with("its pods get no sidecar: ") && message.contains(&words),
        "{message}"
    );
    let pods = product.cluster.get(&[
        "-n",
        namespace.name(),
        "pods",
        "-l",
        "siding.dev/skip=NoPool",
    ]);
    let pods = pods["items"].as_array().unwrap();
    assert_eq!(pods.len(), 2);
    for pod in pods {
        let annotation = pod["metadata"]["annotations"]["siding.dev/skipped"]
            .as_str()
            .unwrap();
        assert!(
            annotation.starts_with("NoPool: ") && annotation.contains(&words),
            "{annotation}"
        );
        assert_eq!(pod["spec"]["initContainers"], Value::Null);
    }
}

/// Each level of the Pod Security Standards, once the webhook has learnt of the namespace's label by its watch. A pod
/// made a moment before that is not looked at here.
#[test]
fn a_sidecar_is_what_its_namespaces_security_level_takes() {
    let product = Product::installed();
    let _shared = product.shared();
    for level in ["privileged", "baseline", "restricted"] {
        let namespace = product.namespace(&format!("level-{level}"));
        let label = format!("pod-security.kubernetes.io/enforce={level}");
        let said = product
            .cluster
            .kubectl(&["label", "namespace", namespace.name(), &label]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        declare(
            product,
            &namespace,
            "kv",
            "segments: [{name: kv, size: 8Mi, pageSize: 4Ki}]",
        );
        let mut pod = engine(&namespace, "kv", "kv");
        pod["spec"]["securityContext"] = json!({
            "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"},
        });
        pod["spec"]["containers"][0]["securityContext"] = json!({
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        });
        eventually(|| {
            let said = tried(product, &pod);
            (said.code == Some(0)).then_some(()).ok_or(said.err)
        });
        product.cluster.apply(&pod.to_string());
        product.cluster.wait_for(
            namespace.name(),
            "pod/kv",
            "condition=Ready",
            siding_tests::PATIENCE,
        );
        let pod = product.cluster.get(&["-n", namespace.name(), "pod", "kv"]);
        let sidecar = &pod["spec"]["initContainers"][0];
        assert_eq!(sidecar["name"], "siding", "{level}");
        let added = &sidecar["securityContext"]["capabilities"]["add"];
        let mount = product.until(&["-n", namespace.name(), "storemount", "kv"], |mount| {
            condition(mount, "Mounted").is_some_and(|[status, ..]| status == "True")
        });
        let [_, reason, message] = condition(&mount, "Registered").unwrap();
        // Without the capability as much is registered as the user may lock, and the rest is told.
        match level {
            "privileged" => assert_eq!(reason, "AsDeclared", "{message}"),
            _ if reason == "AsDeclared" => {}
            _ => {
                assert_eq!(reason, "PartlyRegistered", "{level}: {message}");
                assert!(
                    message.contains("RLIMIT_MEMLOCK allows this user"),
                    "{message}"
                );
                assert_eq!(mount["status"]["phase"], "Degraded");
            }
        }
        match level {
            "privileged" => assert_eq!(added, &json!(["IPC_LOCK"])),
            _ => assert_eq!(added, &Value::Null, "{level} takes no capability"),
        }
    }
}

/// All of it in one file, as people apply it: the operator has seen neither the namespace nor the pool before the pod.
#[test]
fn a_pod_that_is_made_together_with_its_namespace_and_its_pool_gets_what_passes_there() {
    let product = Product::installed();
    let _shared = product.shared();
    for (round, level) in ["restricted", "baseline", "privileged"].iter().enumerate() {
        let name = format!("together-{round}-{}", std::process::id());
        let yaml = format!(
            r"
apiVersion: v1
kind: Namespace
metadata:
  name: {name}
  labels: {{siding.dev/inject: enabled, pod-security.kubernetes.io/enforce: {level}}}
---
apiVersion: siding.dev/v1alpha1
kind: StorePool
metadata: {{name: kv, namespace: {name}}}
spec: {{podSelector: {{matchLabels: {{app: kv}}}}, segments: [{{name: kv, size: 8Mi, pageSize: 4Ki}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: engine, namespace: {name}, labels: {{app: kv}}}}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  securityContext: {{runAsNonRoot: true, runAsUser: 1000, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: engine
    image: {BUSYBOX}
    command: [sleep, '100000']
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"
        );
        // The namespace's default service account is made a moment later: until then no pod is let in.
        eventually(|| {
            let said = product.cluster.try_apply(&yaml);
            (said.code == Some(0)).then_some(()).ok_or(said.err)
        });
        let pod = product.cluster.get(&["-n", &name, "pod", "engine"]);
        let _ = product
            .cluster
            .kubectl(&["delete", "namespace", &name, "--wait=false"]);
        let sidecar = &pod["spec"]["initContainers"][0];
        assert_eq!(sidecar["name"], "siding", "{level}: {pod:#}");
        let added = &sidecar["securityContext"]["capabilities"]["add"];
        match *level {
            "privileged" => assert_eq!(added, &json!(["IPC_LOCK"])),
            _ => assert_eq!(added, &Value::Null, "{level} takes no capability"),
        }
    }
}

/// An object whose limit lets the engine in, and not its sidecar: by what is left, and by what a container may have.
const LIMITS: [(&str, &str, &str, &str); 2] = [
    (
        "ResourceQuota",
        "{hard: {limits.memory: 80Mi}}",
        "exceeded quota: limit, requested: limits.memory=105Mi, used: limits.memory=0, limited: limits.memory=80Mi",
        "ResourceQuota 'limit' has 80Mi of 80Mi of limits.memory left, and the pod with its sidecar takes 105Mi; \
         raise its spec.hard of limits.memory to 105Mi, or make the segments of StorePool 'kv' smaller",
    ),
    (
        "LimitRange",
        "{limits: [{type: Container, max: {memory: 70Mi}}]}",
        "maximum memory usage per Container is 70Mi, but limit is 73Mi",
        "LimitRange 'limit' allows a container 70Mi of memory at most, and the sidecar has a limit of 73Mi; \
         raise its max.memory of type Container to 73Mi, or make the segments of StorePool 'kv' smaller",
    ),
];

/// The API server refuses the same pod where somebody else gives it a container like the sidecar.
#[test]
fn a_pod_runs_without_a_sidecar_that_its_namespace_has_no_room_for() {
    let product = Product::installed();
    let _shared = product.shared();
    for (kind, spec, refusal, words) in LIMITS {
        let namespace = product.namespace(&format!("room-{}", kind.to_lowercase()));
        let name = namespace.name();
        let limit = |spec: &str| {
            let metadata = format!("{{name: limit, namespace: {name}}}");
            format!("{{apiVersion: v1, kind: {kind}, metadata: {metadata}, spec: {spec}}}")
        };
        product.cluster.apply(&limit(spec));
        declare(
            product,
            &namespace,
            "kv",
            "segments: [{name: kv, size: 8Mi, pageSize: 4Ki}]",
        );
        product.until(&["-n", name, kind, "limit"], |limit| {
            kind == "LimitRange" || limit["status"]["used"]["limits.memory"] == "0"
        });
        let mut pod = engine(&namespace, "engine", "kv");
        let memory = |amount: &str| json!({"limits": {"memory": amount}});
        pod["spec"]["containers"][0]["resources"] = memory("32Mi");
        let mut other = pod.clone();
        other["metadata"]["labels"]["siding.dev/inject"] = json!("disabled");
        other["spec"]["initContainers"] = json!([
            {"name": "proxy", "image": BUSYBOX, "restartPolicy": "Always", "resources": memory("73Mi")},
        ]);
        let said = tried(product, &other);
        assert!(said.err.contains(refusal), "{}{}", said.out, said.err);

        let replicas = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": "engine", "namespace": name},
            "spec": {
                "replicas": 1, "selector": {"matchLabels": {"app": "kv"}},
                "template": {"metadata": {"labels": {"app": "kv"}}, "spec": pod["spec"]},
            },
        });
        product.cluster.apply(&replicas.to_string());
        let heard = told(product, &namespace, "engine", kind);
        assert_eq!(heard, format!("its pods get no sidecar: {words}"));
        product.until(&["-n", name, "replicaset", "engine"], |replicas| {
            replicas["status"]["readyReplicas"] == 1
        });
        let pods = product.cluster.get(&["-n", name, "pods", "-l", "app=kv"]);
        let made = &pods["items"][0];
        assert_eq!(made["spec"]["initContainers"], Value::Null);
        let skipped = &made["metadata"]["annotations"]["siding.dev/skipped"];
        assert_eq!(skipped, &json!(format!("{kind}: {words}")));

        // With what is asked for, beside the 32Mi that the pod uses by now, the next one has its sidecar.
        product.cluster.apply(&limit(
            &spec.replace("80Mi", "137Mi").replace("70Mi", "73Mi"),
        ));
        eventually(|| {
            let said = tried(product, &pod);
            let made: Value = serde_json::from_str(&said.out).unwrap_or_default();
            let is_there = made["spec"]["initContainers"][0]["name"] == "siding";
            is_there.then_some(()).ok_or(said.out + &said.err)
        });
    }
}

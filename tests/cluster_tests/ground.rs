//! What the other tests stand on: that the cluster does what they take for granted.

use std::time::{Duration, Instant};

use siding_tests::cluster::{self, BUSYBOX, Cluster};
use siding_tests::{PATIENCE, Said, binary};

#[test]
fn a_native_sidecar_shares_huge_pages_with_its_pod_behind_a_service() {
    let cluster = Cluster::up();
    let namespace = cluster.namespace("ground-pod");
    // The sidecar leaves a segment on the volume; the main container starts after it and serves its size.
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: engine, namespace: {0}, labels: {{app: engine}}}}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - name: sidecar
    image: {BUSYBOX}
    restartPolicy: Always
    command: [sh, -c, "fallocate -l 8388608 /pages/kv; fallocate -l 33554432 /pages/more; echo more: $?; sleep 3600"]
    startupProbe: {{exec: {{command: [test, -e, /pages/kv]}}, periodSeconds: 1}}
    resources: {{limits: {{hugepages-2Mi: 16Mi, cpu: 50m, memory: 32Mi}}}}
    volumeMounts: [{{name: pages, mountPath: /pages}}]
  containers:
  - name: engine
    image: {BUSYBOX}
    command: [sh, -c, "mkdir /www; stat -c %s /pages/kv >/www/size; echo serving; exec httpd -f -p 8080 -h /www"]
    resources: {{limits: {{hugepages-2Mi: 16Mi, cpu: 50m, memory: 32Mi}}}}
    volumeMounts: [{{name: pages, mountPath: /pages}}]
  volumes: [{{name: pages, emptyDir: {{medium: HugePages-2Mi}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: engine, namespace: {0}}}
spec: {{selector: {{app: engine}}, ports: [{{port: 80, targetPort: 8080}}]}}
"#,
        namespace.name()
    ));
    cluster.wait_for(
        namespace.name(),
        "pod/engine",
        "condition=Ready",
        Duration::from_secs(120),
    );

    let logs = |container| {
        let said = cluster.kubectl(&["-n", namespace.name(), "logs", "engine", "-c", container]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.out
    };
    assert_eq!(logs("engine"), "serving\n");
    let sidecar = logs("sidecar");
    assert!(
        sidecar.contains("No space left") || sidecar.contains("more: 1"),
        "more than its limit: {sidecar}"
    );

    let service = cluster.get(&["-n", namespace.name(), "service", "engine"]);
    let url = format!(
        "http://{}/size",
        service["spec"]["clusterIP"].as_str().unwrap()
    );
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = Said::of(
            cluster
                .inside("curl")
                .args(["-sf", "--max-time", "5", &url]),
        );
        if said.code == Some(0) {
            assert_eq!(said.out, "8388608\n");
            break;
        }
        assert!(Instant::now() < deadline, "{url}: {}", said.err);
    }
}

#[test]
fn nodes_that_a_test_makes_up_stay_ready_and_take_pods() {
    let cluster = Cluster::up();
    let namespace = cluster.namespace("ground-nodes");
    cluster.apply(
        "apiVersion: v1
kind: Node
metadata: {name: made-up, labels: {made-up: 'yes'}}
spec: {taints: [{key: made-up, effect: NoSchedule}]}
",
    );
    let status = r#"{"status": {
        "capacity": {"cpu": "192", "memory": "2Ti", "pods": "110", "hugepages-2Mi": "1Ti", "nvidia.com/gpu": "8"},
        "allocatable": {"cpu": "192", "memory": "1Ti", "pods": "110", "hugepages-2Mi": "1Ti", "nvidia.com/gpu": "8"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "MadeUp", "message": ""}]}}"#;
    let patch = [
        "patch",
        "node",
        "made-up",
        "--subresource=status",
        "--type=merge",
        "-p",
        status,
    ];
    assert_eq!(cluster.kubectl(&patch).code, Some(0));
    cluster.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: engine, namespace: {}}}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector: {{made-up: 'yes'}}
  tolerations: [{{key: made-up, operator: Exists}}]
  containers: [{{name: engine, image: nothing, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]
",
        namespace.name()
    ));
    cluster.wait_for(
        namespace.name(),
        "pod/engine",
        "condition=PodScheduled",
        PATIENCE,
    );
    cluster.wait_for("default", "node/made-up", "condition=Ready", PATIENCE);
    let _ = cluster.kubectl(&["delete", "node", "made-up"]);
}

#[test]
fn the_image_of_siding_runs_as_nobody_and_the_request_for_it_is_audited() {
    let cluster = Cluster::up();
    let namespace = cluster.namespace("ground-image");
    cluster::load_binary(cluster, "siding.test/siding:ground", &binary());
    // Under the strictest of the Pod Security Standards.
    let label = [
        "label",
        "namespace",
        namespace.name(),
        "pod-security.kubernetes.io/enforce=restricted",
    ];
    assert_eq!(cluster.kubectl(&label).code, Some(0));
    cluster.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: siding, namespace: {}}}
spec:
  restartPolicy: Never
  securityContext: {{runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: siding
    image: siding.test/siding:ground
    args: [mount, --segment, 'kv=2Mi,page=4Ki']
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
",
        namespace.name()
    ));
    cluster.wait_for(
        namespace.name(),
        "pod/siding",
        "jsonpath={.status.phase}=Succeeded",
        PATIENCE,
    );
    let said = cluster.kubectl(&["-n", namespace.name(), "logs", "siding"]);
    assert!(said.out.contains("kv"), "{}{}", said.out, said.err);

    let asked = cluster.audit().into_iter().any(|event| {
        event["verb"] == "create"
            && event["user"]["username"] == "admin"
            && event["objectRef"]["resource"] == "pods"
            && event["objectRef"]["namespace"] == namespace.name()
    });
    assert!(asked, "the audit log does not tell who made the pod");
}

#[test]
fn helm_installs_a_chart() {
    let cluster = Cluster::up();
    let namespace = cluster.namespace("ground-helm");
    let chart = siding_tests::scratch();
    let path = chart.path().to_str().unwrap();
    std::fs::create_dir(chart.path().join("templates")).unwrap();
    let about = "{apiVersion: v2, name: ground, version: 1.0.0}";
    let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: ground}, data: {is: '{{ .Values.is }}'}}";
    std::fs::write(chart.path().join("Chart.yaml"), about).unwrap();
    std::fs::write(chart.path().join("templates/map.yaml"), map).unwrap();
    let install = [
        "install",
        "ground",
        path,
        "-n",
        namespace.name(),
        "--set",
        "is=firm",
    ];
    let said = cluster.helm(&install);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let map = cluster.get(&["-n", namespace.name(), "configmap", "ground"]);
    assert_eq!(map["data"]["is"], "firm");
}

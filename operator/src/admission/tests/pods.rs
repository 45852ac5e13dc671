//! Pods of all kinds.

use super::*;

#[test]
fn a_pod_of_a_deployment() {
    let pod = pod(json!({}));
    let patched = Scene::with(json!({})).injected(&pod);
    assert_kept(&pod, &patched, "");
    let sidecar = sidecar(&patched);
    assert_eq!(sidecar["restartPolicy"], "Always");
    assert_eq!(sidecar["image"], "registry.example/siding:1");
    assert_eq!(
        sidecar["args"],
        json!([
            "run",
            "--config",
            "/etc/siding/config.yaml",
            "--plan",
            "/etc/siding/plan.json",
            "--agent-socket",
            "/run/siding/agent.sock"
        ])
    );
    assert_eq!(
        sidecar["ports"],
        json!([{"name": "siding-http", "containerPort": 9600, "protocol": "TCP"}])
    );
    assert_eq!(
        sidecar["volumeMounts"],
        json!([
            {"name": "siding-pod", "mountPath": "/etc/siding", "readOnly": true},
            {"name": "siding-run", "mountPath": "/run/siding"},
            {"name": "siding-storage", "mountPath": "/var/lib/siding"},
            {"name": "siding-no-token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true},
            {"name": "siding-hugepages-2mi", "mountPath": "/hugepages/2Mi"},
        ])
    );
    assert_eq!(sidecar.get("command"), None);
    assert_eq!(sidecar.get("livenessProbe"), None);
    let labels = &patched["metadata"]["labels"];
    assert_eq!(*labels, json!({"app": "vllm", "siding.dev/pool": "kv"}));
    for (key, value) in [("scrape", "true"), ("port", "9600"), ("path", "/metrics")] {
        assert_eq!(annotation(&patched, &format!("prometheus.io/{key}")), value);
    }
}

#[test]
fn what_is_mounted() {
    let patched = Scene::with(json!({})).injected(&pod(json!({})));
    assert_eq!(
        volume(&patched, "siding-pod").unwrap()["downwardAPI"]["items"],
        json!([
            {"path": "config.yaml", "fieldRef": {"fieldPath": "metadata.annotations['siding.dev/config']"}},
            {"path": "plan.json", "fieldRef": {"fieldPath": "metadata.annotations['siding.dev/plan']"}},
        ])
    );
    let storage = &volume(&patched, "siding-storage").unwrap()["emptyDir"];
    assert_eq!(*storage, json!({"medium": "Memory", "sizeLimit": "16Mi"}));
    let huge = &volume(&patched, "siding-hugepages-2mi").unwrap()["emptyDir"];
    assert_eq!(*huge, json!({"medium": "HugePages-2Mi"}));
    let volumes = patched["spec"]["volumes"].as_array().unwrap();
    assert!(
        volumes
            .iter()
            .all(|volume| volume.get("hostPath").is_none())
    );
}

/// The sidecar's own reader, on a configuration of everything.
#[test]
fn the_sidecar_reads_its_configuration() {
    let segments = json!([
        {"name": "kv", "size": "1.5Gi", "pageSize": "2Mi", "numa": "Interleave"},
        {"name": "hot", "size": "1073741824", "pageSize": "1Gi"},
        {"name": "cold", "size": "20Ki", "pageSize": "Transparent"},
        {"name": "null", "size": "4096", "pageSize": "4Ki"},
        {"name": "12", "size": "4Ki", "pageSize": "4Ki"},
    ]);
    let registration =
        json!({"backend": "IoUring", "cap": 12, "order": "Declared", "touchThreads": 3});
    let scene = Scene::with(json!({"segments": segments, "registration": registration}));
    let config = configuration(&scene.injected(&pod(json!({}))));
    let wanted = siding::config::parse(
        "
segments:
- {name: kv, size: 1536Mi, page: 2Mi, numa: interleave, directory: /hugepages/2Mi}
- {name: hot, size: 1Gi, page: 1Gi, directory: /hugepages/1Gi}
- {name: cold, size: 20Ki, page: transparent}
- {name: 'null', size: 4Ki, page: 4Ki}
- {name: '12', size: 4Ki, page: 4Ki}
storage: {directory: /var/lib/siding}
registration: {backend: io_uring, cap: 12, order: declared, touchThreads: 3}
listen: {http: '[::]:9600'}
logging: {format: json}
onFailure: serve
",
    );
    assert_eq!(config, wanted.unwrap());
    let block = Scene::with(json!({"onFailure": "Block"}));
    assert_eq!(
        configuration(&block.injected(&pod(json!({})))).on_failure,
        siding::config::OnFailure::Exit
    );
    let plain = configuration(&Scene::with(json!({})).injected(&pod(json!({}))));
    assert_eq!(plain.registration, siding::config::Registration::default());
}

#[test]
fn every_page_size_and_policy_is_read() {
    for page in [
        "Transparent",
        "4Ki",
        "64Ki",
        "2Mi",
        "32Mi",
        "512Mi",
        "1Gi",
        "16Gi",
    ] {
        for backend in ["Auto", "IoUring", "None"] {
            let scene = Scene::with(json!({
                "segments": [{"name": "kv", "size": "16Gi", "pageSize": page}],
                "registration": {"backend": backend},
            }));
            let config = configuration(&scene.injected(&pod(json!({}))));
            assert_eq!(config.segments[0].size.get(), 16 << 30, "{page}");
            assert_eq!(
                config.segments[0].directory.is_some(),
                !matches!(page, "Transparent" | "4Ki")
            );
        }
    }
}

#[test]
fn the_namespace_is_that_of_the_request() {
    let scene = Scene::with(json!({}));
    for metadata in [
        json!({"namespace": ""}),
        json!({"namespace": null}),
        json!({"name": "engine-0"}),
    ] {
        scene.injected(&pod(json!({"metadata": metadata})));
    }
    let mut request = request(&pod(json!({"metadata": {"namespace": "ml"}})));
    request["namespace"] = json!("");
    assert_eq!(
        admit_pod(&request, &scene.world()),
        Verdict::Malformed("the request has no namespace".to_owned())
    );
}

#[test]
fn what_is_newer_than_this_release_is_kept() {
    let pod = pod(json!({
        "metadata": {"newer": {"deep": [1, {"a/b": "~"}]}, "annotations": {"a~b/c": "x"}},
        "spec": {
            "newerField": {"x": [null, 1.5, "é"]},
            "containers": [{"name": "engine", "image": "vllm:1", "newer": true, "env": [{"name": "A", "newer": 1}]}],
            "initContainers": [{"name": "load", "image": "x", "newer": 18446744073709551615_u64}],
        },
    }));
    let patched = Scene::with(json!({})).injected(&pod);
    assert_kept(&pod, &patched, "");
    assert_eq!(patched["spec"]["newerField"], pod["spec"]["newerField"]);
    assert_eq!(
        patched["spec"]["initContainers"][1],
        pod["spec"]["initContainers"][0]
    );
    assert_eq!(patched["metadata"]["newer"], pod["metadata"]["newer"]);
}

#[test]
fn ours_comes_before_the_other_init_containers_which_stay() {
    let others = json!([
        {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always", "env": [{"name": "A", "value": "b"}]},
        {"name": "load", "image": "load:1"},
    ]);
    let pod = pod(json!({"spec": {"initContainers": others}}));
    let patched = Scene::with(json!({})).injected(&pod);
    sidecar(&patched);
    let rest = &patched["spec"]["initContainers"].as_array().unwrap()[1..];
    assert_eq!(rest, others.as_array().unwrap());
}

#[test]
fn lists_that_are_absent_null_or_empty() {
    for list in [json!(null), json!([])] {
        let mut bare = pod(json!({
            "metadata": {"labels": null, "annotations": null},
            "spec": {"initContainers": list, "volumes": list, "securityContext": null},
        }));
        let patched = Scene::with(json!({"sidecar": {"runAsUser": 7}})).injected(&bare);
        sidecar(&patched);
        for field in ["initContainers", "volumes", "securityContext"] {
            bare["spec"].as_object_mut().unwrap().remove(field);
        }
        bare["metadata"] = json!({});
        let patched = Scene::with(json!({"sidecar": {"runAsUser": 7}})).injected(&bare);
        sidecar(&patched);
        assert_eq!(patched["spec"]["securityContext"], json!({"fsGroup": 7}));
        assert_eq!(
            patched["metadata"]["labels"],
            json!({"siding.dev/pool": "kv"})
        );
    }
}

#[test]
fn on_the_hosts_network_each_pod_has_a_port_of_its_own() {
    let scene = Scene::with(json!({}));
    let pod = pod(json!({"spec": {"hostNetwork": true}}));
    let port_of = |uid: &str| {
        let mut request = request(&pod);
        request["uid"] = json!(uid);
        let Verdict::Patch { operations, .. } = admit_pod(&request, &scene.world()) else {
            panic!("no sidecar");
        };
        let patched = apply(&pod, &operations);
        let port = &sidecar(&patched)["ports"][0];
        let number = port["containerPort"].as_u64().unwrap();
        assert_eq!(port["hostPort"], number);
        assert_eq!(
            u64::from(configuration(&patched).listen.http.port()),
            number
        );
        assert_eq!(
            annotation(&patched, "prometheus.io/port"),
            number.to_string()
        );
        assert!(DYNAMIC_PORTS.contains(&u16::try_from(number).unwrap()));
        number
    };
    // Two replicas of one template differ in nothing but the request.
    assert_ne!(port_of("a"), port_of("b"));
    assert_eq!(port_of("a"), port_of("a"));
}

#[test]
fn a_port_that_a_container_has_is_left_to_it() {
    let ports = json!([{"containerPort": 9600}]);
    let pod =
        pod(json!({"spec": {"containers": [{"name": "engine", "image": "x", "ports": ports}]}}));
    let patched = Scene::with(json!({})).injected(&pod);
    let port = sidecar(&patched)["ports"][0]["containerPort"]
        .as_u64()
        .unwrap();
    assert!(DYNAMIC_PORTS.contains(&u16::try_from(port).unwrap()));
    let other = Scene::with(json!({"sidecar": {"httpPort": 9700}})).injected(&pod);
    assert_eq!(sidecar(&other)["ports"][0]["containerPort"], 9700);
}

#[test]
fn a_users_own_scraping_stays_as_it_is() {
    let pod = pod(json!({"metadata": {"annotations": {"prometheus.io/scrape": "true"}}}));
    let patched = Scene::with(json!({})).injected(&pod);
    let annotations = patched["metadata"]["annotations"].as_object().unwrap();
    let ours = annotations
        .keys()
        .filter(|key| key.starts_with("prometheus.io/"));
    assert_eq!(ours.collect::<Vec<_>>(), ["prometheus.io/scrape"]);
}

#[test]
fn ephemeral_containers_updates_and_others_are_not_touched() {
    let scene = Scene::with(json!({}));
    let changes = [
        json!({"operation": "UPDATE"}),
        json!({"operation": "DELETE", "object": null}),
        json!({"operation": "UPDATE", "subResource": "ephemeralcontainers"}),
        json!({"operation": "CREATE", "subResource": "ephemeralcontainers"}),
        json!({"operation": "CREATE", "subResource": "binding"}),
        json!({"resource": {"group": "", "version": "v1", "resource": "configmaps"}}),
        json!({"resource": {"group": "metrics.k8s.io", "version": "v1", "resource": "pods"}}),
    ];
    for change in changes {
        let mut request = request(&pod(json!({})));
        merge(&mut request, change.clone());
        assert_eq!(
            admit_pod(&request, &scene.world()),
            Verdict::Untouched,
            "{change}"
        );
    }
    let debugged =
        pod(json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "sh"}]}}));
    let patched = scene.injected(&debugged);
    assert_eq!(
        patched["spec"]["ephemeralContainers"],
        debugged["spec"]["ephemeralContainers"]
    );
}

#[test]
fn a_dry_run_is_answered_like_any_other() {
    let scene = Scene::with(json!({}));
    let mut dry = request(&pod(json!({})));
    dry["dryRun"] = json!(true);
    assert_eq!(
        admit_pod(&dry, &scene.world()),
        scene.judge(&pod(json!({})))
    );
}

#[test]
fn a_pod_of_a_megabyte() {
    let env: Vec<Value> = (0..1000)
        .map(|n| json!({"name": format!("V{n}"), "value": "x".repeat(1024)}))
        .collect();
    let pod = pod(json!({"spec": {"containers": [{"name": "engine", "image": "x", "env": env}]}}));
    assert!(pod.to_string().len() > 1 << 20);
    let patched = Scene::with(json!({})).injected(&pod);
    assert_kept(&pod["metadata"], &patched["metadata"], "/metadata");
    let env = patched["spec"]["containers"][0]["env"].as_array().unwrap();
    assert_eq!(
        env[..1000],
        pod["spec"]["containers"][0]["env"].as_array().unwrap()[..]
    );
    assert!(
        variable(
            &patched["spec"]["containers"][0],
            "MC_MAX_CONCURRENT_REG_MR"
        )
        .is_some()
    );
}

#[test]
fn a_second_pass_adds_nothing() {
    let scene = Scene::with(json!({}));
    let patched = scene.injected(&pod(json!({"spec": {"hostNetwork": true}})));
    let (reason, _) = scene.skipped(&patched);
    assert_eq!(reason, Skip::AlreadyInjected);
    // Nor for a pod that is skipped.
    let nowhere = Scene::of(Vec::new());
    let Verdict::Skip { patch, .. } = nowhere.judge(&pod(json!({}))) else {
        panic!("not skipped");
    };
    let told = apply(&pod(json!({})), &patch);
    assert!(nowhere.judge(&told).operations().is_empty());
}

#[test]
fn malformed_pods() {
    let scene = Scene::with(json!({}));
    for (change, what) in [
        (json!({"spec": null}), "the pod's spec is not an object"),
        (
            json!({"metadata": []}),
            "the pod's metadata is not an object",
        ),
        (
            json!({"metadata": {"labels": {"a": 1}}}),
            "the pod's metadata.labels is not what it should be",
        ),
        (
            json!({"metadata": {"annotations": "x"}}),
            "the pod's metadata.annotations is not what it should be",
        ),
        (
            json!({"spec": {"containers": {}}}),
            "the pod's spec.containers is not what it should be",
        ),
        (
            json!({"spec": {"volumes": [1]}}),
            "the pod's spec.volumes is not what it should be",
        ),
        (
            json!({"spec": {"containers": [{"name": "e", "env": "x"}]}}),
            "the pod's env of container e is not what it should be",
        ),
    ] {
        assert_eq!(
            scene.judge(&pod(change)),
            Verdict::Malformed(what.to_owned())
        );
    }
    assert!(matches!(
        admit_pod(&json!(null), &scene.world()),
        Verdict::Malformed(_)
    ));
}

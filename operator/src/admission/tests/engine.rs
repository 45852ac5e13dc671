//! What engines are told.

use super::*;

fn container(name: &str, gpus: u32) -> Value {
    let resources = if gpus == 0 {
        json!({})
    } else {
        json!({"limits": {"nvidia.com/gpu": gpus.to_string()}})
    };
    json!({"name": name, "image": "x", "resources": resources})
}

fn told(scene: &Scene, containers: Value) -> Vec<String> {
    let patched = scene.injected(&pod(json!({"spec": {"containers": containers}})));
    let containers = patched["spec"]["containers"].as_array().unwrap();
    let told = containers
        .iter()
        .filter(|container| container.get("env").is_some());
    told.map(|container| container["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_variables() {
    let mooncake = json!({"master": "mooncake:50051", "metadataServer": "http://m:8080/metadata", "protocol": "efa"});
    let scene = Scene::with(json!({"engine": {"mooncake": mooncake}}));
    let patched = scene.injected(&pod(json!({})));
    assert_eq!(
        patched["spec"]["containers"][0]["env"],
        json!([
            {
                "name": "MC_MAX_CONCURRENT_REG_MR",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['siding.dev/cap']"}},
            },
            {"name": "MC_TCP_BIND_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "MC_EFA_NIC_SELECTION", "value": "local"},
            {"name": "MOONCAKE_MASTER", "value": "mooncake:50051"},
            {"name": "MOONCAKE_TE_META_DATA_SERVER", "value": "http://m:8080/metadata"},
            {"name": "MOONCAKE_PROTOCOL", "value": "efa"},
        ])
    );
}

#[test]
fn nics_by_policy_and_nothing_for_all() {
    let env = |registration: Value| {
        let scene = Scene::with(json!({"registration": registration}));
        let patched = scene.injected(&pod(json!({})));
        let engine = &patched["spec"]["containers"][0];
        let value = |name| variable(engine, name).map(|variable| variable["value"].clone());
        (value("MC_EFA_NIC_SELECTION"), value("MC_TE_FILTERS"))
    };
    assert_eq!(
        env(json!({"nics": "RailLocal"})),
        (Some(json!("local")), None)
    );
    // A switch that counts as on even when 0 is left out.
    assert_eq!(env(json!({"nics": "All"})), (None, None));
    let named = json!({"nics": "Named", "nicNames": ["rdmap0s6", "mlx5_0"]});
    assert_eq!(env(named), (None, Some(json!("rdmap0s6,mlx5_0"))));
}

#[test]
fn what_a_container_sets_itself_stays() {
    let own = json!([
        {"name": "A", "value": "1"},
        {"name": "MC_MAX_CONCURRENT_REG_MR", "value": "9"},
        {"name": "MC_TCP_BIND_ADDRESS", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "MC_EFA_NIC_SELECTION", "value": ""},
    ]);
    let pod = pod(json!({"spec": {"containers": [
        {"name": "engine", "image": "x", "env": own},
        {"name": "other", "image": "x", "env": null},
    ]}}));
    let patched = Scene::with(json!({})).injected(&pod);
    assert_eq!(patched["spec"]["containers"][0]["env"], own);
    assert_eq!(
        patched["spec"]["containers"][1]["env"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

#[test]
fn which_containers() {
    let auto = || Scene::with(json!({}));
    let cpu_only = json!([container("a", 0), container("b", 0)]);
    assert_eq!(told(&auto(), cpu_only.clone()), ["a", "b"]);
    assert_eq!(
        told(
            &auto(),
            json!([container("proxy", 0), container("vllm", 4)])
        ),
        ["vllm"]
    );
    let amd = json!({"name": "amd", "image": "x", "resources": {"requests": {"amd.com/gpu": 1}}});
    assert_eq!(told(&auto(), json!([container("proxy", 0), amd])), ["amd"]);
    let named = Scene::with(json!({"engine": {"containers": ["b", "c"]}}));
    assert_eq!(told(&named, cpu_only.clone()), ["b"]);
    let warnings = named.warnings(&pod(json!({"spec": {"containers": cpu_only}})));
    let warned = [
        "siding: spec.engine.containers of StorePool 'kv' names 'c', a container that the pod does not have",
    ];
    assert_eq!(warnings, warned);
    let none = Scene::with(json!({"engine": {"variables": "None"}}));
    assert_eq!(told(&none, json!([container("vllm", 4)])), [""; 0]);
}

//! Pods that nobody thought of.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map("[a-z~/]{1,6}", inner, 0..4).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn strings() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        "[a-z~/.]{1,12}",
        select(vec![
            "siding.dev/cap",
            "siding.dev/plan",
            "siding.dev/skip",
            "siding.dev/skipped",
            "siding.dev/inject",
            "prometheus.io/port",
            "app",
        ])
        .prop_map(str::to_owned),
    ];
    let map = btree_map(key, prop_oneof![".{0,12}", "[0-9]{1,3}"], 0..5);
    let object = map.prop_map(|map| {
        map.into_iter()
            .map(|(key, value)| (key, Value::from(value)))
            .collect()
    });
    prop_oneof![Just(Value::Null), object]
}

fn container() -> impl Strategy<Value = Value> {
    let name = select(vec!["engine", "proxy", "siding", "load"]);
    let quantity = prop_oneof![Just(json!("2")), Just(json!(2)), Just(json!("1Gi")), json()];
    let resource = select(vec![
        "cpu",
        "memory",
        "nvidia.com/gpu",
        "hugepages-2Mi",
        "hugepages-1Gi",
    ]);
    let resources = btree_map(resource, quantity, 0..4);
    let variable = select(vec!["A", "MC_MAX_CONCURRENT_REG_MR", "MC_TCP_BIND_ADDRESS"]);
    let env = vec(
        (variable, json()).prop_map(|(name, value)| json!({"name": name, "value": value})),
        0..3,
    );
    (name, resources, option::of(env), option::of(1..65536_u32), json()).prop_map(
        |(name, resources, env, port, newer)| {
            let ports: Vec<Value> = port.iter().map(|port| json!({"containerPort": port})).collect();
            json!({
                "name": name, "resources": {"limits": resources, "requests": {}}, "env": env, "ports": ports, "newer": newer,
            })
        },
    )
}

fn volume() -> impl Strategy<Value = Value> {
    let name = select(vec!["a", "b", "siding-run", "model"]);
    let source = select(vec![
        "emptyDir",
        "hostPath",
        "secret",
        "persistentVolumeClaim",
        "newer",
    ]);
    (name, source, json()).prop_map(|(name, source, value)| {
        let mut volume = json!({"name": name});
        volume[source] = value;
        volume
    })
}

fn list(items: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    option::of(vec(items, 0..4)).prop_map(|list| json!(list))
}

fn any_pod() -> impl Strategy<Value = Value> {
    let context = prop_oneof![
        Just(Value::Null),
        Just(json!({})),
        Just(json!({"fsGroup": 5}))
    ];
    let metadata = (strings(), strings(), "[a-z]{0,6}", json());
    let claim = "[a-z]{0,4}".prop_map(|name| json!({"name": name}));
    let spec = (
        list(container()),
        list(container()),
        list(volume()),
        list(claim),
        context,
        any::<bool>(),
        json(),
    );
    (metadata, spec).prop_map(|((labels, annotations, name, newer), spec)| {
        let (containers, init, volumes, claims, context, host, other) = spec;
        json!({
            "metadata": {"labels": labels, "annotations": annotations, "name": name, "newer": newer},
            "spec": {
                "containers": containers, "initContainers": init, "volumes": volumes, "resourceClaims": claims,
                "securityContext": context, "hostNetwork": host, "newer": other,
            },
        })
    })
}

/// One that any pod may break, or none.
fn any_room() -> impl Strategy<Value = Room> {
    let resource = select(vec![
        "cpu",
        "memory",
        "hugepages-2Mi",
        "limits.cpu",
        "requests.a.b/c",
        "pods",
    ]);
    let amounts = || {
        let amount = select(vec!["0", "100m", "1", "71Mi", "2Gi", "9Ei"]);
        option::of(btree_map(resource.clone(), amount, 0..4))
    };
    let limits = (
        amounts(),
        amounts(),
        amounts(),
        select(vec!["Container", "Pod"]),
    );
    let quota = (
        amounts(),
        amounts(),
        select(vec![json!([]), json!(["NotBestEffort"])]),
    );
    let rooms = (limits, quota).prop_map(|((min, max, ratio, of), (hard, used, scopes))| {
        let limits = json!([{"type": of, "min": min, "max": max, "maxLimitRequestRatio": ratio}]);
        let range = json!({"metadata": {"name": "l"}, "spec": {"limits": limits}});
        let quota = json!({"metadata": {"name": "q"}, "spec": {"scopes": scopes}, "status": {"hard": hard, "used": used}});
        Room {
            limit_ranges: vec![Arc::new(LimitRange::of(&serde_json::from_value(range).unwrap()))],
            quotas: vec![Arc::new(Quota::of(&serde_json::from_value(quota).unwrap()))],
        }
    });
    prop_oneof![Just(Room::default()), rooms]
}

fn any_scene() -> impl Strategy<Value = Scene> {
    let page = select(vec!["2Mi", "1Gi", "4Ki", "Transparent"]);
    let level = option::of(select(vec!["privileged", "baseline", "restricted", "odd"]));
    let mode = select(vec!["Auto", "None", "HostPath"]);
    let cores = option::of(0..500_usize);
    (page, level, mode, cores, option::of(0..20_u32), any_room()).prop_map(
        |(page, level, mode, cores, gpus, room)| {
            let scene = Scene::with(json!({
                "segments": [{"name": "kv", "size": "2Gi", "pageSize": page}],
                "deviceAccess": {"mode": mode},
            }));
            let mut scene = match level {
                Some(level) => scene.level(level),
                None => scene,
            };
            scene.fewest_cores = cores;
            scene.most_gpus = gpus;
            scene.room = room;
            scene
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_patch_applies_keeps_everything_and_is_made_once(pod in any_pod(), scene in any_scene()) {
        let verdict = scene.judge(&pod);
        prop_assert!(!matches!(verdict, Verdict::Malformed(_)), "{verdict:?}");
        let patched = apply(&pod, verdict.operations());
        assert_kept(&pod, &patched, "");
        if matches!(verdict, Verdict::Patch { .. }) {
            sidecar(&patched);
            configuration(&patched);
            prop_assert!(annotation(&patched, "siding.dev/cap").parse::<u32>().unwrap() > 0);
        }
        let again = scene.judge(&patched);
        prop_assert!(again.operations().is_empty(), "{again:?}");
    }

    #[test]
    fn no_request_makes_it_panic(request in json(), pod in json(), scene in any_scene()) {
        let _ = admit_pod(&request, &scene.world());
        let _ = scene.judge(&pod);
        let _ = review(&serde_json::to_vec(&request).unwrap(), |_| scene.world());
    }
}

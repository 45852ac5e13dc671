//! Limits as they are written, and what the sidecar makes of them. The engine has 2 CPUs and 1Gi of memory as request
//! and limit unless a test says otherwise, the sidecar 100m, 71Mi and 1Gi of 2Mi pages, without a limit of CPUs.

#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::json;

use super::*;

fn engine(resources: Value) -> Value {
    json!({"metadata": {}, "spec": {"containers": [{"name": "engine", "resources": resources}]}})
}

fn plain() -> Value {
    engine(
        json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}),
    )
}

fn sidecar() -> Value {
    json!({
        "name": "siding", "restartPolicy": "Always",
        "resources": {
            "requests": {"cpu": "100m", "memory": "71Mi", "hugepages-2Mi": "1Gi"},
            "limits": {"memory": "71Mi", "hugepages-2Mi": "1Gi"},
        },
    })
}

fn ranges(items: &[Value]) -> Room {
    let range = |(index, item): (usize, &Value)| {
        let name = format!("l{index}");
        let range = json!({"metadata": {"name": name}, "spec": {"limits": item}});
        Arc::new(LimitRange::of(&serde_json::from_value(range).unwrap()))
    };
    Room {
        limit_ranges: items.iter().enumerate().map(range).collect(),
        ..Room::default()
    }
}

fn quota_object(spec: Value, status: Value) -> Quota {
    let quota = json!({"metadata": {"name": "q"}, "spec": spec, "status": status});
    Quota::of(&serde_json::from_value(quota).unwrap())
}

/// A quota as it is a moment after it was made.
fn quota(hard: Value, used: Value) -> Room {
    scoped(hard, used, json!({}))
}

fn scoped(hard: Value, used: Value, mut spec: Value) -> Room {
    spec["hard"] = hard.clone();
    let quota = quota_object(spec, json!({"hard": hard, "used": used}));
    Room {
        quotas: vec![Arc::new(quota)],
        ..Room::default()
    }
}

/// Of two rooms one.
fn both(one: Room, other: Room) -> Room {
    Room {
        limit_ranges: [one.limit_ranges, other.limit_ranges].concat(),
        quotas: [one.quotas, other.quotas].concat(),
    }
}

fn checked_with(pod: &Value, sidecar: &Value, room: &Room) -> Option<(Skip, String)> {
    let pod = Pod::read(pod).unwrap();
    let skipped = check(&pod, sidecar, "kv", room).err()?;
    Some((skipped.reason, skipped.message))
}

/// What is said where there is no room.
fn checked(pod: &Value, room: &Room) -> Option<String> {
    checked_with(pod, &sidecar(), room).map(|(_, message)| message)
}

#[test]
fn a_quota_that_the_pod_fits_in_alone() {
    let cases = [
        ("memory", "2Gi", "1Gi"),
        ("requests.memory", "2Gi", "1Gi"),
        ("limits.memory", "2Gi", "1Gi"),
        ("cpu", "3", "1"),
        ("requests.cpu", "3", "1"),
        ("hugepages-2Mi", "1Gi", "2Mi"),
        ("requests.hugepages-2Mi", "1Gi", "2Mi"),
    ];
    for (name, hard, used) in cases {
        let said = checked_with(
            &plain(),
            &sidecar(),
            &quota(json!({name: hard}), json!({name: used})),
        );
        assert!(
            matches!(said, Some((Skip::ResourceQuota, _))),
            "{name}: {said:?}"
        );
    }
    let message = |name: &str, hard: &str, used: &str| {
        checked(&plain(), &quota(json!({name: hard}), json!({name: used}))).unwrap()
    };
    assert_eq!(
        message("requests.memory", "2Gi", "1000Mi"),
        "ResourceQuota 'q' has 1048Mi of 2Gi of requests.memory left, and the pod with its sidecar takes 1095Mi; \
         raise its spec.hard of requests.memory to 2095Mi, or make the segments of StorePool 'kv' smaller"
    );
    assert_eq!(
        message("cpu", "3", "950m"),
        "ResourceQuota 'q' has 2050m of 3 of cpu left, and the pod with its sidecar takes 2100m; \
         raise its spec.hard of cpu to 3050m, or lower spec.sidecar.cpu of StorePool 'kv'"
    );
    assert_eq!(
        message("hugepages-2Mi", "1Gi", "1Gi"),
        "ResourceQuota 'q' has 0 of 1Gi of hugepages-2Mi left, and the pod with its sidecar takes 1Gi; \
         raise its spec.hard of hugepages-2Mi to 2Gi, or make the segments of StorePool 'kv' smaller"
    );
}

#[test]
fn a_quota_that_has_room_to_the_byte_or_does_not_count_it() {
    let cases = [
        ("memory", "2119Mi", "1Gi"),
        ("limits.memory", "1095Mi", "0"),
        ("cpu", "2100m", "0"),
        ("requests.hugepages-2Mi", "1Gi", "0"),
        ("hugepages-1Gi", "0", "0"),
        ("ephemeral-storage", "0", "0"),
        ("requests.nvidia.com/gpu", "0", "0"),
        ("limits.hugepages-2Mi", "0", "0"),
        ("nvidia.com/gpu", "0", "0"),
        ("services", "0", "0"),
        ("count/configmaps", "0", "0"),
    ];
    for (name, hard, used) in cases {
        let room = quota(json!({name: hard}), json!({name: used}));
        assert_eq!(checked(&plain(), &room), None, "{name}");
    }
    let short = quota(json!({"memory": "2119Mi"}), json!({"memory": "1073741825"}));
    assert!(
        checked(&plain(), &short)
            .unwrap()
            .contains("raise its spec.hard of memory to 2221932545,")
    );
}

#[test]
fn a_quota_that_the_pod_exceeds_by_itself_is_not_our_doing() {
    let full = quota(
        json!({"memory": "2Gi", "pods": 1}),
        json!({"memory": "1025Mi", "pods": 1}),
    );
    assert_eq!(checked(&plain(), &full), None);
    // Of what it does not ask for, nothing may be left without it being refused.
    let over = quota(
        json!({"hugepages-2Mi": "1Gi"}),
        json!({"hugepages-2Mi": "5Gi"}),
    );
    assert!(
        checked(&plain(), &over)
            .unwrap()
            .contains("has 0 of 1Gi of hugepages-2Mi left")
    );
    // One that is broken already hides no other.
    let memory = quota(
        json!({"requests.memory": "1100Mi"}),
        json!({"requests.memory": "70Mi"}),
    );
    let room = both(full, memory);
    assert!(
        checked(&plain(), &room)
            .unwrap()
            .contains("has 1030Mi of 1100Mi of requests.memory left")
    );
}

#[test]
fn each_container_must_state_what_a_quota_has_of_cpu_and_memory() {
    let none = json!({"limits.cpu": "0"});
    let room = quota(json!({"limits.cpu": "100"}), none.clone());
    assert_eq!(
        checked(&plain(), &room).unwrap(),
        "ResourceQuota 'q' has limits.cpu, so that each container must have a limit of cpu, and the sidecar has none; \
         let a LimitRange give it one (default.cpu of type Container), or take limits.cpu out of the quota"
    );
    // A LimitRange gives it one, which then counts.
    let default = ranges(&[json!([{"type": "Container", "default": {"cpu": "500m"}}])]);
    assert_eq!(
        checked(&plain(), &both(room.clone(), default.clone())),
        None
    );
    let exact = quota(json!({"limits.cpu": "2500m"}), none.clone());
    assert_eq!(checked(&plain(), &both(exact, default.clone())), None);
    let narrow = both(quota(json!({"limits.cpu": "2400m"}), none), default);
    assert_eq!(
        checked(&plain(), &narrow).unwrap(),
        "ResourceQuota 'q' has 2400m of 2400m of limits.cpu left, and the pod with its sidecar takes 2500m; \
         raise its spec.hard of limits.cpu to 2500m, or lower default.cpu of LimitRange 'l0'"
    );
    // Where the pod itself states none, it is refused anyway.
    let silent = engine(json!({"limits": {"memory": "1Gi"}}));
    assert_eq!(checked(&silent, &room), None);
    // Of other resources nothing is demanded.
    let storage = json!({"limits.ephemeral-storage": "1Gi", "requests.ephemeral-storage": "1Gi"});
    assert_eq!(checked(&plain(), &quota(storage, json!({}))), None);
}

#[test]
fn a_quota_without_a_status_refuses_what_exceeds_all_of_it_and_what_states_nothing() {
    let unknown = |hard: Value| Room {
        quotas: vec![Arc::new(quota_object(json!({"hard": hard}), json!({})))],
        ..Room::default()
    };
    assert_eq!(
        checked(&plain(), &unknown(json!({"memory": "1095Mi"}))),
        None
    );
    assert_eq!(
        checked(&plain(), &unknown(json!({"memory": "1094Mi"}))).unwrap(),
        "ResourceQuota 'q' has 1094Mi of memory in all, and the pod with its sidecar takes 1095Mi; \
         raise its spec.hard of memory to 1095Mi, or make the segments of StorePool 'kv' smaller"
    );
    let demand = checked(&plain(), &unknown(json!({"limits.cpu": "100"})));
    assert!(demand.unwrap().contains("the sidecar has none"));
    // The status is what counts, where it is another than the spec.
    let raised = quota_object(
        json!({"hard": {"memory": "100Gi"}}),
        json!({"hard": {"memory": "1Gi"}, "used": {"memory": "0"}}),
    );
    let raised = Room {
        quotas: vec![Arc::new(raised)],
        ..Room::default()
    };
    assert!(
        checked(&plain(), &raised)
            .unwrap()
            .contains("has 1Gi of 1Gi of memory left")
    );
}

#[test]
fn scopes() {
    let full = |spec: Value| scoped(json!({"memory": "1Gi"}), json!({"memory": "0"}), spec);
    let class = |operator: &str, values: Value| {
        json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": operator, "values": values},
        ]}})
    };
    let scopes = |scopes: &[&str]| json!({"scopes": scopes});
    let with = |field: &str, value: Value| {
        let mut pod = plain();
        pod["spec"][field] = value;
        pod
    };
    let ends = with("activeDeadlineSeconds", json!(60));
    let high = with("priorityClassName", json!("high"));
    let term = json!({"topologyKey": "zone", "namespaces": ["other"]});
    let crossing =
        |kind: &str, when: &str, terms: Value| with("affinity", json!({kind: {when: terms}}));
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let weighted = json!([{"weight": 1, "podAffinityTerm": {"namespaceSelector": {}}}]);
    let cross = || scopes(&["CrossNamespacePodAffinity"]);
    let cases = [
        (plain(), scopes(&["Terminating"]), false),
        (ends.clone(), scopes(&["Terminating"]), true),
        (plain(), scopes(&["NotTerminating"]), true),
        (ends.clone(), scopes(&["NotTerminating"]), false),
        (plain(), scopes(&["NotBestEffort"]), true),
        (plain(), scopes(&["BestEffort"]), false),
        (ends, scopes(&["NotBestEffort", "Terminating"]), true),
        (plain(), scopes(&["NotBestEffort", "Terminating"]), false),
        (plain(), scopes(&["PriorityClass"]), false),
        (high.clone(), scopes(&["PriorityClass"]), true),
        (high.clone(), class("Exists", json!([])), true),
        (high.clone(), class("In", json!(["low", "high"])), true),
        (high.clone(), class("In", json!(["low"])), false),
        (plain(), class("In", json!(["low"])), false),
        (high.clone(), class("NotIn", json!(["high"])), false),
        (plain(), class("NotIn", json!(["high"])), true),
        (plain(), class("DoesNotExist", json!([])), true),
        (high, class("DoesNotExist", json!([])), false),
        (plain(), cross(), false),
        (
            crossing("podAffinity", required, json!([term])),
            cross(),
            true,
        ),
        (
            crossing("podAntiAffinity", preferred, weighted),
            cross(),
            true,
        ),
        (
            crossing(
                "podAffinity",
                required,
                json!([{"topologyKey": "zone", "namespaces": []}]),
            ),
            cross(),
            false,
        ),
        (plain(), scopes(&["VolumeAttributesClass"]), false),
    ];
    for (pod, spec, is_in) in cases {
        let said = checked(&pod, &full(spec.clone()));
        assert_eq!(said.is_some(), is_in, "{spec}: {said:?}");
    }
    let operators = json!({"scopeSelector": {"matchExpressions": [
        {"scopeName": "NotBestEffort", "operator": "Exists"},
    ]}});
    assert!(
        checked(&plain(), &full(operators))
            .unwrap()
            .starts_with("ResourceQuota 'q' (scope NotBestEffort) has ")
    );
}

/// A pod of the class BestEffort is no longer so with a sidecar.
#[test]
fn a_quota_that_counts_the_pod_only_with_its_sidecar() {
    let modest = engine(json!({}));
    let others =
        |hard: Value, used: Value| scoped(hard, used, json!({"scopes": ["NotBestEffort"]}));
    assert_eq!(
        checked(&modest, &others(json!({"pods": 4}), json!({"pods": 4}))).unwrap(),
        "ResourceQuota 'q' (scope NotBestEffort) has 0 of 4 of pods left, and the pod with its sidecar takes 1; \
         raise its spec.hard of pods to 5"
    );
    let memory = checked(
        &modest,
        &others(json!({"memory": "9Gi"}), json!({"memory": "0"})),
    )
    .unwrap();
    assert!(
        memory.contains(
            "each container must have a request of memory, and container 'engine' has none"
        ),
        "{memory}"
    );
    let count = others(json!({"count/pods": 4}), json!({"count/pods": 3}));
    assert_eq!(checked(&modest, &count), None);
    let best = scoped(
        json!({"pods": 0}),
        json!({"pods": 0}),
        json!({"scopes": ["BestEffort"]}),
    );
    assert_eq!(checked(&modest, &best), None);
}

#[test]
fn what_a_pod_asks_for_is_what_runs_or_starts_at_one_time() {
    let init = |name: &str, cpu: &str, policy: Value| json!({"name": name, "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
    let cases = [
        // 2 and 100m run at last.
        (json!([]), json!({}), "2100m"),
        // 5 start beside the sidecar.
        (json!([init("load", "5", json!(null))]), json!({}), "5100m"),
        (json!([init("load", "1", json!(null))]), json!({}), "2100m"),
        // One that goes on counts with the engine, and with who starts after it.
        (
            json!([init("proxy", "1", json!("Always"))]),
            json!({}),
            "3100m",
        ),
        (
            json!([
                init("load", "4", json!(null)),
                init("proxy", "1", json!("Always"))
            ]),
            json!({}),
            "4100m",
        ),
        (
            json!([
                init("proxy", "1", json!("Always")),
                init("load", "4", json!(null))
            ]),
            json!({}),
            "5100m",
        ),
        (json!([]), json!({"cpu": "250m"}), "2350m"),
    ];
    for (init, overhead, takes) in cases {
        let mut pod = plain();
        pod["spec"]["initContainers"] = init.clone();
        pod["spec"]["overhead"] = overhead;
        let exact = quota(json!({"requests.cpu": takes}), json!({"requests.cpu": "0"}));
        assert_eq!(checked(&pod, &exact), None, "{init} {takes}");
        let less = quota(
            json!({"requests.cpu": takes}),
            json!({"requests.cpu": "1m"}),
        );
        let said = checked(&pod, &less).unwrap();
        assert!(said.contains(&format!("takes {takes};")), "{init}: {said}");
    }
}

#[test]
fn what_a_pod_takes_itself_is_added_to_limits_that_are_there() {
    let storage = |amount: &str| json!({"ephemeral-storage": amount});
    let mut pod = plain();
    pod["spec"]["overhead"] = storage("1Mi");
    let none = json!({"limits.ephemeral-storage": "0"});
    assert_eq!(checked(&pod, &quota(none.clone(), none)), None);
    let default = ranges(&[json!([{"type": "Container", "default": storage("1Gi")}])]);
    let name = "limits.ephemeral-storage";
    let short = both(default, quota(json!({name: "2Gi"}), json!({name: "0"})));
    assert_eq!(
        checked(&pod, &short).unwrap(),
        "ResourceQuota 'q' has 2Gi of 2Gi of limits.ephemeral-storage left, and the pod with its sidecar takes 2049Mi; \
         raise its spec.hard of limits.ephemeral-storage to 2049Mi, or lower default.ephemeral-storage of LimitRange 'l0'"
    );
}

#[test]
fn limits_of_a_container() {
    let of = |item: Value| {
        let mut item = item;
        item["type"] = json!("Container");
        ranges(&[json!([item])])
    };
    let cases = [
        (
            json!({"max": {"memory": "70Mi"}, "default": {"memory": "1Mi"}}),
            // The engine breaks it as well.
            None,
        ),
        (
            json!({"max": {"hugepages-2Mi": "1Gi"}, "default": {"hugepages-2Mi": "0"}}),
            None,
        ),
        (
            json!({"max": {"hugepages-2Mi": "512Mi"}, "default": {"hugepages-2Mi": "0"}}),
            Some(
                "LimitRange 'l0' allows a container 512Mi of hugepages-2Mi at most, and the sidecar has a limit of 1Gi; \
                 raise its max.hugepages-2Mi of type Container to 1Gi, or make the segments of StorePool 'kv' smaller",
            ),
        ),
        (
            json!({"min": {"memory": "128Mi"}}),
            Some(
                "LimitRange 'l0' wants a container to have 128Mi of memory at least, and the sidecar has a request of 71Mi; \
                 lower its min.memory of type Container to 71Mi",
            ),
        ),
        (
            json!({"min": {"cpu": "200m"}}),
            Some(
                "LimitRange 'l0' wants a container to have 200m of cpu at least, and the sidecar has a request of 100m; \
                 lower its min.cpu of type Container to 100m, or raise spec.sidecar.cpu of StorePool 'kv'",
            ),
        ),
        (json!({"min": {"cpu": "100m", "memory": "71Mi"}}), None),
        // The largest limit is the default one.
        (json!({"max": {"cpu": "4"}}), None),
        (
            json!({"max": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "4"}}),
            Some(
                "LimitRange 'l0' allows a container a limit of cpu of 4 times its request at most, and the sidecar has a \
                 limit of 4; raise its maxLimitRequestRatio.cpu of type Container to 40, or lower default.cpu of LimitRange 'l0'",
            ),
        ),
        (
            json!({"default": {"cpu": "400m"}, "maxLimitRequestRatio": {"cpu": "4"}}),
            None,
        ),
        (
            json!({"default": {"cpu": "410m"}, "maxLimitRequestRatio": {"cpu": "4"}}),
            Some(
                "LimitRange 'l0' allows a container a limit of cpu of 4 times its request at most, and the sidecar has a \
                 limit of 410m; raise its maxLimitRequestRatio.cpu of type Container to 5, or lower default.cpu of LimitRange 'l0'",
            ),
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "1500m"}}),
            Some(
                "LimitRange 'l0' allows a container a limit of cpu of 1500m times its request at most, and the sidecar has \
                 no limit of it; give its type Container a default.cpu of 150m at most",
            ),
        ),
        (json!({"maxLimitRequestRatio": {"memory": "1"}}), None),
        (
            json!({"default": {"cpu": "50m"}}),
            Some(
                "LimitRange 'l0' gives the sidecar a limit of 50m of cpu, less than its request of 100m; \
                 raise its default.cpu of type Container to 100m, or lower spec.sidecar.cpu of StorePool 'kv'",
            ),
        ),
        (
            json!({"default": {"cpu": "100m", "memory": "1Mi"}, "defaultRequest": {"cpu": "1m"}}),
            None,
        ),
        (
            json!({"default": {"nvidia.com/gpu": "1"}}),
            Some(
                "LimitRange 'l0' gives the sidecar 1 of nvidia.com/gpu, which it has no use for; \
                 take nvidia.com/gpu out of its type Container",
            ),
        ),
        (
            json!({"min": {"hugepages-1Gi": "1Gi"}}),
            Some(
                "LimitRange 'l0' gives the sidecar 1Gi of hugepages-1Gi, which it has no use for; \
                 take hugepages-1Gi out of its type Container",
            ),
        ),
    ];
    for (item, wanted) in cases {
        let said = checked(&plain(), &of(item.clone()));
        assert_eq!(said.as_deref(), wanted, "{item}");
    }
}

/// The engine of a pod without a limit has what a LimitRange gives it by the time we see it.
#[test]
fn the_memory_of_a_sidecar_above_what_a_container_may_have() {
    let small = engine(json!({"requests": {"memory": "16Mi"}, "limits": {"memory": "16Mi"}}));
    let range = ranges(&[json!([{"type": "Container", "max": {"memory": "64Mi"}}])]);
    let (reason, message) = checked_with(&small, &sidecar(), &range).unwrap();
    assert_eq!(reason, Skip::LimitRange);
    assert_eq!(
        message,
        "LimitRange 'l0' allows a container 64Mi of memory at most, and the sidecar has a limit of 71Mi; \
         raise its max.memory of type Container to 71Mi, or make the segments of StorePool 'kv' smaller"
    );
    assert!(checked(&engine(json!({})), &range).is_some());
}

#[test]
fn limits_of_a_pod() {
    let of = |item: Value| {
        let mut item = item;
        item["type"] = json!("Pod");
        ranges(&[json!([item])])
    };
    let cases = [
        (json!({"max": {"memory": "1095Mi", "cpu": "2100m"}}), None),
        (
            json!({"max": {"memory": "1Gi"}}),
            Some(
                "LimitRange 'l0' allows a pod 1Gi of memory at most, and the pod with its sidecar has a limit of 1095Mi; \
                 raise its max.memory of type Pod to 1095Mi, or make the segments of StorePool 'kv' smaller",
            ),
        ),
        // Its limit is the engine's, and its request both's.
        (
            json!({"max": {"cpu": "2"}}),
            Some(
                "LimitRange 'l0' allows a pod 2 of cpu at most, and the pod with its sidecar has a request of 2100m; \
                 raise its max.cpu of type Pod to 2100m, or lower spec.sidecar.cpu of StorePool 'kv'",
            ),
        ),
        (json!({"max": {"memory": "1Mi"}}), None),
        // The engine has no limit of it: it is refused anyway.
        (json!({"max": {"hugepages-2Mi": "1Mi"}}), None),
        (json!({"min": {"memory": "1Gi", "cpu": "2"}}), None),
        (
            json!({"maxLimitRequestRatio": {"cpu": "1", "memory": "1"}}),
            None,
        ),
    ];
    for (item, wanted) in cases {
        let said = checked(&plain(), &of(item.clone()));
        assert_eq!(said.as_deref(), wanted, "{item}");
    }
    // Without the sidecar there is no limit that could be too low.
    let limitless = engine(json!({"requests": {"memory": "1Gi"}}));
    assert_eq!(
        checked(&limitless, &of(json!({"min": {"memory": "512Mi"}}))).unwrap(),
        "LimitRange 'l0' wants a pod to have 512Mi of memory at least, and the pod with its sidecar has a limit of 71Mi; \
         lower its min.memory of type Pod to 71Mi, or give the pod's own containers limits of memory"
    );
    let claims = ranges(&[json!([{"type": "PersistentVolumeClaim", "max": {"memory": "0"}}])]);
    assert_eq!(checked(&plain(), &claims), None);
}

/// Kubernetes leaves it to chance which of two gives a default.
#[test]
fn of_several_limit_ranges_each_may_be_the_first() {
    let wide = json!([{"type": "Container", "default": {"cpu": "1"}}]);
    let narrow = json!([{"type": "Container", "default": {"cpu": "10m"}}]);
    for items in [[wide.clone(), narrow.clone()], [narrow, wide]] {
        let said = checked(&plain(), &ranges(&items)).unwrap();
        assert!(
            said.contains("gives the sidecar a limit of 10m of cpu"),
            "{said}"
        );
    }
}

#[test]
fn devices_of_the_sidecar_count() {
    let mut sidecar = sidecar();
    for kind in ["requests", "limits"] {
        sidecar["resources"][kind]["vpc.amazonaws.com/efa"] = json!("1");
    }
    let name = "requests.vpc.amazonaws.com/efa";
    let room = quota(json!({name: "4"}), json!({name: "4"}));
    let (_, message) = checked_with(&plain(), &sidecar, &room).unwrap();
    assert_eq!(
        message,
        "ResourceQuota 'q' has 0 of 4 of requests.vpc.amazonaws.com/efa left, and the pod with its sidecar takes 1; \
         raise its spec.hard of requests.vpc.amazonaws.com/efa to 5, or lower spec.deviceAccess.count of StorePool 'kv'"
    );
}

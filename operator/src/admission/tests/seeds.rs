//! What a pod is created with.

use siding_crds::plan::{NodePlan, PlanSource};

use super::*;

fn gpus(count: u32) -> Value {
    pod(json!({"spec": {"containers": [
        {"name": "engine", "image": "x", "resources": {"limits": {"nvidia.com/gpu": count.to_string()}}},
        {"name": "proxy", "image": "x"},
    ]}}))
}

/// Annotation, plan and what is fixed agree.
fn seed(scene: &Scene, pod: &Value) -> (u32, Injection) {
    let patched = scene.injected(pod);
    let plan = NodePlan::parse(annotation(&patched, "siding.dev/plan")).unwrap();
    assert_eq!(
        (plan.source, &plan.node, &plan.rails),
        (PlanSource::Seed, &None, &None)
    );
    assert_eq!(annotation(&patched, "siding.dev/cap"), plan.cap.to_string());
    let injection = Injection::parse(annotation(&patched, "siding.dev/injection")).unwrap();
    let config = configuration(&patched).registration.cap;
    let fixed = injection
        .cap
        .map_or_else(|| "auto".to_owned(), |cap| cap.to_string());
    assert_eq!(config.to_string(), fixed);
    (plan.cap.get(), injection)
}

#[test]
fn a_cap_is_never_unknown() {
    let cases = [
        // Cores of the smallest node and GPUs of the largest, the pod's GPUs, the cap.
        (None, None, 0, 1),
        (None, Some(8), 8, 1),
        (Some(192), Some(8), 1, 23),
        (Some(192), Some(8), 8, 23),
        (Some(192), Some(0), 1, 182),
        (Some(192), None, 4, 46),
        (Some(4), Some(8), 1, 1),
        (Some(1), None, 0, 1),
    ];
    for (cores, most, own, cap) in cases {
        let mut scene = Scene::with(json!({}));
        scene.fewest_cores = cores;
        scene.most_gpus = most;
        assert_eq!(seed(&scene, &gpus(own)).0, cap, "{cores:?} {most:?} {own}");
    }
}

#[test]
fn ranks_by_gpus_or_as_the_pool_says() {
    let ranks = |spec: Value, count: u32| {
        let (cap, injection) = seed(&Scene::with(spec).nodes(192, 8), &gpus(count));
        (injection.ranks.get(), injection.gpus_per_rank.get(), cap)
    };
    assert_eq!(ranks(json!({}), 4), (4, 1, 23));
    assert_eq!(ranks(json!({}), 0), (1, 1, 23));
    assert_eq!(ranks(json!({"gpusPerRank": 2}), 4), (2, 2, 46));
    assert_eq!(ranks(json!({"gpusPerRank": 8}), 4), (1, 8, 182));
    assert_eq!(ranks(json!({"ranks": 16}), 4), (16, 1, 11));
}

#[test]
fn a_fixed_cap_goes_before_the_planners_and_the_users_before_both() {
    let fixed = || Scene::with(json!({"registration": {"cap": 12}})).nodes(192, 8);
    let (cap, injection) = seed(&fixed(), &gpus(1));
    assert_eq!((cap, injection.cap.map(|cap| cap.get())), (12, Some(12)));
    let written = |cap: &str| {
        let mut pod = gpus(1);
        pod["metadata"]["annotations"] = json!({"siding.dev/cap": cap});
        pod
    };
    assert_eq!(seed(&fixed(), &written("40")).0, 40);
    let free = Scene::with(json!({})).nodes(192, 8);
    assert_eq!(
        seed(&free, &written("40")).1.cap.map(|cap| cap.get()),
        Some(40)
    );
    for wrong in ["0", "", "-1", "many", "1.5"] {
        assert_eq!(seed(&fixed(), &written(wrong)).0, 12, "{wrong}");
        let warnings = fixed().warnings(&written(wrong));
        let what = format!(
            "siding: annotation siding.dev/cap is '{wrong}', not a whole number from 1: 12 is used"
        );
        assert_eq!(warnings, [what]);
    }
    // A manifest copied from a pod that had a sidecar: nobody wrote that.
    let mut copied = written("40");
    copied["metadata"]["annotations"]["siding.dev/injection"] = json!("{}");
    assert_eq!(seed(&free, &copied).0, 23);
}

#[test]
fn what_was_injected_is_told() {
    let (_, injection) = seed(&Scene::with(json!({})), &gpus(2));
    assert_eq!(
        (injection.pool.as_str(), injection.pool_generation),
        ("kv", 3)
    );
    assert_eq!(injection.image, "registry.example/siding:1");
    assert_eq!(injection.cap, None);
}

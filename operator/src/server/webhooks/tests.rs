#![allow(clippy::unwrap_used, clippy::panic)]

use kube::runtime::watcher::Event;
use siding_crds::api::StorePool;

use super::*;
use crate::admission::{LimitRange, Quota};
use crate::caches::facts;
use crate::live::fake::Fake;

fn pool(name: &str, app: &str) -> StorePool {
    let pool = json!({
        "apiVersion": "siding.dev/v1alpha1", "kind": "StorePool",
        "metadata": {"name": name, "namespace": "models", "uid": name, "resourceVersion": "1", "generation": 1},
        "spec": {"podSelector": {"matchLabels": {"app": app}}, "segments": [{"name": "kv", "size": "1Gi"}]},
    });
    serde_json::from_value(pool).unwrap()
}

fn know_pool(caches: &Caches, pool: StorePool) {
    caches.pools.take(Event::Apply(pool), |pool| {
        Some((facts::key(pool), pool.clone()))
    });
}

fn know_namespace(caches: &Caches) {
    let of = |_: &()| Some((Key::new("", "models"), std::collections::BTreeMap::new()));
    caches.namespaces.take(Event::Apply(()), of);
}

fn webhooks(fake: &Arc<Fake>) -> Webhooks {
    Webhooks {
        caches: Arc::new(Caches::default()),
        live: Arc::new(Live::new(fake.clone())),
        catalogue: Arc::new(Catalogue::published()),
        defaults: Arc::new(Defaults::new("registry.example/siding:1")),
        metrics: Metrics::new().unwrap(),
    }
}

fn review_of(app: &str) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE", "namespace": "models",
            "object": {
                "metadata": {"generateName": "engine-", "labels": {"app": app}},
                "spec": {"containers": [{"name": "engine", "image": "vllm"}]},
            },
        },
    });
    review.to_string().into_bytes()
}

/// The capabilities that the sidecar gets, as the answer's patch has them.
fn capabilities(verdict: &Verdict) -> Value {
    let Verdict::Patch { operations, .. } = verdict else {
        panic!("{verdict:?}");
    };
    let container = operations
        .iter()
        .find(|operation| operation.path == "/spec/initContainers")
        .unwrap();
    container.value[0]["securityContext"]["capabilities"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_no_cache_has_yet_is_looked_at_and_taken_for_restricted_where_that_fails()
{
    let label = "pod-security.kubernetes.io/enforce".to_owned();
    let baseline = Some([(label, "baseline".to_owned())].into());
    let slow = Duration::from_secs(3600);
    let without_ipc_lock = json!({"drop": ["ALL"]});
    for (takes, labels, wanted) in [
        (Duration::ZERO, baseline.clone(), without_ipc_lock.clone()),
        (
            Duration::ZERO,
            Some([].into()),
            json!({"drop": ["ALL"], "add": ["IPC_LOCK"]}),
        ),
        (Duration::ZERO, None, without_ipc_lock.clone()),
        (slow, Some([].into()), without_ipc_lock),
    ] {
        let webhooks = webhooks(&Fake::of_labels(takes, labels.clone()));
        know_pool(&webhooks.caches, pool("kv", "engine"));
        let begin = tokio::time::Instant::now();
        let reviewed = webhooks.review(&review_of("engine")).await.unwrap();
        assert_eq!(capabilities(&reviewed.verdict), wanted, "{labels:?}");
        assert!(begin.elapsed() <= Duration::from_secs(1));
    }
}

#[tokio::test]
async fn a_namespace_that_a_cache_has_is_not_looked_at() {
    let fake = Fake::of_labels(Duration::ZERO, None);
    let webhooks = webhooks(&fake);
    know_pool(&webhooks.caches, pool("kv", "engine"));
    know_namespace(&webhooks.caches);
    let reviewed = webhooks.review(&review_of("engine")).await.unwrap();
    assert_eq!(
        capabilities(&reviewed.verdict),
        json!({"drop": ["ALL"], "add": ["IPC_LOCK"]})
    );
    assert_eq!(fake.asked(), 0);
}

#[tokio::test]
async fn a_pool_that_is_newer_than_the_cache_is_found_before_its_pod_is_skipped() {
    for known in [vec![], vec![pool("other", "other")]] {
        let fake = Arc::new(Fake {
            pools: vec![
                Arc::new(pool("other", "other")),
                Arc::new(pool("kv", "engine")),
            ],
            ..Fake::default()
        });
        let webhooks = webhooks(&fake);
        know_namespace(&webhooks.caches);
        for pool in known {
            know_pool(&webhooks.caches, pool);
        }
        for _replica in 0..3 {
            let reviewed = webhooks.review(&review_of("engine")).await.unwrap();
            let Verdict::Patch { injection, .. } = &reviewed.verdict else {
                panic!("{:?}", reviewed.verdict);
            };
            assert_eq!(injection.pool, "kv");
        }
        assert_eq!(fake.asked(), 1);
    }
}

#[tokio::test]
async fn a_pod_that_no_pool_selects_is_skipped_after_a_look_and_one_that_has_a_pool_without() {
    let fake = Arc::new(Fake {
        pools: vec![Arc::new(pool("kv", "engine"))],
        ..Fake::default()
    });
    let webhooks = webhooks(&fake);
    know_namespace(&webhooks.caches);
    know_pool(&webhooks.caches, pool("kv", "engine"));
    let reviewed = webhooks.review(&review_of("engine")).await.unwrap();
    assert_eq!((reviewed.verdict.skip(), fake.asked()), (None, 0));
    for _ in 0..3 {
        let reviewed = webhooks.review(&review_of("web")).await.unwrap();
        assert_eq!(reviewed.verdict.skip(), Some(Skip::NoPool));
    }
    assert_eq!(fake.asked(), 1, "nothing new was found a moment before");
}

fn know_quota(caches: &Caches, namespace: &str, used: &str) {
    let hard = json!({"hugepages-2Mi": "2Gi"});
    let quota = json!({
        "metadata": {"name": "pages", "namespace": namespace}, "spec": {"hard": hard},
        "status": {"hard": hard, "used": {"hugepages-2Mi": used}},
    });
    let quota = serde_json::from_value(quota).unwrap();
    let of = |quota: &_| Some((facts::key(quota), Quota::of(quota)));
    caches.quotas.take(Event::Apply(quota), of);
}

fn know_limit_range(caches: &Caches, namespace: &str, most: &str) {
    let limits = json!([{"type": "Container", "max": {"memory": most}}]);
    let range =
        json!({"metadata": {"name": "small", "namespace": namespace}, "spec": {"limits": limits}});
    let range = serde_json::from_value(range).unwrap();
    let of = |range: &_| Some((facts::key(range), LimitRange::of(range)));
    caches.limit_ranges.take(Event::Apply(range), of);
}

#[tokio::test]
async fn a_pod_is_let_in_without_a_sidecar_that_its_namespace_has_no_room_for() {
    let webhooks = webhooks(&Fake::of_labels(Duration::ZERO, None));
    let caches = &webhooks.caches;
    know_namespace(caches);
    know_pool(caches, pool("kv", "engine"));
    know_quota(caches, "model", "2Gi");
    know_limit_range(caches, "models-2", "1Mi");
    let skip = async || {
        let reviewed = webhooks.review(&review_of("engine")).await.unwrap();
        reviewed.verdict.skip()
    };
    assert_eq!(skip().await, None, "those of other namespaces");
    know_quota(caches, "models", "1Gi");
    know_limit_range(caches, "models", "71Mi");
    assert_eq!(skip().await, None, "there is room");
    know_limit_range(caches, "models", "70Mi");
    assert_eq!(skip().await, Some(Skip::LimitRange));
    know_limit_range(caches, "models", "71Mi");
    know_quota(caches, "models", "1026Mi");

    let reviewed = webhooks.review(&review_of("engine")).await.unwrap();
    let answer: Value = serde_json::from_slice(&reviewed.body).unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    let message = "ResourceQuota 'pages' has 1022Mi of 2Gi of hugepages-2Mi left, and the pod with its sidecar takes 1Gi; \
                   raise its spec.hard of hugepages-2Mi to 2050Mi, or make the segments of StorePool 'kv' smaller";
    assert_eq!(
        answer["response"]["warnings"],
        json!([format!("siding: no sidecar: ResourceQuota: {message}")])
    );
    let patch: Vec<Value> = reviewed
        .verdict
        .operations()
        .iter()
        .map(|one| one.value.clone())
        .collect();
    assert_eq!(
        patch,
        [
            json!({"siding.dev/skipped": format!("ResourceQuota: {message}")}),
            json!("ResourceQuota"),
        ]
    );
}

//! Whole pods in, whole pods out: each patch is applied and what comes of it is looked at.

mod arbitrary;
mod devices;
mod engine;
mod pods;
mod resources;
mod reviews;
mod security;
mod seeds;
mod skips;

use serde_json::{Value, json};

use super::*;

/// A world of one namespace.
#[derive(Debug)]
pub(super) struct Scene {
    pools: Vec<Arc<StorePool>>,
    labels: Option<BTreeMap<String, String>>,
    room: Room,
    defaults: Defaults,
    fewest_cores: Option<usize>,
    most_gpus: Option<u32>,
}

impl Scene {
    /// A namespace with one pool `kv` of this spec, which selects all pods unless it says otherwise.
    pub(super) fn with(spec: Value) -> Self {
        Self::of(vec![pool("kv", spec)])
    }

    pub(super) fn of(pools: Vec<Arc<StorePool>>) -> Self {
        Self {
            pools,
            labels: Some(BTreeMap::new()),
            room: Room::default(),
            defaults: Defaults::new("registry.example/siding:1"),
            fewest_cores: None,
            most_gpus: None,
        }
    }

    pub(super) fn level(self, level: &str) -> Self {
        self.label("pod-security.kubernetes.io/enforce", level)
    }

    pub(super) fn label(mut self, label: &str, value: &str) -> Self {
        let labels = self.labels.get_or_insert_default();
        labels.insert(label.to_owned(), value.to_owned());
        self
    }

    /// A namespace whose labels can't be had.
    pub(super) fn of_unknown_labels(mut self) -> Self {
        self.labels = None;
        self
    }

    pub(super) fn nodes(mut self, fewest_cores: usize, most_gpus: u32) -> Self {
        self.fewest_cores = Some(fewest_cores);
        self.most_gpus = Some(most_gpus);
        self
    }

    pub(super) fn world(&self) -> World<'_> {
        World {
            pools: Cow::Borrowed(&self.pools),
            namespace_labels: self.labels.as_ref().map(Cow::Borrowed),
            room: self.room.clone(),
            defaults: &self.defaults,
            fewest_cores: self.fewest_cores.and_then(NonZeroUsize::new),
            most_gpus: self.most_gpus,
        }
    }

    pub(super) fn judge(&self, pod: &Value) -> Verdict {
        admit_pod(&request(pod), &self.world())
    }

    /// The pod with its sidecar.
    pub(super) fn injected(&self, pod: &Value) -> Value {
        match self.judge(pod) {
            Verdict::Patch { operations, .. } => apply(pod, &operations),
            other => panic!("no sidecar: {other:?}"),
        }
    }

    pub(super) fn warnings(&self, pod: &Value) -> Vec<String> {
        match self.judge(pod) {
            Verdict::Patch { warnings, .. } => warnings,
            other => panic!("no sidecar: {other:?}"),
        }
    }

    /// Why the pod gets none; the annotation tells the same.
    pub(super) fn skipped(&self, pod: &Value) -> (Skip, String) {
        let Verdict::Skip {
            reason,
            message,
            patch,
        } = self.judge(pod)
        else {
            panic!("not skipped");
        };
        let told = apply(pod, &patch);
        let label = told.pointer("/metadata/labels/siding.dev~1skip");
        let told = told.pointer("/metadata/annotations/siding.dev~1skipped");
        if reason == Skip::AlreadyInjected {
            assert!(patch.is_empty());
        } else {
            assert_eq!(told, Some(&json!(format!("{reason}: {message}"))));
            assert_eq!(label, Some(&json!(reason.as_str())));
        }
        (reason, message)
    }
}

/// Answers a review as the webhook does.
pub(super) fn review<'w>(
    body: &[u8],
    world_of: impl FnOnce(&Asked<'_>) -> World<'w>,
) -> Result<Reviewed, BadReview> {
    let review = Review::read(body)?;
    let verdict = match review.asked() {
        Ok(asked) => judge(&asked, &world_of(&asked)),
        Err(verdict) => verdict,
    };
    review.answer(verdict)
}

/// A pool of 1 GiB on 2 MiB pages, with these fields changed.
pub(super) fn pool(name: &str, changes: Value) -> Arc<StorePool> {
    let mut spec = json!({"podSelector": {}, "segments": [{"name": "kv", "size": "1Gi"}]});
    merge(&mut spec, changes);
    let object = json!({
        "apiVersion": "siding.dev/v1alpha1",
        "kind": "StorePool",
        "metadata": {"name": name, "namespace": "ml", "generation": 3},
        "spec": spec,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

/// A Deployment's pod with one engine, with these fields of metadata and spec changed.
pub(super) fn pod(changes: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "vllm-7d9f-", "labels": {"app": "vllm"}, "creationTimestamp": null},
        "spec": {
            "containers": [{"name": "engine", "image": "vllm:1", "resources": {}}],
            "volumes": [{"name": "kube-api-access-x", "projected": {"defaultMode": 420, "sources": []}}],
            "securityContext": {},
        },
        "status": {},
    });
    merge(&mut pod, changes);
    pod
}

/// Objects into objects; anything else replaces.
pub(super) fn merge(target: &mut Value, changes: Value) {
    match (target, changes) {
        (Value::Object(target), Value::Object(changes)) => {
            for (key, change) in changes {
                merge(target.entry(key).or_insert(Value::Null), change);
            }
        }
        (target, changes) => *target = changes,
    }
}

pub(super) fn request(pod: &Value) -> Value {
    json!({
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "ml",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
        "object": pod,
        "oldObject": null,
        "dryRun": false,
    })
}

/// Applies a patch, after a look whether it only adds.
pub(super) fn apply(pod: &Value, operations: &[PatchOperation]) -> Value {
    let patch = serde_json::to_value(operations).unwrap();
    for operation in patch.as_array().unwrap() {
        assert_eq!(operation["op"], "add");
    }
    let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    patched
}

/// The sidecar, which is the first of the init containers.
pub(super) fn sidecar(pod: &Value) -> &Value {
    let container = &pod["spec"]["initContainers"][0];
    assert_eq!(container["name"], "siding");
    container
}

pub(super) fn annotation<'a>(pod: &'a Value, key: &str) -> &'a str {
    pod["metadata"]["annotations"][key].as_str().unwrap()
}

/// What the sidecar reads of the configuration on a pod.
pub(super) fn configuration(pod: &Value) -> siding::config::Config {
    let text = annotation(pod, "siding.dev/config");
    siding::config::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub(super) fn volume<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    volumes.iter().find(|volume| volume["name"] == name)
}

pub(super) fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a Value> {
    let env = container["env"].as_array();
    env.into_iter()
        .flatten()
        .find(|variable| variable["name"] == name)
}

/// That all of `before` is in `after`: members the same, items in their order.
pub(super) fn assert_kept(before: &Value, after: &Value, path: &str) {
    if let Err(lost) = kept(before, after, path) {
        panic!("{lost} of {before} is gone in {after}");
    }
}

fn kept(before: &Value, after: &Value, path: &str) -> Result<(), String> {
    let is_ours = |key: &str| {
        (path == "/metadata/annotations" && key.starts_with("siding.dev/"))
            || (path == "/metadata/labels" && ["siding.dev/pool", "siding.dev/skip"].contains(&key))
    };
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before.iter().filter(|(key, _)| !is_ours(key)) {
                let path = format!("{path}/{key}");
                kept(value, after.get(key).ok_or_else(|| path.clone())?, &path)?;
            }
            Ok(())
        }
        (Value::Array(before), Value::Array(after)) => {
            let mut rest = after.iter();
            let is_there = |value| rest.any(|after| kept(value, after, path).is_ok());
            before
                .iter()
                .all(is_there)
                .then_some(())
                .ok_or_else(|| path.to_owned())
        }
        (Value::Null, _) => Ok(()),
        (before, after) => (before == after)
            .then_some(())
            .ok_or_else(|| path.to_owned()),
    }
}

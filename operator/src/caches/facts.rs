//! What is kept of each object.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Node};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use siding_crds::api::{MountPhase, NodeTopology, StoreMount};
use siding_crds::names;
use siding_crds::plan::{GpuRail, Injection, NodePlan};

use super::lean::LeanPod;
use super::shared::Shared;
use super::slim::Key;

/// Label that clouds put on nodes.
const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// A pod that carries the sidecar.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFacts {
    /// Its uid.
    pub uid: String,
    /// Its node, once it is bound.
    pub node: Option<String>,
    /// What was injected.
    pub injection: Arc<Injection>,
    /// The plan it carries; none where it can't be read.
    pub plan: Option<Arc<NodePlan>>,
    /// What its sidecar does.
    pub sidecar: SidecarState,
    /// Whether a container of the engine has started: its environment is fixed.
    pub has_started: bool,
    /// Whether it has ended for good, and holds no node any more.
    pub has_ended: bool,
}

/// What a sidecar's container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SidecarState {
    /// Not known yet.
    Unknown,
    /// It can't start; the reason and message of Kubernetes.
    Waiting {
        /// Kubernetes' reason.
        reason: String,
        /// Kubernetes' message.
        message: String,
    },
    /// It runs.
    Running,
    /// It ended; also where it is about to be started again.
    Ended {
        /// Kubernetes' reason.
        reason: String,
        /// Its exit code.
        exit_code: i32,
        /// What it said last.
        message: String,
    },
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// The cloud's name for its type.
    pub instance_type: Option<String>,
    /// Hardware threads that pods may use, whole ones.
    pub cores: Option<NonZeroU32>,
    /// GPUs, of any vendor's resource.
    pub gpus: u32,
    /// Bytes of huge pages by page size, as Kubernetes names it (`2Mi`); none without pages.
    pub huge_pages: BTreeMap<String, u64>,
    /// Bytes of memory that pods may use, huge pages apart; `None` where the node does not tell.
    pub memory_bytes: Option<u64>,
}

/// What a node's agent read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopologyFacts {
    /// Hardware threads.
    pub cores: Option<NonZeroU32>,
    /// GPUs; unknown is none.
    pub gpus: Option<u32>,
    /// The cloud's name for the node's type.
    pub instance_type: Option<String>,
    /// The NICs of each GPU.
    pub rails: Vec<GpuRail>,
}

/// What became of a pod's mount.
#[derive(Clone, Debug, PartialEq)]
pub struct MountFacts {
    /// Its pool.
    pub pool: String,
    /// The uid of its pod.
    pub pod_uid: String,
    /// Where it stands.
    pub phase: MountPhase,
    /// Why it is not as declared, one word.
    pub reason: Option<String>,
    /// All of it in a line.
    pub summary: Option<String>,
    /// Seconds that registering took over all segments.
    pub register_seconds: Option<f64>,
    /// The object as JSON, which takes a part of the memory that the object would.
    whole: Box<[u8]>,
}

impl MountFacts {
    /// Of an object.
    ///
    /// # Errors
    /// Where it can't be written as JSON.
    pub fn of(mount: &StoreMount) -> Result<Self, serde_json::Error> {
        let status = mount.status.as_ref();
        let segments = status.into_iter().flat_map(|status| &status.segments);
        let seconds = segments.filter_map(|segment| segment.seconds.register);
        Ok(Self {
            pool: mount.spec.pool.clone(),
            pod_uid: mount.spec.pod_uid.clone(),
            phase: status.map(|status| status.phase).unwrap_or_default(),
            reason: status.and_then(|status| status.reason.clone()),
            summary: status.and_then(|status| status.summary.clone()),
            register_seconds: seconds.reduce(|a, b| a + b),
            whole: serde_json::to_vec(mount)?.into(),
        })
    }

    /// The object.
    ///
    /// # Errors
    /// None is known: it was written as it is read.
    pub fn object(&self) -> Result<StoreMount, serde_json::Error> {
        serde_json::from_slice(&self.whole)
    }
}

/// What pods say in the same words.
#[derive(Debug, Default)]
pub struct Sayings {
    injections: Shared<Injection>,
    plans: Shared<NodePlan>,
}

/// Of a pod; none where it carries no sidecar of ours, or what it carries can't be read.
#[must_use]
pub fn of_pod(pod: &LeanPod, sayings: &Sayings) -> Option<(Key, PodFacts)> {
    let injection = pod.annotations().get(names::INJECTION)?;
    let injection = sayings.injections.of(injection, Injection::parse).ok()?;
    let plan = pod.annotations().get(names::PLAN);
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let facts = PodFacts {
        uid: pod.uid()?,
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        injection,
        plan: plan.and_then(|plan| sayings.plans.of(plan, NodePlan::parse).ok()),
        sidecar: sidecar_state(pod),
        has_started: status
            .and_then(|status| status.container_statuses.as_ref())
            .is_some_and(|all| all.iter().any(has_started)),
        has_ended: matches!(phase, Some("Succeeded" | "Failed")),
    };
    Some((key(pod), facts))
}

fn has_started(status: &ContainerStatus) -> bool {
    status.started == Some(true) || status.restart_count > 0
}

fn sidecar_state(pod: &LeanPod) -> SidecarState {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.init_container_statuses.as_ref());
    let ours = statuses.and_then(|all| all.iter().find(|one| one.name == names::CONTAINER));
    let Some(ours) = ours else {
        return SidecarState::Unknown;
    };
    let now = ours.state.as_ref().map_or(SidecarState::Unknown, state);
    match (&now, &ours.last_state) {
        // Between two starts, the reason is in how the last one ended.
        (SidecarState::Waiting { reason, .. }, Some(last)) if reason == "CrashLoopBackOff" => {
            state(last)
        }
        _ => now,
    }
}

fn state(state: &ContainerState) -> SidecarState {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    if let Some(ended) = &state.terminated {
        SidecarState::Ended {
            reason: text(&ended.reason),
            exit_code: ended.exit_code,
            message: text(&ended.message),
        }
    } else if let Some(waiting) = &state.waiting {
        SidecarState::Waiting {
            reason: text(&waiting.reason),
            message: text(&waiting.message),
        }
    } else if state.running.is_some() {
        SidecarState::Running
    } else {
        SidecarState::Unknown
    }
}

/// Of a node.
#[must_use]
pub fn of_node(node: &Node) -> (Key, NodeFacts) {
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let of = |name: &str| allocatable.and_then(|all| all.get(name));
    let named = |is_it: fn(&str) -> bool| {
        allocatable
            .into_iter()
            .flatten()
            .filter(move |(name, _)| is_it(name))
    };
    let gpus = named(is_gpu).filter_map(|(_, quantity)| quantity.0.parse::<u32>().ok());
    let huge_pages = named(|name| name.starts_with("hugepages-")).filter_map(|(name, quantity)| {
        let bytes = siding_crds::parse_bytes(&quantity.0).ok()?;
        let page = name.strip_prefix("hugepages-")?;
        (bytes > 0).then(|| (page.to_owned(), bytes))
    });
    let facts = NodeFacts {
        instance_type: node.labels().get(INSTANCE_TYPE).cloned(),
        cores: of("cpu").and_then(whole_cores),
        gpus: gpus.sum(),
        huge_pages: huge_pages.collect(),
        memory_bytes: of("memory").and_then(|memory| siding_crds::parse_bytes(&memory.0).ok()),
    };
    (Key::new("", node.name_any()), facts)
}

/// Whether an extended resource is a GPU.
#[must_use]
pub fn is_gpu(resource: &str) -> bool {
    resource.ends_with(".com/gpu")
}

/// Whole hardware threads of a quantity such as `190` or `7900m`.
fn whole_cores(quantity: &Quantity) -> Option<NonZeroU32> {
    let text = quantity.0.as_str();
    let cores = match text.strip_suffix('m') {
        Some(thousandths) => thousandths.parse::<u32>().ok()? / 1000,
        None => text.parse().ok()?,
    };
    NonZeroU32::new(cores)
}

/// Of what an agent read.
#[must_use]
pub fn of_topology(topology: &NodeTopology) -> (Key, TopologyFacts) {
    let status = topology.status.as_ref();
    let uuid = |address: &str| {
        let gpus = status
            .map(|status| status.gpus.as_slice())
            .unwrap_or_default();
        gpus.iter().find(|gpu| gpu.name == address)?.uuid.clone()
    };
    let rails = status.into_iter().flat_map(|status| &status.rails);
    let facts = TopologyFacts {
        cores: status
            .and_then(|status| status.cores)
            .and_then(|cores| NonZeroU32::new(cores.count)),
        gpus: status.and_then(|status| status.gpu_count),
        instance_type: status.and_then(|status| status.instance_type.clone()),
        rails: rails
            .map(|rail| GpuRail {
                gpu: rail.name.clone(),
                uuid: uuid(&rail.name),
                nics: rail.nics.clone(),
                evidence: rail.evidence.clone(),
            })
            .collect(),
    };
    (Key::new("", topology.name_any()), facts)
}

/// The key of an object.
#[must_use]
pub fn key(object: &impl kube::Resource) -> Key {
    Key::new(
        object.namespace().unwrap_or_default(),
        object.meta().name.clone().unwrap_or_default(),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: serde_json::Value) -> LeanPod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {
                "siding.dev/injection": r#"{"version":1,"pool":"kv","poolGeneration":3,"ranks":2,"gpusPerRank":1,"image":"i"}"#,
                "siding.dev/plan": r#"{"version":1,"source":"Seed","cap":4,"capReason":"r"}"#,
            }},
            "spec": {"nodeName": "node-1", "containers": []},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn of_a_pod_what_was_injected_where_it_is_and_how_its_sidecar_is() {
        let (key, facts) = of_pod(&pod(json!({"phase": "Pending"})), &Sayings::default()).unwrap();
        assert_eq!(key, Key::new("n", "p"));
        assert_eq!(facts.node.as_deref(), Some("node-1"));
        assert_eq!(facts.injection.ranks.get(), 2);
        assert_eq!(facts.plan.unwrap().cap.get(), 4);
        assert_eq!(facts.sidecar, SidecarState::Unknown);
        assert!(!facts.has_started && !facts.has_ended);
    }

    #[test]
    fn a_crash_loop_is_told_by_how_it_ended() {
        let (_, facts) = of_pod(
            &pod(json!({"initContainerStatuses": [{
                "name": "siding", "image": "", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            }]})),
            &Sayings::default(),
        )
        .unwrap();
        let killed = SidecarState::Ended {
            reason: "OOMKilled".to_owned(),
            exit_code: 137,
            message: String::new(),
        };
        assert_eq!(facts.sidecar, killed);
    }

    #[test]
    fn a_pod_without_the_annotation_or_of_a_later_release_is_none_of_ours() {
        let mut stranger = pod(json!({}));
        stranger.annotations_mut().remove("siding.dev/injection");
        assert_eq!(of_pod(&stranger, &Sayings::default()), None);
        let mut later = pod(json!({}));
        later.annotations_mut().insert(
            "siding.dev/injection".to_owned(),
            r#"{"version":2}"#.to_owned(),
        );
        assert_eq!(of_pod(&later, &Sayings::default()), None);
    }

    #[test]
    fn of_a_node_whole_cores_gpus_of_any_vendor_and_huge_pages_that_are_there() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n1", "labels": {"node.kubernetes.io/instance-type": "p5.48xlarge"}},
            "status": {"allocatable": {
                "cpu": "191450m", "nvidia.com/gpu": "8", "hugepages-2Mi": "1Gi", "hugepages-1Gi": "0", "memory": "1Ti",
            }},
        }))
        .unwrap();
        let (key, facts) = of_node(&node);
        assert_eq!(key, Key::new("", "n1"));
        assert_eq!(facts.cores.unwrap().get(), 191);
        assert_eq!(facts.gpus, 8);
        assert_eq!(
            facts.huge_pages,
            BTreeMap::from([("2Mi".to_owned(), 1 << 30)])
        );
        assert_eq!(facts.instance_type.as_deref(), Some("p5.48xlarge"));
    }

    #[test]
    fn half_a_core_is_unknown_and_not_zero() {
        assert_eq!(whole_cores(&Quantity("500m".to_owned())), None);
        assert_eq!(whole_cores(&Quantity("0".to_owned())), None);
    }
}

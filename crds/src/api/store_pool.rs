//! `StorePool`: what a user declares.
#![allow(unreachable_pub)] // KubeSchema makes hidden copies of the types

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AutoOr, Size, rules};

/// Memory for inference pods: every pod that `podSelector` selects gets a sidecar that mounts
/// these segments and registers them.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siding.dev",
    version = "v1alpha1",
    kind = "StorePool",
    namespaced,
    status = "StorePoolStatus",
    derive = "PartialEq",
    shortname = "spool",
    category = "siding",
    doc = "Memory for inference pods: every pod of its namespace that podSelector selects gets a sidecar that mounts the segments and registers them on the node's NICs.",
    printcolumn(
        name = "Segments",
        type_ = "string",
        json_path = ".status.segments",
        description = "Name, size and page size of each segment"
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".status.pods.desired",
        description = "Pods that carry its sidecar"
    ),
    printcolumn(
        name = "Ready",
        type_ = "integer",
        json_path = ".status.pods.ready",
        description = "Pods whose segments are mounted"
    ),
    printcolumn(
        name = "Degraded",
        type_ = "integer",
        json_path = ".status.pods.degraded",
        description = "Pods that run with less than was declared"
    ),
    printcolumn(
        name = "Failed",
        type_ = "integer",
        json_path = ".status.pods.failed",
        description = "Pods whose mount failed"
    ),
    printcolumn(
        name = "Slowest",
        type_ = "string",
        json_path = ".status.slowestRegistration.summary",
        description = "The slowest registration among its pods",
        priority = 1
    ),
    printcolumn(
        name = "Outdated",
        type_ = "integer",
        json_path = ".status.pods.outdated",
        description = "Pods whose sidecar is of an earlier image or version of the pool"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.registration.nics == 'Named' ? self.registration.nicNames.size() > 0 : self.registration.nicNames.size() == 0")
        .message("registration.nicNames goes with registration.nics: Named, and that with at least one name")
)]
pub struct StorePoolSpec {
    /// The pods, by label. An empty selector selects every pod of the namespace.
    pub pod_selector: LabelSelector,
    /// The segments, 1 to 16, each of its own name.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub segments: Vec<SegmentSpec>,
    /// Processes of a pod that register memory. Auto: its GPUs / gpusPerRank, at least 1.
    #[serde(default)]
    pub ranks: AutoOr,
    /// GPUs of a rank. Auto: 1, the most ranks that a node can have, so the safest cap.
    #[serde(default)]
    pub gpus_per_rank: AutoOr,
    /// How memory is registered.
    #[serde(default)]
    pub registration: Registration,
    /// What the engine's containers are told.
    #[serde(default)]
    pub engine: Engine,
    /// How the sidecar gets at NICs.
    #[serde(default)]
    pub device_access: DeviceAccess,
    /// What a mount that fails does to the pod.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// The sidecar's container.
    #[serde(default)]
    pub sidecar: Sidecar,
}

/// A segment.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::is_whole_pages())]
pub struct SegmentSpec {
    /// Its name; a DNS label of at most 40 characters.
    #[schemars(
        length(min = 1, max = 40),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Its size in bytes, a quantity such as 2Gi or "1000000"; whole pages.
    #[x_kube(validation = rules::is_quantity(), validation = rules::is_whole_bytes())]
    pub size: Size,
    /// The size of its pages. The node must have such huge pages: the scheduler looks for them.
    #[serde(default)]
    pub page_size: PageSize,
    /// Where its memory is.
    #[serde(default)]
    pub numa: NumaPolicy,
}

/// Pages of a segment.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageSize {
    /// Transparent huge pages, where the kernel has them at hand; counts against the pod's memory.
    Transparent,
    /// 4 KiB; counts against the pod's memory.
    #[serde(rename = "4Ki")]
    Size4Ki,
    /// 64 KiB (arm64).
    #[serde(rename = "64Ki")]
    Size64Ki,
    /// 2 MiB.
    #[default]
    #[serde(rename = "2Mi")]
    Size2Mi,
    /// 32 MiB (arm64).
    #[serde(rename = "32Mi")]
    Size32Mi,
    /// 512 MiB (arm64).
    #[serde(rename = "512Mi")]
    Size512Mi,
    /// 1 GiB.
    #[serde(rename = "1Gi")]
    Size1Gi,
    /// 16 GiB (arm64).
    #[serde(rename = "16Gi")]
    Size16Gi,
}

impl PageSize {
    /// The word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transparent => "Transparent",
            Self::Size4Ki => "4Ki",
            Self::Size64Ki => "64Ki",
            Self::Size2Mi => "2Mi",
            Self::Size32Mi => "32Mi",
            Self::Size512Mi => "512Mi",
            Self::Size1Gi => "1Gi",
            Self::Size16Gi => "16Gi",
        }
    }

    /// Bytes that a segment's size must be a multiple of.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Transparent | Self::Size4Ki => 4 << 10,
            Self::Size64Ki => 64 << 10,
            Self::Size2Mi => 2 << 20,
            Self::Size32Mi => 32 << 20,
            Self::Size512Mi => 512 << 20,
            Self::Size1Gi => 1 << 30,
            Self::Size16Gi => 16 << 30,
        }
    }

    /// Whether they come from a pool of huge pages, which the pod must request.
    #[must_use]
    pub fn is_huge(self) -> bool {
        !matches!(self, Self::Transparent | Self::Size4Ki)
    }
}

/// NUMA policy of a segment.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NumaPolicy {
    /// On the node that the sidecar's threads run on.
    #[default]
    Local,
    /// Over all nodes.
    Interleave,
}

/// How memory is registered.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registration {
    /// What pins it.
    #[serde(default)]
    pub backend: Backend,
    /// Registrations in flight of one rank. Auto: the node's plan.
    #[serde(default)]
    pub cap: AutoOr,
    /// In which order buffers are registered.
    #[serde(default)]
    pub order: Order,
    /// On which NICs.
    #[serde(default)]
    pub nics: NicPolicy,
    /// The NICs of `nics: Named`.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 1, max = 64)), extend("x-kubernetes-list-type" = "set"))]
    pub nic_names: Vec<String>,
    /// Threads that touch pages. Auto: the sidecar's cores.
    #[serde(default)]
    pub touch_threads: AutoOr,
}

/// What pins memory.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// What can be used, and why is said.
    #[default]
    Auto,
    /// `io_uring`: pins without a NIC.
    IoUring,
    /// Nothing: memory is served over TCP without being pinned.
    None,
}

/// Order of registering.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Small ones first.
    #[default]
    Ascending,
    /// As declared.
    Declared,
}

/// NICs to register on.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NicPolicy {
    /// Those nearest to the pod's GPUs, or to the segment's NUMA node.
    #[default]
    RailLocal,
    /// All of the node.
    All,
    /// Those in `nicNames`.
    Named,
}

/// What the engine's containers are told.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Engine {
    /// Containers that get the variables. None: those that ask for GPUs, or all where none does.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub containers: Vec<String>,
    /// Which variables. A variable that a container sets itself stays as it is.
    #[serde(default)]
    pub variables: EngineVariables,
    /// The Mooncake cluster, for engines that speak to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mooncake: Option<Mooncake>,
}

/// Variables for the engine.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineVariables {
    /// Those of Mooncake's transfer engine: the cap, rail-local NICs, the pod's address, and
    /// those of `mooncake`.
    #[default]
    Mooncake,
    /// None.
    None,
}

/// A Mooncake cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mooncake {
    /// Its master, host:port (`MOONCAKE_MASTER`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub master: Option<String>,
    /// Its metadata server (`MOONCAKE_TE_META_DATA_SERVER`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub metadata_server: Option<String>,
    /// Its protocol (`MOONCAKE_PROTOCOL`), e.g. tcp, rdma, efa.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub protocol: Option<String>,
}

/// How the sidecar gets at NICs.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.mode == 'DevicePlugin') == has(self.resource)")
        .message("deviceAccess.resource goes with mode: DevicePlugin, e.g. vpc.amazonaws.com/efa")
)]
pub struct DeviceAccess {
    /// By which way.
    #[serde(default)]
    pub mode: DeviceAccessMode,
    /// The extended resource of mode DevicePlugin, e.g. vpc.amazonaws.com/efa. Its devices are
    /// taken from what the engine can get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub resource: Option<String>,
    /// How many of `resource`.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub count: u32,
}

impl Default for DeviceAccess {
    fn default() -> Self {
        Self {
            mode: DeviceAccessMode::default(),
            resource: None,
            count: one(),
        }
    }
}

fn one() -> u32 {
    1
}

/// Ways to NICs.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceAccessMode {
    /// The pod's own ResourceClaims, shared with the sidecar, where it has any; else none.
    #[default]
    Auto,
    /// None: TCP only.
    None,
    /// Devices of the sidecar's own, by a device plugin: the engine can't have these.
    DevicePlugin,
    /// /dev/infiniband of the node: needs a privileged container.
    HostPath,
}

/// What a failed mount does.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFailure {
    /// The engine starts without its cache; a condition and an Event tell.
    #[default]
    Degrade,
    /// The engine does not start until the segments are mounted.
    Block,
}

/// The sidecar's container.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sidecar {
    /// Its image. None: the operator's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// When the image is pulled. None: Kubernetes' own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Its CPU request. It has no CPU limit, unless the pod is Guaranteed.
    #[serde(default = "default_cpu")]
    #[x_kube(validation = rules::is_positive_cpu())]
    #[schemars(length(min = 1, max = 32))]
    pub cpu: String,
    /// The port of metrics, probes and status. Pods of the host network get a free one.
    #[serde(default = "default_http_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub http_port: u16,
    /// The user it runs as. None: 0 where the namespace's PodSecurity level allows the capability
    /// IPC_LOCK, which only root keeps; else 65532, which registers what RLIMIT_MEMLOCK allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub run_as_user: Option<i64>,
}

impl Default for Sidecar {
    fn default() -> Self {
        Self {
            image: None,
            image_pull_policy: None,
            cpu: default_cpu(),
            http_port: default_http_port(),
            run_as_user: None,
        }
    }
}

fn default_cpu() -> String {
    "100m".to_owned()
}

fn default_http_port() -> u16 {
    9600
}

/// When an image is pulled.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullPolicy {
    /// At every start.
    Always,
    /// Where the node does not have it.
    IfNotPresent,
    /// Never.
    Never,
}

/// What has become of a pool.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorePoolStatus {
    /// `metadata.generation` that this was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The segments in a line, e.g. `kv 2Gi/2Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments: Option<String>,
    /// Its pods.
    #[serde(default)]
    pub pods: PodCounts,
    /// Pods that failed, by reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["reason"]))]
    pub failures: Vec<FailureCount>,
    /// Nodes that its pods run on, at most 64 of them, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub nodes: Vec<PoolNode>,
    /// How many nodes its pods run on.
    #[serde(default)]
    pub node_count: u32,
    /// The slowest registration among its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest_registration: Option<SlowestRegistration>,
    /// Conditions: `Ready`, `Accepted`, `CertificateValid`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Pods of a pool.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    /// That carry its sidecar.
    #[serde(default)]
    pub desired: u32,
    /// Whose segments are mounted as declared.
    #[serde(default)]
    pub ready: u32,
    /// That run with less than was declared.
    #[serde(default)]
    pub degraded: u32,
    /// Whose mount failed.
    #[serde(default)]
    pub failed: u32,
    /// Whose sidecar is of an earlier image or generation of the pool.
    #[serde(default)]
    pub outdated: u32,
}

/// Pods that failed for one reason.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureCount {
    /// The reason, one word.
    pub reason: String,
    /// How many.
    pub count: u32,
    /// What the first of them says.
    pub summary: String,
}

/// A node that pods of a pool run on.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolNode {
    /// Its name.
    pub name: String,
    /// Cap and rails in a line.
    pub summary: String,
}

/// The slowest registration.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlowestRegistration {
    /// The pod.
    pub pod: String,
    /// Seconds.
    pub seconds: f64,
    /// Both in a line.
    pub summary: String,
}

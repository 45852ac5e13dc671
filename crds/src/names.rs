//! Names that Siding leaves on other people's objects. Each has one place: here.

/// The API group.
pub const GROUP: &str = "siding.dev";
/// The API version.
pub const VERSION: &str = "v1alpha1";

/// Label, on a namespace or a pod: `enabled` opts in, `disabled` (on a pod) opts out.
pub const INJECT: &str = "siding.dev/inject";
/// Value of [`INJECT`] that opts in.
pub const ENABLED: &str = "enabled";
/// Value of [`INJECT`] that opts out.
pub const DISABLED: &str = "disabled";
/// Label on a pod: name of the pool it got its sidecar from.
pub const POOL: &str = "siding.dev/pool";

/// Annotation on a pod: JSON of [`crate::plan::Injection`], written at creation.
pub const INJECTION: &str = "siding.dev/injection";
/// Annotation on a pod: the sidecar's configuration (YAML), mounted by a downward-API volume.
pub const CONFIG: &str = "siding.dev/config";
/// Annotation on a pod: JSON of [`crate::plan::NodePlan`]; seeded at creation, written at binding.
pub const PLAN: &str = "siding.dev/plan";
/// Annotation on a pod: the cap as a whole number, for environment variables; never empty or 0.
pub const CAP: &str = "siding.dev/cap";
/// Annotation on a pod: why it got no sidecar, a [`crate::reasons::Skip`] and the words.
pub const SKIPPED: &str = "siding.dev/skipped";
/// Label on a pod: that [`crate::reasons::Skip`] alone, for finding such pods.
pub const SKIP: &str = "siding.dev/skip";

/// Condition of a StoreMount, by the operator: what plan the pod carries. What the sidecar makes of it
/// is `Planned`, by the agent: each condition has one writer.
pub const PLAN_WRITTEN: &str = "PlanWritten";
/// Condition of a StoreMount, by the operator: whether the sidecar's container runs.
pub const SIDECAR_RUNNING: &str = "SidecarRunning";

/// Name of the sidecar's container in a pod.
pub const CONTAINER: &str = "siding";
/// Name of the sidecar's HTTP port.
pub const HTTP_PORT: &str = "siding-http";
/// Volume with configuration and plan (downward API).
pub const POD_INFO_VOLUME: &str = "siding-pod";
/// Where that volume is mounted in the sidecar.
pub const POD_INFO_DIRECTORY: &str = "/etc/siding";
/// File of the configuration in [`POD_INFO_DIRECTORY`].
pub const CONFIG_FILE: &str = "config.yaml";
/// File of the plan in [`POD_INFO_DIRECTORY`].
pub const PLAN_FILE: &str = "plan.json";
/// Volume with the sockets (emptyDir).
pub const RUN_VOLUME: &str = "siding-run";
/// Where that volume is mounted in the sidecar.
pub const RUN_DIRECTORY: &str = "/run/siding";
/// The socket that the agent dials, in [`RUN_DIRECTORY`].
pub const AGENT_SOCKET: &str = "agent.sock";
/// Volume with headers, and with segments that are not on huge pages (emptyDir on tmpfs).
pub const STORAGE_VOLUME: &str = "siding-storage";
/// Where that volume is mounted in the sidecar.
pub const STORAGE_DIRECTORY: &str = "/var/lib/siding";

/// An empty volume: mounted where the API's token would be, it keeps the token out of the sidecar.
pub const NO_TOKEN_VOLUME: &str = "siding-no-token";
/// Where the API server mounts a token, unless something is mounted there.
pub const TOKEN_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Volume of the node's verbs devices (`deviceAccess.mode: HostPath`).
pub const DEVICES_VOLUME: &str = "siding-devices";
/// The node's verbs devices.
pub const DEVICES_DIRECTORY: &str = "/dev/infiniband";

/// The volume of huge pages of one size, e.g. `siding-hugepages-2mi`.
#[must_use]
pub fn huge_pages_volume(page_size: &str) -> String {
    format!("siding-hugepages-{}", page_size.to_ascii_lowercase())
}

/// Where the volume of huge pages of one size is mounted in the sidecar.
#[must_use]
pub fn huge_pages_directory(page_size: &str) -> String {
    format!("/hugepages/{page_size}")
}

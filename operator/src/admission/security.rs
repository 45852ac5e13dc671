//! What the sidecar may do: as much as its namespace's PodSecurity level lets through, and no more than
//! it needs.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use siding_crds::reasons::Skip;

use super::devices::Access;
use super::pod::Pod;
use super::skip::Skipped;
use super::wish::Wish;

/// Label of a namespace. Those for `warn` and `audit` refuse nothing.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// The user that is nobody in particular.
const UNPRIVILEGED_USER: i64 = 65_532;
/// `rwxr-----`'s bit of the group.
const GROUP_READ: u64 = 0o040;

/// A PodSecurity level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]

pub enum Level {
    /// Nothing is refused.
    Privileged,
    /// Known ways out of a container are refused.
    Baseline,
    /// All that is not hardened is refused.
    Restricted,
}

impl Level {
    /// The level that is enforced in a namespace. What the API server can't read it takes for
    /// `restricted`, and so is a namespace taken whose labels are unknown: what passes there passes
    /// everywhere.
    pub(super) fn of(namespace_labels: Option<&BTreeMap<String, String>>, default: Self) -> Self {
        let Some(labels) = namespace_labels else {
            return Self::Restricted;
        };
        match labels.get(ENFORCE).map(String::as_str) {
            None => default,
            Some("privileged") => Self::Privileged,
            Some("baseline") => Self::Baseline,
            Some(_) => Self::Restricted,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// As whom the sidecar runs, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    user: i64,
    has_ipc_lock: bool,
    is_privileged: bool,
    /// The group that the pod is to get for its volumes, where it has none of its own.
    pub(super) fs_group: Option<i64>,
}

/// Chooses what passes at a level.
///
/// - `IPC_LOCK` lifts the limit on locked memory. Kubernetes has no ambient capabilities, so only root
///   keeps what is added: it is left out for others, and where the level refuses it.
/// - The kubelet mounts hugetlbfs without options, so its root belongs to root and has mode 0755 (tmpfs has
///   1777): who is not root can write there only by the pod's `fsGroup`, which the kubelet gives such a
///   volume, with mode 2775. A pod without one gets one, unless it has volumes that would change with it.
pub(super) fn identity(
    level: Level,
    pod: &Pod<'_>,
    wish: &Wish<'_>,
    access: &Access<'_>,
) -> Result<Identity, Skipped> {
    let is_privileged = matches!(access, Access::HostPath);
    if is_privileged && level != Level::Privileged {
        return Err(refused_devices(level));
    }
    let asked = wish.spec.sidecar.run_as_user;
    let user = asked.unwrap_or(match level {
        Level::Privileged => 0,
        Level::Baseline | Level::Restricted => UNPRIVILEGED_USER,
    });
    if user == 0 && level == Level::Restricted {
        let message = "its namespace enforces PodSecurity level 'restricted', which refuses spec.sidecar.runAsUser: 0 \
                       of the StorePool; leave it out, or write for example 65532";
        return Err(Skipped::new(Skip::PodSecurity, message));
    }
    let as_root = Identity {
        user: 0,
        has_ipc_lock: level == Level::Privileged,
        is_privileged,
        fs_group: None,
    };
    let unprivileged = Identity {
        user,
        has_ipc_lock: false,
        ..as_root
    };
    let has_group = pod.spec("/securityContext/fsGroup").is_some();
    match () {
        () if user == 0 => Ok(as_root),
        () if has_group || wish.huge_pages().is_empty() => Ok(unprivileged),
        () if pod.volumes().iter().all(is_same_with_fs_group) => Ok(Identity {
            fs_group: Some(user),
            ..unprivileged
        }),
        // Root without a single capability passes there and owns the volume.
        () if asked.is_none() && level == Level::Baseline => Ok(as_root),
        () => Err(group_needed(level, user)),
    }
}

fn refused_devices(level: Level) -> Skipped {
    let message = format!(
        "its namespace enforces PodSecurity level '{}', which refuses spec.deviceAccess.mode: HostPath of the StorePool; \
         use Auto with a ResourceClaim, DevicePlugin or None there",
        level.as_str()
    );
    Skipped::new(Skip::DeviceAccessRefused, message)
}

fn group_needed(level: Level, user: i64) -> Skipped {
    let root = match level {
        Level::Restricted => "",
        Level::Privileged | Level::Baseline => ", or spec.sidecar.runAsUser: 0 in the StorePool",
    };
    let message = format!(
        "user {user} of its sidecar can write huge pages only by an fsGroup, which would change the permissions of the \
         pod's other volumes, so none is added; set spec.securityContext.fsGroup in the pod{root}"
    );
    Skipped::new(Skip::FsGroupNeeded, message)
}

/// Whether a volume does not change for its users by an `fsGroup`. Volumes of storage might be walked file by
/// file, and a key that only its owner could read would be readable by a group.
fn is_same_with_fs_group(volume: &Value) -> bool {
    let Some(volume) = volume.as_object() else {
        return false;
    };
    let is_same = |(kind, source): (&String, &Value)| match kind.as_str() {
        "name" | "emptyDir" | "hostPath" | "image" => true,
        "configMap" | "downwardAPI" | "projected" | "secret" => is_group_readable(source),
        _ => source.is_null(),
    };
    volume.iter().all(is_same)
}

/// Whether no mode in a volume of files denies the group what the owner may read.
fn is_group_readable(source: &Value) -> bool {
    let mode_lets = |value: &Value| value.as_u64().is_none_or(|mode| mode & GROUP_READ != 0);
    match source {
        Value::Object(map) => map.iter().all(|(key, value)| match key.as_str() {
            "mode" | "defaultMode" => mode_lets(value),
            _ => is_group_readable(value),
        }),
        Value::Array(items) => items.iter().all(is_group_readable),
        _ => true,
    }
}

impl Identity {
    /// The container's `securityContext`. Where it says the same as the pod's, it says so nevertheless.
    pub(super) fn security_context(&self) -> Value {
        let mut context = json!({
            "readOnlyRootFilesystem": true,
            "runAsUser": self.user,
            "runAsGroup": self.user,
            "runAsNonRoot": self.user != 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        let rest = if self.is_privileged {
            // Privileged means all capabilities; the API server refuses it together with these fields.
            json!({"privileged": true})
        } else {
            json!({"allowPrivilegeEscalation": false, "capabilities": self.capabilities()})
        };
        if let (Value::Object(context), Value::Object(rest)) = (&mut context, rest) {
            context.extend(rest);
        }
        context
    }

    fn capabilities(&self) -> Map<String, Value> {
        let mut capabilities = Map::from_iter([("drop".to_owned(), json!(["ALL"]))]);
        if self.has_ipc_lock {
            capabilities.insert("add".to_owned(), json!(["IPC_LOCK"]));
        }
        capabilities
    }
}

//! The sidecar's volumes. None is a path of the node, unless the pool asks for the node's devices.

use serde_json::{Value, json};
use siding_crds::api::PageSize;
use siding_crds::format_bytes;
use siding_crds::names::{
    CONFIG, CONFIG_FILE, DEVICES_DIRECTORY, DEVICES_VOLUME, NO_TOKEN_VOLUME, PLAN, PLAN_FILE,
    POD_INFO_DIRECTORY, POD_INFO_VOLUME, RUN_DIRECTORY, RUN_VOLUME, STORAGE_DIRECTORY,
    STORAGE_VOLUME, TOKEN_DIRECTORY, huge_pages_directory, huge_pages_volume,
};
use siding_crds::quoted;
use siding_crds::reasons::Skip;

use super::devices::Access;
use super::pod::{Pod, name_of, resources_of};
use super::skip::Skipped;
use super::wish::Wish;

/// Room for the segments' headers and locks on tmpfs.
const HEADERS_BYTES: u64 = 16 << 20;

/// A volume and where the sidecar has it.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) name: String,
    source: Value,
    directory: String,
    is_read_only: bool,
}

impl Volume {
    fn new(name: impl Into<String>, directory: impl Into<String>, source: Value) -> Self {
        Self {
            name: name.into(),
            source,
            directory: directory.into(),
            is_read_only: false,
        }
    }

    fn read_only(self) -> Self {
        Self {
            is_read_only: true,
            ..self
        }
    }

    /// As the pod has it.
    pub(super) fn volume(&self) -> Value {
        let mut volume = self.source.clone();
        if let Value::Object(fields) = &mut volume {
            fields.insert("name".to_owned(), json!(self.name));
        }
        volume
    }

    /// As the container has it.
    pub(super) fn mount(&self) -> Value {
        if self.is_read_only {
            json!({"name": self.name, "mountPath": self.directory, "readOnly": true})
        } else {
            json!({"name": self.name, "mountPath": self.directory})
        }
    }
}

/// All of them.
pub(super) fn volumes(wish: &Wish<'_>, access: &Access<'_>) -> Vec<Volume> {
    let storage_bytes = wish.base_bytes().saturating_add(HEADERS_BYTES);
    let storage =
        json!({"emptyDir": {"medium": "Memory", "sizeLimit": format_bytes(storage_bytes)}});
    let mut volumes = vec![
        Volume::new(POD_INFO_VOLUME, POD_INFO_DIRECTORY, pod_info()).read_only(),
        Volume::new(RUN_VOLUME, RUN_DIRECTORY, json!({"emptyDir": {}})),
        Volume::new(STORAGE_VOLUME, STORAGE_DIRECTORY, storage),
        // Admission of service accounts runs again after this and gives each container a token that has
        // nothing mounted there.
        Volume::new(NO_TOKEN_VOLUME, TOKEN_DIRECTORY, json!({"emptyDir": {}})).read_only(),
    ];
    for (page, _) in wish.huge_pages() {
        let source = json!({"emptyDir": {"medium": format!("HugePages-{}", page.as_str())}});
        let (name, directory) = (
            huge_pages_volume(page.as_str()),
            huge_pages_directory(page.as_str()),
        );
        volumes.push(Volume::new(name, directory, source));
    }
    if matches!(access, Access::HostPath) {
        // A node without such devices has the sidecar say so, instead of a pod that never starts.
        let source = json!({"hostPath": {"path": DEVICES_DIRECTORY, "type": "DirectoryOrCreate"}});
        volumes.push(Volume::new(DEVICES_VOLUME, DEVICES_DIRECTORY, source));
    }
    volumes
}

/// Configuration and plan, which follow the pod's annotations while it runs.
fn pod_info() -> Value {
    let item = |file: &str, annotation: &str| {
        let field = format!("metadata.annotations['{annotation}']");
        json!({"path": file, "fieldRef": {"fieldPath": field}})
    };
    json!({"downwardAPI": {"items": [item(CONFIG_FILE, CONFIG), item(PLAN_FILE, PLAN)]}})
}

/// Looks whether huge pages of the pod's own stay clear: a volume of medium `HugePages` says no size, so the
/// kubelet mounts it only where the pod asks for one size in all.
pub(super) fn check_ambiguity(pod: &Pod<'_>, wish: &Wish<'_>) -> Result<(), Skipped> {
    let medium = |volume: &Value| {
        volume.pointer("/emptyDir/medium").and_then(Value::as_str) == Some("HugePages")
    };
    let Some(volume) = pod.volumes().iter().find(|volume| medium(volume)) else {
        return Ok(());
    };
    let ours: Vec<PageSize> = wish
        .huge_pages()
        .into_iter()
        .map(|(page, _)| page)
        .collect();
    let theirs = pod
        .all_containers()
        .flat_map(resources_of)
        .filter_map(|name| name.strip_prefix("hugepages-"));
    let is_other = |size: &str| ours.iter().find(|page| page.as_str() != size).copied();
    match theirs
        .filter_map(|size| Some((size, is_other(size)?)))
        .next()
    {
        Some((size, other)) => {
            let message = format!(
                "its volume {} is of medium HugePages, which is ambiguous beside the sidecar's {} pages; \
                 write medium: HugePages-{size}",
                quoted(name_of(volume)),
                other.as_str()
            );
            Err(Skipped::new(Skip::AmbiguousHugePages, message))
        }
        None => Ok(()),
    }
}

//! Why a pod gets no sidecar.

use siding_crds::names::{CONTAINER, DISABLED, INJECT, INJECTION, SKIP, SKIPPED};
use siding_crds::quoted;
use siding_crds::reasons::Skip;

use super::Verdict;
use super::patch::{Patch, members};
use super::pod::{Pod, name_of};

/// Set by the kubelet on what shows a static pod in the API.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Of `spec.nodeSelector`.
const OS_LABEL: &str = "/nodeSelector/kubernetes.io~1os";
/// Bytes of a pod's annotations, keys and values, that the API server takes.
const ANNOTATIONS_BYTES: usize = 256 << 10;
/// What of them is left to the binding's plan and to others.
const SPARE_BYTES: usize = 32 << 10;

/// A pod that gets no sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Skipped {
    pub(super) reason: Skip,
    pub(super) message: String,
}

impl Skipped {
    pub(super) fn new(reason: Skip, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }

    /// With the annotation that tells it. What has a sidecar of ours was not skipped.
    pub(super) fn into_verdict(self, pod: &Pod<'_>) -> Verdict {
        let Self { reason, message } = self;
        let mut patch = Patch::of(pod.value());
        let told = format!("{reason}: {message}");
        if reason != Skip::AlreadyInjected && has_room(pod, SKIPPED.len() + told.len(), 0) {
            patch.merge("/metadata/annotations", members([(SKIPPED, told)]));
            patch.merge(
                "/metadata/labels",
                members([(SKIP, reason.as_str().to_owned())]),
            );
        }
        Verdict::Skip {
            reason,
            message,
            patch: patch.into_operations(),
        }
    }
}

/// Whether so many bytes of annotations more leave some to spare: beyond the limit the API server refuses the
/// pod, and that would be because of us.
fn has_room(pod: &Pod<'_>, bytes: usize, spare: usize) -> bool {
    let there: usize = pod
        .annotations()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    there + bytes + spare <= ANNOTATIONS_BYTES
}

/// What stands in the way whatever the pool.
pub(super) fn check(pod: &Pod<'_>) -> Result<(), Skipped> {
    let skip = |reason, message: &str| Err(Skipped::new(reason, message));
    let has_ours = pod
        .init_containers()
        .iter()
        .any(|container| name_of(container) == CONTAINER);
    if has_ours && pod.annotation(INJECTION).is_some() {
        return skip(Skip::AlreadyInjected, "it has its sidecar");
    }
    if pod.annotation(MIRROR).is_some() {
        return skip(
            Skip::MirrorPod,
            "it only mirrors a static pod, which the kubelet runs from its own file",
        );
    }
    let is_windows =
        |os: Option<&serde_json::Value>| os.and_then(|os| os.as_str()) == Some("windows");
    if is_windows(pod.spec("/os/name")) || is_windows(pod.spec(OS_LABEL)) {
        return skip(Skip::Windows, "it is for Windows; the sidecar needs Linux");
    }
    if pod.label(INJECT) == Some(DISABLED) {
        let message = format!("its label {INJECT} is {}", quoted(DISABLED));
        return skip(Skip::OptedOut, &message);
    }
    Ok(())
}

/// Looks whether names that the sidecar needs are taken.
pub(super) fn check_names(pod: &Pod<'_>, volumes: &[String]) -> Result<(), Skipped> {
    if pod
        .all_containers()
        .any(|container| name_of(container) == CONTAINER)
    {
        let message = format!(
            "it has a container {}, the name of the sidecar; give that another name",
            quoted(CONTAINER)
        );
        return Err(Skipped::new(Skip::ContainerNameTaken, message));
    }
    let taken = pod
        .volumes()
        .iter()
        .map(name_of)
        .find(|name| volumes.iter().any(|ours| ours == name));
    match taken {
        Some(name) => {
            let message = format!(
                "it has a volume {}, a name that the sidecar needs; give that another name",
                quoted(name)
            );
            Err(Skipped::new(Skip::VolumeNameTaken, message))
        }
        None => Ok(()),
    }
}

/// Looks whether the pod has resources as a whole: what its containers ask for together must not
/// exceed them, so the API server would refuse it, or the sidecar would live at the engine's cost.
pub(super) fn check_pod_level_resources(pod: &Pod<'_>) -> Result<(), Skipped> {
    let is_set = |pointer: &str| {
        let map = pod.spec(pointer).and_then(|map| map.as_object());
        map.is_some_and(|map| !map.is_empty())
    };
    if is_set("/resources/requests") || is_set("/resources/limits") {
        return Err(Skipped::new(
            Skip::PodLevelResources,
            "its spec.resources is for all containers together, and the sidecar's would be taken \
             from it; set resources of each container instead",
        ));
    }
    Ok(())
}

/// Looks whether the annotations of the sidecar fit.
pub(super) fn check_room(pod: &Pod<'_>, bytes: usize) -> Result<(), Skipped> {
    if has_room(pod, bytes, SPARE_BYTES) {
        return Ok(());
    }
    let message = format!(
        "its annotations leave no room for {bytes} bytes more: Kubernetes allows {ANNOTATIONS_BYTES} \
         together, {SPARE_BYTES} of which are kept for later; shorten them"
    );
    Err(Skipped::new(Skip::AnnotationsFull, message))
}

//! Writing what the pure parts decided.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;
use siding_crds::api::{StoreMount, StorePool, StorePoolStatus};
use siding_crds::names;

use super::mounts::Action;
use super::tell::Teller;
use crate::caches::slim::Key;

/// The field manager of server-side apply, and the name that Events are from.
pub(super) const MANAGER: &str = "siding-operator";

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    /// What the API server says.
    #[error("{0}")]
    Api(#[from] kube::Error),
    /// What has no JSON form.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

/// What is gone meanwhile needs nothing more.
fn unless_gone<T>(result: Result<T, kube::Error>) -> Result<(), ApplyError> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn mount(
    client: &Client,
    teller: &Teller,
    key: &Key,
    action: Action,
) -> Result<(), ApplyError> {
    let mounts: Api<StoreMount> = Api::namespaced(client.clone(), &key.namespace);
    let apply = PatchParams::apply(MANAGER).force();
    match action {
        Action::ApplyMount(object) => {
            mounts
                .patch(&key.name, &apply, &Patch::Apply(object))
                .await?;
            Ok(())
        }
        Action::DeleteMount { uid } => {
            let still_that = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(uid),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            unless_gone(mounts.delete(&key.name, &still_that).await)
        }
        Action::CompletePlan { pod_uid, plan } => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
            let annotations = json!({
                names::PLAN: serde_json::to_string(&plan)?,
                names::CAP: plan.cap.to_string(),
            });
            // The uid makes it a conflict where the pod is another by now.
            let patch = json!({"metadata": {"uid": pod_uid, "annotations": annotations}});
            let merge = PatchParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PatchParams::default()
            };
            unless_gone(pods.patch(&key.name, &merge, &Patch::Merge(patch)).await)
        }
        Action::ApplyStatus(status) => {
            let object = json!({
                "apiVersion": "siding.dev/v1alpha1", "kind": "StoreMount",
                "metadata": {"name": key.name, "namespace": key.namespace},
                "status": status,
            });
            unless_gone(
                mounts
                    .patch_status(&key.name, &apply, &Patch::Apply(object))
                    .await,
            )
        }
        Action::Tell(news) => {
            teller.once(&news).await?;
            Ok(())
        }
    }
}

pub(super) async fn pool_status(
    client: &Client,
    key: &Key,
    status: &StorePoolStatus,
) -> Result<(), ApplyError> {
    let pools: Api<StorePool> = Api::namespaced(client.clone(), &key.namespace);
    let object = json!({
        "apiVersion": "siding.dev/v1alpha1", "kind": "StorePool",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "status": status,
    });
    let apply = PatchParams::apply(MANAGER).force();
    unless_gone(
        pools
            .patch_status(&key.name, &apply, &Patch::Apply(object))
            .await,
    )
}

//! Keeps the webhooks' certificate: makes and renews it in a Secret, or takes what cert-manager puts
//! there, and keeps `caBundle` right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tracing::{info, warn};

use super::serving::InUse;
use super::{Bundle, Pair, ends, renewed};
use crate::metrics::Metrics;

/// How often it is looked after.
const EACH: Duration = Duration::from_secs(60);
/// How soon again after an error.
const AGAIN: Duration = Duration::from_secs(2);

/// How long a new authority is trusted before its certificate is served: the API server learns of a new `caBundle`
/// by its watch, and a call by what it knew before fails, which leaves a pod without its sidecar.
const LEARNT: Duration = Duration::from_secs(10);

/// Who makes certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    /// A CA of our own, kept in the Secret.
    Own,
    /// cert-manager: the Secret is only read, and its injector keeps caBundle.
    CertManager,
}

/// What is kept.
#[derive(Clone)]
pub struct Keeper {
    /// The API.
    pub client: Client,
    /// Who makes certificates.
    pub source: Source,
    /// The operator's namespace.
    pub namespace: String,
    /// The Secret's name.
    pub secret: String,
    /// Names that the webhooks are called by.
    pub names: Vec<String>,
    /// Webhook configurations whose `caBundle` is kept.
    pub webhooks: Vec<String>,
    /// What serves.
    pub in_use: Arc<InUse>,
    /// Days left are told.
    pub metrics: Metrics,
}

/// Why a round did not end well.
#[derive(Debug, thiserror::Error)]
enum KeeperError {
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("{0}")]
    Certificate(#[from] super::CertificateError),
    #[error("{0}")]
    Serving(#[from] super::serving::ServingError),
    #[error(
        "Secret {0} has no tls.crt and tls.key yet: cert-manager makes it from the Certificate of the chart"
    )]
    NotYet(String),
}

impl Keeper {
    /// Looks after it until dropped.
    pub async fn keep(self) {
        let mut authority = None;
        loop {
            let pause = match self.round(&mut authority).await {
                Ok(()) => EACH,
                Err(error) => {
                    warn!(%error, "the webhooks' certificate can't be looked after");
                    AGAIN
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// `authority` is who signed what is served.
    async fn round(&self, authority: &mut Option<String>) -> Result<(), KeeperError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = secrets.get_opt(&self.secret).await?;
        let leaf = match self.source {
            Source::CertManager => {
                leaf_of(secret.as_ref()).ok_or_else(|| KeeperError::NotYet(self.secret.clone()))?
            }
            Source::Own => {
                let bundle = self.renew(&secrets, secret).await?;
                self.publish(&bundle.trusted).await?;
                tokio::time::sleep(until_learnt(authority.as_deref(), &bundle)).await;
                *authority = Some(bundle.ca.certificate);
                bundle.leaf
            }
        };
        self.in_use.set(&leaf)?;
        let left = ends(&leaf.certificate)?
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        self.metrics.certificate_left(left);
        Ok(())
    }

    /// Several replicas may do so at once: the API lets one write win, and the others take it.
    async fn renew(
        &self,
        secrets: &Api<Secret>,
        found: Option<Secret>,
    ) -> Result<Bundle, KeeperError> {
        let at_hand = found.as_ref().and_then(bundle_of);
        let (bundle, changed) = renewed(at_hand, &self.names, SystemTime::now())?;
        if !changed {
            return Ok(bundle);
        }
        info!(secret = self.secret, "a new certificate for the webhooks");
        match found {
            None => {
                let mut secret = Secret {
                    type_: Some("Opaque".to_owned()),
                    data: Some(data_of(&bundle)),
                    ..Secret::default()
                };
                secret.metadata.name = Some(self.secret.clone());
                secrets.create(&PostParams::default(), &secret).await?;
            }
            Some(mut secret) => {
                // With the resourceVersion that was read: a conflict is another replica's success.
                secret.data = Some(data_of(&bundle));
                secrets
                    .replace(&self.secret, &PostParams::default(), &secret)
                    .await?;
            }
        }
        Ok(bundle)
    }

    async fn publish(&self, trusted: &str) -> Result<(), KeeperError> {
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        for name in &self.webhooks {
            let Some(found) = api.get_opt(name).await? else {
                continue;
            };
            let hooks = found.webhooks.unwrap_or_default();
            let is_right = |hook: &k8s_openapi::api::admissionregistration::v1::MutatingWebhook| {
                let bundle = hook.client_config.ca_bundle.as_ref();
                bundle.is_some_and(|bundle| bundle.0 == trusted.as_bytes())
            };
            if hooks.iter().all(is_right) {
                continue;
            }
            info!(webhooks = name, "caBundle is put right");
            let bundle = ByteString(trusted.as_bytes().to_vec());
            let operations: Vec<_> = (0..hooks.len())
                .map(|at| {
                    let path = format!("/webhooks/{at}/clientConfig/caBundle");
                    json!({"op": "add", "path": path, "value": bundle})
                })
                .collect();
            let patch: json_patch::Patch =
                serde_json::from_value(json!(operations)).map_err(kube::Error::SerdeError)?;
            api.patch(name, &PatchParams::default(), &Patch::Json::<()>(patch))
                .await?;
        }
        Ok(())
    }
}

/// How long to wait before serving a bundle's leaf, where a leaf of this authority is served now.
fn until_learnt(authority: Option<&str>, bundle: &Bundle) -> Duration {
    match authority {
        Some(authority) if authority != bundle.ca.certificate => LEARNT,
        // Nothing is served yet, and waiting would help nobody; or the same authority is trusted already.
        _ => Duration::ZERO,
    }
}

const PARTS: [&str; 5] = ["ca.crt", "ca.key", "tls.crt", "tls.key", "trusted.crt"];

fn text(secret: &Secret, name: &str) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(name)?;
    String::from_utf8(bytes.0.clone()).ok()
}

fn leaf_of(secret: Option<&Secret>) -> Option<Pair> {
    let secret = secret?;
    Some(Pair {
        certificate: text(secret, "tls.crt")?,
        key: text(secret, "tls.key")?,
    })
}

fn bundle_of(secret: &Secret) -> Option<Bundle> {
    Some(Bundle {
        ca: Pair {
            certificate: text(secret, "ca.crt")?,
            key: text(secret, "ca.key")?,
        },
        leaf: leaf_of(Some(secret))?,
        trusted: text(secret, "trusted.crt")?,
    })
}

fn data_of(bundle: &Bundle) -> BTreeMap<String, ByteString> {
    let values = [
        &bundle.ca.certificate,
        &bundle.ca.key,
        &bundle.leaf.certificate,
        &bundle.leaf.key,
        &bundle.trusted,
    ];
    PARTS
        .iter()
        .zip(values)
        .map(|(name, value)| ((*name).to_owned(), ByteString(value.clone().into_bytes())))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_new_authority_is_trusted_before_it_serves() {
        let names = ["a.svc".to_owned()];
        let (old, _) = renewed(None, &names, SystemTime::now()).unwrap();
        let (new, _) = renewed(None, &names, SystemTime::now()).unwrap();
        let authority = Some(&*old.ca.certificate);
        assert_eq!(until_learnt(authority, &new), LEARNT);
        assert_eq!(until_learnt(authority, &old), Duration::ZERO);
        assert_eq!(until_learnt(None, &new), Duration::ZERO);
    }

    #[test]
    fn a_bundle_survives_its_secret() {
        let names = ["a.svc".to_owned()];
        let (bundle, _) = renewed(None, &names, SystemTime::now()).unwrap();
        let mut secret = Secret {
            data: Some(data_of(&bundle)),
            ..Secret::default()
        };
        assert_eq!(bundle_of(&secret), Some(bundle.clone()));
        assert_eq!(leaf_of(Some(&secret)), Some(bundle.leaf));
        secret.data.as_mut().unwrap().remove("ca.key");
        assert_eq!(bundle_of(&secret), None, "half of one is none");
    }
}

//! The certificate in use, changed while serving: connections that are open stay.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;

use super::Pair;

/// Why a pair can't serve.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// It is not PEM, or of no use.
    #[error("the certificate or its key can't be read: {0}")]
    Unreadable(String),
}

/// The certificate that new connections get.
#[derive(Debug, Default)]
pub struct InUse(RwLock<Option<Arc<CertifiedKey>>>);

impl InUse {
    /// Serves this pair from now on.
    ///
    /// # Errors
    /// Where it is of no use; the one before stays.
    pub fn set(&self, pair: &Pair) -> Result<(), ServingError> {
        let words =
            |error: rustls::pki_types::pem::Error| ServingError::Unreadable(error.to_string());
        let chain: Vec<_> = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(words)?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(words)?;
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|error| ServingError::Unreadable(error.to_string()))?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(certified));
        Ok(())
    }

    /// Whether there is one.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    /// TLS that serves it.
    ///
    /// # Errors
    /// Where the TLS library refuses its own defaults.
    pub fn tls(self: Arc<Self>) -> Result<ServerConfig, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl ResolvesServerCert for InUse {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

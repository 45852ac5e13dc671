//! A client of the HTTP metadata server: keys are put, got and deleted; 200 alone is success.

use std::io;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use siding_wire::descriptor::{Descriptor, DescriptorError};
use siding_wire::keys::{self, RpcMeta};
use tokio::net::TcpStream;

/// Most bytes of an answer that are read: a descriptor, and some.
const MOST_BYTES: usize = 4 << 20;

/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(5);

/// An HTTP metadata server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataServer {
    base: Uri,
    cluster: Option<String>,
}

/// Why a metadata server was asked in vain.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Its address is none.
    #[error(
        "'{url}' is no metadata server's address: {why}; write e.g. 'http://10.0.0.1:8080/metadata'"
    )]
    Url {
        /// As given.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// It could not be reached.
    #[error("the metadata server {server} can't be reached: {source}")]
    Io {
        /// Its `host:port`.
        server: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It did not speak HTTP, or too much of it.
    #[error("the metadata server {server} gave no answer: {why}")]
    Answer {
        /// Its `host:port`.
        server: String,
        /// What is wrong.
        why: String,
    },
    /// It refused.
    #[error("the metadata server refused to {method} {key}: {status}")]
    Status {
        /// What was asked.
        method: Method,
        /// Of which key.
        key: String,
        /// Its answer.
        status: u16,
    },
    /// What lies under a key can't be read.
    #[error("{key} at the metadata server: {why}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong.
        why: String,
    },
}

impl MetadataServer {
    /// A server at `http://host:port/path`, for the keys of one cluster where one is named.
    ///
    /// # Errors
    /// [`HttpError::Url`].
    pub fn new(url: &str, cluster: Option<String>) -> Result<Self, HttpError> {
        let wrong = |why: &str| HttpError::Url {
            url: url.to_owned(),
            why: why.to_owned(),
        };
        let base: Uri = url.parse().map_err(|_| wrong("it is no URL"))?;
        if base.scheme_str() != Some("http") {
            return Err(wrong("it does not start with 'http://'"));
        }
        if base.query().is_some() {
            return Err(wrong("it has a query"));
        }
        if base.host().is_none_or(str::is_empty) {
            return Err(wrong("it has no host"));
        }
        Ok(Self { base, cluster })
    }

    /// A segment's descriptor, where there is one.
    ///
    /// # Errors
    /// [`HttpError`].
    pub async fn descriptor(&self, segment: &str) -> Result<Option<Descriptor>, HttpError> {
        let key = self.descriptor_key(segment);
        let found = self.get(&key).await?;
        let parsed = found.map(|bytes| Descriptor::parse(&bytes)).transpose();
        parsed.map_err(|error: DescriptorError| HttpError::Value {
            key,
            why: error.to_string(),
        })
    }

    /// Where a segment's handshake endpoint is, where that is known.
    ///
    /// # Errors
    /// [`HttpError`].
    pub async fn rpc_meta(&self, segment: &str) -> Result<Option<RpcMeta>, HttpError> {
        let key = self.rpc_meta_key(segment);
        let found = self.get(&key).await?;
        let parsed = found
            .map(|bytes| serde_json::from_slice(&bytes))
            .transpose();
        parsed.map_err(|error| HttpError::Value {
            key,
            why: error.to_string(),
        })
    }

    pub(super) fn descriptor_key(&self, segment: &str) -> String {
        keys::descriptor_key(self.cluster.as_deref(), segment)
    }

    pub(super) fn rpc_meta_key(&self, segment: &str) -> String {
        keys::rpc_meta_key(self.cluster.as_deref(), segment)
    }

    /// What lies under a key.
    pub(super) async fn get(&self, key: &str) -> Result<Option<Bytes>, HttpError> {
        match self.ask(Method::GET, key, Bytes::new()).await? {
            (StatusCode::OK, body) => Ok(Some(body)),
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, _) => Err(refused(Method::GET, key, status)),
        }
    }

    /// Puts a value; says whether it was taken, or refused since another is there.
    pub(super) async fn put(&self, key: &str, value: Bytes) -> Result<bool, HttpError> {
        match self.ask(Method::PUT, key, value).await?.0 {
            StatusCode::OK => Ok(true),
            StatusCode::BAD_REQUEST => Ok(false),
            status => Err(refused(Method::PUT, key, status)),
        }
    }

    /// Deletes a key; one that is not there is deleted.
    pub(super) async fn delete(&self, key: &str) -> Result<(), HttpError> {
        match self.ask(Method::DELETE, key, Bytes::new()).await?.0 {
            StatusCode::OK | StatusCode::NOT_FOUND => Ok(()),
            status => Err(refused(Method::DELETE, key, status)),
        }
    }

    async fn ask(
        &self,
        method: Method,
        key: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), HttpError> {
        let server = self.server();
        match tokio::time::timeout(LIMIT, self.exchange(&server, method, key, body)).await {
            Ok(answered) => answered,
            Err(_) => {
                let why = format!("nothing within {} s", LIMIT.as_secs());
                Err(HttpError::Answer { server, why })
            }
        }
    }

    async fn exchange(
        &self,
        server: &str,
        method: Method,
        key: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), HttpError> {
        let answer = |why: String| HttpError::Answer {
            server: server.to_owned(),
            why,
        };
        let stream = TcpStream::connect(server).await;
        let stream = stream.map_err(|source| HttpError::Io {
            server: server.to_owned(),
            source,
        })?;
        let path = self.base.path();
        let request = Request::builder()
            .method(method)
            .uri(format!("{path}?key={}", keys::escaped(key)))
            .header("host", server)
            .header("content-type", "application/json")
            .header("connection", "close")
            .body(Full::new(body))
            .map_err(|error| answer(error.to_string()))?;
        let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(|error| answer(error.to_string()))?;
        let exchange = async {
            let response = sender.send_request(request).await;
            let response = response.map_err(|error| answer(error.to_string()))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MOST_BYTES).collect();
            let body = body.await.map_err(|error| answer(error.to_string()))?;
            Ok((status, body.to_bytes()))
        };
        tokio::pin!(exchange, connection);
        // The connection moves the exchange along; it may end first, and the answer is then there.
        tokio::select! {
            biased;
            answered = &mut exchange => answered,
            _ = &mut connection => exchange.await,
        }
    }

    /// Its `host:port`.
    fn server(&self) -> String {
        let host = self.base.host().unwrap_or_default();
        format!("{host}:{}", self.base.port_u16().unwrap_or(80))
    }
}

fn refused(method: Method, key: &str, status: StatusCode) -> HttpError {
    HttpError::Status {
        method,
        key: key.to_owned(),
        status: status.as_u16(),
    }
}

//! A segment's keys at the metadata server, kept there: put again when the server has lost them,
//! deleted when the segment goes, and never those of somebody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::Bytes;
use siding_wire::descriptor::Descriptor;
use siding_wire::keys::RpcMeta;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::http::{HttpError, MetadataServer};
use crate::loops::{IoLoops, Stopping};

/// Why a segment was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishFailed {
    /// The server could not be asked, or refused.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The descriptor has no form in JSON.
    #[error("the descriptor can't be written: {0}")]
    Json(#[from] serde_json::Error),
    /// The name belongs to another host.
    #[error(
        "the name '{segment}' is taken: its handshake endpoint is {host}:{port}; give this segment another name, or delete {key} where that host is gone for good"
    )]
    Taken {
        /// The segment's name.
        segment: String,
        /// Who has it.
        host: String,
        /// Its port.
        port: u16,
        /// The key that says so.
        key: String,
    },
}

/// What is to be found at the server.
#[derive(Debug)]
struct Keys {
    server: MetadataServer,
    segment: String,
    rpc_meta: RpcMeta,
    descriptor: Bytes,
}

/// Where publication counts.
#[derive(Debug, Default)]
pub struct PublicationCounters {
    published: AtomicBool,
    republished: AtomicU64,
    failures: AtomicU64,
}

/// What publication has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PublicationSnapshot {
    /// Whether the keys were there when last looked at.
    pub published: bool,
    /// Times that the keys were put again since the server had lost them.
    pub republished: u64,
    /// Rounds that failed.
    pub failures: u64,
}

impl PublicationCounters {
    /// What was done so far.
    #[must_use]
    pub fn snapshot(&self) -> PublicationSnapshot {
        PublicationSnapshot {
            published: self.published.load(Ordering::Acquire),
            republished: self.republished.load(Ordering::Acquire),
            failures: self.failures.load(Ordering::Acquire),
        }
    }
}

/// Keeps a segment's keys at the server until it is stopped. Dropped, it leaves them there.
#[derive(Debug)]
pub struct Publication {
    counters: Arc<PublicationCounters>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), PublishFailed>>,
}

impl Publication {
    /// Publishes on a loop, at once and whenever a look every `interval` finds the keys gone. A
    /// server that can't be reached is tried again at each interval.
    ///
    /// # Errors
    /// [`PublishFailed::Json`]; [`Stopping`] where the loops are, as the outer error.
    pub fn start(
        loops: &IoLoops,
        server: MetadataServer,
        descriptor: &Descriptor,
        rpc_meta: RpcMeta,
        interval: Duration,
    ) -> Result<Result<Self, PublishFailed>, Stopping> {
        let json = match descriptor.to_json() {
            Ok(json) => json,
            Err(error) => return Ok(Err(error.into())),
        };
        let keys = Keys {
            server,
            segment: descriptor.name.clone(),
            rpc_meta,
            descriptor: Bytes::from(json),
        };
        let counters = Arc::new(PublicationCounters::default());
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&counters);
        let task = loops.spawn(loops.next(), async move {
            keys.keep(&shared, interval, stopped).await
        })?;
        Ok(Ok(Self {
            counters,
            stop,
            task,
        }))
    }

    /// What it counts; it may be kept beyond the publication's end.
    #[must_use]
    pub fn counters(&self) -> Arc<PublicationCounters> {
        Arc::clone(&self.counters)
    }

    /// Deletes the keys, where they still are ours.
    ///
    /// # Errors
    /// [`PublishFailed`]; some keys may then stay.
    pub async fn withdraw(self) -> Result<(), PublishFailed> {
        let _ = self.stop.send(());
        // A loop that was stopped before has left the keys.
        self.task.await.unwrap_or(Ok(()))
    }
}

impl Keys {
    async fn keep(
        &self,
        counters: &PublicationCounters,
        interval: Duration,
        mut stopped: oneshot::Receiver<()>,
    ) -> Result<(), PublishFailed> {
        let mut ever = false;
        loop {
            match self.look().await {
                Ok(put) => {
                    if put && ever {
                        tracing::warn!(segment = %self.segment, "the metadata server had lost this segment: published again");
                        counters.republished.fetch_add(1, Ordering::Relaxed);
                    }
                    ever = true;
                    counters.published.store(true, Ordering::Release);
                }
                Err(error) => {
                    tracing::warn!(segment = %self.segment, "not published: {error}; tried again in {} s", interval.as_secs());
                    counters.failures.fetch_add(1, Ordering::Relaxed);
                    counters.published.store(false, Ordering::Release);
                }
            }
            tokio::select! {
                asked = &mut stopped => {
                    return match asked {
                        Ok(()) => self.delete().await,
                        // Dropped: the keys stay.
                        Err(_) => Ok(()),
                    };
                }
                () = tokio::time::sleep(interval) => {}
            }
        }
    }

    /// Puts what is not there; says whether anything was put.
    async fn look(&self) -> Result<bool, PublishFailed> {
        let meta = self.put_rpc_meta().await?;
        let key = self.server.descriptor_key(&self.segment);
        if self.server.get(&key).await?.as_ref() == Some(&self.descriptor) {
            return Ok(meta);
        }
        if !self.server.put(&key, self.descriptor.clone()).await? {
            self.server.delete(&key).await?;
            self.server.put(&key, self.descriptor.clone()).await?;
        }
        Ok(true)
    }

    /// An old key of this segment on this host, with another port, is ours and makes way.
    async fn put_rpc_meta(&self) -> Result<bool, PublishFailed> {
        let key = self.server.rpc_meta_key(&self.segment);
        match self.server.rpc_meta(&self.segment).await? {
            Some(found) if found == self.rpc_meta => return Ok(false),
            Some(found) if found.ip_or_host_name == self.rpc_meta.ip_or_host_name => {
                self.server.delete(&key).await?;
            }
            Some(found) => {
                return Err(PublishFailed::Taken {
                    segment: self.segment.clone(),
                    host: found.ip_or_host_name,
                    port: found.rpc_port,
                    key,
                });
            }
            None => {}
        }
        let value = Bytes::from(serde_json::to_vec(&self.rpc_meta)?);
        if self.server.put(&key, value).await? {
            Ok(true)
        } else {
            // Somebody was quicker.
            let found = self.server.rpc_meta(&self.segment).await?;
            let (host, port) = found
                .map(|found| (found.ip_or_host_name, found.rpc_port))
                .unwrap_or_default();
            Err(PublishFailed::Taken {
                segment: self.segment.clone(),
                host,
                port,
                key,
            })
        }
    }

    async fn delete(&self) -> Result<(), PublishFailed> {
        if self.server.rpc_meta(&self.segment).await?.as_ref() != Some(&self.rpc_meta) {
            // Lost, or somebody else's by now.
            return Ok(());
        }
        let server = &self.server;
        server.delete(&server.descriptor_key(&self.segment)).await?;
        server.delete(&server.rpc_meta_key(&self.segment)).await?;
        Ok(())
    }
}

//! The TCP target: Mooncake's clients read and write published memory.
//!
//! Bytes go by the kernel between socket and segment, without a copy in between; a write is
//! acknowledged once its last byte is in the segment. A connection holds a header and nothing that
//! grows with a request.

mod connection;
mod counters;
mod published;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::loops::{IoLoops, Stopping};
use crate::service::{Door, Listener, Service};

pub use counters::{Count, Counters, DIRECTIONS, Outcome, Snapshot};
pub use published::{PublishError, Published, PublishedBuffer};

/// How patient the target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// How long a request may go without a byte being moved; it is noticed within twice that.
    pub progress: Duration,
    /// How long a connection may be without a request.
    pub idle: Duration,
}

impl Default for Patience {
    /// 30 s for progress, as clients wait for a status; 1 h for idle ones, which clients keep on
    /// purpose.
    fn default() -> Self {
        Self {
            progress: Duration::from_secs(30),
            idle: Duration::from_secs(3600),
        }
    }
}

/// What connections share.
#[derive(Debug)]
struct Shared {
    published: Published,
    counters: Arc<Counters>,
    patience: Patience,
}

/// A running target. Dropping it ends its connections at once.
#[derive(Debug)]
pub struct Target {
    service: Service,
    counters: Arc<Counters>,
}

impl Target {
    /// Serves what is in `published`, now and later, on `listener`.
    ///
    /// # Errors
    /// [`Stopping`] where the loops are.
    pub fn start(
        listener: Listener,
        loops: &IoLoops,
        door: Door,
        patience: Patience,
        published: Published,
    ) -> Result<Self, Stopping> {
        let counters = Arc::new(Counters::new(loops.len()));
        let shared = Arc::new(Shared {
            published,
            counters: Arc::clone(&counters),
            patience,
        });
        let door_counters = Arc::clone(&counters.door);
        let service = Service::start(listener, loops, door, door_counters, move |guest| {
            connection::serve(guest, Arc::clone(&shared))
        })?;
        Ok(Self { service, counters })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.service.address()
    }

    /// What it counts; it may be kept beyond the target's end.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Takes no more connections and requests, lets those under way end within `grace`, cuts the
    /// rest, and waits until all are gone: no byte is moved afterwards. Says whether nothing had to
    /// be cut. Needs a tokio runtime with time.
    pub async fn stop(self, grace: Duration) -> bool {
        self.service.stop(grace).await
    }
}

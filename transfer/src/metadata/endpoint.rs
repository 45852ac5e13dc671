//! The peer to peer endpoint: each peer is answered on a task of its own, so that one that is slow
//! or silent delays nobody.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde::Serialize;
use siding_wire::descriptor::Descriptor;
use siding_wire::handshake::{self, Connection, Kind, LENGTH_BYTES, Notice, ProbeAnswer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::loops::{IoLoops, Stopping};
use crate::service::{Door, DoorCounters, DoorSnapshot, Guest, Life, Listener, Service};

/// How long a peer may take for all of it.
const DEADLINE: Duration = Duration::from_secs(10);

/// The descriptor that is handed out now. Cheap to clone; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Described {
    descriptor: Arc<RwLock<Option<Arc<Descriptor>>>>,
}

impl Described {
    /// Hands out another, or none: peers are then turned away, and try again later.
    pub fn set(&self, descriptor: Option<Descriptor>) {
        let mut place = self
            .descriptor
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *place = descriptor.map(Arc::new);
    }

    /// The one that is handed out.
    #[must_use]
    pub fn get(&self) -> Option<Arc<Descriptor>> {
        let place = self
            .descriptor
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        place.clone()
    }
}

/// Where the endpoint counts.
#[derive(Debug, Default)]
pub struct EndpointCounters {
    answered: [AtomicU64; 4],
    failed: AtomicU64,
    door: Arc<DoorCounters>,
}

/// What the endpoint has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndpointSnapshot {
    answered: [u64; 4],
    /// Peers whose message was none, that were too slow, or that left.
    pub failed: u64,
    /// Connections.
    pub door: DoorSnapshot,
}

impl EndpointSnapshot {
    /// Messages of this kind that were answered, refusals included.
    #[must_use]
    pub fn answered(&self, kind: Kind) -> u64 {
        self.answered[kind as usize]
    }
}

impl EndpointCounters {
    /// What was counted so far.
    #[must_use]
    pub fn snapshot(&self) -> EndpointSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        EndpointSnapshot {
            answered: std::array::from_fn(|at| load(&self.answered[at])),
            failed: load(&self.failed),
            door: self.door.snapshot(),
        }
    }
}

/// A running endpoint. Dropping it ends its connections at once.
#[derive(Debug)]
pub struct Endpoint {
    service: Service,
    counters: Arc<EndpointCounters>,
}

impl Endpoint {
    /// Answers on `listener` with what is in `described`, now and later.
    ///
    /// # Errors
    /// [`Stopping`] where the loops are.
    pub fn start(
        listener: Listener,
        loops: &IoLoops,
        door: Door,
        described: Described,
    ) -> Result<Self, Stopping> {
        let counters = Arc::new(EndpointCounters::default());
        let shared = Arc::clone(&counters);
        let door_counters = Arc::clone(&counters.door);
        let service = Service::start(listener, loops, door, door_counters, move |guest| {
            serve(guest, described.clone(), Arc::clone(&shared))
        })?;
        Ok(Self { service, counters })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.service.address()
    }

    /// What it counts.
    #[must_use]
    pub fn counters(&self) -> Arc<EndpointCounters> {
        Arc::clone(&self.counters)
    }

    /// As [`crate::target::Target::stop`].
    pub async fn stop(self, grace: Duration) -> bool {
        self.service.stop(grace).await
    }
}

async fn serve(guest: Guest, described: Described, counters: Arc<EndpointCounters>) {
    let mut life = guest.life;
    let answered = tokio::select! {
        biased;
        answered = tokio::time::timeout(DEADLINE, answer(guest.stream, &described, &counters)) => {
            answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        }
        () = life.reaches(Life::Ending) => return,
    };
    if let Err(error) = answered {
        tracing::debug!("a handshake failed: {error}");
        counters.failed.fetch_add(1, Ordering::Relaxed);
    }
}

async fn answer(
    stream: std::net::TcpStream,
    described: &Described,
    counters: &EndpointCounters,
) -> io::Result<()> {
    let mut stream = TcpStream::from_std(stream)?;
    let body = body(&mut stream).await?;
    let (form, json) = handshake::split(&body).map_err(io::Error::other)?;
    let reply = reply(form.kind(), json, described)?;
    drop(body);
    let frame = handshake::encode(form, &reply).map_err(io::Error::other)?;
    stream.write_all(&frame).await?;
    counters.answered[form.kind() as usize].fetch_add(1, Ordering::Relaxed);
    // The peer closes first, so that the port's wait after a close is on its side.
    stream.shutdown().await?;
    while stream.read(&mut [0; 64]).await.is_ok_and(|got| got > 0) {}
    Ok(())
}

/// A frame's body. Memory grows with what has come, not with what is announced.
pub(super) async fn body(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; LENGTH_BYTES];
    stream.read_exact(&mut length).await?;
    let length = handshake::body_bytes(length).map_err(io::Error::other)?;
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body).await?;
    if body.len() == length {
        Ok(body)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// The answer's JSON.
fn reply(kind: Kind, json: &[u8], described: &Described) -> io::Result<Vec<u8>> {
    match kind {
        Kind::Connection => {
            let asked: Connection = serde_json::from_slice(json)?;
            let why = "this segment is served over TCP: no queue pairs are set up here";
            to_json(&Connection::refused(&asked, why))
        }
        Kind::Metadata => {
            // The asker's own descriptor: it must be one, and nothing here needs it.
            serde_json::from_slice::<serde::de::IgnoredAny>(json)?;
            match described.get() {
                Some(descriptor) => to_json(&*descriptor),
                None => Err(io::Error::other("nothing is published yet, or any more")),
            }
        }
        Kind::Notify => {
            let notice: Notice = serde_json::from_slice(json)?;
            tracing::debug!(from = %notice.name, "a notice of {} bytes", notice.notify_msg.len());
            to_json(&Notice::taken())
        }
        Kind::Probe => to_json(&ProbeAnswer::alive()),
    }
}

fn to_json(value: &impl Serialize) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}

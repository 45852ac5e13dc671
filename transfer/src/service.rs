//! A listener whose connections are spread over event loops: who may come in, how many, and how
//! all of it ends.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::sync::{mpsc, watch};

use crate::loops::{IoLoops, Stopping};
use crate::peers::Peers;

/// Connections that wait to be accepted; the kernel caps it at net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// How long accepting pauses where the process has no descriptor or memory left for it.
const PAUSE: Duration = Duration::from_millis(50);

/// A listening socket, bound once and kept: nobody can take its port between finding it and using
/// it.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens on an address; port 0 takes any free one. `[::]` takes IPv4 as well.
    ///
    /// # Errors
    /// The kernel's, such as an address in use.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        // Connections of an earlier process may still be ending on this port.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Who may come in, and how many at a time.
#[derive(Debug, Clone)]
pub struct Door {
    /// Who may come in.
    pub peers: Peers,
    /// Most connections at a time.
    pub max_connections: usize,
}

/// What happened at a door. All of it only grows, but for `open`.
#[derive(Debug, Default)]
pub(crate) struct DoorCounters {
    open: AtomicU64,
    accepted: AtomicU64,
    refused_peers: AtomicU64,
    refused_for_limit: AtomicU64,
    accept_errors: AtomicU64,
}

/// What happened at a door so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DoorSnapshot {
    /// Connections open now.
    pub open: u64,
    /// Connections let in.
    pub accepted: u64,
    /// Connections refused since their peer may not come in.
    pub refused_peers: u64,
    /// Connections refused since too many were open.
    pub refused_for_limit: u64,
    /// Connections that the kernel could not hand over, such as for want of descriptors.
    pub accept_errors: u64,
}

impl DoorCounters {
    pub(crate) fn snapshot(&self) -> DoorSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        DoorSnapshot {
            open: load(&self.open),
            accepted: load(&self.accepted),
            refused_peers: load(&self.refused_peers),
            refused_for_limit: load(&self.refused_for_limit),
            accept_errors: load(&self.accept_errors),
        }
    }
}

/// How far a service is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    /// It serves.
    Serving,
    /// It takes nothing new; what is under way may end.
    Draining,
    /// Everything ends now.
    Ending,
}

/// What a connection knows of its service's life.
#[derive(Debug, Clone)]
pub(crate) struct Lifeline(watch::Receiver<Life>);

impl Lifeline {
    /// How far the service is; one that is gone is ending.
    pub(crate) fn now(&self) -> Life {
        if self.0.has_changed().is_err() {
            return Life::Ending;
        }
        *self.0.borrow()
    }

    /// Waits until the service is at least so far.
    pub(crate) async fn reaches(&mut self, life: Life) {
        // An error says that the service is gone.
        let _ = self.0.wait_for(|now| *now >= life).await;
    }
}

/// A connection that was let in.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Its socket, which does not block.
    pub(crate) stream: TcpStream,
    /// The loop that it lives on.
    pub(crate) loop_index: usize,
    /// When to end.
    pub(crate) life: Lifeline,
}

/// A running service.
#[derive(Debug)]
pub(crate) struct Service {
    address: SocketAddr,
    life: watch::Sender<Life>,
    /// Ends when the acceptor and all connections are gone.
    ended: mpsc::Receiver<Infallible>,
}

impl Service {
    /// Accepts on loop 0 and runs `host` for each connection on the loops in turn.
    pub(crate) fn start<H, F>(
        listener: Listener,
        loops: &IoLoops,
        door: Door,
        counters: Arc<DoorCounters>,
        host: H,
    ) -> Result<Self, Stopping>
    where
        H: Fn(Guest) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (life, lifeline) = watch::channel(Life::Serving);
        let (pass, ended) = mpsc::channel(1);
        let address = listener.address;
        let acceptor = Acceptor {
            loops: loops.clone(),
            door,
            counters,
            host,
            life: Lifeline(lifeline),
            pass,
        };
        loops.spawn(0, async move {
            if let Err(error) = acceptor.run(listener.socket).await {
                tracing::error!(%address, "accepting ended: {error}");
            }
        })?;
        Ok(Self {
            address,
            life,
            ended,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the listener, lets what is under way end within `grace`, ends the rest, and waits
    /// until all of it is gone. Says whether nothing had to be cut short.
    pub(crate) async fn stop(mut self, grace: Duration) -> bool {
        let _ = self.life.send(Life::Draining);
        if tokio::time::timeout(grace, self.ended.recv()).await.is_ok() {
            return true;
        }
        let _ = self.life.send(Life::Ending);
        self.ended.recv().await;
        false
    }
}

struct Acceptor<H> {
    loops: IoLoops,
    door: Door,
    counters: Arc<DoorCounters>,
    host: H,
    life: Lifeline,
    pass: mpsc::Sender<Infallible>,
}

impl<H, F> Acceptor<H>
where
    H: Fn(Guest) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    async fn run(mut self, listener: TcpListener) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut life = self.life.clone();
        loop {
            let accepted = tokio::select! {
                biased;
                () = life.reaches(Life::Draining) => return Ok(()),
                accepted = accept(&listener) => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    if self.admit(stream, peer).is_err() {
                        return Ok(());
                    }
                }
                Err(error) => self.survive(&error).await,
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, peer: SocketAddr) -> Result<(), Stopping> {
        if !self.door.peers.admit(peer.ip()) {
            tracing::debug!(%peer, "refused: transfer.peers does not have it");
            self.counters.refused_peers.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let open = self.counters.open.load(Ordering::Acquire);
        if open >= self.door.max_connections as u64 {
            tracing::debug!(%peer, open, "refused: as many connections are open as may be");
            let refused = &self.counters.refused_for_limit;
            refused.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%peer, "gone before it began: {error}");
            self.counters.accept_errors.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.counters.accepted.fetch_add(1, Ordering::Relaxed);
        let seat = Seat::take(&self.counters, &self.pass);
        let loop_index = self.loops.next();
        let guest = Guest {
            stream,
            loop_index,
            life: self.life.clone(),
        };
        let hosted = (self.host)(guest);
        self.loops.spawn(loop_index, async move {
            let _seat = seat;
            hosted.await;
        })?;
        Ok(())
    }

    /// A failed accept is one connection's misfortune, or a shortage that passes.
    async fn survive(&self, error: &io::Error) {
        self.counters.accept_errors.fetch_add(1, Ordering::Relaxed);
        match error.kind() {
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset => {}
            _ => {
                tracing::warn!("a connection can't be accepted now: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The next connection, free to move to another loop.
async fn accept(listener: &tokio::net::TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    Ok((stream.into_std()?, peer))
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // Peers that are gone without a word are noticed within two minutes.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(15))
        .with_retries(4);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// One open connection, counted until it is dropped.
struct Seat {
    counters: Arc<DoorCounters>,
    _pass: mpsc::Sender<Infallible>,
}

impl Seat {
    fn take(counters: &Arc<DoorCounters>, pass: &mpsc::Sender<Infallible>) -> Self {
        counters.open.fetch_add(1, Ordering::AcqRel);
        Self {
            counters: Arc::clone(counters),
            _pass: pass.clone(),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.counters.open.fetch_sub(1, Ordering::AcqRel);
    }
}

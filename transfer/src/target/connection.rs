//! One connection: a request after the other, straight between socket and segment.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use siding_fabric::Window;
use siding_wire::frame::{Direction, REQUEST_BYTES, Request, STATUS_BYTES, Status, Version};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::Shared;
use super::counters::Outcome;
use crate::service::{Guest, Life, Lifeline};

/// Bytes that a connection moves before others on its loop have a turn.
const TURN_BYTES: u64 = 4 << 20;

/// How long, and for how many bytes, a rejected client is listened to, so that a reset does not
/// overtake the status that tells it why.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 << 20;

/// Serves a connection to its end.
pub(super) async fn serve(guest: Guest, shared: Arc<Shared>) {
    let Guest {
        stream,
        loop_index,
        life,
    } = guest;
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!("a connection ended before it began: {error}"),
    };
    let connection = Connection {
        stream,
        shared,
        loop_index,
        pace: Pace::new(),
    };
    tokio::select! {
        biased;
        () = connection.requests() => {}
        () = connection.watch(life) => {}
    }
}

/// The connection has to end; whatever there was to count has been counted.
struct Ended;

struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
    loop_index: usize,
    pace: Pace,
}

impl Connection {
    async fn requests(&self) {
        while self.request().await.is_ok() {
            if self.pace.draining.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Serves the next request.
    async fn request(&self) -> Result<(), Ended> {
        self.pace.rest();
        let header = self.header().await?;
        let Ok(request) = Request::decode(&header) else {
            self.shared.counters.malformed(self.loop_index);
            return Err(Ended);
        };
        let mut operation = Operation::begin(self, request.direction);
        let found = self
            .shared
            .published
            .find(request.address, request.size_bytes);
        let Some(window) = found else {
            operation.end(Outcome::AddressRejected);
            self.reject(request.version).await;
            return Err(Ended);
        };
        let moved = match request.direction {
            Direction::Read => self.answer(&window, request.version, &mut operation).await,
            Direction::Write => self.apply(&window, request.version, &mut operation).await,
        };
        match moved {
            Ok(()) => operation.end(Outcome::Ok),
            Err(error) => {
                operation.end(outcome_of(&error));
                return Err(Ended);
            }
        }
        Ok(())
    }

    /// The next header. A peer that leaves before its first byte is done.
    async fn header(&self) -> Result<[u8; REQUEST_BYTES], Ended> {
        let mut header = [0; REQUEST_BYTES];
        let mut filled = 0;
        while filled < REQUEST_BYTES {
            match self.stream.try_read(&mut header[filled..]) {
                Ok(0) => return Err(Ended),
                Ok(got) => {
                    filled += got;
                    self.pace.moved();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stream.readable().await.map_err(|_| Ended)?;
                }
                Err(_) => return Err(Ended),
            }
        }
        Ok(header)
    }

    /// Answers a read: the status where there is one, and the bytes, in as few calls as may be.
    async fn answer(
        &self,
        window: &Window,
        version: Version,
        operation: &mut Operation<'_>,
    ) -> io::Result<()> {
        let status = Status::Ok.encode();
        let status = match version {
            Version::V1 => &[][..],
            Version::V2 => &status[..],
        };
        let (size, mut turn) = (window.len_bytes(), TURN_BYTES);
        let mut status_sent = 0;
        while operation.moved < size {
            let left = size - operation.moved;
            let before = &status[status_sent..];
            let asked = before.len() as u64 + left;
            let sent = self
                .eagerly(Interest::WRITABLE, asked, || {
                    window.send(&self.stream, before, operation.moved, left)
                })
                .await?;
            let status_part = before.len().min(sent);
            status_sent += status_part;
            operation.moved += (sent - status_part) as u64;
            self.pace.moved();
            yield_after(&mut turn, sent).await;
        }
        Ok(())
    }

    /// Applies a write, and acknowledges it where that is awaited.
    async fn apply(
        &self,
        window: &Window,
        version: Version,
        operation: &mut Operation<'_>,
    ) -> io::Result<()> {
        let (size, mut turn) = (window.len_bytes(), TURN_BYTES);
        while operation.moved < size {
            let left = size - operation.moved;
            let got = self
                .eagerly(Interest::READABLE, left, || {
                    window.receive(&self.stream, &mut [], operation.moved, left)
                })
                .await?;
            if got == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            operation.moved += got as u64;
            self.pace.moved();
            yield_after(&mut turn, got).await;
        }
        match version {
            Version::V1 => Ok(()),
            Version::V2 => self.send_status(Status::Ok).await,
        }
    }

    /// Calls at once where the socket may be ready, and waits only where it is not.
    ///
    /// A call that moved less than it was `asked` to has exhausted the socket: noting so here
    /// saves the call that would only find that out. Whatever comes later is a new event.
    async fn eagerly(
        &self,
        interest: Interest,
        asked: u64,
        mut call: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let mut moved = None;
            let tried = self.stream.try_io(interest, || {
                let count = call()?;
                moved = Some(count);
                if count > 0 && (count as u64) < asked {
                    Err(ErrorKind::WouldBlock.into())
                } else {
                    Ok(count)
                }
            });
            match (moved, tried) {
                (Some(count), _) | (None, Ok(count)) => return Ok(count),
                (None, Err(error)) if error.kind() == ErrorKind::WouldBlock => {
                    self.stream.ready(interest).await?;
                }
                (None, Err(error)) => return Err(error),
            }
        }
    }

    async fn send_status(&self, status: Status) -> io::Result<()> {
        let bytes: [u8; STATUS_BYTES] = status.encode();
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.try_write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stream.writable().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says so where the version has a way to, and listens on for a moment.
    async fn reject(&self, version: Version) {
        if version == Version::V1 {
            return;
        }
        if self.send_status(Status::AddressRejected).await.is_err() {
            return;
        }
        if SockRef::from(&self.stream)
            .shutdown(Shutdown::Write)
            .is_ok()
        {
            let _ = tokio::time::timeout(LINGER, self.discard()).await;
        }
    }

    async fn discard(&self) {
        let mut left = LINGER_BYTES;
        while left > 0 && self.stream.readable().await.is_ok() {
            match discard_some(&self.stream) {
                Ok(0) => return,
                Ok(count) => left = left.saturating_sub(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    /// Ends when the connection must: its deadline has passed, or its target stops.
    async fn watch(&self, mut life: Lifeline) {
        let Shared { patience, .. } = *self.shared;
        loop {
            let (busy, since) = self.pace.now();
            let limit = if busy {
                patience.progress
            } else {
                patience.idle
            };
            let left = limit.saturating_sub(since);
            if left.is_zero() {
                self.pace.cut(Outcome::Stalled);
                return;
            }
            let next = if self.pace.draining.load(Ordering::Relaxed) {
                Life::Ending
            } else {
                Life::Draining
            };
            tokio::select! {
                biased;
                () = life.reaches(next) => {
                    self.pace.cut(Outcome::Stopped);
                    self.pace.draining.store(true, Ordering::Relaxed);
                    if life.now() == Life::Ending || !self.pace.now().0 {
                        return;
                    }
                }
                // An idle connection may become a busy one, whose patience is another.
                () = tokio::time::sleep(left.min(patience.progress)) => {}
            }
        }
    }
}

/// Reads what is there and forgets it. The buffer is on the stack for the call only.
fn discard_some(stream: &TcpStream) -> io::Result<usize> {
    let mut bytes = [0; 16 << 10];
    stream.try_read(&mut bytes)
}

/// Lets others have a turn where this one's is over.
async fn yield_after(turn: &mut u64, moved: usize) {
    *turn = turn.saturating_sub(moved as u64);
    if *turn == 0 {
        *turn = TURN_BYTES;
        tokio::task::yield_now().await;
    }
}

fn outcome_of(error: &io::Error) -> Outcome {
    match error.kind() {
        ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::TimedOut
        | ErrorKind::NotConnected
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable => Outcome::PeerGone,
        _ => Outcome::Memory,
    }
}

/// Whether a request is under way, and when something last moved.
struct Pace {
    started: Instant,
    busy: AtomicBool,
    moved_at_nanoseconds: AtomicU64,
    draining: AtomicBool,
    /// Index of the [`Outcome`] of a request that is cut.
    cut: AtomicU8,
}

impl Pace {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            busy: AtomicBool::new(false),
            moved_at_nanoseconds: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            cut: AtomicU8::new(Outcome::Stopped as u8),
        }
    }

    /// Something moved: a request is under way.
    fn moved(&self) {
        self.touch();
        self.busy.store(true, Ordering::Relaxed);
    }

    /// The next request is awaited.
    fn rest(&self) {
        self.touch();
        self.busy.store(false, Ordering::Relaxed);
    }

    fn touch(&self) {
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.moved_at_nanoseconds.store(now, Ordering::Relaxed);
    }

    /// Whether a request is under way, and how long nothing has moved.
    fn now(&self) -> (bool, Duration) {
        let moved = Duration::from_nanos(self.moved_at_nanoseconds.load(Ordering::Relaxed));
        (
            self.busy.load(Ordering::Relaxed),
            self.started.elapsed().saturating_sub(moved),
        )
    }

    fn cut(&self, outcome: Outcome) {
        self.cut.store(outcome as u8, Ordering::Relaxed);
    }
}

/// A request under way. However it ends, it is counted once.
struct Operation<'a> {
    connection: &'a Connection,
    direction: Direction,
    started: Instant,
    moved: u64,
    counted: bool,
}

impl<'a> Operation<'a> {
    fn begin(connection: &'a Connection, direction: Direction) -> Self {
        Self {
            connection,
            direction,
            started: Instant::now(),
            moved: 0,
            counted: false,
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.counted = true;
        self.connection.shared.counters.ended(
            self.connection.loop_index,
            self.direction,
            outcome,
            self.moved,
            self.started.elapsed(),
        );
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if !self.counted {
            let cut = usize::from(self.connection.pace.cut.load(Ordering::Relaxed));
            let outcome = Outcome::ALL.get(cut).copied();
            self.end(outcome.unwrap_or(Outcome::Stopped));
        }
    }
}

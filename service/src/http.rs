//! Serving HTTP with bounds: on connections, on how long a client may take, on shutting down.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// What a client may take.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Connections at once; one more cuts the oldest, so that whoever holds connections open
    /// can't keep a probe out.
    connections: usize,
    /// The time for a request's head, and so the time that a connection may lie idle.
    head: Duration,
    /// A connection's age, after which it is asked to end: a client that reads nothing ends too.
    age: Duration,
    /// The time that what is being answered may take once a connection is asked to end.
    closing: Duration,
    /// A request's head, in bytes.
    head_bytes: usize,
}

const BOUNDS: Bounds = Bounds {
    connections: 256,
    head: Duration::from_secs(10),
    age: Duration::from_secs(60),
    closing: Duration::from_millis(500),
    head_bytes: 16 << 10,
};

/// How long to wait before accepting again when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from.
pub trait Accept: Send {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection.
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Serves `router` over HTTP/1.1 until `shutdown` is done; then accepts nothing more, lets what is
/// being answered end, and cuts what is left after half a second.
///
/// At most 256 connections are open at once (one more cuts the oldest), a request's head may take
/// 10 s and 16 KiB, a connection is closed when it is a minute old. Bodies of requests are for the
/// routes to bound.
///
/// # Errors
/// None so far: an accept that fails is logged and tried again.
pub async fn serve(
    listener: impl Accept,
    router: Router,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_within(BOUNDS, listener, router, shutdown).await
}

async fn serve_within(
    bounds: Bounds,
    listener: impl Accept,
    router: Router,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let (close, closing) = watch::channel(false);
    let mut shutdown = pin!(shutdown);
    let mut open = Open::default();
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.next() => accepted,
        };
        match accepted {
            Ok(stream) => {
                failing = false;
                open.make_room(bounds.connections);
                let router = router.clone();
                open.add(answer(bounds, stream, router, closing.clone()));
            }
            Err(error) if ends_one_connection(&error) => {}
            Err(error) => {
                // Most likely no descriptor is left: somebody's old one is given to the next.
                open.cut_oldest();
                // Told once in a row: it may last, and logs have an end too.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "HTTP: connections can't be accepted; trying again");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let _ = close.send(true);
    let ended = async { while open.tasks.join_next().await.is_some() {} };
    // Those that are left are cut when `open` is dropped.
    let _ = timeout(bounds.closing, ended).await;
    Ok(())
}

/// The connections that are open, the oldest first.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    handles: VecDeque<AbortHandle>,
}

impl Open {
    fn make_room(&mut self, most: usize) {
        while self.tasks.try_join_next().is_some() {}
        self.handles.retain(|handle| !handle.is_finished());
        while self.handles.len() >= most {
            self.cut_oldest();
        }
    }

    fn cut_oldest(&mut self) {
        if let Some(oldest) = self.handles.pop_front() {
            oldest.abort();
        }
    }

    fn add(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.handles.push_back(self.tasks.spawn(connection));
    }
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    bounds: Bounds,
    stream: S,
    router: Router,
    mut closing: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_buf_size(bounds.head_bytes);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // How a client ends its connection is its own affair.
        _ = connection.as_mut() => return,
        _ = closing.wait_for(|closing| *closing) => {}
        () = sleep(bounds.age) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(bounds.closing, connection).await;
}

fn ends_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use axum::body::{Body, Bytes, HttpBody};
    use axum::routing::get as on_get;
    use hyper::body::Frame;
    use siding_fixtures::http::{Server, get, request};
    use std::convert::Infallible;
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(20);

    /// A body that fills any buffer.
    struct Endless;

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let data = Bytes::from_static(&[b'x'; 65_536]);
            Poll::Ready(Some(Ok(Frame::data(data))))
        }
    }

    fn hello() -> Router {
        let stuck = || async { std::future::pending::<()>().await };
        Router::new()
            .route("/", on_get(|| async { "hello" }))
            .route("/endless", on_get(|| async { Body::new(Endless) }))
            .route("/stuck", on_get(stuck))
    }

    fn start(bounds: Bounds) -> Server {
        Server::start(move |listener, until| serve_within(bounds, listener, hello(), until))
    }

    /// Reads to the connection's end, however it ends; how long that took.
    fn until_cut(client: &mut Client) -> (Vec<u8>, Duration) {
        let started = Instant::now();
        client.set_read_timeout(Some(LONG)).unwrap();
        let mut read = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            assert!(started.elapsed() < LONG, "not cut within {LONG:?}");
            match client.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => read.extend(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("not cut within {LONG:?}: {error}"),
            }
        }
        (read, started.elapsed())
    }

    #[test]
    fn a_client_that_sends_nothing_or_half_a_head_is_cut() {
        let server = start(Bounds {
            head: SHORT,
            ..BOUNDS
        });
        for sent in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: x\r\nSlow: "] {
            let mut client = Client::connect(server.address).unwrap();
            client.write_all(sent.as_bytes()).unwrap();
            let (_, took) = until_cut(&mut client);
            assert!(took >= SHORT / 2 && took < LONG, "{sent:?} {took:?}");
        }
        // Bytes that trickle do not buy time.
        let mut client = Client::connect(server.address).unwrap();
        let started = Instant::now();
        while started.elapsed() < LONG && client.write_all(b"GET").is_ok() {
            std::thread::sleep(SHORT / 10);
        }
        assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
        // Nor does a connection that is kept alive lie idle for ever.
        let mut client = Client::connect(server.address).unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let (read, took) = until_cut(&mut client);
        assert!(read.ends_with(b"hello"));
        assert!(took >= SHORT / 2, "{took:?}");
    }

    #[test]
    fn a_client_that_reads_nothing_is_cut() {
        let server = start(Bounds {
            age: SHORT,
            closing: SHORT,
            ..BOUNDS
        });
        let mut client = Client::connect(server.address).unwrap();
        client
            .write_all(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        std::thread::sleep(SHORT * 5);
        let (read, took) = until_cut(&mut client);
        assert!(read.starts_with(b"HTTP/1.1 200 OK\r\n"));
        assert!(took < LONG, "{took:?}");
    }

    #[test]
    fn heads_are_bounded_and_bodies_are_not_read() {
        let server = start(BOUNDS);
        let long = format!(
            "GET / HTTP/1.1\r\nHost: x\r\nLong: {}\r\n\r\n",
            "x".repeat(64 << 10)
        );
        assert_eq!(request(server.address, &long).status, 431);
        // The answer comes at once, though a gigabyte is announced and none of it sent.
        let body = "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n";
        let started = Instant::now();
        let mut client = Client::connect(server.address).unwrap();
        client.write_all(body.as_bytes()).unwrap();
        let (read, _) = until_cut(&mut client);
        assert!(read.ends_with(b"hello"));
        assert!(started.elapsed() < BOUNDS.head, "{:?}", started.elapsed());
    }

    #[test]
    fn who_holds_connections_keeps_nobody_out() {
        let server = start(Bounds {
            connections: 4,
            head: LONG * 2,
            age: LONG * 2,
            ..BOUNDS
        });
        let mut held: Vec<_> = (0..12)
            .map(|_| Client::connect(server.address).unwrap())
            .collect();
        assert_eq!(get(server.address, "/").status, 200);
        let (read, took) = until_cut(&mut held[0]);
        assert!(read.is_empty() && took < LONG, "{took:?}");
        // The newest are still there.
        let last = held.last_mut().unwrap();
        last.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        assert!(until_cut(last).0.ends_with(b"hello"));
    }

    #[test]
    fn shutting_down_waits_for_nobody() {
        let server = start(BOUNDS);
        let mut silent = Client::connect(server.address).unwrap();
        let mut half = Client::connect(server.address).unwrap();
        half.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let mut stuck = Client::connect(server.address).unwrap();
        stuck
            .write_all(b"GET /stuck HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut idle = Client::connect(server.address).unwrap();
        idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut answer = [0; 15];
        idle.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");

        let address = server.address;
        let took = server.stop();
        assert!(took < Duration::from_secs(1), "{took:?}");
        for client in [&mut silent, &mut half, &mut stuck, &mut idle] {
            until_cut(client);
        }
        assert!(Client::connect(address).is_err());
    }

    #[test]
    fn shutting_down_is_immediate_where_nobody_is_served() {
        let server = start(Bounds {
            closing: LONG,
            ..BOUNDS
        });
        let mut idle = Client::connect(server.address).unwrap();
        idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        idle.read_exact(&mut [0; 15]).unwrap();
        let took = server.stop();
        assert!(took < LONG / 2, "{took:?}");
    }
}

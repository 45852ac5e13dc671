//! A server on a thread of its own and a tiny client, for tests.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Serves until it is stopped or dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Runs `serve` on a thread, as `siding run` does.
    pub(super) fn start<S, F>(serve: S) -> Self
    where
        S: FnOnce(TcpListener, Until) -> F + Send + 'static,
        F: Future<Output = io::Result<()>>,
    {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                serve(listener, Box::pin(async { drop(stopped.await) })).await
            })
        });
        Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Stops it; how long that took.
    pub(super) fn stop(mut self) -> Duration {
        let started = Instant::now();
        self.end();
        started.elapsed()
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a server's end is told by.
pub(super) type Until = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// An answer.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    headers: BTreeMap<String, String>,
    pub(super) body: String,
}

impl Response {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub(super) fn get(address: SocketAddr, path: &str) -> Response {
    ask(address, "GET", path)
}

pub(super) fn ask(address: SocketAddr, method: &str, path: &str) -> Response {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: siding\r\nConnection: close\r\n\r\n");
    request(address, &head)
}

/// Sends this as it is and reads to the end of the connection.
pub(super) fn request(address: SocketAddr, text: &str) -> Response {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    // A server may answer and close before it has read all.
    let _ = stream.write_all(text.as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    parse(&String::from_utf8(bytes).unwrap())
}

fn parse(text: &str) -> Response {
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let first = lines.next().unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    });
    Response {
        status: first.split(' ').nth(1).unwrap().parse().unwrap(),
        headers: headers.collect(),
        body: body.to_owned(),
    }
}

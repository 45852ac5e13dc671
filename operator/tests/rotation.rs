//! Certificates change while webhooks are called: no call is dropped, and the new one is what new connections get.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::routing::get;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use siding_operator::certificates::serving::InUse;
use siding_operator::certificates::{Bundle, renewed};
use siding_operator::server::serve_tls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const NAME: &str = "siding-operator.siding-system.svc";
const CLIENTS: usize = 4;
/// Calls of each client between two changes.
const CALLS: usize = 25;

/// What the clients have done, and what they trust.
struct Calls {
    address: SocketAddr,
    trusted: watch::Receiver<String>,
    done: [AtomicUsize; CLIENTS],
    stop: AtomicBool,
}

impl Calls {
    async fn connect(&self) -> TlsStream<TcpStream> {
        let trusted = self.trusted.borrow().clone();
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = rustls::crypto::ring::default_provider();
        let config = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from(NAME).unwrap();
        connector.connect(name, stream).await.unwrap()
    }

    /// Calls as client `n`: on one connection that stays, or on a new one each time.
    async fn call(&self, n: usize) {
        let stays = n % 2 == 0;
        let mut stream = self.connect().await;
        while !self.stop.load(Ordering::Relaxed) {
            if !stays {
                stream = self.connect().await;
            }
            assert_eq!(ask(&mut stream).await, "answered");
            self.done[n].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Until each client has done so many more, and so has learnt what was published.
    async fn go_on(&self) {
        let now = || {
            self.done
                .each_ref()
                .map(|done| done.load(Ordering::Relaxed))
        };
        let before = now();
        while now()
            .iter()
            .zip(before)
            .any(|(now, before)| now - before < CALLS)
        {
            tokio::task::yield_now().await;
        }
    }
}

async fn ask(stream: &mut TlsStream<TcpStream>) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&got);
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && body.len() == "answered".len()
        {
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            return body.to_owned();
        }
        let read = stream.read_buf(&mut got).await.unwrap();
        assert!(read > 0, "cut after {:?}", String::from_utf8_lossy(&got));
    }
}

/// What a new connection is shown.
async fn shown(calls: &Calls) -> CertificateDer<'static> {
    let stream = calls.connect().await;
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    chain[0].clone().into_owned()
}

fn leaf_of(bundle: &Bundle) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(bundle.leaf.certificate.as_bytes()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_dropped_while_leaf_and_authority_change() {
    let names = [NAME.to_owned()];
    let start = SystemTime::now();
    let (mut bundle, _) = renewed(None, &names, start).unwrap();
    let in_use = Arc::new(InUse::default());
    in_use.set(&bundle.leaf).unwrap();
    let slow = || async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        "answered"
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (publish, trusted) = watch::channel(bundle.trusted.clone());
    let calls = Arc::new(Calls {
        address: listener.local_addr().unwrap(),
        trusted,
        done: Default::default(),
        stop: AtomicBool::new(false),
    });
    let router = Router::new().route("/", get(slow));
    let served = Arc::clone(&in_use);
    tokio::spawn(serve_tls(listener, router, served, std::future::pending()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let calls = Arc::clone(&calls);
            tokio::spawn(async move { calls.call(n).await })
        })
        .collect();

    // Two leaves of the same authority, then a new authority.
    let mut authorities = 1;
    for of_new_authority in [false, false, true] {
        calls.go_on().await;
        let before = bundle.ca.clone();
        bundle = if of_new_authority {
            authority_changed(bundle, &names, start)
        } else {
            leaf_changed(bundle, &names, start)
        };
        authorities += usize::from(bundle.ca != before);
        // In the keeper's order: what clients trust, then, once all have learnt it, what is served.
        publish.send(bundle.trusted.clone()).unwrap();
        calls.go_on().await;
        in_use.set(&bundle.leaf).unwrap();
        assert_eq!(shown(&calls).await, leaf_of(&bundle));
        calls.go_on().await;
    }
    assert_eq!(authorities, 2);
    calls.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
}

/// Renewed for another name and back: the leaf is another, the authority the same, and all is valid now.
fn leaf_changed(bundle: Bundle, names: &[String], now: SystemTime) -> Bundle {
    let (moved, _) = renewed(Some(bundle), &["other.svc".to_owned()], now).unwrap();
    renewed(Some(moved), names, now).unwrap().0
}

/// As renewal leaves it (see its own tests), but valid now: a new authority, trusted beside the old one.
fn authority_changed(bundle: Bundle, names: &[String], now: SystemTime) -> Bundle {
    let (mut new, _) = renewed(None, names, now).unwrap();
    new.trusted.push_str(&bundle.ca.certificate);
    new
}

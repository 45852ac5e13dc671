//! The webhooks over HTTPS; the routes of metrics and health.

mod webhooks;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

pub use webhooks::{Webhooks, router};

use crate::caches::Caches;
use crate::certificates::serving::InUse;
use crate::metrics::Metrics;

/// How long a client may take to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a client may take to send its head.
const HEAD: Duration = Duration::from_secs(5);
/// How long open connections are waited for at the end.
const FAREWELL: Duration = Duration::from_secs(10);

/// Serves the router over TLS until `stop` is done; what is in flight then gets its answer.
///
/// # Errors
/// Where TLS can't be set up.
pub async fn serve_tls(
    listener: TcpListener,
    router: Router,
    in_use: Arc<InUse>,
    stop: impl Future<Output = ()>,
) -> Result<(), rustls::Error> {
    let acceptor = TlsAcceptor::from(Arc::new(in_use.tls()?));
    let open = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let Some(stream) = taken(accepted).await else {
            continue;
        };
        let (acceptor, router, watcher) = (acceptor.clone(), router.clone(), open.watcher());
        tokio::spawn(async move {
            let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return debug!(%error, "a TLS handshake failed"),
                Err(_) => return debug!("a client was too slow with its TLS handshake"),
            };
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            if let Err(error) = watcher.watch(connection).await {
                debug!(%error, "a connection ended early");
            }
        });
    }
    drop(listener);
    if timeout(FAREWELL, open.shutdown()).await.is_err() {
        warn!("some connections were still open at the end");
    }
    Ok(())
}

/// A machine without descriptors or memory for one more connection is no reason to end.
async fn taken(accepted: io::Result<(TcpStream, SocketAddr)>) -> Option<TcpStream> {
    match accepted {
        Ok((stream, _)) => {
            let _ = stream.set_nodelay(true);
            Some(stream)
        }
        Err(error) => {
            warn!(%error, "a connection can't be taken");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// What `/readyz` looks at.
#[derive(Clone, Debug)]
pub struct Health {
    /// The caches.
    pub caches: Arc<Caches>,
    /// The certificate.
    pub in_use: Arc<InUse>,
    /// The metrics.
    pub metrics: Metrics,
}

/// `/metrics`, `/healthz`, `/readyz`.
pub fn health_router(health: Health) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(health)
}

async fn metrics(State(health): State<Health>) -> impl IntoResponse {
    health.metrics.caches_complete(health.caches.are_complete());
    match health.metrics.text() {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

async fn ready(State(health): State<Health>) -> impl IntoResponse {
    let problem = if !health.caches.can_admit() {
        Some("the caches have not seen all that the webhooks look at yet\n")
    } else if !health.in_use.is_set() {
        Some("there is no certificate yet\n")
    } else {
        None
    };
    match problem {
        None => (StatusCode::OK, "ok\n"),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, problem),
    }
}

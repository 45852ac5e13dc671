//! Metrics and probes over HTTP, with bounds on what a client may take.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::metrics::Metrics;

const CONNECTIONS: usize = 64;
const HEAD: Duration = Duration::from_secs(5);
const AGE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// `/metrics`, `/healthz` and `/readyz`.
pub fn router(metrics: Metrics) -> Router {
    Router::new()
        .route("/metrics", get(encode))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(metrics)
}

async fn encode(State(metrics): State<Metrics>) -> Response {
    match metrics.encode() {
        Ok(text) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => {
            let why = format!("a metric can't be written: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
        }
    }
}

async fn readyz(State(metrics): State<Metrics>) -> Response {
    match metrics.not_ready() {
        None => "ok\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

/// Serves for ever: 64 connections at once, each for 30 s at most.
pub async fn serve(listener: TcpListener, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Who waits for room waits for 30 s at most: none is kept longer.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    let _ = timeout(AGE, answer(stream, router)).await;
                    drop(place);
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn answer(stream: TcpStream, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let service = TowerToHyperService::new(router);
    // How a client ends its connection is its own affair.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

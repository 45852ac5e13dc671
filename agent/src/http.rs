//! Metrics and probes over HTTP.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::metrics::Metrics;

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

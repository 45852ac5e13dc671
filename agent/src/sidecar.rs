//! Asking a sidecar over its socket. It may be slow, hung or hostile: each question has a time and
//! each answer a size.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::report::SidecarReport;
use crate::sockets::FoundSocket;

/// The longest that one question may take.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// The largest answer, bytes.
const MOST_BYTES: usize = 1 << 20;
/// An answer's head, bytes.
const HEAD_BYTES: usize = 16 << 10;

/// Why a sidecar gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// Nobody listens.
    #[error("its socket can't be connected to: {0}")]
    Connect(std::io::Error),
    /// It took too long.
    #[error("it did not answer within {} s", PATIENCE.as_secs())]
    TooSlow,
    /// The conversation broke.
    #[error("the conversation broke: {0}")]
    Broken(#[from] hyper::Error),
    /// The request could not be made.
    #[error("the request could not be made: {0}")]
    Request(#[from] hyper::http::Error),
    /// The answer's body broke, or is larger than it may be.
    #[error("its answer broke, or is larger than 1 MiB: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// Another status code than 200.
    #[error("it answered {0}")]
    Refused(StatusCode),
    /// Not what a sidecar says.
    #[error("its answer can't be read: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// What it says in `/v1/status`.
///
/// # Errors
/// [`NoAnswer`].
pub async fn status(socket: &FoundSocket) -> Result<SidecarReport, NoAnswer> {
    let body = ask(socket, Method::GET, "/v1/status", Bytes::new()).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Tells it which GPUs its pod got.
///
/// # Errors
/// [`NoAnswer`].
pub async fn tell_gpus(socket: &FoundSocket, gpus: &[String]) -> Result<(), NoAnswer> {
    let body = json!({ "gpus": gpus }).to_string();
    ask(socket, Method::PUT, "/v1/gpus", body.into()).await?;
    Ok(())
}

async fn ask(
    socket: &FoundSocket,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Bytes, NoAnswer> {
    let asked = ask_patiently(socket, method, path, body);
    timeout(PATIENCE, asked)
        .await
        .map_err(|_| NoAnswer::TooSlow)?
}

async fn ask_patiently(
    socket: &FoundSocket,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Bytes, NoAnswer> {
    let stream = UnixStream::connect(socket.path())
        .await
        .map_err(NoAnswer::Connect)?;
    let mut http = http1::Builder::new();
    http.max_buf_size(HEAD_BYTES);
    let (mut sender, connection) = http.handshake(TokioIo::new(stream)).await?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "siding")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))?;
    let answered = async {
        let answer = sender.send_request(request).await?;
        if answer.status() != StatusCode::OK {
            return Err(NoAnswer::Refused(answer.status()));
        }
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        body.map(|body| body.to_bytes()).map_err(NoAnswer::Body)
    };
    // The connection is driven here and goes with the question: no task is left behind.
    let mut answered = std::pin::pin!(answered);
    tokio::select! {
        biased;
        answer = &mut answered => answer,
        ended = connection => {
            ended?;
            answered.await
        }
    }
}

#[cfg(test)]
#[path = "sidecar_tests.rs"]
mod tests;

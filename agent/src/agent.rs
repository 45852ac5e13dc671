//! The loops: over the node, and over its sidecars.

use std::future::pending;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use siding_service::http::serve;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::environment::Environment;
use crate::http;
use crate::metrics::Metrics;
use crate::options::Options;

mod mounts;
mod node;

/// How long what is published stands before it is applied again, changed or not: somebody may have
/// removed it.
const REFRESH: Duration = Duration::from_secs(600);

/// Why the agent can't run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Nothing tells which node this is.
    #[error(
        "the node's name is unknown: set the environment variable NODE_NAME (downward API, spec.nodeName) or --node-name"
    )]
    NoNodeName,
    /// No runtime, signals or the like.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The address can't be had.
    #[error("--listen {address}: {source}; use another address or port")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// No way to the API server.
    #[error(
        "no way to the API server: {0}; in a pod it needs its service account's token, elsewhere a KUBECONFIG"
    )]
    Kubernetes(#[from] kube::Error),
    /// Metrics can't be made: a defect.
    #[error("metrics can't be made: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// What the loops share.
struct Context {
    options: Options,
    node: String,
    client: Client,
    metrics: Metrics,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// [`AgentError`] where it can't begin.
pub fn run(options: &Options, environment: &Environment) -> Result<(), AgentError> {
    let named = options.node_name.clone();
    let node = named.or_else(|| environment.node_name.clone());
    let node = node.ok_or(AgentError::NoNodeName)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(lead(options.clone(), node));
    // A reading of the node that goes on is left behind.
    runtime.shutdown_background();
    result
}

async fn lead(options: Options, node: String) -> Result<(), AgentError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let address = options.listen;
    let listener = siding_service::listen(address)
        .and_then(TcpListener::from_std)
        .map_err(|source| AgentError::Listen { address, source })?;
    let metrics = Metrics::new()?;
    let context = Context {
        client: Client::try_default().await?,
        options,
        node,
        metrics: metrics.clone(),
    };
    tracing::info!(node = context.node, %address, "the agent begins");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        served = serve(listener, http::router(metrics), pending()) => served.map_err(|source| AgentError::Listen { address, source })?,
        () = node::publish(&context) => {}
        () = mounts::relay(&context) => {}
    }
    tracing::info!("asked to stop");
    Ok(())
}

fn now() -> Timestamp {
    crate::conditions::whole_seconds(Timestamp::now())
}

//! The HTTP interface: metrics, probes, status, and the document that describes them. It only
//! reads, and it answers while a mount runs on another thread. On the agent's socket it also takes
//! the GPUs that the pod got.

mod problem;
mod routes;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use siding_topology::Root;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::board::Board;
use crate::node_plan::Planning;

pub use problem::{Cause, Problem};
pub use routes::Probe;
pub use siding_service::http::serve;

/// What every handler shares.
#[derive(Clone)]
struct App {
    board: Board,
    planning: Option<Planning>,
    root: Root,
    document: Arc<Document>,
}

/// The OpenAPI document, and the paths in it.
struct Document {
    json: String,
    paths: Vec<String>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Siding",
        description = "What the sidecar has mounted, touched and registered. Everything here is \
                       read with GET or HEAD; every error is a problem document (RFC 9457)."
    ),
    tags(
        (name = "metrics", description = "For Prometheus."),
        (name = "probes", description = "For the kubelet: each answers 200 or 503."),
        (name = "agent", description = "For the node's agent, on its own socket only."),
        (name = "state", description = "What has been observed, for people and programs."),
    )
)]
struct Description;

/// The routes over this board; the kernel's counters are read below `root`.
///
/// The OpenAPI document is made from the routes themselves.
pub fn router(board: Board, root: Root) -> Router {
    finish(routes(), board, root, None)
}

/// The same with what the node's agent may tell: for its socket only.
pub fn agent_router(board: Board, root: Root, planning: Planning) -> Router {
    let routes = routes().routes(routes!(routes::gpus));
    finish(routes, board, root, Some(planning))
}

fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(routes::metrics))
        .routes(routes!(routes::healthz))
        .routes(routes!(routes::startupz))
        .routes(routes!(routes::readyz))
        .routes(routes!(routes::status))
        .routes(routes!(routes::segments))
        .routes(routes!(routes::segment))
        .routes(routes!(routes::openapi))
}

fn finish(
    routes: OpenApiRouter<App>,
    board: Board,
    root: Root,
    planning: Option<Planning>,
) -> Router {
    let (router, api) = routes.split_for_parts();
    let document = Arc::new(Document {
        paths: api.paths.paths.keys().cloned().collect(),
        // A document that can't be written is empty, and its route says so.
        json: api.to_pretty_json().unwrap_or_default(),
    });
    router
        .fallback(routes::unknown)
        .method_not_allowed_fallback(routes::wrong_method)
        .with_state(App {
            board,
            planning,
            root,
            document,
        })
}

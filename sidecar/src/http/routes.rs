//! What each path answers. The handlers read a few files of the kernel's, which takes less than
//! a millisecond and blocks on nothing, so they do it in place.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use siding_topology::{hugepages, limits};
use utoipa::ToSchema;

use super::App;
use super::problem::{Cause, Problem};
use crate::board::{self, SegmentState, SegmentStatus, Status};
use crate::metrics;
use crate::node_plan::PlanStatus;

/// Most of what a client sent that is said back to it, in characters.
const ECHO_CHARS: usize = 200;

/// The largest body that is read.
const MOST_BODY_BYTES: usize = 64 << 10;
/// More GPUs no node has.
const MOST_GPUS: usize = 256;

/// The GPUs that a pod got.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Gpus {
    /// Each as the kubelet names it.
    gpus: Vec<String>,
}

/// A probe's good answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Where the whole of it stands.
    pub state: board::State,
}

/// Metrics for Prometheus
///
/// In the text format 0.0.4. A series whose subject is gone is gone, and a value that is unknown
/// is absent, never 0.
#[utoipa::path(get, path = "/metrics", tag = "metrics", responses(
    (status = 200, description = "The metrics as they are now", body = String, content_type = "text/plain"),
    (status = 500, description = "A metric could not be written: a defect", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn metrics(State(app): State<App>) -> Result<Response, Problem> {
    let pools = hugepages::pools(&app.root).0.unwrap_or_default();
    let text = app.board.metrics().encode(&observed(&app), &pools);
    let text = text.map_err(|error| Problem::new(Cause::Internal, error.to_string()))?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

/// Liveness
///
/// 200 as long as the process answers, whatever state it is in: a restart mends none of them.
#[utoipa::path(get, path = "/healthz", tag = "probes", responses(
    (status = 200, description = "The process lives", body = Probe),
))]
pub(super) async fn healthz(State(app): State<App>) -> Json<Probe> {
    let state = app.board.snapshot().state;
    Json(Probe { state })
}

/// Startup
///
/// 200 once all segments are mounted, and registered as far as the back end goes; it stays so
/// while they are taken down.
#[utoipa::path(get, path = "/startupz", tag = "probes", responses(
    (status = 200, description = "All segments have been mounted and registered", body = Probe),
    (status = 503, description = "Not yet, with what it waits for, or never, with why it failed", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn startupz(State(app): State<App>) -> Result<Json<Probe>, Problem> {
    let status = app.board.snapshot();
    let was_ready = status.total_seconds.is_some();
    if status.state == board::State::Stopping && was_ready {
        let state = status.state;
        return Ok(Json(Probe { state }));
    }
    if_ready(&status)
}

/// Readiness
///
/// 200 while all segments are mounted, and registered as far as the back end goes.
#[utoipa::path(get, path = "/readyz", tag = "probes", responses(
    (status = 200, description = "All segments are mounted and registered", body = Probe),
    (status = 503, description = "They are not, with the reason", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn readyz(State(app): State<App>) -> Result<Json<Probe>, Problem> {
    if_ready(&app.board.snapshot())
}

/// Everything that has been observed
#[utoipa::path(get, path = "/v1/status", tag = "state", responses(
    (status = 200, description = "The whole, as it is now", body = Status),
))]
pub(super) async fn status(State(app): State<App>) -> Json<Status> {
    Json(observed(&app))
}

/// The segments, in the order declared
#[utoipa::path(get, path = "/v1/segments", tag = "state", responses(
    (status = 200, description = "All segments, as they are now", body = Vec<SegmentStatus>),
))]
pub(super) async fn segments(State(app): State<App>) -> Json<Vec<SegmentStatus>> {
    Json(app.board.snapshot().segments)
}

/// One segment
#[utoipa::path(get, path = "/v1/segments/{name}", tag = "state",
    params(("name" = String, Path, description = "The segment's name", example = "kv")),
    responses(
        (status = 200, description = "The segment, as it is now", body = SegmentStatus),
        (status = 404, description = "No such segment; `available` lists those that there are", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(super) async fn segment(
    State(app): State<App>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<SegmentStatus>, Problem> {
    let segments = app.board.snapshot().segments;
    // A name that is not UTF-8 is the name of no segment.
    let name = name.map(|Path(name)| name);
    let named = name
        .as_ref()
        .ok()
        .and_then(|name| segments.iter().find(|segment| segment.name == *name));
    if let Some(segment) = named {
        return Ok(Json(segment.clone()));
    }
    let known: Vec<String> = segments.into_iter().map(|segment| segment.name).collect();
    let detail = format!(
        "there is no segment {}; the segments are: {}",
        name.map_or_else(
            |_| "of a name that is not UTF-8".to_owned(),
            |name| format!("{:?}", echo(&name))
        ),
        known.join(", ")
    );
    Err(Problem::new(Cause::UnknownSegment, detail).with_available(known))
}

/// The GPUs that the pod got
///
/// Only on the agent's socket. Each as the kubelet names it: a UUID, a PCI address or another id.
/// The plan's rails are narrowed to them; what is in no table is a finding of `plan` in the status.
#[utoipa::path(put, path = "/v1/gpus", tag = "agent", request_body = Gpus, responses(
    (status = 200, description = "The plan, narrowed", body = Option<PlanStatus>),
    (status = 400, description = "The body is not what it should be", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn gpus(
    State(app): State<App>,
    body: Body,
) -> Result<Json<Option<PlanStatus>>, Problem> {
    let wrong = |why: String| Problem::new(Cause::InvalidBody, why);
    let bytes = to_bytes(body, MOST_BODY_BYTES).await.map_err(|error| {
        wrong(format!(
            "the body can't be read, or is larger than {MOST_BODY_BYTES} bytes: {error}"
        ))
    })?;
    let Gpus { gpus } = serde_json::from_slice(&bytes).map_err(|error| {
        wrong(format!(
            "the body is not {{\"gpus\": [\"0000:53:00.0\"]}}: {error}"
        ))
    })?;
    if gpus.len() > MOST_GPUS || gpus.iter().any(|gpu| gpu.len() > ECHO_CHARS) {
        let why = format!("at most {MOST_GPUS} GPUs of at most {ECHO_CHARS} bytes each are taken");
        return Err(wrong(why));
    }
    if let Some(planning) = &app.planning {
        planning.set_gpus(gpus);
    }
    Ok(Json(app.board.snapshot().plan))
}

/// This document
///
/// OpenAPI 3.1, made from the routes themselves.
#[utoipa::path(get, path = "/openapi.json", tag = "state", responses(
    (status = 200, description = "The OpenAPI document", body = serde_json::Value, content_type = "application/json"),
    (status = 500, description = "The document could not be written: a defect", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn openapi(State(app): State<App>) -> Result<Response, Problem> {
    if app.document.json.is_empty() {
        let detail = "the OpenAPI document could not be written";
        return Err(Problem::new(Cause::Internal, detail));
    }
    let kind = [(CONTENT_TYPE, "application/json")];
    Ok((kind, app.document.json.clone()).into_response())
}

/// Any other path.
pub(super) async fn unknown(State(app): State<App>, uri: Uri) -> Problem {
    let paths = app.document.paths.clone();
    let path = echo(uri.path());
    let detail = format!("there is no {path}; the paths are: {}", paths.join(", "));
    Problem::new(Cause::UnknownPath, detail).with_available(paths)
}

/// Any other method.
pub(super) async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let (method, path) = (echo(method.as_str()), echo(uri.path()));
    let takes = match uri.path() {
        "/v1/gpus" => "it takes PUT",
        _ => "everything here is read with GET or HEAD",
    };
    let detail = format!("{path} does not take {method}; {takes}");
    Problem::new(Cause::WrongMethod, detail)
}

/// The board, with what only the kernel knows.
fn observed(app: &App) -> Status {
    let mut status = app.board.snapshot();
    status.pinned_bytes = limits::usage(&app.root).pinned_bytes;
    status
}

fn if_ready(status: &Status) -> Result<Json<Probe>, Problem> {
    let problem = match status.state {
        board::State::Ready => {
            return Ok(Json(Probe {
                state: status.state,
            }));
        }
        board::State::Mounting => Problem::new(Cause::Mounting, waits_for(&status.segments)),
        board::State::Failed => {
            let failure = status.failure.as_ref();
            let why = failure.map_or("for a reason that was not recorded", |f| &f.message);
            Problem::new(Cause::MountFailed, format!("mounting failed: {why}"))
        }
        board::State::Stopping => Problem::new(
            Cause::Stopping,
            "segments are being unregistered and unmapped",
        ),
    };
    Err(problem)
}

/// The segments that are not there yet, with how far each is.
fn waits_for(segments: &[SegmentStatus]) -> String {
    let left: Vec<_> = segments.iter().filter_map(progress).collect();
    if left.is_empty() {
        return "all segments are mounted; finishing".to_owned();
    }
    let done = segments.len() - left.len();
    let all = segments.len();
    format!(
        "{done} of {all} segments mounted; waiting for {}",
        left.join(", ")
    )
}

fn progress(segment: &SegmentStatus) -> Option<String> {
    let of = segment.size_bytes;
    let how_far = match segment.state {
        SegmentState::Ready => return None,
        SegmentState::Waiting => "not begun".to_owned(),
        SegmentState::Map => "mapping".to_owned(),
        SegmentState::Touch => format!("{} of {of} bytes touched", segment.touched_bytes),
        SegmentState::Register => format!("{} of {of} bytes registered", segment.registered_bytes),
        SegmentState::Failed => "failed".to_owned(),
    };
    Some(format!("{} ({how_far})", segment.name))
}

/// What a client sent, cut to a length that may be said back.
fn echo(text: &str) -> String {
    let mut cut: String = text.chars().take(ECHO_CHARS).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

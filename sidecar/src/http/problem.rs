//! The one shape of every error's body.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// Why a request can't be answered as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// No such path; `available` lists the paths.
    UnknownPath,
    /// The path does not take this method.
    WrongMethod,
    /// No such segment; `available` lists the segments.
    UnknownSegment,
    /// The request's body is not what it should be.
    InvalidBody,
    /// Segments are being mounted.
    Mounting,
    /// Mounting failed.
    MountFailed,
    /// Segments are being unregistered and unmapped.
    Stopping,
    /// A defect of Siding's.
    Internal,
}

impl Cause {
    fn status(self) -> StatusCode {
        match self {
            Self::UnknownPath | Self::UnknownSegment => StatusCode::NOT_FOUND,
            Self::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::InvalidBody => StatusCode::BAD_REQUEST,
            Self::Mounting | Self::MountFailed | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// The body of every error, by RFC 9457 (`application/problem+json`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The HTTP status code in words.
    pub title: &'static str,
    /// The HTTP status code.
    pub status: u16,
    /// Why, for programs.
    pub error: Cause,
    /// Why, for people.
    pub detail: String,
    /// What there is instead; only where what was asked for is not there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub available: Vec<String>,
}

impl Problem {
    /// A problem of this cause.
    #[must_use]
    pub fn new(error: Cause, detail: impl Into<String>) -> Self {
        let status = error.status();
        Self {
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            error,
            detail: detail.into(),
            available: Vec::new(),
        }
    }

    /// The same, with what there is instead.
    #[must_use]
    pub fn with_available(mut self, available: Vec<String>) -> Self {
        self.available = available;
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (self.error.status(), Json(self)).into_response();
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

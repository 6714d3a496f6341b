//! The response to a request that the server refuses: an HTTP status and a JSON object with the reason.

use axum::Json;
use axum::http::header::{CONNECTION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::body::LARGEST;
use crate::servers::http::Refusal;
use crate::work::batch::{InputError, QueueError};
use crate::work::roots::DirectoryError;

/// The body of an error response: why the server did not do what the request asks for.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ErrorBody {
    /// The error message, for people.
    error: String,
    /// The kind of error, for programs: `bad_request`, `unauthorized`, `forbidden`, `not_found`, `method_not_allowed`,
    /// `timed_out`, `key_reused`, `busy` (another client uses the conversation), `too_large`, `unsupported_media_type`,
    /// `invalid_submission`, `overloaded`, `unavailable` (the queue cannot be used) or `internal`. Later versions may
    /// add kinds.
    error_kind: &'static str,
    /// The problems of an invalid submission, each with the number or the id of its task. The list has at most 100
    /// problems; a further entry may say how many more there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    problems: Option<Vec<String>>,
}

/// A refused request: the HTTP status and the body of the response.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    body: ErrorBody,
    closes: bool,
}

impl ApiError {
    fn new(status: StatusCode, error: impl Into<String>) -> Self {
        let error_kind = match status {
            StatusCode::BAD_REQUEST => "bad_request",
            StatusCode::UNAUTHORIZED => "unauthorized",
            StatusCode::FORBIDDEN => "forbidden",
            StatusCode::NOT_FOUND => "not_found",
            StatusCode::METHOD_NOT_ALLOWED => "method_not_allowed",
            StatusCode::REQUEST_TIMEOUT => "timed_out",
            StatusCode::CONFLICT => "key_reused",
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported_media_type",
            StatusCode::UNPROCESSABLE_ENTITY => "invalid_submission",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable",
            _ => "internal",
        };
        Self { status, body: ErrorBody { error: error.into(), error_kind, problems: None }, closes: false }
    }

    pub(super) fn bad_request(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    pub(super) fn not_found(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }

    pub(super) fn unknown_batch(id: &str) -> Self {
        Self::not_found(format!("there is no batch {id:?}"))
    }

    pub(super) fn unknown_task(id: &str, task: &str) -> Self {
        Self::not_found(format!("the batch {id:?} has no task {task:?}"))
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "this path does not support the method; the Allow header lists those it supports",
        )
    }

    pub(super) fn unsupported_media_type() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must be JSON; send `Content-Type: application/json`, or `application/x-ndjson` for one task per line",
        )
        .closing()
    }

    pub(super) fn too_large(most_bytes: usize) -> Self {
        let most = most_bytes >> 10;
        let error = match most_bytes {
            LARGEST => {
                format!("the body is larger than {} MiB; split the tasks into several batches", most >> 10)
            }
            _ => format!("the body is larger than {most} KiB"),
        };
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, error).closing()
    }

    pub(super) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time").closing()
    }

    /// Returns the error for a server that has reached one of its limits.
    pub(super) fn overloaded(error: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, error);
        error.body.error_kind = "overloaded";
        error
    }

    /// Returns the error for a conversation that another client is using.
    pub(super) fn busy(error: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::CONFLICT, error);
        error.body.error_kind = "busy";
        error
    }

    pub(super) fn internal(error: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error)
    }

    /// Makes the server close the connection after this response, because it has not read the request's body.
    fn closing(self) -> Self {
        Self { closes: true, ..self }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.status, refusal.message).closing()
    }
}

impl From<DirectoryError> for ApiError {
    fn from(error: DirectoryError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<QueueError> for ApiError {
    fn from(error: QueueError) -> Self {
        let status = match &error {
            QueueError::KeyReused(_) => StatusCode::CONFLICT,
            QueueError::Strange(_) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl From<InputError> for ApiError {
    fn from(error: InputError) -> Self {
        let problems = match error {
            InputError::Tasks { problems } => problems,
            InputError::TooManyValues => {
                return Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string());
            }
            other => vec![other.to_string()],
        };
        let mut error = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "the submission has mistakes, so nothing was queued; `problems` lists them",
        );
        error.body.problems = Some(problems);
        error
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut headers = HeaderMap::new();
        if self.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"guard\""));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        (self.status, headers, Json(self.body)).into_response()
    }
}

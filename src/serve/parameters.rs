//! What clients send in paths, queries and headers, and its limits.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::error::ApiError;
use crate::batch::{MOST_TASKS, Page};

/// The longest time that a request may wait for an end, in seconds.
pub(super) const LONGEST_WAIT: u64 = 60;
/// The maximum number of batches in a list.
const MOST_LISTED: usize = 1000;
const DEFAULT_LISTED: usize = 20;
/// The maximum length of an id or a key, in bytes.
const LONGEST_NAME: usize = 256;

/// The query of a request. A mistake in it is an error in JSON.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match axum::extract::Query::try_from_uri(&parts.uri) {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(error) => Err(ApiError::bad_request(error.body_text())),
        }
    }
}

/// The ids in the path of a request. Ids that no batch and no task can have are unknown.
pub(super) struct Ids<T>(pub(super) T);

impl<S: Send + Sync> FromRequestParts<S> for Ids<String> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, state).await;
        let id = path.map_err(|error| ApiError::bad_request(error.body_text()))?.0;
        if is_name(&id) { Ok(Self(id)) } else { Err(ApiError::not_found("there is no batch with this id")) }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Ids<(String, String)> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<(String, String)>::from_request_parts(parts, state).await;
        let ids = path.map_err(|error| ApiError::bad_request(error.body_text()))?.0;
        if is_name(&ids.0) && is_name(&ids.1) {
            return Ok(Self(ids));
        }
        Err(ApiError::not_found("there is no task with this id"))
    }
}

fn is_name(id: &str) -> bool {
    !id.is_empty() && id.len() <= LONGEST_NAME && !id.chars().any(char::is_control)
}

/// Returns the value of a header; `None` if it is missing.
pub(super) fn header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ApiError> {
    let mut all = headers.get_all(name).iter();
    let (first, second) = (all.next(), all.next());
    let Some(first) = first else { return Ok(None) };
    let text = first.to_str().ok().filter(|text| second.is_none() && is_name(text));
    let error = || {
        ApiError::bad_request(format!(
            "the header {name} must have 1 to {LONGEST_NAME} printable ASCII characters"
        ))
    };
    text.map(Some).ok_or_else(error)
}

/// The query parameters of a submission.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SubmitQuery {
    /// The directory of tasks that name none, and the base of relative ones: an absolute path below a root of the server.
    /// Default: the first root.
    pub(super) directory: Option<String>,
}

/// The query parameters that select the batches of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// The maximum number of batches. Default: 20.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

impl ListQuery {
    pub(super) fn limit(&self) -> Result<usize, ApiError> {
        within("limit", self.limit.unwrap_or(DEFAULT_LISTED), 1, MOST_LISTED)
    }
}

/// The query parameters of a poll: how long it waits, and what it returns.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PollQuery {
    /// Wait at most this many seconds for the batch to end.
    #[param(minimum = 0, maximum = 60)]
    wait: Option<u64>,
    /// Only results after this position: the `next_after` of the previous page.
    #[param(minimum = -1)]
    after: Option<i64>,
    /// The maximum number of results. Default: all.
    #[param(minimum = 1, maximum = 100000)]
    limit: Option<usize>,
    /// Only the status and the counts, without results.
    summary: Option<bool>,
}

impl PollQuery {
    pub(super) fn wait(&self) -> Result<u64, ApiError> {
        within("wait", self.wait.unwrap_or(0), 0, LONGEST_WAIT)
    }

    pub(super) fn page(&self) -> Result<Page, ApiError> {
        let limit = within("limit", self.limit.unwrap_or(MOST_TASKS), 1, MOST_TASKS)?;
        let after = within("after", self.after.unwrap_or(-1), -1, i64::MAX)?;
        Ok(if self.summary == Some(true) { Page::SUMMARY } else { Page { after, limit } })
    }
}

/// The query parameter that says how long a request waits for a task.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitQuery {
    /// Wait at most this many seconds for the task to end.
    #[param(minimum = 0, maximum = 60)]
    wait: Option<u64>,
}

impl WaitQuery {
    pub(super) fn wait(&self) -> Result<u64, ApiError> {
        within("wait", self.wait.unwrap_or(0), 0, LONGEST_WAIT)
    }
}

/// The query of a request that has none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoQuery {}

fn within<T: Copy + PartialOrd + std::fmt::Display>(
    name: &str,
    value: T,
    least: T,
    most: T,
) -> Result<T, ApiError> {
    if value >= least && value <= most {
        return Ok(value);
    }
    Err(ApiError::bad_request(format!("`{name}` must be from {least} to {most}, and is {value}")))
}

//! Extracts and checks what clients send in paths, queries and headers.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::error::ApiError;
use crate::work::batch::{MOST_TASKS, Page};

/// The longest time that a request may wait for a batch or a task to end, in seconds.
pub(super) const LONGEST_WAIT: u64 = 60;
/// The maximum number of batches that one request may list.
const MOST_LISTED: usize = 1000;
const DEFAULT_LISTED: usize = 20;
/// The maximum length of an id or a key, in bytes.
const LONGEST_NAME: usize = 256;

/// Extracts the query of a request. If the query is invalid, the server answers 400 with an error in JSON.
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

/// Extracts the ids from the path of a request. If an id has a form that guard never stores, the server answers 404.
pub(super) struct Ids<T>(pub(super) T);

impl<S: Send + Sync> FromRequestParts<S> for Ids<String> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, state).await;
        let id = path.map_err(|error| ApiError::bad_request(error.body_text()))?.0;
        if is_name(&id) { Ok(Self(id)) } else { Err(ApiError::not_found("the id in the path is not valid")) }
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
        Err(ApiError::not_found("an id in the path is not valid"))
    }
}

fn is_name(id: &str) -> bool {
    !id.is_empty() && id.len() <= LONGEST_NAME && !id.chars().any(char::is_control)
}

/// Returns the value of a header; `None` if it is missing. Fails if the header occurs more than once, or if its value
/// is not 1 to 256 printable ASCII characters.
pub(super) fn header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ApiError> {
    let mut all = headers.get_all(name).iter();
    let (first, second) = (all.next(), all.next());
    let Some(first) = first else { return Ok(None) };
    let text = first.to_str().ok().filter(|text| second.is_none() && is_name(text));
    let error = || {
        ApiError::bad_request(format!(
            "the header {name} must occur only once and have 1 to {LONGEST_NAME} printable ASCII characters"
        ))
    };
    text.map(Some).ok_or_else(error)
}

/// The query parameters of a submission.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SubmitQuery {
    /// The directory in which a task works if it does not set its own `directory`: an absolute path below a root of the
    /// server. Relative directories of tasks are relative to it. Default: the first root.
    pub(super) directory: Option<String>,
}

/// The query parameters that select the batches of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// The maximum number of batches in the list. Default: 20.
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
    /// The maximum number of seconds that the server waits for the batch to end. Default: 0.
    #[param(minimum = 0, maximum = 60)]
    wait: Option<u64>,
    /// Return only results after this position in the batch. For the next page, use `next_after` of the previous page.
    /// Default: -1, the beginning of the batch.
    #[param(minimum = -1)]
    after: Option<i64>,
    /// The maximum number of results in the response. Default: all.
    #[param(minimum = 1, maximum = 100000)]
    limit: Option<usize>,
    /// Whether the response has only the status and the counts, without results. Default: false.
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
    /// The maximum number of seconds that the server waits for the task to end. Default: 0.
    #[param(minimum = 0, maximum = 60)]
    wait: Option<u64>,
}

impl WaitQuery {
    pub(super) fn wait(&self) -> Result<u64, ApiError> {
        within("wait", self.wait.unwrap_or(0), 0, LONGEST_WAIT)
    }
}

/// Accepts no query parameters: for paths that take none.
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
    Err(ApiError::bad_request(format!("`{name}` must be from {least} to {most}, but is {value}")))
}

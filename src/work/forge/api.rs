//! A client for GitHub's REST API. Takes a path below the repository's URL, and returns the status and the JSON body
//! of the response.
//!
//! Repeats requests after server errors and short rate limits. Error texts never contain the token.

use std::time::Duration;

use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, LINK, LOCATION, USER_AGENT,
};
use hyper::{HeaderMap, Method};
use serde_json::Value;

use super::remote::GitHub;
use super::token::Token;
use crate::run::egress::{ApiRequest, ApiResponse, Client};

/// Maximum size of a response body, in bytes.
const LARGEST: usize = 4 << 20;
/// The minimum delays before the first, second and third retry.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_millis(1000), Duration::from_millis(2000)];
/// The maximum length of GitHub's error text in a message of guard, in characters.
const LONGEST_WORDS: usize = 300;

pub(super) struct Api<'a> {
    github: &'a GitHub,
    token: Option<&'a Token>,
    client: Client,
}

/// Why a request has no usable response. The messages contain neither the token nor control characters.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error("{0}")]
    Unreachable(String),
    #[error("the GitHub token contains characters that are not allowed in an HTTP header")]
    InvalidToken,
    /// The API sent a response that guard does not expect. Contains the text from [`Api::explain`].
    #[error("{0}")]
    Unexpected(String),
}

/// A response of the API, with any status.
pub(super) struct Answer {
    pub(super) status: u16,
    /// The response's JSON body; null if the body is not JSON.
    pub(super) body: Value,
    is_json: bool,
    headers: HeaderMap,
}

impl<'a> Api<'a> {
    pub(super) fn new(github: &'a GitHub, token: Option<&'a Token>) -> Result<Self, ApiError> {
        let (api, proxy) = (github.api.clone(), github.proxy.clone());
        let client = Client::new(api, proxy, github.timeout, LARGEST)
            .map_err(|error| ApiError::Unreachable(error.to_string()))?;
        Ok(Self { github, token, client })
    }

    /// Sends a GET request for a path below the repository's URL. `rest` starts with a slash and is already escaped.
    pub(super) fn get(&self, rest: &str) -> Result<Answer, ApiError> {
        self.call(&Method::GET, rest, None)
    }

    pub(super) fn post(&self, rest: &str, body: &Value) -> Result<Answer, ApiError> {
        self.call(&Method::POST, rest, Some(body))
    }

    /// Sends a request. After a server error or a secondary rate limit, repeats the request up to three times, unless
    /// GitHub asks for a delay of more than two seconds. Repeating a POST is safe too, because GitHub refuses a second
    /// pull request for the same branch.
    fn call(&self, method: &Method, rest: &str, body: Option<&Value>) -> Result<Answer, ApiError> {
        let mut pauses = PAUSES.iter();
        loop {
            let request = self.build_request(method, rest, body)?;
            let response = self
                .client
                .send(request)
                .map_err(|error| ApiError::Unreachable(self.sanitize(&error.to_string())))?;
            let answer = Answer::from_response(response);
            let Some(wanted) = answer.retry_delay() else { return Ok(answer) };
            match pauses.next() {
                Some(pause) if wanted <= PAUSES[2] => std::thread::sleep(wanted.max(*pause)),
                _ => return Err(ApiError::Unexpected(self.explain(&answer))),
            }
        }
    }

    fn build_request(
        &self,
        method: &Method,
        rest: &str,
        body: Option<&Value>,
    ) -> Result<ApiRequest, ApiError> {
        let GitHub { owner, repo, .. } = self.github;
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("guard/", env!("CARGO_PKG_VERSION"))));
        headers.insert(ACCEPT, HeaderValue::from_static("application/vnd.github+json"));
        let version = HeaderName::from_static("x-github-api-version");
        headers.insert(version, HeaderValue::from_static("2022-11-28"));
        if let Some(token) = self.token {
            let mut value = HeaderValue::from_bytes(&token.header()).map_err(|_| ApiError::InvalidToken)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Ok(ApiRequest {
            method: method.clone(),
            target: format!("/repos/{owner}/{repo}{rest}"),
            headers,
            body: body.map(|body| body.to_string().into_bytes()).unwrap_or_default(),
        })
    }

    /// Describes an unexpected response, as text for an error message.
    pub(super) fn explain(&self, answer: &Answer) -> String {
        let status = answer.status;
        let words = self.sanitize(&answer.error_text());
        let detail = if words.is_empty() { String::new() } else { format!(" ({words})") };
        let at = &self.github.api.host;
        let sender = self.token.map_or("a request without a token".to_string(), |token| {
            format!("the token from {}", token.source())
        });
        match status {
            300..=399 => {
                let to =
                    answer.headers.get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
                let to = self.sanitize(&crate::git::without_credentials(to));
                format!(
                    "{at} answered {status} with a redirect to {to:?}, which guard does not follow; if the \
                     repository was renamed, update the remote with `git remote set-url`"
                )
            }
            401 => format!("{at} answered 401: it does not accept {sender}{detail}"),
            403 | 429 if answer.is_limited() => {
                format!("{at} answered {status}: the rate limit is exceeded{detail}; try again later")
            }
            403 | 404 => format!("{at} answered {status}: not found, or {sender} has no access{detail}"),
            200..=299 if !answer.is_json => format!("{at} answered {status} with a body that is not JSON"),
            200..=299 => format!("{at} answered {status} with unexpected JSON"),
            _ => format!("{at} answered {status}{detail}"),
        }
    }

    /// Removes the token and terminal control characters from a text, and truncates it to [`LONGEST_WORDS`].
    fn sanitize(&self, text: &str) -> String {
        let text = self.token.map_or(text.to_string(), |token| token.redact(text));
        text.chars().filter(|c| !crate::text::terminal_text::is_unsafe(*c)).take(LONGEST_WORDS).collect()
    }
}

impl Answer {
    fn from_response(response: ApiResponse) -> Self {
        let parsed = serde_json::from_slice(&response.body);
        Self {
            status: response.status,
            is_json: parsed.is_ok(),
            body: parsed.unwrap_or_default(),
            headers: response.headers,
        }
    }

    /// Returns the error text in the response: `message` and the messages of `errors`, at most five messages in total.
    /// Empty if there are none.
    pub(super) fn error_text(&self) -> String {
        let text = |value: &Value| value["message"].as_str().map(str::to_string);
        let errors = self.body["errors"].as_array().into_iter().flatten().filter_map(text);
        text(&self.body).into_iter().chain(errors).take(5).collect::<Vec<_>>().join("; ")
    }

    /// True if the response links to another page of results.
    pub(super) fn has_more(&self) -> bool {
        let links = self.headers.get(LINK).and_then(|value| value.to_str().ok());
        links.is_some_and(|links| links.contains("rel=\"next\""))
    }

    fn number(&self, name: &'static str) -> Option<u64> {
        self.headers.get(name)?.to_str().ok()?.trim().parse().ok()
    }

    fn is_limited(&self) -> bool {
        let is_secondary = self.error_text().to_ascii_lowercase().contains("rate limit");
        matches!(self.status, 403 | 429)
            && (self.status == 429
                || is_secondary
                || self.number("retry-after").is_some()
                || self.number("x-ratelimit-remaining") == Some(0))
    }

    /// Returns the minimum time to wait before a retry; `None` if a retry is not necessary or would not help.
    fn retry_delay(&self) -> Option<Duration> {
        let is_used_up = self.number("x-ratelimit-remaining") == Some(0);
        let is_server_error = (500..=599).contains(&self.status);
        if !is_server_error && (!self.is_limited() || is_used_up) {
            // The request succeeded or a retry would not help. GitHub resets an exhausted rate limit within the hour,
            // not within seconds.
            return None;
        }
        Some(Duration::from_secs(self.number("retry-after").unwrap_or(0)))
    }
}

/// Percent-encodes a text for use in a URL path or query.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

//! The MCP server over HTTP on loopback: passes the requests of authenticated clients to the MCP service, within limits
//! on the number of sessions, and on the size and time of a body.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;

use super::END;
use super::server::{Server, Shared};
use super::sessions::{Answer, Sessions};
use crate::servers::http::{self, Listener, Listening, Refusal, Service, Stop, Token};

/// The URL path of the MCP endpoint.
pub const PATH: &str = "/mcp";

/// The maximum number of simultaneous connections. The server closes further ones at once.
const MOST_CONNECTIONS: usize = 128;
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of a request's body, in bytes. It is larger than the longest prompt.
const LARGEST_BODY: usize = 16 << 20;
/// How long the server waits for pending responses when it stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// The name of the HTTP header that contains the session id.
const SESSION: &str = "mcp-session-id";

/// The sessions, and the MCP service.
struct Endpoint {
    sessions: Arc<Sessions>,
    protocol: StreamableHttpService<Server, LocalSessionManager>,
}

/// Serves until `stop` is set. Then ends the calls before the connections, so that clients receive a result.
pub(super) async fn serve(
    shared: Arc<Shared>,
    listening: Listening,
    token: Token,
    stop: &Stop,
) -> io::Result<()> {
    let calls = shared.calls.clone();
    let sessions = Sessions::new();
    let config = StreamableHttpServerConfig::default()
        // `servers::http` has already checked the host, including the port.
        .disable_allowed_hosts()
        .with_max_request_body_bytes(LARGEST_BODY);
    let closing = config.cancellation_token.clone();
    let clients = AtomicU64::new(1);
    let factory = move || {
        let client = clients.fetch_add(1, Ordering::Relaxed);
        Ok(Server { shared: shared.clone(), client, ends_with_client: false })
    };
    let protocol = StreamableHttpService::new(factory, sessions.manager.clone(), config);
    let endpoint = Endpoint { sessions, protocol };
    let listener = Listener::Loopback(listening, token);
    let mut connections = http::serve(listener, endpoint, MOST_CONNECTIONS, stop).await?;
    calls.close();
    calls.wait_for_all(END).await;
    connections.wait(SHUTDOWN_GRACE / 2).await;
    closing.cancel();
    connections.wait(SHUTDOWN_GRACE / 2).await;
    Ok(())
}

impl Service for Endpoint {
    type Body = Answer;

    fn refuse(&self, refusal: Refusal) -> Response<Answer> {
        refused(&refusal)
    }

    /// Passes a request to the MCP service.
    async fn respond(&self, request: Request<Incoming>) -> Response<Answer> {
        let (head, body) = request.into_parts();
        if head.uri.path() != PATH || head.uri.query().is_some() {
            let message = "nothing is served at this path; the MCP endpoint is /mcp";
            return refused(&Refusal { status: StatusCode::NOT_FOUND, message });
        }
        let body = match read(body).await {
            Ok(body) => body,
            Err(refusal) => return refused(&refusal),
        };
        let session = head.headers.get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_string);
        let opens = head.method == Method::POST && session.is_none() && is_initialize(&body);
        let opening = if opens { Some(self.sessions.opening.lock().await) } else { None };
        if opens && !self.sessions.make_room().await {
            let message = "the maximum number of sessions is open; end one, or try again in a minute";
            return refused(&Refusal { status: StatusCode::SERVICE_UNAVAILABLE, message });
        }
        let mut in_use = match &session {
            Some(id) => self.sessions.mark_in_use(id).await,
            None => None,
        };
        let response = self.protocol.handle(Request::from_parts(head, Full::new(body))).await;
        drop(opening);
        if let Some(id) = response.headers().get(SESSION).and_then(|id| id.to_str().ok()) {
            in_use = self.sessions.mark_in_use(id).await;
        }
        response.map(|body| Answer { body, _in_use: in_use })
    }
}

/// Reads the body of a request within the limits on size and time.
async fn read(body: Incoming) -> Result<Bytes, Refusal> {
    let too_late = Refusal {
        status: StatusCode::REQUEST_TIMEOUT,
        message: "the request body did not arrive within 30 seconds",
    };
    let too_large =
        Refusal { status: StatusCode::PAYLOAD_TOO_LARGE, message: "the request body is larger than 16 MiB" };
    let incomplete =
        Refusal { status: StatusCode::BAD_REQUEST, message: "the request body is incomplete or malformed" };
    if hyper::body::Body::size_hint(&body).lower() > LARGEST_BODY as u64 {
        return Err(too_large);
    }
    let reading = Limited::new(body, LARGEST_BODY).collect();
    let read = tokio::time::timeout(BODY_TIMEOUT, reading).await.map_err(|_| too_late)?;
    read.map(|body| body.to_bytes())
        .map_err(|error| if error.is::<LengthLimitError>() { too_large } else { incomplete })
}

/// True if the message in a request's body opens a session.
fn is_initialize(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Message {
        method: String,
    }
    serde_json::from_slice::<Message>(body).is_ok_and(|message| message.method == "initialize")
}

/// Builds the response to a rejected request. The server closes the connection after this response.
fn refused(refusal: &Refusal) -> Response<Answer> {
    let body = Full::new(Bytes::from(format!("guard: {}\n", refusal.message))).boxed();
    let mut response = Response::new(Answer { body, _in_use: None });
    *response.status_mut() = refusal.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    if refusal.status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"guard\""));
    }
    if refusal.status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
    }
    response
}

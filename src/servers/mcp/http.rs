//! The MCP server over HTTP on loopback: accepts connections, and limits how much the server reads from them before it
//! has authenticated the client.
//!
//! The server must never listen on anything but loopback, and must bound time and memory for every client.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::END;
use super::server::{Server, Shared};
use super::sessions::{Answer, Sessions};
use crate::servers::access::{Listening, Refusal, RequestCheck, Stop, Token};

/// The URL path of the MCP endpoint.
pub const PATH: &str = "/mcp";

/// The maximum number of simultaneous connections.
const MOST_CONNECTIONS: usize = 128;
/// How long a connection may stay open before its client has presented the token.
const AUTH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may take to send its next request, or the rest of a request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may take to send the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long, in milliseconds, a client may leave sent data unacknowledged.
const UNACKNOWLEDGED_MS: u32 = 30_000;
/// The maximum size of the request line and headers together, in bytes.
const LARGEST_HEAD: usize = 32 << 10;
/// The maximum number of headers in a request.
const MOST_HEADERS: usize = 64;
/// The maximum size of a request's body, in bytes. It is larger than the longest prompt.
const LARGEST_BODY: usize = 16 << 20;
/// How long the server waits for pending responses when it stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// The name of the HTTP header that contains the session id.
const SESSION: &str = "mcp-session-id";

/// What all connections share: the authentication, the sessions, and the MCP service.
struct HttpServer {
    check: RequestCheck,
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
    let listener = TcpListener::from_std(listening.listener)?;
    let calls = shared.calls.clone();
    let sessions = Sessions::new();
    let config = StreamableHttpServerConfig::default()
        // `RequestCheck` has already checked the host, including the port.
        .disable_allowed_hosts()
        .with_max_request_body_bytes(LARGEST_BODY);
    let closing = config.cancellation_token.clone();
    let clients = AtomicU64::new(1);
    let factory = move || {
        let client = clients.fetch_add(1, Ordering::Relaxed);
        Ok(Server { shared: shared.clone(), client, ends_with_client: false })
    };
    let protocol = StreamableHttpService::new(factory, sessions.manager.clone(), config);
    let check = RequestCheck::new(listening.address, token);
    let server = Arc::new(HttpServer { check, sessions, protocol });
    let permits = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Reject a connection at once if the limit is reached.
                    if let Ok(permit) = permits.clone().try_acquire_owned() {
                        let server = server.clone();
                        connections.spawn(async move {
                            serve_connection(stream, server).await;
                            drop(permit);
                        });
                    }
                }
                // The process has most likely run out of file descriptors. Wait a moment, because a connection may
                // close.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            Some(_) = connections.join_next() => {}
            () = stop.wait() => break,
        }
    }
    drop(listener);
    calls.close();
    calls.wait_for_all(END).await;
    let closed = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_GRACE / 2, closed).await;
    closing.cancel();
    let closed = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_GRACE / 2, closed).await;
    Ok(())
}

async fn serve_connection(stream: TcpStream, server: Arc<HttpServer>) {
    // A client that reads nothing must not keep its pending data in memory forever.
    let _ = setsockopt(&stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MS);
    let _ = stream.set_nodelay(true);
    let is_authenticated = Arc::new(AtomicBool::new(false));
    let service = service_fn(|request| {
        let (server, is_authenticated) = (server.clone(), is_authenticated.clone());
        async move { Ok::<_, Infallible>(server.respond(request, &is_authenticated).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.max_headers(MOST_HEADERS).max_header_size(LARGEST_HEAD).max_buf_size(2 * LARGEST_HEAD);
    let auth_timeout = async {
        tokio::time::sleep(AUTH_TIMEOUT).await;
        if is_authenticated.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = builder.serve_connection(TokioIo::new(stream), service) => {}
        () = auth_timeout => {}
    }
}

impl HttpServer {
    /// Checks the source, the token and the path of a request before the server reads any byte of its body.
    fn authenticate(&self, request: &Parts) -> Result<(), Refusal> {
        self.check.check_source(request)?;
        self.check.check_token(request)?;
        if request.uri.path() == PATH && request.uri.query().is_none() {
            return Ok(());
        }
        let message = "nothing is served at this path; the MCP endpoint is /mcp";
        Err(Refusal { status: StatusCode::NOT_FOUND, message })
    }

    /// Authenticates a request and passes it to the MCP service.
    async fn respond(&self, request: Request<Incoming>, is_authenticated: &AtomicBool) -> Response<Answer> {
        let (head, body) = request.into_parts();
        if let Err(refusal) = self.authenticate(&head) {
            return refused(&refusal);
        }
        is_authenticated.store(true, Ordering::Relaxed);
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

//! Accepts connections, limits how much the server reads before it has authenticated the client, and passes requests
//! to the router.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::ORIGIN;
use axum::http::request::Parts;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower_service::Service;

use super::document::{WITHOUT_TOKEN, router};
use super::error::ApiError;
use super::{Listener, Shared};
use crate::servers::access::{Refusal, RequestCheck, Stop, from_web_page};

/// The maximum number of simultaneous connections. The server closes further ones at once.
const MOST_CONNECTIONS: usize = 256;
/// How long a connection may stay open before its client has presented the token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to send its next request, or the rest of a request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long, in milliseconds, a client may leave sent data unacknowledged.
const UNACKNOWLEDGED_MS: u32 = 30_000;
/// The maximum size of the request line and headers together, in bytes.
const LARGEST_HEAD: usize = 32 << 10;
/// The maximum number of headers in a request.
const MOST_HEADERS: usize = 64;
/// How long the server waits for pending responses when it stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// How the server authenticates the clients of its listener.
enum ClientCheck {
    /// Every request must carry the server's token, except requests for the paths in `WITHOUT_TOKEN`.
    Token(RequestCheck),
    /// The kernel reports the user id of the client, which must be the server's own.
    Peer,
}

/// The state that all connections share.
struct Server {
    check: ClientCheck,
    router: Router,
    stop: Stop,
}

/// The listener of the server: a loopback port or a unix socket.
enum Accept {
    Loopback(TcpListener),
    Socket(UnixListener),
}

/// An accepted connection.
enum Stream {
    Loopback(TcpStream),
    Socket(UnixStream),
}

impl Accept {
    async fn next(&self) -> io::Result<Option<Stream>> {
        match self {
            Self::Loopback(listener) => {
                let (stream, _) = listener.accept().await?;
                // A client that reads nothing must not keep its pending data in memory forever.
                let _ = setsockopt(&stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MS);
                let _ = stream.set_nodelay(true);
                Ok(Some(Stream::Loopback(stream)))
            }
            Self::Socket(listener) => {
                let (stream, _) = listener.accept().await?;
                let own = nix::unistd::geteuid().as_raw();
                let is_own = stream.peer_cred().is_ok_and(|peer| peer.uid() == own);
                Ok(is_own.then_some(Stream::Socket(stream)))
            }
        }
    }
}

/// Serves until another thread asks the server to stop. Then accepts no further connections and lets pending
/// responses end.
pub(super) async fn serve(shared: Arc<Shared>, listener: Listener) -> io::Result<()> {
    let stop = shared.stop.clone();
    // Dropping this value when the server ends removes the file of the unix socket.
    let mut _socket_file = None;
    let (accept, check) = match listener {
        Listener::Loopback(listening, token) => {
            let check = RequestCheck::new(listening.address, token);
            (Accept::Loopback(TcpListener::from_std(listening.listener)?), ClientCheck::Token(check))
        }
        Listener::Socket(socket) => {
            let listener = UnixListener::from_std(socket.listener.try_clone()?)?;
            _socket_file = Some(socket);
            (Accept::Socket(listener), ClientCheck::Peer)
        }
    };
    let server = Arc::new(Server { check, router: router().with_state(shared), stop: stop.clone() });
    let permits = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = accept.next() => match accepted {
                Ok(Some(stream)) => {
                    // Close the new connection at once if the maximum number of connections is reached.
                    if let Ok(permit) = permits.clone().try_acquire_owned() {
                        let server = server.clone();
                        connections.spawn(async move {
                            match stream {
                                Stream::Loopback(stream) => serve_connection(stream, server).await,
                                Stream::Socket(stream) => serve_connection(stream, server).await,
                            }
                            drop(permit);
                        });
                    }
                }
                Ok(None) => {}
                // The process has most likely run out of file descriptors. Wait a moment, because a connection may
                // close.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            Some(_) = connections.join_next() => {}
            () = stop.wait() => break,
        }
    }
    drop(accept);
    let closed = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, closed).await;
    Ok(())
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin, server: Arc<Server>) {
    let is_known = Arc::new(AtomicBool::new(matches!(server.check, ClientCheck::Peer)));
    let service = service_fn(|request| {
        let (server, is_known) = (server.clone(), is_known.clone());
        async move { Ok::<_, Infallible>(server.respond(request, &is_known).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.max_headers(MOST_HEADERS).max_header_size(LARGEST_HEAD).max_buf_size(2 * LARGEST_HEAD);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let token_timeout = async {
        tokio::time::sleep(TOKEN_TIMEOUT).await;
        if is_known.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = connection.as_mut() => return,
        () = token_timeout => return,
        () = server.stop.wait() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

impl Server {
    /// Checks a request before the server reads any byte of its body, and passes the request to the router.
    async fn respond(&self, request: Request<Incoming>, is_known: &AtomicBool) -> Response<Body> {
        let (head, body) = request.into_parts();
        if let Err(refusal) = self.check(&head, is_known) {
            return ApiError::from(refusal).into_response();
        }
        let mut router = self.router.clone();
        match router.call(Request::from_parts(head, Body::new(body))).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    fn check(&self, head: &Parts, is_known: &AtomicBool) -> Result<(), Refusal> {
        match &self.check {
            ClientCheck::Token(check) => {
                check.check_source(head)?;
                if WITHOUT_TOKEN.contains(&head.uri.path()) {
                    return Ok(());
                }
                check.check_token(head)?;
                is_known.store(true, Ordering::Relaxed);
                Ok(())
            }
            // A web page cannot reach a unix socket, but a careless proxy can forward a web page's requests.
            ClientCheck::Peer if head.headers.contains_key(ORIGIN) => Err(from_web_page()),
            ClientCheck::Peer => Ok(()),
        }
    }
}

//! Accepts connections, limits what each one may cost, and authenticates every request before the server reads a byte
//! of its body.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::header::ORIGIN;
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::request_check::from_web_page;
use super::{Listening, Refusal, RequestCheck, Socket, Stop, Token};

/// How long a connection may stay open before its client has presented the token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to send its next request, or the rest of a request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long, in milliseconds, a client may leave sent data unacknowledged.
const UNACKNOWLEDGED_MS: u32 = 30_000;
/// The maximum size of the request line and headers together, in bytes.
const LARGEST_HEAD: usize = 32 << 10;
const MOST_HEADERS: usize = 64;

/// Where a server listens, and how it authenticates its clients.
pub enum Listener {
    /// A loopback port. Clients authenticate with the token.
    Loopback(Listening, Token),
    /// A unix socket. Only processes of the same user may connect.
    Socket(Socket),
}

/// Answers the requests of a server.
pub(crate) trait Service: Send + Sync + 'static {
    type Body: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;

    /// The paths that clients may request without the token.
    const WITHOUT_TOKEN: &'static [&'static str] = &[];

    /// Builds the response to a request that the server refuses.
    fn refuse(&self, refusal: Refusal) -> Response<Self::Body>;

    /// Answers a request of an authenticated client, or for one of the paths in `WITHOUT_TOKEN`.
    fn respond(&self, request: Request<Incoming>) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// The open connections of a server that accepts no further ones.
pub(crate) struct Connections(JoinSet<()>);

impl Connections {
    /// Waits until all connections are closed, at most for `most`.
    pub(crate) async fn wait(&mut self, most: Duration) {
        let closed = async { while self.0.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(most, closed).await;
    }
}

/// Serves until `stop` is set. Then closes the listener, and returns the connections that have pending responses. If
/// `most_connections` are open, closes further ones at once.
pub(crate) async fn serve<S: Service>(
    listener: Listener,
    service: S,
    most_connections: usize,
    stop: &Stop,
) -> io::Result<Connections> {
    // Dropping this value when the server stops removes the file of the unix socket.
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
    let server = Arc::new(Server { check, service, stop: stop.clone() });
    let permits = Arc::new(Semaphore::new(most_connections));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = accept.next() => match accepted {
                Ok(Some(stream)) => {
                    if let Ok(permit) = permits.clone().try_acquire_owned() {
                        let server = server.clone();
                        connections.spawn(async move {
                            server.serve_connection(stream).await;
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
            () = stop.wait() => return Ok(Connections(connections)),
        }
    }
}

/// The open listener.
enum Accept {
    Loopback(TcpListener),
    Socket(UnixListener),
}

/// An accepted connection.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Accept {
    /// Accepts a connection; `None` if it comes from another user.
    async fn next(&self) -> io::Result<Option<Box<dyn Stream>>> {
        match self {
            Self::Loopback(listener) => {
                let (stream, _) = listener.accept().await?;
                // A client that reads nothing must not keep its pending data in memory forever.
                let _ = setsockopt(&stream, sockopt::TcpUserTimeout, &UNACKNOWLEDGED_MS);
                let _ = stream.set_nodelay(true);
                Ok(Some(Box::new(stream)))
            }
            Self::Socket(listener) => {
                let (stream, _) = listener.accept().await?;
                let own = nix::unistd::geteuid().as_raw();
                let is_own = stream.peer_cred().is_ok_and(|peer| peer.uid() == own);
                Ok(if is_own { Some(Box::new(stream)) } else { None })
            }
        }
    }
}

/// How the server authenticates the clients of its listener.
enum ClientCheck {
    /// Every request must carry the server's token, except requests for the service's paths `WITHOUT_TOKEN`.
    Token(RequestCheck),
    /// The kernel reports the user id of the client, which must be the server's own.
    Peer,
}

/// The state that all connections share.
struct Server<S> {
    check: ClientCheck,
    service: S,
    stop: Stop,
}

impl<S: Service> Server<S> {
    async fn serve_connection(&self, stream: Box<dyn Stream>) {
        let is_known = &AtomicBool::new(matches!(self.check, ClientCheck::Peer));
        let respond = |request| async move { Ok::<_, Infallible>(self.respond(request, is_known).await) };
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        builder.max_headers(MOST_HEADERS).max_header_size(LARGEST_HEAD).max_buf_size(2 * LARGEST_HEAD);
        let mut connection =
            std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service_fn(respond)));
        let token_timeout = async {
            tokio::time::sleep(TOKEN_TIMEOUT).await;
            if is_known.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            _ = connection.as_mut() => return,
            () = token_timeout => return,
            () = self.stop.wait() => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }

    async fn respond(&self, request: Request<Incoming>, is_known: &AtomicBool) -> Response<S::Body> {
        let (head, body) = request.into_parts();
        match self.check(&head, is_known) {
            Ok(()) => self.service.respond(Request::from_parts(head, body)).await,
            Err(refusal) => self.service.refuse(refusal),
        }
    }

    fn check(&self, head: &Parts, is_known: &AtomicBool) -> Result<(), Refusal> {
        match &self.check {
            ClientCheck::Token(check) => {
                check.check_source(head)?;
                if S::WITHOUT_TOKEN.contains(&head.uri.path()) {
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

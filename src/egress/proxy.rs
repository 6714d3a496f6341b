//! The proxy: tunnels by CONNECT and SOCKS5, and plain HTTP requests.
//!
//! In comes a connection of the run. The rules judge the host, the dialer judges the address, and then bytes are
//! carried and counted. A connection of a program without proxy support (`made_to`) always goes to the host it was
//! made to, whatever its requests name.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::dial::{DialError, Dialled};
use super::listeners::Peer;
use super::response_body::{Carried, Watch, strip, words};
use super::server::{ByteCounter, Kept, LARGEST_HEADERS, ProxyState, serve_session};
use super::socks::{self, Code};
use super::tunnel::{self, Beginning};
use crate::decide::NetworkRefusal;
use crate::policy::{Host, Way};
use crate::transcript::EventType;

/// How long a server may take to respond.
const ANSWER: Duration = Duration::from_secs(15 * 60);
/// Time limit for switching a request to its tunnel.
const HAND_OVER: Duration = Duration::from_secs(30);

/// How long a directly connecting program may stay silent. TLS and HTTP clients always send first.
const FIRST_WORD: Duration = Duration::from_secs(3);
/// First byte of a TLS client's message.
const TLS_HANDSHAKE: u8 = 22;
/// A fatal TLS alert, "access denied".
const ACCESS_DENIED: [u8; 7] = [21, 3, 1, 0, 2, 2, 49];

/// One connection of the run.
pub(super) struct Session {
    task_store: Rc<ProxyState>,
    visitor: Peer,
    seat: Kept,
    /// The host and port of a direct connection, by a program without proxy support. All its requests go there.
    made_to: Option<(Host, u16)>,
    /// The server connection of the last plain request.
    server: RefCell<Option<Server>>,
}

struct Server {
    host: Host,
    port: u16,
    sender: SendRequest<Carried>,
    through: Option<Option<String>>,
}

/// The HTTP status that reports a dial error.
fn status(error: &DialError) -> StatusCode {
    match error {
        DialError::Refused(_) => StatusCode::FORBIDDEN,
        DialError::Silent(_) => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    }
}

impl Session {
    pub(super) fn new(task_store: Rc<ProxyState>, visitor: Peer, seat: Kept) -> Self {
        Self { task_store, visitor, seat, made_to: None, server: RefCell::default() }
    }

    /// Answers one request.
    pub(super) async fn answer(self: Rc<Self>, request: Request<Incoming>) -> Response<Carried> {
        let is_tunnel = request.method() == Method::CONNECT;
        if let Some((host, port)) = self.made_to.clone() {
            if is_tunnel {
                return bad("This is no proxy: the connection leads to one host.");
            }
            return self.request(request, host, port).await;
        }
        let (place, usual) = match (request.uri().authority(), request.uri().scheme_str()) {
            (Some(place), None) if is_tunnel => (place.as_str().to_string(), None),
            (Some(place), Some("http")) if !is_tunnel => (place.as_str().to_string(), Some(80)),
            (Some(_), Some(_)) => return bad("Only http:// is asked for here; for https:// use CONNECT."),
            _ => return bad("This is a proxy: ask it for http://host/path, or CONNECT host:port."),
        };
        let (host, port) = match Host::parse_with_port(&place, usual) {
            Ok(target) => target,
            Err(error) => {
                let refusal =
                    NetworkRefusal::new("network.host", format!("{error}."), "Write the host plainly.");
                return self.refuse(
                    &place.chars().take(300).collect::<String>(),
                    0,
                    "connect",
                    &refusal,
                    StatusCode::BAD_REQUEST,
                );
            }
        };
        if is_tunnel {
            self.tunnel(request, host, port).await
        } else {
            self.request(request, host, port).await
        }
    }

    fn refuse(
        &self,
        host: &str,
        port: u16,
        verb: &str,
        refusal: &NetworkRefusal,
        status: StatusCode,
    ) -> Response<Carried> {
        refuse(&self.task_store, self.visitor, host, port, verb, refusal);
        let what = format!("{verb} to {host}:{port}");
        words(status, refusal.rule, &refusal.line(&what))
    }

    fn failed(&self, host: &Host, port: u16, error: &DialError) -> Response<Carried> {
        if let DialError::Refused(refusal) = error {
            return self.refuse(&host.to_string(), port, "connect", refusal, StatusCode::FORBIDDEN);
        }
        not_reached(&self.task_store, self.visitor, host, port, error);
        words(status(error), "network.upstream", &format!("guard: {error}"))
    }

    async fn tunnel(self: Rc<Self>, request: Request<Incoming>, host: Host, port: u16) -> Response<Carried> {
        let is_raw = match self.task_store.dialer.rules.judge(&host, port, Way::Tunnel) {
            Ok(allowed) => allowed.entry.is_raw(),
            Err(refusal) => {
                return self.refuse(&host.to_string(), port, "connect", &refusal, StatusCode::FORBIDDEN);
            }
        };
        let dialled = match self.task_store.dialer.tunnel(&host, port).await {
            Ok(dialled) => dialled,
            Err(error) => return self.failed(&host, port, &error),
        };
        let (task_store, visitor, seat) = (self.task_store.clone(), self.visitor, self.seat.clone());
        tokio::task::spawn_local(async move {
            let Ok(Ok(upgraded)) = timeout(HAND_OVER, hyper::upgrade::on(request)).await else { return };
            let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() else { return };
            let client = parts.io.into_inner();
            carry(
                client,
                parts.read_buf.to_vec(),
                dialled,
                Target { host, port, is_raw, way: "connect" },
                &task_store,
                visitor,
            )
            .await;
            drop(seat);
        });
        Response::new(Carried::words(""))
    }

    async fn request(&self, request: Request<Incoming>, host: Host, port: u16) -> Response<Carried> {
        let (mut parts, body) = request.into_parts();
        let (method, path) = (parts.method.clone(), parts.uri.path().to_string());
        let way = Way::Request { method: method.as_str(), path: &path };
        let named = host.to_string();
        let allowed = match self.task_store.dialer.rules.judge(&host, port, way) {
            Ok(allowed) => allowed,
            Err(refusal) => {
                return self.refuse(&named, port, method.as_str(), &refusal, StatusCode::FORBIDDEN);
            }
        };
        strip(&mut parts.headers);
        if allowed.entry.binds_methods() {
            // Many servers let these headers override the method.
            for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
                parts.headers.remove(name);
            }
        }
        let authority = if port == 80 { named.clone() } else { format!("{named}:{port}") };
        // The judged host is the one requested, whatever other headers say.
        let Ok(value) = HeaderValue::from_str(&authority) else { return bad("The host cannot be written.") };
        parts.headers.insert(HOST, value);
        let mut server = match self.server(&host, port).await {
            Ok(server) => server,
            Err(error) => return self.failed(&host, port, &error),
        };
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let uri = match &server.through {
            None => format!("{path}{query}"),
            Some(authorization) => {
                if let Some(Ok(value)) = authorization.as_ref().map(|text| HeaderValue::from_str(text)) {
                    parts.headers.insert(PROXY_AUTHORIZATION, value);
                }
                format!("http://{authority}{path}{query}")
            }
        };
        let Ok(uri) = uri.parse::<Uri>() else { return bad("The path cannot be written.") };
        parts.uri = uri;
        let meter = self.task_store.meter(&named, port, self.visitor);
        meter.request();
        let upward = Box::new(Upward { meter: meter.clone() });
        let outgoing = Request::from_parts(parts, Carried::theirs(body, upward));
        let began = Instant::now();
        let mut response = match timeout(ANSWER, server.sender.send_request(outgoing)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                // The limit was recorded when it was reached.
                if let Some(refusal) = meter.cut() {
                    let line = refusal.line(&format!("{method} to {named}:{port}"));
                    return words(StatusCode::FORBIDDEN, refusal.rule, &line);
                }
                let error = DialError::Unreachable { host: named, port, problem: error.to_string() };
                return self.failed(&host, port, &error);
            }
            Err(_) => return self.failed(&host, port, &DialError::Silent(named)),
        };
        strip(response.headers_mut());
        let what = format!("{method} http://{authority}{path}");
        let watch = Downward {
            meter,
            task_store: self.task_store.clone(),
            visitor: self.visitor,
            what,
            status: response.status(),
            began,
        };
        *self.server.borrow_mut() = Some(server);
        response.map(|body| Carried::theirs(body, Box::new(watch)))
    }

    /// Reuses the last request's connection if it leads to the same server; otherwise connects.
    async fn server(&self, host: &Host, port: u16) -> Result<Server, DialError> {
        let known = self.server.borrow_mut().take();
        if let Some(mut server) = known.filter(|server| server.host == *host && server.port == port)
            && server.sender.ready().await.is_ok()
        {
            return Ok(server);
        }
        let Dialled { stream, through, .. } = self.task_store.dialer.request(host, port).await?;
        let failed = |error: hyper::Error| DialError::Unreachable {
            host: host.to_string(),
            port,
            problem: error.to_string(),
        };
        let handshake = http1::Builder::new().max_buf_size(LARGEST_HEADERS).handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(failed)?;
        self.task_store.ledger.note(&host.to_string(), port, |row| row.connections += 1);
        tokio::task::spawn_local(connection);
        Ok(Server { host: host.clone(), port, sender, through })
    }
}

fn bad(line: &str) -> Response<Carried> {
    words(StatusCode::BAD_REQUEST, "network.request", &format!("guard: {line}"))
}

fn refuse(
    task_store: &ProxyState,
    visitor: Peer,
    host: &str,
    port: u16,
    verb: &str,
    refusal: &NetworkRefusal,
) {
    let what = format!("{verb} to {host}:{port}");
    task_store.refused(visitor, host, port, &what, refusal.rule, &refusal.reason);
}

fn not_reached(task_store: &ProxyState, visitor: Peer, host: &Host, port: u16, error: &DialError) {
    let data =
        json!({ "pid": visitor.tid, "host": host.to_string(), "port": port, "problem": error.to_string() });
    task_store.recorder.record(EventType::NetworkError, &error.to_string(), &data);
}

struct Upward {
    meter: Rc<ByteCounter>,
}

impl Watch for Upward {
    fn see(&mut self, bytes: &[u8]) -> bool {
        self.meter.up(bytes.len())
    }

    fn end(&mut self, _: bool) {}
}

struct Downward {
    meter: Rc<ByteCounter>,
    task_store: Rc<ProxyState>,
    visitor: Peer,
    what: String,
    status: StatusCode,
    began: Instant,
}

impl Watch for Downward {
    fn see(&mut self, bytes: &[u8]) -> bool {
        self.meter.down(bytes.len())
    }

    fn end(&mut self, is_whole: bool) {
        let (up, down) = self.meter.moved();
        let data = json!({
            "pid": self.visitor.tid, "what": self.what, "status": self.status.as_u16(), "bytes_up": up, "bytes_down": down,
            "milliseconds": milliseconds(self.began), "whole": is_whole,
        });
        self.task_store.recorder.record(
            EventType::NetworkRequest,
            &format!("{} → {}", self.what, self.status.as_u16()),
            &data,
        );
    }
}

fn milliseconds(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The destination of a tunnel.
struct Target {
    host: Host,
    port: u16,
    is_raw: bool,
    way: &'static str,
}

/// Carries a tunnel to its end and records it.
async fn carry(
    client: TcpStream,
    early: Vec<u8>,
    dialled: Dialled,
    target: Target,
    task_store: &Rc<ProxyState>,
    visitor: Peer,
) {
    let Target { host, port, is_raw, way } = target;
    let named = host.to_string();
    let first = if is_raw {
        early
    } else {
        match tunnel::beginning(&client, early, &host).await {
            Beginning::Fine(first) => first,
            Beginning::Nothing => return,
            Beginning::Refused(refusal) => {
                tunnel::say(&client, &ACCESS_DENIED).await;
                return refuse(task_store, visitor, &named, port, way, &refusal);
            }
        }
    };
    let meter = task_store.meter(&named, port, visitor);
    task_store.ledger.note(&named, port, |row| row.connections += 1);
    let data = json!({ "pid": visitor.tid, "host": named, "port": port, "way": way });
    task_store.recorder.record(EventType::NetworkOpen, &format!("{way} to {named}:{port}"), &data);
    let closing =
        Closing { task_store: task_store.clone(), meter, visitor, named, port, began: Instant::now() };
    tunnel::carry(&client, &dialled.stream, &first, &dialled.early, &closing.meter).await;
}

/// Records the end of a tunnel on drop, however it ends.
struct Closing {
    task_store: Rc<ProxyState>,
    meter: Rc<ByteCounter>,
    visitor: Peer,
    named: String,
    port: u16,
    began: Instant,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let (up, down) = self.meter.moved();
        let Self { named, port, .. } = self;
        let data = json!({
            "pid": self.visitor.tid, "host": named, "port": port, "bytes_up": up, "bytes_down": down,
            "milliseconds": milliseconds(self.began),
        });
        self.task_store.recorder.record(
            EventType::NetworkClose,
            &format!("{named}:{port}: {up} bytes up, {down} down"),
            &data,
        );
    }
}

/// Serves a SOCKS5 client.
pub(super) async fn socks(mut client: TcpStream, task_store: Rc<ProxyState>, visitor: Peer) {
    let Some((host, text, port)) = socks::greet(&mut client).await else { return };
    let judged = host
        .map_err(|error| NetworkRefusal::new("network.host", format!("{error}."), "Write the host plainly."))
        .and_then(|host| {
            let is_raw = task_store.dialer.rules.judge(&host, port, Way::Tunnel)?.entry.is_raw();
            Ok((host, is_raw))
        });
    let (host, is_raw) = match judged {
        Ok(judged) => judged,
        Err(refusal) => {
            refuse(
                &task_store,
                visitor,
                &text.chars().take(300).collect::<String>(),
                port,
                "connect",
                &refusal,
            );
            let _ = socks::answer(&mut client, Code::NotAllowed).await;
            return;
        }
    };
    let dialled = match task_store.dialer.tunnel(&host, port).await {
        Ok(dialled) => dialled,
        Err(error) => {
            let code = if let DialError::Refused(refusal) = &error {
                refuse(&task_store, visitor, &host.to_string(), port, "connect", refusal);
                Code::NotAllowed
            } else {
                not_reached(&task_store, visitor, &host, port, &error);
                Code::Unreachable
            };
            let _ = socks::answer(&mut client, code).await;
            return;
        }
    };
    if socks::answer(&mut client, Code::Granted).await.is_ok() {
        carry(client, Vec::new(), dialled, Target { host, port, is_raw, way: "socks" }, &task_store, visitor)
            .await;
    }
}

/// Serves a program that believes it is connected to a host. Its first bytes show the protocol: TLS is carried like a
/// tunnel, a plain HTTP request is judged as one. A host that the policy allows as `raw` is carried without
/// inspection, because its server may have to send first.
pub(super) async fn direct(
    client: TcpStream,
    task_store: Rc<ProxyState>,
    visitor: Peer,
    seat: Kept,
    host: Host,
    port: u16,
) {
    let judged =
        task_store.dialer.rules.judge(&host, port, Way::Tunnel).map(|allowed| allowed.entry.is_raw());
    let is_raw = matches!(judged, Ok(true));
    if !is_raw {
        let mut first = [0u8; 1];
        match timeout(FIRST_WORD, client.peek(&mut first)).await {
            Ok(Ok(1..)) if first[0] == TLS_HANDSHAKE => {}
            Ok(Ok(1..)) => {
                let session =
                    Session { made_to: Some((host, port)), ..Session::new(task_store, visitor, seat) };
                return serve_session(client, session).await;
            }
            Ok(_) => return,
            Err(_) => {
                let reason = "It waits for the server to speak, as neither TLS nor http does.";
                let instead = "Have the policy say `raw` for this host and port.";
                let refusal = NetworkRefusal::new("network.tls", reason, instead);
                return refuse(&task_store, visitor, &host.to_string(), port, "connect", &refusal);
            }
        }
    }
    if let Err(refusal) = judged {
        tunnel::say(&client, &ACCESS_DENIED).await;
        return refuse(&task_store, visitor, &host.to_string(), port, "connect", &refusal);
    }
    match task_store.dialer.tunnel(&host, port).await {
        Ok(dialled) => {
            let target = Target { host, port, is_raw, way: "direct" };
            carry(client, Vec::new(), dialled, target, &task_store, visitor).await;
        }
        Err(DialError::Refused(refusal)) => {
            refuse(&task_store, visitor, &host.to_string(), port, "connect", &refusal);
        }
        Err(error) => not_reached(&task_store, visitor, &host, port, &error),
    }
}

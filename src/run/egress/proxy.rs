//! The proxy: tunnels by CONNECT and SOCKS5, and plain HTTP requests.
//!
//! Input is a connection of the run. The network rules judge the host, the dialer judges the address, and then the
//! proxy forwards and counts the bytes. If a program does not support proxies, its connection always leads to the host
//! that the program connected to (`direct_target`), whatever host its requests name.

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
use super::http_server::{LARGEST_HEADERS, serve_http};
use super::listeners::Peer;
use super::proxy_state::{ByteCounter, ProxyState, SharedPermit};
use super::response_body::{BodyObserver, ProxiedBody, message_response, remove_hop_by_hop_headers};
use super::socks;
use super::socks::Code;
use super::tunnel;
use super::tunnel::FirstBytes;
use crate::judge::decide::NetworkRefusal;
use crate::judge::policy::{Host, HostAccess};
use crate::run::transcript::EventType;

/// How long a server may take to begin its response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Time limit for turning the connection of a CONNECT request into a tunnel.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a program without proxy support may wait before it sends its first byte. TLS and HTTP clients send before
/// the server does.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(3);
/// The first byte of a TLS connection: the content type of a handshake record.
const TLS_HANDSHAKE: u8 = 22;
/// A fatal TLS alert, "access denied".
const ACCESS_DENIED: [u8; 7] = [21, 3, 1, 0, 2, 2, 49];

/// One connection of the run to the proxy.
pub(super) struct Session {
    state: Rc<ProxyState>,
    peer: Peer,
    permit: SharedPermit,
    /// The host and port to which a program without proxy support connected. All requests of the connection go there.
    direct_target: Option<(Host, u16)>,
    /// The connection to a server that the last plain HTTP request used, kept for the next request.
    server: RefCell<Option<Server>>,
}

struct Server {
    host: Host,
    port: u16,
    sender: SendRequest<ProxiedBody>,
    proxy_authorization: Option<Option<String>>,
}

fn status(error: &DialError) -> StatusCode {
    match error {
        DialError::Refused(_) => StatusCode::FORBIDDEN,
        DialError::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    }
}

impl Session {
    pub(super) fn new(state: Rc<ProxyState>, peer: Peer, permit: SharedPermit) -> Self {
        Self { state, peer, permit, direct_target: None, server: RefCell::default() }
    }

    /// Answers one HTTP request of the run: CONNECT opens a tunnel, and other requests are forwarded. Answers with an
    /// error message if the request is not valid or not allowed.
    pub(super) async fn answer(self: Rc<Self>, request: Request<Incoming>) -> Response<ProxiedBody> {
        let is_tunnel = request.method() == Method::CONNECT;
        if let Some((host, port)) = self.direct_target.clone() {
            if is_tunnel {
                return bad_request(
                    "This connection leads directly to one host, not to a proxy, so it does not accept CONNECT.",
                );
            }
            return self.request(request, host, port).await;
        }
        let (place, default_port) = match (request.uri().authority(), request.uri().scheme_str()) {
            (Some(place), None) if is_tunnel => (place.as_str().to_string(), None),
            (Some(place), Some("http")) if !is_tunnel => (place.as_str().to_string(), Some(80)),
            (Some(_), Some(_)) => {
                return bad_request(
                    "The proxy accepts plain requests for http:// URLs only; for https:// use CONNECT.",
                );
            }
            _ => {
                return bad_request(
                    "This is guard's HTTP proxy; request http://host/path or CONNECT host:port.",
                );
            }
        };
        let (host, port) = match Host::parse_with_port(&place, default_port) {
            Ok(target) => target,
            Err(error) => {
                let refusal = NetworkRefusal::new(
                    "network.host",
                    format!("{error}."),
                    "Use a plain host name or IP address.",
                );
                let place = place.chars().take(300).collect::<String>();
                return self.refusal_response(&place, 0, "connect", &refusal, StatusCode::BAD_REQUEST).await;
            }
        };
        if is_tunnel {
            self.tunnel(request, host, port).await
        } else {
            self.request(request, host, port).await
        }
    }

    async fn refusal_response(
        &self,
        host: &str,
        port: u16,
        verb: &str,
        refusal: &NetworkRefusal,
        status: StatusCode,
    ) -> Response<ProxiedBody> {
        let line = record_refusal(&self.state, &self.peer, host, port, verb, refusal);
        if !shows_responses(self.peer.tid) {
            self.state.explain(&self.peer, host, &line).await;
        }
        message_response(status, refusal.rule, &line)
    }

    async fn dial_error_response(&self, host: &Host, port: u16, error: &DialError) -> Response<ProxiedBody> {
        if let DialError::Refused(refusal) = error {
            let host = host.to_string();
            return self.refusal_response(&host, port, "connect", refusal, StatusCode::FORBIDDEN).await;
        }
        record_dial_error(&self.state, &self.peer, host, port, error);
        let line = format!("guard: {error}");
        if !shows_responses(self.peer.tid) {
            self.state.explain(&self.peer, &host.to_string(), &line).await;
        }
        message_response(status(error), "network.upstream", &line)
    }

    async fn tunnel(
        self: Rc<Self>,
        request: Request<Incoming>,
        host: Host,
        port: u16,
    ) -> Response<ProxiedBody> {
        let is_raw = match self.state.dialer.rules.judge(&host, port, HostAccess::Tunnel) {
            Ok(allowed) => allowed.entry.is_raw(),
            Err(refusal) => {
                let host = host.to_string();
                return self.refusal_response(&host, port, "connect", &refusal, StatusCode::FORBIDDEN).await;
            }
        };
        let dialled = match self.state.dialer.tunnel(&host, port).await {
            Ok(dialled) => dialled,
            Err(error) => return self.dial_error_response(&host, port, &error).await,
        };
        let (state, peer, permit) = (self.state.clone(), self.peer.clone(), self.permit.clone());
        tokio::task::spawn_local(async move {
            let Ok(Ok(upgraded)) = timeout(UPGRADE_TIMEOUT, hyper::upgrade::on(request)).await else {
                return;
            };
            let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() else { return };
            let client = parts.io.into_inner();
            carry(
                client,
                parts.read_buf.to_vec(),
                dialled,
                Target { host, port, is_raw, way: "connect" },
                &state,
                &peer,
            )
            .await;
            drop(permit);
        });
        Response::new(ProxiedBody::message(""))
    }

    async fn request(&self, request: Request<Incoming>, host: Host, port: u16) -> Response<ProxiedBody> {
        let (mut parts, body) = request.into_parts();
        let (method, path) = (parts.method.clone(), parts.uri.path().to_string());
        let way = HostAccess::Request { method: method.as_str(), path: &path };
        let named = host.to_string();
        if let Err(refusal) = self.state.dialer.rules.judge(&host, port, way) {
            return self
                .refusal_response(&named, port, method.as_str(), &refusal, StatusCode::FORBIDDEN)
                .await;
        }
        remove_hop_by_hop_headers(&mut parts.headers);
        if self.state.dialer.rules.limits_methods(&host, port) {
            // Many servers let these headers override the method that guard has judged, so remove them.
            for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
                parts.headers.remove(name);
            }
        }
        let authority = if port == 80 { named.clone() } else { format!("{named}:{port}") };
        // Set the Host header to the judged host, whatever the client's headers say.
        let Ok(value) = HeaderValue::from_str(&authority) else {
            return bad_request("The host name is not valid in a Host header.");
        };
        parts.headers.insert(HOST, value);
        let mut server = match self.server(&host, port).await {
            Ok(server) => server,
            Err(error) => return self.dial_error_response(&host, port, &error).await,
        };
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let uri = match &server.proxy_authorization {
            None => format!("{path}{query}"),
            Some(authorization) => {
                if let Some(Ok(value)) = authorization.as_ref().map(|text| HeaderValue::from_str(text)) {
                    parts.headers.insert(PROXY_AUTHORIZATION, value);
                }
                format!("http://{authority}{path}{query}")
            }
        };
        let Ok(uri) = uri.parse::<Uri>() else { return bad_request("The path is not valid in a URL.") };
        parts.uri = uri;
        let byte_counter = self.state.new_byte_counter(&named, port, &self.peer);
        byte_counter.count_request();
        let upward = Box::new(UploadObserver { byte_counter: byte_counter.clone() });
        let outgoing = Request::from_parts(parts, ProxiedBody::forwarded(body, upward));
        let began = Instant::now();
        let mut response = match timeout(RESPONSE_TIMEOUT, server.sender.send_request(outgoing)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                // Do not record this refusal: guard recorded one when the run reached the limit.
                if let Some(refusal) = byte_counter.limit_refusal() {
                    let line = refusal.line(&format!("{method} to {named}:{port}"));
                    return message_response(StatusCode::FORBIDDEN, refusal.rule, &line);
                }
                let error = DialError::Unreachable { host: named, port, problem: error.to_string() };
                return self.dial_error_response(&host, port, &error).await;
            }
            Err(_) => return self.dial_error_response(&host, port, &DialError::TimedOut(named)).await,
        };
        remove_hop_by_hop_headers(response.headers_mut());
        let what = format!("{method} http://{authority}{path}");
        let observer = DownloadObserver {
            byte_counter,
            state: self.state.clone(),
            peer: self.peer.clone(),
            what,
            status: response.status(),
            began,
        };
        *self.server.borrow_mut() = Some(server);
        response.map(|body| ProxiedBody::forwarded(body, Box::new(observer)))
    }

    /// Returns the connection that the last request used if it leads to this server; otherwise opens a new one.
    async fn server(&self, host: &Host, port: u16) -> Result<Server, DialError> {
        let known = self.server.borrow_mut().take();
        if let Some(mut server) = known.filter(|server| server.host == *host && server.port == port)
            && server.sender.ready().await.is_ok()
        {
            return Ok(server);
        }
        let Dialled { stream, proxy_authorization, .. } = self.state.dialer.request(host, port).await?;
        let failed = |error: hyper::Error| DialError::Unreachable {
            host: host.to_string(),
            port,
            problem: error.to_string(),
        };
        let handshake = http1::Builder::new().max_buf_size(LARGEST_HEADERS).handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(failed)?;
        self.state.host_stats.update(&host.to_string(), port, |row| row.connections += 1);
        tokio::task::spawn_local(connection);
        Ok(Server { host: host.clone(), port, sender, proxy_authorization })
    }
}

fn bad_request(line: &str) -> Response<ProxiedBody> {
    message_response(StatusCode::BAD_REQUEST, "network.request", &format!("guard: {line}"))
}

/// Programs that put the proxy's response into their own error messages. guard need not write it to their standard error
/// too. `python` stands for programs written in Python, whose libraries all do that.
const SHOW_RESPONSES: [&str; 4] = ["npm", "npx", "pip", "python"];

/// Returns true if the program of a thread shows its user the text with which the proxy refuses a request.
fn shows_responses(tid: i32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
    SHOW_RESPONSES.iter().any(|program| name.starts_with(program))
}

/// Records a refusal. Returns the refusal as one line of text for the agent.
fn record_refusal(
    state: &ProxyState,
    peer: &Peer,
    host: &str,
    port: u16,
    verb: &str,
    refusal: &NetworkRefusal,
) -> String {
    let what = format!("{verb} to {host}:{port}");
    state.refused(peer, host, port, &what, refusal);
    refusal.line(&what)
}

/// Records the refusal of a connection on which the proxy cannot send its reason, and tells the process on its standard
/// error.
async fn refuse_without_text(
    state: &ProxyState,
    peer: &Peer,
    host: &str,
    port: u16,
    verb: &str,
    refusal: &NetworkRefusal,
) {
    let line = record_refusal(state, peer, host, port, verb, refusal);
    state.explain(peer, host, &line).await;
}

fn record_dial_error(state: &ProxyState, peer: &Peer, host: &Host, port: u16, error: &DialError) {
    let data =
        json!({ "pid": peer.tid, "host": host.to_string(), "port": port, "problem": error.to_string() });
    state.recorder.record(EventType::NetworkError, &error.to_string(), &data);
}

struct UploadObserver {
    byte_counter: Rc<ByteCounter>,
}

impl BodyObserver for UploadObserver {
    fn observe(&mut self, bytes: &[u8]) -> bool {
        self.byte_counter.count_sent(bytes.len())
    }

    fn finish(&mut self, _: bool) {}
}

struct DownloadObserver {
    byte_counter: Rc<ByteCounter>,
    state: Rc<ProxyState>,
    peer: Peer,
    what: String,
    status: StatusCode,
    began: Instant,
}

impl BodyObserver for DownloadObserver {
    fn observe(&mut self, bytes: &[u8]) -> bool {
        self.byte_counter.count_received(bytes.len())
    }

    fn finish(&mut self, is_whole: bool) {
        let (up, down) = self.byte_counter.totals();
        let data = json!({
            "pid": self.peer.tid, "what": self.what, "status": self.status.as_u16(), "bytes_up": up, "bytes_down": down,
            "milliseconds": milliseconds(self.began), "whole": is_whole,
        });
        self.state.recorder.record(
            EventType::NetworkRequest,
            &format!("{} → {}", self.what, self.status.as_u16()),
            &data,
        );
    }
}

fn milliseconds(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The host and port to which a tunnel leads. `is_raw` says whether the policy allows bytes other than TLS. `way` says
/// in the transcript how the run opened the tunnel: `connect`, `socks` or `direct`.
struct Target {
    host: Host,
    port: u16,
    is_raw: bool,
    way: &'static str,
}

/// Forwards a tunnel's bytes until the tunnel ends, and records its beginning and end. Unless the host is allowed as
/// `raw`, first checks that the client begins with a TLS ClientHello for this host, and otherwise refuses the tunnel.
async fn carry(
    client: TcpStream,
    early: Vec<u8>,
    dialled: Dialled,
    target: Target,
    state: &Rc<ProxyState>,
    peer: &Peer,
) {
    let Target { host, port, is_raw, way } = target;
    let named = host.to_string();
    let first = if is_raw {
        early
    } else {
        match tunnel::check_first_bytes(&client, early, &host).await {
            FirstBytes::Valid(first) => first,
            FirstBytes::Closed => return,
            FirstBytes::Refused(refusal) => {
                refuse_without_text(state, peer, &named, port, "connect", &refusal).await;
                return tunnel::send_briefly(&client, &ACCESS_DENIED).await;
            }
        }
    };
    let byte_counter = state.new_byte_counter(&named, port, peer);
    state.host_stats.update(&named, port, |row| row.connections += 1);
    let data = json!({ "pid": peer.tid, "host": named, "port": port, "way": way });
    state.recorder.record(EventType::NetworkOpen, &format!("{way} to {named}:{port}"), &data);
    let close_recorder = CloseRecorder {
        state: state.clone(),
        byte_counter,
        peer: peer.clone(),
        named,
        port,
        began: Instant::now(),
    };
    tunnel::carry(&client, &dialled.stream, &first, &dialled.early, &close_recorder.byte_counter).await;
}

/// Records the end of a tunnel when it is dropped, so that the end is recorded whatever its cause.
struct CloseRecorder {
    state: Rc<ProxyState>,
    byte_counter: Rc<ByteCounter>,
    peer: Peer,
    named: String,
    port: u16,
    began: Instant,
}

impl Drop for CloseRecorder {
    fn drop(&mut self) {
        let (up, down) = self.byte_counter.totals();
        let Self { named, port, .. } = self;
        let data = json!({
            "pid": self.peer.tid, "host": named, "port": port, "bytes_up": up, "bytes_down": down,
            "milliseconds": milliseconds(self.began),
        });
        self.state.recorder.record(
            EventType::NetworkClose,
            &format!("{named}:{port}: {up} bytes up, {down} down"),
            &data,
        );
    }
}

/// Serves a client that speaks SOCKS5: judges the requested destination, connects to it, and forwards the bytes.
pub(super) async fn socks(mut client: TcpStream, state: Rc<ProxyState>, peer: Peer) {
    let Some((host, text, port)) = socks::handshake(&mut client).await else { return };
    let judged = host
        .map_err(|error| {
            NetworkRefusal::new("network.host", format!("{error}."), "Use a plain host name or IP address.")
        })
        .and_then(|host| {
            let is_raw = state.dialer.rules.judge(&host, port, HostAccess::Tunnel)?.entry.is_raw();
            Ok((host, is_raw))
        });
    let (host, is_raw) = match judged {
        Ok(judged) => judged,
        Err(refusal) => {
            let text = text.chars().take(300).collect::<String>();
            refuse_without_text(&state, &peer, &text, port, "connect", &refusal).await;
            let _ = socks::send_reply(&mut client, Code::NotAllowed).await;
            return;
        }
    };
    let dialled = match state.dialer.tunnel(&host, port).await {
        Ok(dialled) => dialled,
        Err(error) => {
            let code = if let DialError::Refused(refusal) = &error {
                refuse_without_text(&state, &peer, &host.to_string(), port, "connect", refusal).await;
                Code::NotAllowed
            } else {
                record_dial_error(&state, &peer, &host, port, &error);
                Code::Unreachable
            };
            let _ = socks::send_reply(&mut client, code).await;
            return;
        }
    };
    if socks::send_reply(&mut client, Code::Granted).await.is_ok() {
        carry(client, Vec::new(), dialled, Target { host, port, is_raw, way: "socks" }, &state, &peer).await;
    }
}

/// Serves a program without proxy support, which believes that it is connected to the host itself. The first byte that
/// the program sends shows the protocol: TLS is forwarded like a tunnel, and plain HTTP requests are judged one by one.
/// If the program sends nothing for `FIRST_BYTE_TIMEOUT`, the connection is refused. If the policy allows the host as
/// `raw`, the bytes are forwarded without inspection or waiting, because the server may have to send first.
pub(super) async fn direct(
    client: TcpStream,
    state: Rc<ProxyState>,
    peer: Peer,
    permit: SharedPermit,
    host: Host,
    port: u16,
) {
    let judged =
        state.dialer.rules.judge(&host, port, HostAccess::Tunnel).map(|allowed| allowed.entry.is_raw());
    let is_raw = matches!(judged, Ok(true));
    if !is_raw {
        let mut first = [0u8; 1];
        match timeout(FIRST_BYTE_TIMEOUT, client.peek(&mut first)).await {
            Ok(Ok(1..)) if first[0] == TLS_HANDSHAKE => {}
            Ok(Ok(1..)) => {
                let session =
                    Session { direct_target: Some((host, port)), ..Session::new(state, peer, permit) };
                return serve_session(client, session).await;
            }
            Ok(_) => return,
            Err(_) => {
                let reason =
                    "The program waits for the server to send first, so it uses neither TLS nor HTTP.";
                let instead = "Ask the user to allow this host and port as `raw` in the policy.";
                let refusal = NetworkRefusal::new("network.tls", reason, instead);
                let host = host.to_string();
                return refuse_without_text(&state, &peer, &host, port, "connect", &refusal).await;
            }
        }
    }
    if let Err(refusal) = judged {
        refuse_without_text(&state, &peer, &host.to_string(), port, "connect", &refusal).await;
        return tunnel::send_briefly(&client, &ACCESS_DENIED).await;
    }
    match state.dialer.tunnel(&host, port).await {
        Ok(dialled) => {
            let target = Target { host, port, is_raw, way: "direct" };
            carry(client, Vec::new(), dialled, target, &state, &peer).await;
        }
        Err(DialError::Refused(refusal)) => {
            refuse_without_text(&state, &peer, &host.to_string(), port, "connect", &refusal).await;
        }
        Err(error) => record_dial_error(&state, &peer, &host, port, &error),
    }
}

pub(super) async fn serve_session(stream: TcpStream, session: Session) {
    let session = Rc::new(session);
    serve_http(stream, |request| session.clone().answer(request)).await;
}

//! A gateway to one API: allows only the configured calls, adds a key that the run never sees, and enforces a budget.
//!
//! Input is an HTTP request of the run. The gateway rebuilds it with known headers and the key, sends it over TLS, and
//! returns the response with every copy of the key overwritten. The key must never reach the run. If the policy
//! restricts models, tools or content, the gateway refuses a body that it cannot parse.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;

use super::http_server::LARGEST_HEADERS;
use super::key_removal::{KeyForms, KeyMasker};
use super::listeners::Peer;
use super::memory_budget;
use super::memory_budget::{MemoryBudget, Reservation};
use super::proxy_state::{ByteCounter, ProxyState};
use super::request_body::{Rules, inspect};
use super::response_body::{BodyObserver, ChunkedBody, ProxiedBody, remove_hop_by_hop_headers};
use super::token_usage::{Scanner, Tokens};
use super::upstream::Upstream;
use crate::judge::decide::NetworkRefusal;
use crate::judge::policy::{Answer, Call, Gateway};
use crate::run::transcript::EventType;
use crate::sys::secret::Secret;

const LARGEST_BODY: usize = 64 << 20;
/// The number of bytes that the gateway reserves at first for a request body of unknown length.
const FIRST_CHUNK: usize = 64 << 10;
/// Time limit for receiving a request body. The wait for memory before that has a limit of the same length.
const BODY_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the API may take to begin its response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Estimated bytes of a request body per input token. The gateway uses this estimate if a response reports no usage.
const BYTES_PER_TOKEN: u64 = 4;
/// Bytes that a token usage scanner may hold without a memory reservation: enough for an event of normal size.
const UNRESERVED_SCANNER_BYTES: usize = 64 << 10;
/// Limit on idle connections to the API that the gateway keeps for reuse.
const MAX_IDLE: usize = 8;

/// Configuration of a gateway, from the policy and the user's settings.
pub struct GatewayPlan {
    pub name: String,
    pub upstream: Upstream,
    /// The calls, models and tools that the policy allows, and how the gateway reports refusals.
    pub spec: Gateway,
    /// The API key; `None` if the API needs none.
    pub key: Option<Secret>,
}

/// A gateway that serves requests: its configuration and its idle connections to the API.
pub(super) struct RunningGateway {
    plan: GatewayPlan,
    tls_config: Option<Arc<ClientConfig>>,
    idle: RefCell<Vec<http1::SendRequest<ChunkedBody>>>,
    /// The key and its encodings, which are overwritten in responses; `None` if there is no key, or one too short to be
    /// overwritten.
    forms: Option<Rc<KeyForms>>,
}

/// Why the gateway refused a request of the run or could not forward it.
enum Rejection {
    Forbidden(String),
    /// A model budget is used up, or the cost is limited and the price of the model is unknown. guard then ends the
    /// run.
    Exhausted(String),
    /// The request would exceed the upload limit. Its [`ByteCounter`] has recorded the refusal.
    OverLimit,
    /// guard cannot forward the request or the response, for example because the API cannot be reached or the run's
    /// memory budget is used up.
    Unavailable(String),
}

/// Facts about a request that has passed all checks and may be forwarded.
struct CheckedRequest {
    model: Option<String>,
    /// Whether the request counts against the model budget.
    counts: bool,
    request_bytes: usize,
}

impl RunningGateway {
    pub(super) fn new(plan: GatewayPlan, tls_config: Option<Arc<ClientConfig>>) -> Self {
        let forms = plan.key.as_ref().and_then(|key| KeyForms::new(key.expose())).map(Rc::new);
        Self { plan, tls_config, idle: RefCell::default(), forms }
    }

    pub(super) async fn answer(
        self: Rc<Self>,
        state: Rc<ProxyState>,
        peer: Peer,
        request: Request<Incoming>,
    ) -> Response<ProxiedBody> {
        let what = format!("{} {}", request.method(), request.uri().path());
        match self.forward(&state, &peer, request).await {
            Ok(response) => response,
            Err(rejection) => self.rejection_response(&state, &peer, &what, rejection),
        }
    }

    /// Records a rejection, unless it is recorded already, and builds the error response that the run receives.
    fn rejection_response(
        &self,
        state: &ProxyState,
        peer: &Peer,
        what: &str,
        rejection: Rejection,
    ) -> Response<ProxiedBody> {
        let host = self.plan.upstream.host.to_string();
        let port = self.plan.upstream.port;
        let refusals = &self.plan.spec.refusal;
        let (answer, rule, reason) = match rejection {
            Rejection::Forbidden(reason) => (&refusals.forbidden, "gateway.call", reason),
            Rejection::Exhausted(reason) => (&refusals.exhausted, "gateway.budget", reason),
            Rejection::OverLimit => {
                let reason = "The run has reached the upload limit of its policy.";
                let line = NetworkRefusal::new("network.limit", reason, "").line(what);
                return error_response(&refusals.forbidden, &refusals.content_type, &line);
            }
            Rejection::Unavailable(reason) => {
                let data =
                    json!({ "gateway": self.plan.name, "pid": peer.tid, "what": what, "problem": reason });
                state.recorder.record(EventType::GatewayError, &format!("{what}: {reason}"), &data);
                let line = format!("guard: {reason}");
                return error_response(&refusals.unavailable, &refusals.content_type, &line);
            }
        };
        let refusal = NetworkRefusal::new(rule, reason, "");
        state.refused(peer, &host, port, what, &refusal);
        if rule == "gateway.budget" {
            state.exhaust();
        }
        error_response(answer, &refusals.content_type, &refusal.line(what))
    }

    async fn forward(
        &self,
        state: &Rc<ProxyState>,
        peer: &Peer,
        request: Request<Incoming>,
    ) -> Result<Response<ProxiedBody>, Rejection> {
        let (parts, body) = request.into_parts();
        let (path, query) = (parts.uri.path().to_string(), parts.uri.query().unwrap_or_default().to_string());
        let call = self.matching_call(parts.method.as_str(), &path, &query)?;
        let body = read_body(body, &state.memory).await?;
        let checked = self.check_request(state, call, &path, &body)?;
        let mut outgoing = self.build_request(&parts.method, &path, &query, &parts.headers)?;
        let headers = outgoing.headers_mut();
        if !body.is_empty() || parts.method == hyper::Method::POST {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        let Upstream { host, port, .. } = &self.plan.upstream;
        let byte_counter = state.new_byte_counter(&host.to_string(), *port, peer);
        if !byte_counter.count_sent(body.len()) {
            return Err(Rejection::OverLimit);
        }
        byte_counter.count_request();
        let began = std::time::Instant::now();
        let length = body.len();
        let pending = PendingRequest { state: state.clone(), checked: &checked, is_over: false };
        let sent = pending.completed(self.send(state, outgoing, body)).await;
        let mut response = sent.inspect_err(|_| byte_counter.uncount_sent(length))?;
        remove_hop_by_hop_headers(response.headers_mut());
        response.headers_mut().remove(hyper::header::ALT_SVC);
        response.headers_mut().remove(hyper::header::SET_COOKIE);
        let mut key_masker = self.forms.clone().map(KeyMasker::new);
        if let Some(key_masker) = &mut key_masker {
            key_masker.count += self.mask_key_in_headers(&mut response)?;
        }
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_stream = content_type.is_some_and(|value| value.starts_with("text/event-stream"));
        let status = response.status();
        let observer = ResponseObserver {
            scanner: checked.counts.then(|| Scanner::new(&self.plan.spec.usage, is_stream)),
            reserved: None,
            held: 0,
            key_masker,
            checked,
            seen: 0,
            byte_counter,
            state: state.clone(),
            peer: peer.clone(),
            gateway: self.plan.name.clone(),
            what: format!("{} {path}", parts.method),
            status,
            began,
        };
        Ok(response.map(|body| ProxiedBody::forwarded(body, Box::new(observer))))
    }

    /// Overwrites the key in the response headers and returns in how many headers it occurred. Also removes the reason
    /// phrase. Rejects a response with a content encoding: the gateway did not ask for one, and cannot find the key in
    /// an encoded body. Does nothing if there is no key to overwrite.
    fn mask_key_in_headers(&self, response: &mut Response<Incoming>) -> Result<u64, Rejection> {
        let Some(forms) = &self.forms else { return Ok(0) };
        let encoding = response.headers().get(hyper::header::CONTENT_ENCODING);
        if encoding.is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
            let problem = "sent a compressed response, in which guard cannot search for the API key";
            return Err(Rejection::Unavailable(format!("{} {problem}", self.plan.upstream)));
        }
        // The reason phrase is free text and could contain the key.
        response.extensions_mut().remove::<hyper::ext::ReasonPhrase>();
        let mut count = 0;
        for value in response.headers_mut().values_mut() {
            let mut text = value.as_bytes().to_vec();
            if forms.mask_all(&mut text) {
                *value = HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("***"));
                count += 1;
            }
        }
        Ok(count)
    }

    /// Finds the call in the gateway's configuration that allows a request. Rejects the request if there is no such
    /// call, or if the path contains `%`, `\`, `//`, or a segment `.` or `..`.
    fn matching_call(&self, method: &str, path: &str, query: &str) -> Result<&Call, Rejection> {
        let is_plain = !path.contains(['%', '\\'])
            && !path.contains("//")
            && !path.split('/').any(|part| part == ".." || part == ".");
        // Only the first configured call whose path matches may allow the request. Otherwise a later call with a wider
        // path could allow another method on the same path, without counting the request.
        let has_path = |call: &&Call| call.paths.iter().any(|pattern| matches_path(pattern, path));
        let is_allowed = |call: &&Call| {
            is_plain
                && call.methods.iter().any(|known| known == method)
                && call.query.as_ref().is_none_or(|wanted| wanted == query)
        };
        self.plan.spec.call.iter().find(has_path).filter(is_allowed).ok_or_else(|| {
            let host = &self.plan.upstream.host;
            Rejection::Forbidden(format!(
                "The policy's gateway to {host} does not allow this method, path and query."
            ))
        })
    }

    /// Checks the request body against the rules. If the call counts against the model budget, also checks the budget
    /// and counts the request.
    fn check_request(
        &self,
        state: &ProxyState,
        call: &Call,
        path: &str,
        body: &Bytes,
    ) -> Result<CheckedRequest, Rejection> {
        let spec = &self.plan.spec;
        let mut model = spec.model.path_after.as_ref().and_then(|after| {
            let name = path.split_once(after.as_str())?.1;
            Some(name.rsplit_once(':').map_or(name, |(name, _)| name).to_string())
        });
        let (model_key, forbid, tools) = (spec.model.body_key.as_deref(), &*spec.forbid, spec.tools.as_ref());
        let must_inspect = !forbid.is_empty() || model_key.is_some() || tools.is_some();
        if must_inspect && !body.is_empty() {
            let found = inspect(body, Rules { model_key, forbid, tools }).map_err(|problem| {
                Rejection::Forbidden(format!("guard cannot check the request body: {problem}."))
            })?;
            if let Some(reason) = found.forbidden {
                return Err(Rejection::Forbidden(reason));
            }
            model = model.or(found.model);
        }
        if call.counts {
            state.budget.admit(model.as_deref()).map_err(Rejection::Exhausted)?;
        }
        Ok(CheckedRequest { model, counts: call.counts, request_bytes: body.len() })
    }

    /// Builds the request to the API: the allowed headers and query parameters of the run's request, and the key.
    fn build_request(
        &self,
        method: &hyper::Method,
        path: &str,
        query: &str,
        headers: &HeaderMap,
    ) -> Result<Request<()>, Rejection> {
        let spec = &self.plan.spec;
        let bad = |problem: &dyn std::fmt::Display| {
            Rejection::Forbidden(format!("guard cannot forward the request: {problem}."))
        };
        let key_of = |pair: &str| pair.split('=').next().unwrap_or_default().to_string();
        let kept: Vec<&str> =
            query.split('&').filter(|pair| spec.query_keys.contains(&key_of(pair))).collect();
        let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
        let uri: Uri =
            format!("{}{path}{query}", self.plan.upstream.prefix).parse().map_err(|error| bad(&error))?;
        let mut request = Request::new(());
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        let out = request.headers_mut();
        for (name, value) in headers {
            if spec.headers.iter().any(|known| known == name.as_str()) {
                out.append(name, value.clone());
            }
        }
        let authority = self.plan.upstream.authority();
        out.insert(HOST, HeaderValue::from_str(&authority).map_err(|error| bad(&error))?);
        if let (Some(name), Some(key)) = (&spec.key_header, &self.plan.key) {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| bad(&error))?;
            let value = [spec.key_prefix.as_bytes(), key.expose()].concat();
            let bad_key = |_| {
                let problem = "the API key contains characters that are not allowed in an HTTP header";
                Rejection::Unavailable(problem.to_string())
            };
            let mut value = HeaderValue::from_bytes(&value).map_err(bad_key)?;
            value.set_sensitive(true);
            out.insert(name, value);
        }
        Ok(request)
    }

    /// Sends a request to the API over an idle connection or a new one, and waits until the response begins.
    async fn send(
        &self,
        state: &Rc<ProxyState>,
        request: Request<()>,
        body: Bytes,
    ) -> Result<Response<Incoming>, Rejection> {
        let mut request = request.map(|()| ChunkedBody(body));
        loop {
            let waiting = self.idle.borrow_mut().pop();
            let (mut sender, is_new) = match waiting {
                Some(sender) if sender.is_closed() || !sender.is_ready() => continue,
                Some(sender) => (sender, false),
                None => (self.connect(state).await?, true),
            };
            let Ok(sent) = timeout(RESPONSE_TIMEOUT, sender.try_send_request(request)).await else {
                return Err(Rejection::Unavailable(format!(
                    "{} did not respond in time",
                    self.plan.upstream
                )));
            };
            match sent {
                Ok(response) => {
                    let mut idle = self.idle.borrow_mut();
                    if idle.len() < MAX_IDLE {
                        idle.push(sender);
                    }
                    return Ok(response);
                }
                // If the request was not sent, because the idle connection had been closed, retry on another one.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => {
                        let problem = error.into_error();
                        return Err(Rejection::Unavailable(format!(
                            "the request to {} failed: {}",
                            self.plan.upstream,
                            causes(&problem)
                        )));
                    }
                },
            }
        }
    }

    async fn connect(&self, state: &Rc<ProxyState>) -> Result<http1::SendRequest<ChunkedBody>, Rejection> {
        let upstream = &self.plan.upstream;
        let failed = |problem: &dyn std::fmt::Display| {
            Rejection::Unavailable(format!("{upstream} cannot be reached: {problem}"))
        };
        let stream = upstream.connect(&state.dialer.proxy, self.tls_config.as_ref()).await;
        let stream = stream.map_err(Rejection::Unavailable)?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(LARGEST_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed(&error))?;
        state.host_stats.update(&upstream.host.to_string(), upstream.port, |row| row.connections += 1);
        tokio::task::spawn_local(connection);
        Ok(sender)
    }
}

/// Reads a request body within the memory budget that all requests of the run share. Rejects a body that is larger than
/// `LARGEST_BODY`, does not arrive in time, or does not fit into the budget.
async fn read_body(body: Incoming, memory: &MemoryBudget) -> Result<Bytes, Rejection> {
    let too_large =
        || Rejection::Forbidden(format!("The request body is larger than {} MiB.", LARGEST_BODY >> 20));
    let length = body.size_hint().exact().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    let reserved = match length {
        Some(0) => return Ok(Bytes::new()),
        Some(length) if length > LARGEST_BODY => return Err(too_large()),
        Some(length) => timeout(BODY_TIMEOUT, memory.reserve(length)).await.ok().flatten(),
        None => memory.try_reserve(FIRST_CHUNK),
    };
    let reserved = reserved.ok_or_else(memory_exhausted)?;
    let bytes = Vec::with_capacity(length.unwrap_or(FIRST_CHUNK));
    match timeout(BODY_TIMEOUT, fill(body, bytes, reserved, memory)).await {
        Ok(Ok((bytes, reserved))) => Ok(memory_budget::with_reservation(bytes, reserved)),
        Ok(Err(rejection)) => Err(rejection),
        Err(_) => Err(Rejection::Forbidden("The request body did not arrive in time.".to_string())),
    }
}

fn memory_exhausted() -> Rejection {
    let most = memory_budget::MAX_BYTES >> 20;
    Rejection::Unavailable(format!(
        "other requests and responses of this run leave too little of the {most} MiB of memory that they share; retry when one has ended"
    ))
}

/// Reads the body to its end, and rejects it if it becomes too large. Reserves more memory as needed but never waits
/// for memory: two requests that wait while they hold memory could deadlock.
async fn fill(
    mut body: Incoming,
    mut bytes: Vec<u8>,
    mut reserved: Reservation,
    memory: &MemoryBudget,
) -> Result<(Vec<u8>, Reservation), Rejection> {
    while let Some(frame) = body.frame().await {
        let unreadable =
            |error: hyper::Error| Rejection::Forbidden(format!("The request body cannot be read: {error}."));
        let frame = frame.map_err(unreadable)?;
        let Ok(data) = frame.into_data() else { continue };
        let length = bytes.len() + data.len();
        if length > LARGEST_BODY {
            let reason = format!("The request body is larger than {} MiB.", LARGEST_BODY >> 20);
            return Err(Rejection::Forbidden(reason));
        }
        if length > bytes.capacity() {
            let room = length.max(bytes.capacity() * 2).min(LARGEST_BODY);
            reserved.add(memory.try_reserve(room - bytes.capacity()).ok_or_else(memory_exhausted)?);
            bytes.reserve_exact(room - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, reserved))
}

/// Formats an error and its chain of causes as one line.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Returns true if a path matches a pattern. `*` stands for one or more characters without a slash.
fn matches_path(pattern: &str, path: &str) -> bool {
    let (mut patterns, mut parts) = (pattern.split('/'), path.split('/'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return true,
            (Some(pattern), Some(part)) => {
                let fits = match pattern.split_once('*') {
                    None => pattern == part,
                    Some((before, after)) => {
                        part.len() > before.len() + after.len()
                            && part.starts_with(before)
                            && part.ends_with(after)
                    }
                };
                if !fits {
                    return false;
                }
            }
            _ => return false,
        }
    }
}

/// Builds a response in the API's own error format, from the template in the policy. `{message}` in the template stands
/// for `line` as a JSON string, and `{text}` for `line` itself.
fn error_response(answer: &Answer, content_type: &str, line: &str) -> Response<ProxiedBody> {
    let message = serde_json::Value::from(line).to_string();
    let body = answer.body.replace("{message}", &message).replace("{text}", line);
    let mut response = Response::new(ProxiedBody::message(body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::FORBIDDEN);
    if let Ok(value) = HeaderValue::from_str(content_type) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    response
}

/// A request that was forwarded and has no response yet. If the run disconnects before the response, dropping this
/// value adds an estimate of the input tokens to the budget.
struct PendingRequest<'a> {
    state: Rc<ProxyState>,
    checked: &'a CheckedRequest,
    is_over: bool,
}

impl PendingRequest<'_> {
    async fn completed<T>(mut self, sent: impl Future<Output = T>) -> T {
        let result = sent.await;
        self.is_over = true;
        result
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if !self.is_over && self.checked.counts {
            let input = self.checked.request_bytes as u64 / BYTES_PER_TOKEN;
            let used = Tokens { input, ..Tokens::default() };
            self.state.budget.add_usage(self.checked.model.as_deref(), used, true);
        }
    }
}

/// Observes a response on its way to the run: scans it for token usage, counts its bytes, and overwrites the key.
struct ResponseObserver {
    scanner: Option<Scanner>,
    /// Memory reserved for the usage scanner; `held` is the number of bytes reserved.
    reserved: Option<Reservation>,
    held: usize,
    /// Overwrites the key in the response body; `None` if there is no key to overwrite.
    key_masker: Option<KeyMasker>,
    checked: CheckedRequest,
    seen: usize,
    byte_counter: Rc<ByteCounter>,
    state: Rc<ProxyState>,
    peer: Peer,
    gateway: String,
    what: String,
    status: StatusCode,
    began: std::time::Instant,
}

impl BodyObserver for ResponseObserver {
    fn observe(&mut self, bytes: &[u8]) -> bool {
        self.seen += bytes.len();
        if let Some(scanner) = &mut self.scanner {
            let wanted = scanner.held() + bytes.len();
            if wanted > self.held.max(UNRESERVED_SCANNER_BYTES) {
                let more = wanted.max(self.held * 2) - self.held;
                match (self.state.memory.try_reserve(more), &mut self.reserved) {
                    // The run's memory budget is used up, so estimate the usage instead of scanning the response.
                    (None, _) => scanner.give_up(),
                    (Some(part), reserved) => {
                        self.held += more;
                        match reserved {
                            Some(reserved) => reserved.add(part),
                            None => *reserved = Some(part),
                        }
                    }
                }
            }
            scanner.feed(bytes);
        }
        self.byte_counter.count_received(bytes.len())
    }

    fn bytes_to_send(&mut self, bytes: Bytes) -> Bytes {
        match &mut self.key_masker {
            Some(key_masker) => key_masker.feed(bytes),
            None => bytes,
        }
    }

    fn remaining_bytes(&mut self) -> Bytes {
        self.key_masker.as_mut().map(KeyMasker::finish).unwrap_or_default()
    }

    fn held_bytes(&self) -> usize {
        self.key_masker.as_ref().map_or(0, KeyMasker::held)
    }

    fn passes_trailers(&self) -> bool {
        self.key_masker.is_none()
    }

    fn finish(&mut self, is_whole: bool) {
        if let Some(key_masker) = self.key_masker.as_ref().filter(|key_masker| key_masker.count > 0) {
            let text = format!(
                "the API behind the gateway {} sent the API key back; guard overwrote the key in the response",
                self.gateway
            );
            self.state.recorder.record(EventType::Note, &text, &json!({ "times": key_masker.count }));
        }
        let (mut tokens, mut sources) = (None, Vec::new());
        if let Some(scanner) = self.scanner.take()
            && self.status.is_success()
        {
            let (mut used, could_read, searched) = scanner.finish_with_sources();
            sources = searched;
            // The response reported no usage, or guard could not read all of it: estimate the usage.
            let is_estimate = !could_read || used.input + used.output == 0;
            if is_estimate {
                used.input = used.input.max(self.checked.request_bytes as u64 / BYTES_PER_TOKEN);
                used.output = used.output.max(self.seen as u64 / 16);
            }
            self.state.budget.add_usage(self.checked.model.as_deref(), used, is_estimate);
            tokens = Some(
                json!({ "input": used.input, "output": used.output, "cached": used.cached, "estimated": is_estimate }),
            );
        }
        let mut data = json!({
            "gateway": self.gateway, "pid": self.peer.tid, "what": self.what, "model": self.checked.model,
            "status": self.status.as_u16(), "bytes_up": self.checked.request_bytes, "bytes_down": self.seen,
            "milliseconds": u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX), "tokens": tokens, "whole": is_whole,
        });
        if !sources.is_empty() {
            data["sources"] = json!(sources);
        }
        let message = format!("{} → {}", self.what, self.status.as_u16());
        self.state.recorder.record(EventType::GatewayRequest, &message, &data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_calls() {
        for (pattern, path, fits_it) in [
            ("/v1beta/models/*:generateContent", "/v1beta/models/gemini-2.5:generateContent", true),
            ("/v1beta/models/*:generateContent", "/v1beta/models/:generateContent", false),
            ("/v1beta/models/*:generateContent", "/v1beta/models/a/b:generateContent", false),
            ("/v1beta/models/*:generateContent", "/v1beta/models/a:generateContent/x", false),
            ("/v1beta/models", "/v1beta/models/", false),
            ("/*/*/info/refs", "/a/b/info/refs", true),
            ("/*/*/info/refs", "/a/info/refs", false),
            ("/v1/messages", "/v1/messages", true),
            ("/v1/messages", "/v1/messages2", false),
        ] {
            assert_eq!(matches_path(pattern, path), fits_it, "{pattern} {path}");
        }
    }
}

//! A gateway to one API: allows only the configured calls, adds a key that the run never sees, and enforces a budget.
//!
//! In comes an HTTP request of the run. Out goes a rebuilt request with known headers and the key over TLS, and the
//! response with every copy of the key removed. The key must never reach the run. If the gateway restricts models,
//! tools or content, a body that cannot be parsed is refused.

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

use super::key_removal::{Cutter, Forms};
use super::listeners::Peer;
use super::memory_budget;
use super::memory_budget::{Memory, Reserved};
use super::request_body::{Rules, inspect};
use super::response_body::{Carried, Pieces, Watch, strip};
use super::server::{ByteCounter, LARGEST_HEADERS, ProxyState};
use super::token_usage::{Scanner, Tokens};
use super::upstream::Upstream;
use crate::policy::{Answer, Call, Gateway};
use crate::sys::secret::Secret;
use crate::transcript::EventType;

/// The largest request body.
const LARGEST_BODY: usize = 64 << 20;
/// Initial reservation for a request body of unknown length.
const FIRST_PIECE: usize = 64 << 10;
/// Time limit for receiving a request body, including the wait for memory.
const QUESTION: Duration = Duration::from_secs(120);
/// How long the API may take until the response begins.
const THINKING: Duration = Duration::from_secs(15 * 60);
/// Estimated bytes per token, for responses that do not report usage.
const BYTES_OF_A_TOKEN: u64 = 4;
/// How much a usage scanner may hold without a reservation: an event of normal size.
const FREE_OF_CHARGE: usize = 64 << 10;
/// How many idle upstream connections are kept.
const MOST_IDLE: usize = 8;

/// Configuration of a gateway.
pub struct GatewayPlan {
    /// The gateway's name in the policy.
    pub name: String,
    /// The API's address.
    pub upstream: Upstream,
    /// The calls and models it allows.
    pub spec: Gateway,
    /// The API key; `None` if the API needs none.
    pub key: Option<Secret>,
}

/// A running gateway.
pub(super) struct Service {
    plan: GatewayPlan,
    trust: Option<Arc<ClientConfig>>,
    idle: RefCell<Vec<http1::SendRequest<Pieces>>>,
    /// The forms of the key to remove from responses.
    forms: Option<Rc<Forms>>,
}

/// Why a request was refused or failed.
enum No {
    Forbidden(String),
    Exhausted(String),
    Unavailable(String),
}

/// A request that may be forwarded.
struct Admitted {
    model: Option<String>,
    counts: bool,
    asked_bytes: usize,
}

impl Service {
    pub(super) fn new(plan: GatewayPlan, trust: Option<Arc<ClientConfig>>) -> Self {
        let forms = plan.key.as_ref().and_then(|key| Forms::of(key.expose())).map(Rc::new);
        Self { plan, trust, idle: RefCell::default(), forms }
    }

    /// Answers one request of the run.
    pub(super) async fn answer(
        self: Rc<Self>,
        task_store: Rc<ProxyState>,
        visitor: Peer,
        request: Request<Incoming>,
    ) -> Response<Carried> {
        let what = format!("{} {}", request.method(), request.uri().path());
        match self.forward(&task_store, visitor, request).await {
            Ok(response) => response,
            Err(no) => self.refuse(&task_store, visitor, &what, no),
        }
    }

    fn refuse(&self, task_store: &ProxyState, visitor: Peer, what: &str, no: No) -> Response<Carried> {
        let host = self.plan.upstream.host.to_string();
        let port = self.plan.upstream.port;
        let refusals = &self.plan.spec.refusal;
        let (answer, rule, reason) = match no {
            No::Forbidden(reason) => (&refusals.forbidden, "gateway.call", reason),
            No::Exhausted(reason) => (&refusals.exhausted, "gateway.budget", reason),
            No::Unavailable(reason) => {
                let data =
                    json!({ "gateway": self.plan.name, "pid": visitor.tid, "what": what, "problem": reason });
                task_store.recorder.record(EventType::GatewayError, &format!("{what}: {reason}"), &data);
                return said(&refusals.unavailable, &refusals.content_type, &format!("guard: {reason}"));
            }
        };
        let line = format!("guard: Permission denied: {what} (rule {rule}): {reason} Do not retry.");
        task_store.refused(visitor, &host, port, what, rule, &reason);
        if rule == "gateway.budget" {
            task_store.exhaust();
        }
        said(answer, &refusals.content_type, &line)
    }

    async fn forward(
        &self,
        task_store: &Rc<ProxyState>,
        visitor: Peer,
        request: Request<Incoming>,
    ) -> Result<Response<Carried>, No> {
        let (parts, body) = request.into_parts();
        let (path, query) = (parts.uri.path().to_string(), parts.uri.query().unwrap_or_default().to_string());
        let call = self.call(parts.method.as_str(), &path, &query)?;
        let body = read_body(body, &task_store.memory).await?;
        let admitted = self.admit(task_store, call, &path, &body)?;
        let mut outgoing = self.outgoing(&parts.method, &path, &query, &parts.headers)?;
        let headers = outgoing.headers_mut();
        if !body.is_empty() || parts.method == hyper::Method::POST {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        let meter = task_store.meter(&self.plan.upstream.host.to_string(), self.plan.upstream.port, visitor);
        if !meter.up(body.len()) {
            return Err(No::Exhausted("The policy's bound of what is sent is reached.".to_string()));
        }
        meter.request();
        let began = std::time::Instant::now();
        let length = body.len();
        let waiting = Waiting { task_store: task_store.clone(), admitted: &admitted, is_over: false };
        let sent = waiting.over(self.send(task_store, outgoing, body)).await;
        let mut response = sent.inspect_err(|_| meter.unsent(length))?;
        strip(response.headers_mut());
        response.headers_mut().remove(hyper::header::ALT_SVC);
        response.headers_mut().remove(hyper::header::SET_COOKIE);
        let mut cutter = self.forms.clone().map(Cutter::new);
        if let Some(cutter) = &mut cutter {
            cutter.count += self.cut_head(&mut response)?;
        }
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_stream = content_type.is_some_and(|value| value.starts_with("text/event-stream"));
        let status = response.status();
        let watch = Answered {
            scanner: admitted.counts.then(|| Scanner::new(&self.plan.spec.usage, is_stream)),
            reserved: None,
            held: 0,
            cutter,
            admitted,
            seen: 0,
            meter,
            task_store: task_store.clone(),
            visitor,
            gateway: self.plan.name.clone(),
            what: format!("{} {path}", parts.method),
            status,
            began,
        };
        Ok(response.map(|body| Carried::theirs(body, Box::new(watch))))
    }

    /// Removes the key from the response headers and returns how often it occurred. A response with a content
    /// encoding is refused: none was requested, and it cannot be searched for the key.
    fn cut_head(&self, response: &mut Response<Incoming>) -> Result<u64, No> {
        let Some(forms) = &self.forms else { return Ok(0) };
        let encoding = response.headers().get(hyper::header::CONTENT_ENCODING);
        if encoding.is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
            let problem = "in an encoding that nobody asked for, in which the key could come back";
            return Err(No::Unavailable(format!("{} answers {problem}", self.plan.upstream)));
        }
        // The reason phrase is free text and could contain the key.
        response.extensions_mut().remove::<hyper::ext::ReasonPhrase>();
        let mut count = 0;
        for value in response.headers_mut().values_mut() {
            let mut text = value.as_bytes().to_vec();
            if forms.cut_whole(&mut text) {
                *value = HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("***"));
                count += 1;
            }
        }
        Ok(count)
    }

    /// The configured call that matches a request.
    fn call(&self, method: &str, path: &str, query: &str) -> Result<&Call, No> {
        let is_plain = !path.contains(['%', '\\'])
            && !path.contains("//")
            && !path.split('/').any(|part| part == ".." || part == ".");
        // The first call with this path decides: a later, wider one must not allow an uncounted request by another
        // method.
        let has_path = |call: &&Call| call.paths.iter().any(|pattern| fits(pattern, path));
        let fits = |call: &&Call| {
            is_plain
                && call.methods.iter().any(|known| known == method)
                && call.query.as_ref().is_none_or(|wanted| wanted == query)
        };
        self.plan.spec.call.iter().find(has_path).filter(fits).ok_or_else(|| {
            No::Forbidden(format!("The gateway to {} has no such call.", self.plan.upstream.host))
        })
    }

    /// Checks the request body and the budget.
    fn admit(&self, task_store: &ProxyState, call: &Call, path: &str, body: &Bytes) -> Result<Admitted, No> {
        let spec = &self.plan.spec;
        let mut model = spec.model.path_after.as_ref().and_then(|after| {
            let name = path.split_once(after.as_str())?.1;
            Some(name.rsplit_once(':').map_or(name, |(name, _)| name).to_string())
        });
        let (model_key, forbid, tools) = (spec.model.body_key.as_deref(), &*spec.forbid, spec.tools.as_ref());
        let looks_inside = !forbid.is_empty() || model_key.is_some() || tools.is_some();
        if looks_inside && !body.is_empty() {
            let found = inspect(body, Rules { model_key, forbid, tools })
                .map_err(|problem| No::Forbidden(format!("The request is not JSON: {problem}.")))?;
            if let Some(reason) = found.forbidden {
                return Err(No::Forbidden(reason));
            }
            model = model.or(found.model);
        }
        if call.counts {
            task_store.budget.admit(model.as_deref()).map_err(No::Exhausted)?;
        }
        Ok(Admitted { model, counts: call.counts, asked_bytes: body.len() })
    }

    /// Builds the request for the API: only known headers, and the key.
    fn outgoing(
        &self,
        method: &hyper::Method,
        path: &str,
        query: &str,
        headers: &HeaderMap,
    ) -> Result<Request<()>, No> {
        let spec = &self.plan.spec;
        let bad = |problem: &dyn std::fmt::Display| {
            No::Forbidden(format!("The request cannot be handed on: {problem}."))
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
            let mut value = HeaderValue::from_bytes(&value)
                .map_err(|_| No::Unavailable("the key has characters that no header carries".to_string()))?;
            value.set_sensitive(true);
            out.insert(name, value);
        }
        Ok(request)
    }

    /// Sends a request over an idle connection or a new one.
    async fn send(
        &self,
        task_store: &Rc<ProxyState>,
        request: Request<()>,
        body: Bytes,
    ) -> Result<Response<Incoming>, No> {
        let mut request = request.map(|()| Pieces(body));
        loop {
            let waiting = self.idle.borrow_mut().pop();
            let (mut sender, is_new) = match waiting {
                Some(sender) if sender.is_closed() || !sender.is_ready() => continue,
                Some(sender) => (sender, false),
                None => (self.connect(task_store).await?, true),
            };
            let Ok(sent) = timeout(THINKING, sender.try_send_request(request)).await else {
                return Err(No::Unavailable(format!("{} does not answer", self.plan.upstream)));
            };
            match sent {
                Ok(response) => {
                    let mut idle = self.idle.borrow_mut();
                    if idle.len() < MOST_IDLE {
                        idle.push(sender);
                    }
                    return Ok(response);
                }
                // The request was not sent, because the idle connection had been closed. Retry on a new one.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => {
                        let problem = error.into_error();
                        return Err(No::Unavailable(format!(
                            "{} cannot be asked: {}",
                            self.plan.upstream,
                            causes(&problem)
                        )));
                    }
                },
            }
        }
    }

    async fn connect(&self, task_store: &Rc<ProxyState>) -> Result<http1::SendRequest<Pieces>, No> {
        let upstream = &self.plan.upstream;
        let failed = |problem: &dyn std::fmt::Display| {
            No::Unavailable(format!("{upstream} cannot be reached: {problem}"))
        };
        let wire = upstream.connect(&task_store.dialer.proxy, self.trust.as_ref()).await;
        let wire = wire.map_err(No::Unavailable)?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(LARGEST_HEADERS)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|error| failed(&error))?;
        task_store.ledger.note(&upstream.host.to_string(), upstream.port, |row| row.connections += 1);
        tokio::task::spawn_local(connection);
        Ok(sender)
    }
}

/// Reads a request body, within the memory shared by all requests.
async fn read_body(body: Incoming, memory: &Memory) -> Result<Bytes, No> {
    let too_large = || No::Forbidden(format!("The request is larger than {} MiB.", LARGEST_BODY >> 20));
    let length = body.size_hint().exact().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    let reserved = match length {
        Some(0) => return Ok(Bytes::new()),
        Some(length) if length > LARGEST_BODY => return Err(too_large()),
        Some(length) => timeout(QUESTION, memory.reserve(length)).await.ok().flatten(),
        None => memory.try_reserve(FIRST_PIECE),
    };
    let reserved = reserved.ok_or_else(busy)?;
    let bytes = Vec::with_capacity(length.unwrap_or(FIRST_PIECE));
    match timeout(QUESTION, fill(body, bytes, reserved, memory)).await {
        Ok(Ok((bytes, reserved))) => Ok(memory_budget::held(bytes, reserved)),
        Ok(Err(no)) => Err(no),
        Err(_) => Err(No::Forbidden("The request does not come to its end.".to_string())),
    }
}

/// The response if the shared memory is used up.
fn busy() -> No {
    let most = memory_budget::MOST >> 20;
    No::Unavailable(format!(
        "{most} MiB of other requests of this run are on their way; ask again when they are done"
    ))
}

/// Reads the body to its end. Reserves more memory as needed and never waits for it: the part already held could be
/// what other requests wait for.
async fn fill(
    mut body: Incoming,
    mut bytes: Vec<u8>,
    mut reserved: Reserved,
    memory: &Memory,
) -> Result<(Vec<u8>, Reserved), No> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| No::Forbidden(format!("The request cannot be read: {error}.")))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = bytes.len() + data.len();
        if length > LARGEST_BODY {
            return Err(No::Forbidden(format!("The request is larger than {} MiB.", LARGEST_BODY >> 20)));
        }
        if length > bytes.capacity() {
            let room = length.max(bytes.capacity() * 2).min(LARGEST_BODY);
            reserved.add(memory.try_reserve(room - bytes.capacity()).ok_or_else(busy)?);
            bytes.reserve_exact(room - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, reserved))
}

/// An error with its chain of causes.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Whether a path matches a pattern. `*` stands for one or more characters without a slash.
fn fits(pattern: &str, path: &str) -> bool {
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

/// A refusal in the API's own error format.
fn said(answer: &Answer, content_type: &str, line: &str) -> Response<Carried> {
    let message = serde_json::Value::from(line).to_string();
    let body = answer.body.replace("{message}", &message).replace("{text}", line);
    let mut response = Response::new(Carried::words(body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::FORBIDDEN);
    if let Ok(value) = HeaderValue::from_str(content_type) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    response
}

/// A forwarded request without a response yet. If the run disconnects first, the tokens are counted all the same.
struct Waiting<'a> {
    task_store: Rc<ProxyState>,
    admitted: &'a Admitted,
    is_over: bool,
}

impl Waiting<'_> {
    async fn over<T>(mut self, sent: impl Future<Output = T>) -> T {
        let result = sent.await;
        self.is_over = true;
        result
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_over && self.admitted.counts {
            let input = self.admitted.asked_bytes as u64 / BYTES_OF_A_TOKEN;
            let used = Tokens { input, ..Tokens::default() };
            self.task_store.budget.add(self.admitted.model.as_deref(), used, true);
        }
    }
}

/// A response on its way to the run.
struct Answered {
    scanner: Option<Scanner>,
    /// Memory reserved for the scanner, and its size.
    reserved: Option<Reserved>,
    held: usize,
    /// Removes the key from the body.
    cutter: Option<Cutter>,
    admitted: Admitted,
    seen: usize,
    meter: Rc<ByteCounter>,
    task_store: Rc<ProxyState>,
    visitor: Peer,
    gateway: String,
    what: String,
    status: StatusCode,
    began: std::time::Instant,
}

impl Watch for Answered {
    fn see(&mut self, bytes: &[u8]) -> bool {
        self.seen += bytes.len();
        if let Some(scanner) = &mut self.scanner {
            let wanted = scanner.held() + bytes.len();
            if wanted > self.held.max(FREE_OF_CHARGE) {
                let more = wanted.max(self.held * 2) - self.held;
                match (self.task_store.memory.try_reserve(more), &mut self.reserved) {
                    // Out of memory: the usage is estimated instead.
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
        self.meter.down(bytes.len())
    }

    fn pass(&mut self, bytes: Bytes) -> Bytes {
        match &mut self.cutter {
            Some(cutter) => cutter.feed(bytes),
            None => bytes,
        }
    }

    fn rest(&mut self) -> Bytes {
        self.cutter.as_mut().map(Cutter::rest).unwrap_or_default()
    }

    fn held(&self) -> usize {
        self.cutter.as_ref().map_or(0, Cutter::held)
    }

    fn passes_trailers(&self) -> bool {
        self.cutter.is_none()
    }

    fn end(&mut self, is_whole: bool) {
        if let Some(cutter) = self.cutter.as_ref().filter(|cutter| cutter.count > 0) {
            let text = format!("{} repeated its key in an answer; it was cut out", self.gateway);
            self.task_store.recorder.record(EventType::Note, &text, &json!({ "times": cutter.count }));
        }
        let mut tokens = None;
        if let Some(scanner) = self.scanner.take()
            && self.status.is_success()
        {
            let (mut used, could_read) = scanner.finish();
            // The response did not report its usage or was cut off: estimate it.
            let is_estimate = !could_read || used.input + used.output == 0;
            if is_estimate {
                used.input = used.input.max(self.admitted.asked_bytes as u64 / BYTES_OF_A_TOKEN);
                used.output = used.output.max(self.seen as u64 / 16);
            }
            self.task_store.budget.add(self.admitted.model.as_deref(), used, is_estimate);
            tokens = Some(
                json!({ "input": used.input, "output": used.output, "cached": used.cached, "estimated": is_estimate }),
            );
        }
        let data = json!({
            "gateway": self.gateway, "pid": self.visitor.tid, "what": self.what, "model": self.admitted.model,
            "status": self.status.as_u16(), "bytes_up": self.admitted.asked_bytes, "bytes_down": self.seen,
            "milliseconds": u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX), "tokens": tokens, "whole": is_whole,
        });
        let message = format!("{} → {}", self.what, self.status.as_u16());
        self.task_store.recorder.record(EventType::GatewayRequest, &message, &data);
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
            assert_eq!(fits(pattern, path), fits_it, "{pattern} {path}");
        }
    }
}

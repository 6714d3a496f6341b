//! HTTP bodies in transit: guard's own messages, and bodies that are forwarded through an observer.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::ext::ReasonPhrase;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};

/// Headers that concern one connection and must not be forwarded.
const HOP_BY_HOP_HEADERS: [HeaderName; 9] = [
    hyper::header::CONNECTION,
    hyper::header::PROXY_AUTHENTICATE,
    hyper::header::PROXY_AUTHORIZATION,
    hyper::header::TE,
    hyper::header::TRAILER,
    hyper::header::TRANSFER_ENCODING,
    hyper::header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Observes a forwarded body and can hold back or change its bytes.
pub(super) trait BodyObserver {
    /// Receives the next bytes of the body. Returns `false` if a traffic limit is reached; the body then ends with an
    /// error.
    fn observe(&mut self, bytes: &[u8]) -> bool;
    /// Returns the bytes to send now, given the next bytes of the body. The observer may hold back some of them.
    fn bytes_to_send(&mut self, bytes: Bytes) -> Bytes {
        bytes
    }
    /// Returns all bytes that are still held back. Called at the end of the body.
    fn remaining_bytes(&mut self) -> Bytes {
        Bytes::new()
    }
    fn held_bytes(&self) -> usize {
        0
    }
    fn passes_trailers(&self) -> bool {
        true
    }
    /// Ends the observation. Called once, when the body ends or is dropped; `is_whole` says whether the whole body was
    /// forwarded.
    fn finish(&mut self, is_whole: bool);
}

/// The body of a response or request that guard sends.
pub(super) enum ProxiedBody {
    /// A message that guard itself sends.
    Message(Option<Bytes>),
    /// A body that guard forwards from the client or the server.
    Forwarded { inner: Incoming, observer: Box<dyn BodyObserver>, is_over: bool },
}

impl ProxiedBody {
    pub(super) fn message(text: impl Into<Bytes>) -> Self {
        Self::Message(Some(text.into()))
    }

    pub(super) fn forwarded(inner: Incoming, observer: Box<dyn BodyObserver>) -> Self {
        Self::Forwarded { inner, observer, is_over: false }
    }
}

impl Body for ProxiedBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.get_mut() {
            Self::Message(bytes) => Poll::Ready(
                bytes.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))),
            ),
            Self::Forwarded { inner, observer, is_over } => loop {
                let frame = match Pin::new(&mut *inner).poll_frame(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(frame))) => frame,
                    Poll::Ready(Some(Err(error))) => {
                        return Poll::Ready(Some(Err(std::io::Error::other(error))));
                    }
                    Poll::Ready(None) => {
                        let rest = observer.remaining_bytes();
                        if !rest.is_empty() {
                            return Poll::Ready(Some(Ok(Frame::data(rest))));
                        }
                        if !std::mem::replace(is_over, true) {
                            observer.finish(true);
                        }
                        return Poll::Ready(None);
                    }
                };
                let bytes = match frame.into_data() {
                    Ok(bytes) => bytes,
                    Err(trailers) if observer.passes_trailers() => return Poll::Ready(Some(Ok(trailers))),
                    Err(_) => continue,
                };
                if !observer.observe(&bytes) {
                    let error = std::io::Error::other("the run has reached a traffic limit of its policy");
                    return Poll::Ready(Some(Err(error)));
                }
                let mut bytes = observer.bytes_to_send(bytes);
                // hyper does not poll again once the known length is reached, so send the held bytes now.
                if inner.is_end_stream() && observer.held_bytes() > 0 {
                    bytes = [bytes, observer.remaining_bytes()].concat().into();
                }
                if !bytes.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Forwarded { inner, observer, .. } => inner.is_end_stream() && observer.held_bytes() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Message(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Forwarded { inner, .. } => inner.size_hint(),
        }
    }
}

impl Drop for ProxiedBody {
    fn drop(&mut self) {
        if let Self::Forwarded { observer, is_over: false, inner } = self {
            // hyper does not poll again once the known length is reached, so the body may be complete here.
            let is_whole = inner.is_end_stream();
            observer.finish(is_whole);
        }
    }
}

/// A request body that guard passes to the connection in chunks. A TLS connection copies every chunk before it sends
/// it, so one large chunk would double the memory of the body.
pub(super) struct ChunkedBody(pub(super) Bytes);

const CHUNK: usize = 64 << 10;

impl Body for ChunkedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let rest = &mut self.get_mut().0;
        if rest.is_empty() {
            return Poll::Ready(None);
        }
        let chunk = rest.split_to(rest.len().min(CHUNK));
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// Returns a response with a message from guard. The header `x-guard-rule` contains `rule`. The beginning of `line` is
/// also the HTTP reason phrase, because some clients show only that phrase.
pub(super) fn message_response(status: StatusCode, rule: &str, line: &str) -> Response<ProxiedBody> {
    let mut response = Response::new(ProxiedBody::message(format!("{line}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if let Ok(rule) = HeaderValue::from_str(rule) {
        headers.insert(HeaderName::from_static("x-guard-rule"), rule);
    }
    let phrase: String = line.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(300).collect();
    if let Ok(phrase) = ReasonPhrase::try_from(phrase.into_bytes()) {
        response.extensions_mut().insert(phrase);
    }
    response
}

/// Removes the hop-by-hop headers, including those that a `Connection` header names.
pub(super) fn remove_hop_by_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(hyper::header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP_HEADERS) {
        headers.remove(name);
    }
}

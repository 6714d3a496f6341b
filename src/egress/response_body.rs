//! HTTP bodies sent to the run: guard's own messages, or a server's response that is watched on its way.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::ext::ReasonPhrase;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};

/// Hop-by-hop headers, which concern one connection and not the message.
const OF_A_CONNECTION: [HeaderName; 9] = [
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

/// Observes a body as it passes.
pub(super) trait Watch {
    /// Sees the next bytes; `false` ends the body.
    fn see(&mut self, bytes: &[u8]) -> bool;
    /// Returns the part of these bytes to send now; the rest is held back.
    fn pass(&mut self, bytes: Bytes) -> Bytes {
        bytes
    }
    /// Returns the bytes held back, at the end of the body.
    fn rest(&mut self) -> Bytes {
        Bytes::new()
    }
    /// The number of bytes held back.
    fn held(&self) -> usize {
        0
    }
    /// Whether trailers are forwarded too.
    fn passes_trailers(&self) -> bool {
        true
    }
    /// Called once at the end; `is_whole` says whether the body was complete.
    fn end(&mut self, is_whole: bool);
}

/// The body of a response or request in transit.
pub(super) enum Carried {
    /// A message from guard.
    Words(Option<Bytes>),
    /// A body from the other side.
    Theirs { inner: Incoming, watch: Box<dyn Watch>, is_over: bool },
}

impl Carried {
    pub(super) fn words(text: impl Into<Bytes>) -> Self {
        Self::Words(Some(text.into()))
    }

    pub(super) fn theirs(inner: Incoming, watch: Box<dyn Watch>) -> Self {
        Self::Theirs { inner, watch, is_over: false }
    }
}

impl Body for Carried {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.get_mut() {
            Self::Words(bytes) => Poll::Ready(
                bytes.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))),
            ),
            Self::Theirs { inner, watch, is_over } => loop {
                let frame = match Pin::new(&mut *inner).poll_frame(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(frame))) => frame,
                    Poll::Ready(Some(Err(error))) => {
                        return Poll::Ready(Some(Err(std::io::Error::other(error))));
                    }
                    Poll::Ready(None) => {
                        let rest = watch.rest();
                        if !rest.is_empty() {
                            return Poll::Ready(Some(Ok(Frame::data(rest))));
                        }
                        if !std::mem::replace(is_over, true) {
                            watch.end(true);
                        }
                        return Poll::Ready(None);
                    }
                };
                let bytes = match frame.into_data() {
                    Ok(bytes) => bytes,
                    Err(trailers) if watch.passes_trailers() => return Poll::Ready(Some(Ok(trailers))),
                    Err(_) => continue,
                };
                if !watch.see(&bytes) {
                    let error = std::io::Error::other("a limit of the policy is reached");
                    return Poll::Ready(Some(Err(error)));
                }
                let mut bytes = watch.pass(bytes);
                // hyper does not poll again once the known length is reached, so send the held bytes now.
                if inner.is_end_stream() && watch.held() > 0 {
                    bytes = [bytes, watch.rest()].concat().into();
                }
                if !bytes.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Words(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Theirs { inner, watch, .. } => inner.is_end_stream() && watch.held() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Words(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Theirs { inner, .. } => inner.size_hint(),
        }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        if let Self::Theirs { watch, is_over: false, inner } = self {
            // hyper does not poll again once the known length is reached, so the body may be complete here.
            let is_whole = inner.is_end_stream();
            watch.end(is_whole);
        }
    }
}

/// A request body sent in pieces, because a TLS connection copies every piece it is given.
pub(super) struct Pieces(pub(super) Bytes);

/// Bytes per piece.
const PIECE: usize = 64 << 10;

impl Body for Pieces {
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
        let piece = rest.split_to(rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// A response with a message from guard. The line is also the reason phrase, for clients that show nothing else.
pub(super) fn words(status: StatusCode, rule: &str, line: &str) -> Response<Carried> {
    let mut response = Response::new(Carried::words(format!("{line}\n")));
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

/// Removes hop-by-hop headers, and those that a `Connection` header names.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(hyper::header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    for name in named.iter().chain(&OF_A_CONNECTION) {
        headers.remove(name);
    }
}

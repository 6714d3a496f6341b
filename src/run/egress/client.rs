//! A small HTTP client for guard's own API requests: one request at a time, with limits on time and size.
//!
//! The client never follows a redirect, because the credentials in a request are meant for the configured API only. It
//! can be used from ordinary threads, inside or outside an async runtime.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue};
use hyper::{HeaderMap, Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;

use super::dial::UpstreamProxy;
use super::gateway::causes;
use super::upstream::{Upstream, load_tls_config};

/// Sends requests to one API, with fixed limits on the time of a request and the size of a response.
#[derive(Debug)]
pub struct Client {
    upstream: Upstream,
    proxy: UpstreamProxy,
    tls_config: Option<Arc<ClientConfig>>,
    time_limit: Duration,
    max_bytes: usize,
}

/// An HTTP request to the client's API.
#[derive(Debug, Clone)]
pub struct ApiRequest {
    pub method: Method,
    /// Path and query of the request; the client prepends the path prefix of the API's URL.
    pub target: String,
    /// Headers of the request. The client itself adds `Host`, `Connection` and `Content-Length`.
    pub headers: HeaderMap,
    /// The request body; empty if the request has none.
    pub body: Vec<u8>,
}

/// A complete response of the API. The status may be an error status.
#[derive(Debug, Clone)]
pub struct ApiResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Why a request got no complete response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The API cannot be reached, or its certificate is not trusted.
    #[error("{0}")]
    Unreachable(String),
    /// The request could not be sent, or the response is incomplete or not valid HTTP.
    #[error("the request to {api} failed: {problem}")]
    RequestFailed { api: String, problem: String },
    /// The API did not send its whole response in time.
    #[error("{api} did not respond within {} seconds", time_limit.as_secs_f32())]
    TimedOut { api: String, time_limit: Duration },
    #[error("the response of {api} is larger than {max_bytes} bytes")]
    TooLarge {
        api: String,
        /// The limit on the response body that was exceeded, in bytes.
        max_bytes: usize,
    },
    /// An error of this machine prevented the request, for example a failed system call.
    #[error("cannot send an API request: {0}")]
    Local(#[from] io::Error),
}

impl Client {
    /// Creates a client with limits on the time of a whole request, and on the size of a response body. Fails if the
    /// API requires TLS and this machine has no trusted certificates.
    pub fn new(
        upstream: Upstream,
        proxy: UpstreamProxy,
        time_limit: Duration,
        max_bytes: usize,
    ) -> Result<Self, ClientError> {
        let tls_config = upstream.is_tls.then(load_tls_config).transpose()?;
        Ok(Self { upstream, proxy, tls_config, time_limit, max_bytes })
    }

    /// Sends a request and waits for the whole response. An error status of the API is a response, not an error.
    pub fn send(&self, request: ApiRequest) -> Result<ApiResponse, ClientError> {
        // A separate thread, because the caller may be inside a runtime, and runtimes cannot be nested.
        let work = || -> Result<ApiResponse, ClientError> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let answer = runtime.block_on(async {
                timeout(self.time_limit, self.send_async(request)).await.unwrap_or_else(|_| {
                    Err(ClientError::TimedOut { api: self.upstream.to_string(), time_limit: self.time_limit })
                })
            });
            // Do not wait for a DNS lookup that is still running.
            runtime.shutdown_background();
            answer
        };
        let panicked = || ClientError::Local(io::Error::other("the client thread panicked"));
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("client".to_string()).spawn_scoped(scope, work)?;
            thread.join().unwrap_or_else(|_| Err(panicked()))
        })
    }

    async fn send_async(&self, request: ApiRequest) -> Result<ApiResponse, ClientError> {
        let api = self.upstream.to_string();
        let failed = |problem: &dyn std::error::Error| ClientError::RequestFailed {
            api: api.clone(),
            problem: causes(problem),
        };
        let request = self.build_request(request).map_err(|error| failed(&error))?;
        let stream = self.upstream.connect(&self.proxy, self.tls_config.as_ref()).await;
        let stream = stream.map_err(ClientError::Unreachable)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
            let (parts, body) = response.into_parts();
            match Limited::new(body, self.max_bytes).collect().await {
                Ok(body) => {
                    let (status, headers) = (parts.status.as_u16(), parts.headers);
                    Ok(ApiResponse { status, headers, body: body.to_bytes() })
                }
                Err(error) if error.is::<LengthLimitError>() => {
                    Err(ClientError::TooLarge { api: api.clone(), max_bytes: self.max_bytes })
                }
                Err(error) => Err(failed(&*error)),
            }
        };
        // The future `connection` must be polled while the request is sent and the response arrives, and is
        // dropped afterwards.
        let drive = async {
            let _ = connection.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            answer = exchange => answer,
            () = drive => Err(ClientError::RequestFailed { api: api.clone(), problem: "the connection was closed".to_string() }),
        }
    }

    fn build_request(&self, request: ApiRequest) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let uri: Uri = format!("{}{}", self.upstream.prefix, request.target).parse()?;
        let length = request.body.len();
        let has_body = length > 0 || request.method == Method::POST;
        let mut http_request = Request::builder()
            .method(request.method)
            .uri(uri)
            .header(HOST, self.upstream.authority())
            .body(Full::new(Bytes::from(request.body)))?;
        let headers = http_request.headers_mut();
        headers.extend(request.headers);
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        if has_body {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        Ok(http_request)
    }
}

//! A small HTTP client for guard's own API requests: one request at a time, with limits on time and size.
//!
//! It never follows a redirect, because the request's credentials are meant for this API only. Callers are ordinary
//! threads, inside or outside an async runtime.

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

use super::dial::CompanyProxy;
use super::gateway::causes;
use super::upstream::{Upstream, trust};

/// A client of one API.
#[derive(Debug)]
pub struct Client {
    upstream: Upstream,
    proxy: CompanyProxy,
    trust: Option<Arc<ClientConfig>>,
    patience: Duration,
    largest: usize,
}

/// A request to the API.
#[derive(Debug, Clone)]
pub struct Question {
    /// The HTTP method.
    pub method: Method,
    /// Path and query, relative to the API's prefix.
    pub target: String,
    /// Headers; connection headers are added.
    pub headers: HeaderMap,
    /// The body; may be empty.
    pub body: Vec<u8>,
}

/// The API's response, whatever its status.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The HTTP status.
    pub status: u16,
    /// The response headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The API cannot be reached, or its certificate is not trusted.
    #[error("{0}")]
    Unreachable(String),
    /// The response is incomplete or not valid HTTP.
    #[error("{api} cannot be asked: {problem}")]
    Broken {
        /// The API's address.
        api: String,
        /// What went wrong.
        problem: String,
    },
    /// The API did not answer in time.
    #[error("{api} does not answer within {} seconds", patience.as_secs_f32())]
    Silent {
        /// The API's address.
        api: String,
        /// The time limit.
        patience: Duration,
    },
    /// The response is too large.
    #[error("{api} answers more than {largest} bytes")]
    TooLarge {
        /// The API's address.
        api: String,
        /// The limit in bytes.
        largest: usize,
    },
    /// A local error prevented the request.
    #[error("no question can be asked: {0}")]
    Here(#[from] io::Error),
}

impl Client {
    /// Creates a client with limits on the time and size of a response.
    pub fn new(
        upstream: Upstream,
        proxy: CompanyProxy,
        patience: Duration,
        largest: usize,
    ) -> Result<Self, ClientError> {
        let trust = upstream.is_tls.then(trust).transpose()?;
        Ok(Self { upstream, proxy, trust, patience, largest })
    }

    /// Sends a request and waits for the whole response.
    pub fn ask(&self, question: Question) -> Result<Asked, ClientError> {
        // A separate thread, because the caller may be inside a runtime, and runtimes cannot be nested.
        let wait = || -> Result<Asked, ClientError> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let answer = runtime.block_on(async {
                timeout(self.patience, self.talk(question)).await.unwrap_or_else(|_| {
                    Err(ClientError::Silent { api: self.upstream.to_string(), patience: self.patience })
                })
            });
            // Do not wait for a DNS lookup that is still running.
            runtime.shutdown_background();
            answer
        };
        let lost = || ClientError::Here(io::Error::other("the thread that asks has ended"));
        std::thread::scope(|scope| {
            let asking = std::thread::Builder::new().name("client".to_string()).spawn_scoped(scope, wait)?;
            asking.join().unwrap_or_else(|_| Err(lost()))
        })
    }

    async fn talk(&self, question: Question) -> Result<Asked, ClientError> {
        let api = self.upstream.to_string();
        let broken = |problem: &dyn std::error::Error| ClientError::Broken {
            api: api.clone(),
            problem: causes(problem),
        };
        let request = self.request(question).map_err(|error| broken(&error))?;
        let wire = self.upstream.connect(&self.proxy, self.trust.as_ref()).await;
        let wire = wire.map_err(ClientError::Unreachable)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(wire)).await.map_err(|e| broken(&e))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
            let (parts, body) = response.into_parts();
            match Limited::new(body, self.largest).collect().await {
                Ok(body) => {
                    Ok(Asked { status: parts.status.as_u16(), headers: parts.headers, body: body.to_bytes() })
                }
                Err(error) if error.is::<LengthLimitError>() => {
                    Err(ClientError::TooLarge { api: api.clone(), largest: self.largest })
                }
                Err(error) => Err(broken(&*error)),
            }
        };
        // The connection must be polled during the exchange, and ends with it.
        let drive = async {
            let _ = connection.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            answer = exchange => answer,
            () = drive => Err(ClientError::Broken { api: api.clone(), problem: "the connection ended".to_string() }),
        }
    }

    fn request(&self, question: Question) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let uri: Uri = format!("{}{}", self.upstream.prefix, question.target).parse()?;
        let length = question.body.len();
        let has_body = length > 0 || question.method == Method::POST;
        let mut request = Request::builder()
            .method(question.method)
            .uri(uri)
            .header(HOST, self.upstream.authority())
            .body(Full::new(Bytes::from(question.body)))?;
        let headers = request.headers_mut();
        headers.extend(question.headers);
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        if has_body {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        Ok(request)
    }
}

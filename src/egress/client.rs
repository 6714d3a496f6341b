//! Questions of guard's own to an API: one at a time, answered whole, within bounds.
//!
//! Nothing is followed: an answer that leads somewhere else is an answer, because what authorizes the question is meant for
//! this API and no other. Callers are ordinary threads, with or without a runtime around them.

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

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// How.
    pub method: Method,
    /// Path and query, behind the API's own prefix.
    pub target: String,
    /// With these; what belongs to the connection is added.
    pub headers: HeaderMap,
    /// May be empty.
    pub body: Vec<u8>,
}

/// What was answered, whatever it says.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// All of it.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody there, or nobody who can be believed to be it.
    #[error("{0}")]
    Unreachable(String),
    /// It begins to answer and does not come to the end, or says what is no HTTP.
    #[error("{api} cannot be asked: {problem}")]
    Broken {
        /// Which.
        api: String,
        /// Why.
        problem: String,
    },
    /// It takes too long.
    #[error("{api} does not answer within {} seconds", patience.as_secs_f32())]
    Silent {
        /// Which.
        api: String,
        /// How long it had.
        patience: Duration,
    },
    /// It says more than an answer is.
    #[error("{api} answers more than {largest} bytes")]
    TooLarge {
        /// Which.
        api: String,
        /// How much it may.
        largest: usize,
    },
    /// This machine.
    #[error("no question can be asked: {0}")]
    Here(#[from] io::Error),
}

impl Client {
    /// A client that waits so long for a whole answer of at most so many bytes.
    pub fn new(
        upstream: Upstream,
        proxy: CompanyProxy,
        patience: Duration,
        largest: usize,
    ) -> Result<Self, ClientError> {
        let trust = upstream.is_tls.then(trust).transpose()?;
        Ok(Self { upstream, proxy, trust, patience, largest })
    }

    /// Asks, and waits for the whole answer.
    pub fn ask(&self, question: Question) -> Result<Asked, ClientError> {
        // A runtime cannot be entered from within another one, and who calls may be in one.
        let wait = || -> Result<Asked, ClientError> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let answer = runtime.block_on(async {
                timeout(self.patience, self.talk(question)).await.unwrap_or_else(|_| {
                    Err(ClientError::Silent { api: self.upstream.to_string(), patience: self.patience })
                })
            });
            // A name that is still looked up is not waited for.
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
        // The connection has to be driven while the exchange goes on, and is over with it.
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

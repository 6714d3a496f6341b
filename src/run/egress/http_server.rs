//! Serves the HTTP requests of one connection, to the proxy or to a gateway.

use std::convert::Infallible;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use super::response_body::ProxiedBody;

pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Size limit of request headers, and of the read buffer of a connection.
pub(super) const LARGEST_HEADERS: usize = 64 << 10;

pub(super) async fn serve_http<A>(stream: TcpStream, answer: impl Fn(Request<Incoming>) -> A)
where
    A: Future<Output = Response<ProxiedBody>> + 'static,
{
    let service = service_fn(|request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(LARGEST_HEADERS)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
}

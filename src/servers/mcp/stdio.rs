//! The MCP server over standard input and output. It has one client, and all calls end when the client disconnects.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rmcp::service::ServiceExt;
use tokio::io::{AsyncRead, ReadBuf};

use super::calls::Calls;
use super::server::{Server, Shared};
use super::{END, Stop};

/// Standard input that cancels all calls when the end of the input is reached. If guard waited for the calls instead,
/// agents would keep running for a client that is gone.
struct Input<R> {
    inner: R,
    calls: Arc<Calls>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Input<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        let is_over = match &read {
            Poll::Ready(Ok(())) => buffer.filled().len() == before && buffer.remaining() > 0,
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        };
        if is_over {
            self.calls.close();
        }
        read
    }
}

/// Serves one client until it disconnects or `stop` is set.
pub(super) async fn serve(shared: Arc<Shared>, stop: &Stop) -> io::Result<()> {
    let calls = shared.calls.clone();
    let (input, output) = rmcp::transport::stdio();
    let input = Input { inner: input, calls: calls.clone() };
    let server = Server { shared, client: 0, ends_with_client: true };
    let serving = async {
        match server.serve((input, output)).await {
            Ok(service) => service.waiting().await.map(drop).map_err(io::Error::other),
            // A client that disconnects before its first message is not an error.
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(io::Error::other(error)),
        }
    };
    tokio::select! {
        served = serving => served,
        () = stop.wait() => {
            calls.close();
            calls.wait_for_all(END).await;
            Ok(())
        }
    }
}

//! Reads the bodies of requests within limits, and streams the bodies of responses piece by piece.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::Shared;
use super::error::ApiError;

/// The maximum size of the body of a submission, in bytes.
pub(super) const LARGEST: usize = 64 << 20;
/// The maximum size of the body of a command, in bytes. The data of a command may have 64 KiB, and JSON escapes can
/// make the data six times as long.
pub(super) const LARGEST_COMMAND: usize = 448 << 10;
/// The maximum size of the body of a request about a conversation, in bytes. JSON escapes can make a message of 1 MiB
/// six times as long.
pub(super) const LARGEST_MESSAGE: usize = 7 << 20;
/// The maximum total size of the request bodies that the server holds in memory, in KiB. Further requests wait, at most
/// for `PATIENCE`.
pub(super) const BUDGET_KIB: usize = 128 << 10;
/// How long a client may take to send its request's body, or to read one piece of a response.
const PATIENCE: Duration = Duration::from_secs(60);
/// The maximum number of pieces of a response that the server buffers for one client. The sender of further pieces
/// waits.
const PIECES: usize = 2;

/// Reads the body of a request of at most `largest` bytes. Fails if the body is larger, or if waiting for memory or for
/// the body takes longer than `PATIENCE`. The size counts against `BUDGET_KIB` until the caller drops the permit.
pub(super) async fn read(
    shared: &Shared,
    headers: &HeaderMap,
    body: Body,
    largest: usize,
) -> Result<(Bytes, OwnedSemaphorePermit), ApiError> {
    let too_large = || ApiError::too_large(largest);
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let size = length.map_or(Some(largest), |length| usize::try_from(length).ok());
    let size = size.filter(|size| *size <= largest).ok_or_else(too_large)?;
    let kib = u32::try_from(size.div_ceil(1024)).unwrap_or(u32::MAX);
    let budget = shared.body_budget.clone().acquire_many_owned(kib);
    let Ok(Ok(permit)) = tokio::time::timeout(PATIENCE, budget).await else {
        return Err(ApiError::overloaded(
            "the server has no memory left for this request body while it reads others; try again later",
        ));
    };
    let reading = Limited::new(body, largest).collect();
    let read = tokio::time::timeout(PATIENCE, reading).await.map_err(|_| ApiError::too_slow())?;
    match read {
        Ok(body) => Ok((body.to_bytes(), permit)),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => Err(ApiError::bad_request(format!("the body is incomplete: {error}"))),
    }
}

/// A piece of a response's body, or the message that the body is complete.
enum Piece {
    Bytes(Bytes),
    End,
}

/// Streams the body of a response. If it is dropped before the body is complete, the server closes the connection, so
/// that no client takes a part of the body for the whole.
pub(super) struct BodySender(Sender<Piece>);

impl BodySender {
    /// Sends a piece. Returns false if the client has disconnected, or has not read for a minute.
    pub(super) async fn send(&self, bytes: impl Into<Bytes>) -> bool {
        self.put(Piece::Bytes(bytes.into())).await
    }

    pub(super) async fn end(self) {
        self.put(Piece::End).await;
    }

    /// Waits until the client disconnects.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }

    async fn put(&self, piece: Piece) -> bool {
        matches!(tokio::time::timeout(PATIENCE, self.0.send(piece)).await, Ok(Ok(())))
    }
}

/// Returns a response body, and the sender that streams its pieces.
pub(super) fn streamed() -> (BodySender, Body) {
    let (sender, receiver) = channel(PIECES);
    let pieces = stream::unfold(Some(receiver), |receiver| async {
        let mut receiver: Receiver<Piece> = receiver?;
        match receiver.recv().await {
            Some(Piece::Bytes(bytes)) => Some((Ok(bytes), Some(receiver))),
            Some(Piece::End) => None,
            None => Some((Err(io::Error::other("the server could not send the whole response")), None)),
        }
    });
    (BodySender(sender), Body::from_stream(pieces.fuse()))
}

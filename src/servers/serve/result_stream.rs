//! Sends the results of a batch page by page, so that memory does not grow with the batch.

use std::sync::Arc;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::Shared;
use super::body::{BodySender, streamed};
use super::error::ApiError;
use crate::work::batch::{BatchResponse, Page, TaskResult, respond};

/// The media type of newline-delimited JSON: one object per line.
pub(super) const JSON_LINES: &str = "application/x-ndjson";
/// The number of results that the server reads from the queue at first. It doubles while pages stay below `LARGE`.
const FIRST_PAGE: usize = 4;
const LARGEST_PAGE: usize = 1024;
/// The size of a page, in bytes, above which the next page has half as many results.
const LARGE: usize = 1 << 20;

/// Whether the response is a JSON array or one JSON object per line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Array,
    Lines,
}

/// Reads the results of a batch page by page, and tracks which have been sent.
struct Results {
    shared: Arc<Shared>,
    id: String,
    after: i64,
    left: usize,
    page: usize,
    form: Form,
    is_first: bool,
}

impl Results {
    fn new(shared: &Arc<Shared>, id: &str, page: Page, form: Form) -> Self {
        let id = id.to_string();
        Self {
            shared: shared.clone(),
            id,
            after: page.after,
            left: page.limit,
            page: FIRST_PAGE,
            form,
            is_first: true,
        }
    }

    /// Returns the next page as JSON; `None` if no results are left.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        let most = self.page.min(self.left);
        if most == 0 {
            return Ok(None);
        }
        let (id, after, form, mut is_first) = (self.id.clone(), self.after, self.form, self.is_first);
        let page = self.shared.queues.run(move |queue| {
            let mut bytes = Vec::new();
            let rows = queue.tasks(&id, after, most)?;
            let last = rows.last().map(|row| row.position);
            let count = rows.len();
            for row in rows {
                if form == Form::Array && !is_first {
                    bytes.push(b',');
                }
                is_first = false;
                // Writing JSON to memory cannot fail: all keys are strings.
                let _ = serde_json::to_writer(&mut bytes, &TaskResult::from(row));
                if form == Form::Lines {
                    bytes.push(b'\n');
                }
            }
            Ok(last.map(|last| (bytes, last, count)))
        });
        let Some((bytes, last, count)) = page.await? else {
            self.left = 0;
            return Ok(None);
        };
        self.is_first = false;
        self.after = last;
        self.left = if count < most { 0 } else { self.left - count };
        self.page =
            if bytes.len() > LARGE { (self.page / 2).max(1) } else { (2 * self.page).min(LARGEST_PAGE) };
        Ok(Some(bytes))
    }

    /// Sends all remaining pages. Returns false if the client disconnected or the queue failed.
    async fn send(&mut self, sender: &BodySender) -> bool {
        loop {
            match self.next().await {
                Ok(None) => return true,
                Ok(Some(bytes)) => {
                    if !sender.send(bytes).await {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
    }
}

/// Answers with the status of a batch and a page of its results.
pub(super) async fn batch_response(
    shared: &Arc<Shared>,
    id: &str,
    page: Page,
    status: StatusCode,
) -> Result<Response, ApiError> {
    let wanted = id.to_string();
    // Read the counts before the results: a task that ends in between is then pending in the counts, so the client
    // polls again.
    let summary = shared.queues.run(move |queue| respond(queue, &wanted, Page::SUMMARY)).await?;
    let summary = summary.ok_or_else(|| ApiError::unknown_batch(id))?;
    let mut results = Results::new(shared, id, page, Form::Array);
    let mut head = head(&summary);
    head.extend(results.next().await?.unwrap_or_default());
    let body = if results.left == 0 {
        head.extend(tail(&summary, &results, page));
        Body::from(head)
    } else {
        let (sender, body) = streamed();
        tokio::spawn(async move {
            if sender.send(head).await && results.send(&sender).await {
                let tail = tail(&summary, &results, page);
                if sender.send(tail).await {
                    sender.end().await;
                }
            }
        });
        body
    };
    Ok((status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response())
}

/// Returns the bytes of a response before its first result.
fn head(summary: &BatchResponse) -> Vec<u8> {
    let mut fields = match serde_json::to_value(summary) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    fields.remove("results");
    let mut text = Value::Object(fields).to_string();
    text.pop();
    text.push_str(",\"results\":[");
    text.into_bytes()
}

/// Returns the bytes of a response after its last result.
fn tail(summary: &BatchResponse, results: &Results, page: Page) -> Vec<u8> {
    let end = i64::try_from(summary.counts.total).unwrap_or(i64::MAX) - 1;
    let has_more = page.limit > 0 && results.after < end;
    if has_more { format!("],\"next_after\":{}}}", results.after).into_bytes() } else { b"]}".to_vec() }
}

/// Answers with all results of a batch, one per line.
pub(super) async fn all_results(
    shared: &Arc<Shared>,
    id: &str,
    permit: OwnedSemaphorePermit,
) -> Result<Response, ApiError> {
    let mut results = Results::new(shared, id, Page::ALL, Form::Lines);
    // Read the first page before the response begins: after that, an error can no longer change the HTTP status.
    let first = results.next().await?.unwrap_or_default();
    let (sender, body) = streamed();
    tokio::spawn(async move {
        if sender.send(first).await && results.send(&sender).await {
            sender.end().await;
        }
        drop(permit);
    });
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(JSON_LINES))], body).into_response())
}

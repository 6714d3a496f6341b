//! Streams a batch as server-sent events: one event for each task that ends, in the order in which the tasks end,
//! then one for the batch.
//!
//! The id of an event is the number under which the queue recorded the task's end. A client that reconnects with
//! `Last-Event-ID` therefore misses no event and gets none twice.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::Shared;
use super::body::{BodySender, streamed};
use super::changes::Waiter;
use super::error::ApiError;
use crate::agents::adapter::AgentEvent;
use crate::work::batch::queue::{BatchRow, EndedTask};
use crate::work::batch::{BatchStatus, Page, TaskResult, TaskStatus, respond};

/// How long a stream may be silent before the server sends a comment, which keeps the connection alive.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The number of ended tasks that the server reads from the queue at once.
const PAGE: usize = 8;
/// The suffix in the id of a batch's last event, after the number.
const END: &str = "-end";

/// The id of the last event that a client received before it reconnected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LastSeen {
    ending: i64,
    is_end: bool,
}

impl LastSeen {
    pub(super) fn parse(id: &str) -> Result<Self, ApiError> {
        let (number, is_end) = id.strip_suffix(END).map_or((id, false), |number| (number, true));
        match number.parse() {
            Ok(ending) if ending >= 0 => Ok(Self { ending, is_end }),
            _ => Err(ApiError::bad_request(format!("the Last-Event-ID {id:?} is not the id of an event"))),
        }
    }
}

/// Answers with the events after `seen`, until the batch has ended. A client that has already received the last event
/// gets the status 204, which makes it stop reconnecting.
pub(super) async fn stream(
    shared: &Arc<Shared>,
    id: &str,
    seen: LastSeen,
    permit: OwnedSemaphorePermit,
) -> Result<Response, ApiError> {
    let waiter = shared.changes.subscribe();
    let (batch, first) = look(shared, id, seen.ending).await?;
    let batch = batch.ok_or_else(|| ApiError::unknown_batch(id))?;
    if seen.is_end && batch.open() == 0 && first.is_empty() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let (sender, body) = streamed();
    let events = Events { shared: shared.clone(), id: id.to_string(), after: seen.ending, sender };
    tokio::spawn(async move {
        events.send_all(waiter).await;
        drop(permit);
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, body).into_response())
}

/// Returns the batch and the next tasks that have ended. Reads the batch first: if the batch has ended by then, no task
/// can end after the second query, so the client misses none.
async fn look(shared: &Shared, id: &str, after: i64) -> Result<(Option<BatchRow>, Vec<EndedTask>), ApiError> {
    let id = id.to_string();
    shared.queues.run(move |queue| Ok((queue.batch(&id)?, queue.ended_tasks(&id, after, PAGE)?))).await
}

struct Events {
    shared: Arc<Shared>,
    id: String,
    after: i64,
    sender: BodySender,
}

impl Events {
    /// Sends events until the batch has ended, the client disconnects, or the server stops.
    async fn send_all(mut self, mut waiter: Waiter) {
        let mut next_heartbeat = Instant::now() + HEARTBEAT;
        // If the queue fails twice, end the stream: the client reconnects later.
        while let Ok((batch, ended)) = self.look_patiently(&mut waiter).await {
            let Some(batch) = batch else { break };
            let is_last_page = ended.len() < PAGE;
            for task in ended {
                self.after = task.ending;
                let text = written(&task.ending.to_string(), &task_event(task));
                if !self.sender.send(text).await {
                    return;
                }
                next_heartbeat = Instant::now() + HEARTBEAT;
            }
            if !is_last_page {
                continue;
            }
            if batch.open() == 0 {
                self.send_end(&batch).await;
                break;
            }
            tokio::select! {
                _ = waiter.wait(next_heartbeat, &self.shared.stop) => {}
                () = self.sender.closed() => return,
            }
            if self.shared.stop.is_set() {
                break;
            }
            if Instant::now() >= next_heartbeat {
                if !self.sender.send(": heartbeat\n\n").await {
                    return;
                }
                next_heartbeat = Instant::now() + HEARTBEAT;
            }
        }
        self.sender.end().await;
    }

    /// Queries the queue. If the query fails, waits up to two seconds and repeats it once.
    async fn look_patiently(
        &self,
        waiter: &mut Waiter,
    ) -> Result<(Option<BatchRow>, Vec<EndedTask>), ApiError> {
        match look(&self.shared, &self.id, self.after).await {
            Ok(seen) => Ok(seen),
            Err(_) => {
                waiter.wait(Instant::now() + Duration::from_secs(2), &self.shared.stop).await;
                look(&self.shared, &self.id, self.after).await
            }
        }
    }

    async fn send_end(&self, batch: &BatchRow) {
        let id = self.id.clone();
        let summary = self.shared.queues.run(move |queue| respond(queue, &id, Page::SUMMARY)).await;
        let (event_type, message) = match BatchStatus::of(batch) {
            BatchStatus::Failed => ("batch.failed", "all tasks failed"),
            BatchStatus::Pending | BatchStatus::Completed => ("batch.completed", "all tasks have ended"),
        };
        let data = summary.ok().flatten().and_then(|summary| serde_json::to_value(summary).ok());
        let event = AgentEvent {
            event_type: event_type.to_string(),
            message: message.to_string(),
            timestamp: time(batch.changed_ms.unwrap_or(batch.created_ms)),
            data: data.unwrap_or_default(),
        };
        self.sender.send(written(&format!("{}{END}", self.after), &event)).await;
    }
}

fn task_event(task: EndedTask) -> AgentEvent {
    let timestamp = time(task.ended_ms);
    let result = TaskResult::from(task.row);
    let (event_type, message) = match (&result.status, &result.error) {
        (TaskStatus::Failed, error) => (
            "task.failed",
            format!("{} failed: {}", result.task_id, error.as_deref().unwrap_or("unknown reason")),
        ),
        (TaskStatus::Pending | TaskStatus::Completed, _) => {
            ("task.completed", format!("{} completed", result.task_id))
        }
    };
    AgentEvent {
        event_type: event_type.to_string(),
        message,
        timestamp,
        data: serde_json::to_value(result).unwrap_or_default(),
    }
}

fn time(ms: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// Formats an event as a server-sent event. JSON text contains no line breaks, so one `data` line is enough.
fn written(id: &str, event: &AgentEvent) -> String {
    let data = serde_json::to_string(event).unwrap_or_default();
    format!("id: {id}\nevent: {}\ndata: {data}\n\n", event.event_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_events_are_numbers_with_or_without_an_end() {
        let seen = |id: &str| LastSeen::parse(id).ok();
        assert_eq!(seen("0"), Some(LastSeen::default()));
        assert_eq!(seen("12"), Some(LastSeen { ending: 12, is_end: false }));
        assert_eq!(seen("12-end"), Some(LastSeen { ending: 12, is_end: true }));
        for wrong in ["", "-1", "end", "-end", "1-end-end", "x", "1.5", "99999999999999999999"] {
            assert_eq!(seen(wrong), None, "{wrong}");
        }
    }
}

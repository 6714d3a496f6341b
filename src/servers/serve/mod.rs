//! `guard serve`: batches, conversations and commands to work over HTTP, for programs of the same user on the same
//! machine.
//!
//! ```text
//!   client ─► listener ─► Host, Origin, token ─► router ─► handlers ─► queue pool ─► queue
//!                                                  │          ▲
//!                                                  │      changes: one thread watches the queue for all who wait
//!                                                  └─► document (OpenAPI), made from the handlers
//! ```
//!
//! For batches, the server only reads and writes the queue; workers, in this process or in others, carry out the tasks.
//! Turns of conversations run in threads of this process, and the server cancels a turn when its client disconnects.
//! All state is in the queue and in the stored conversations, so after a restart of the server, clients can continue to
//! use the ids that they have. Time and memory are bounded whatever a client sends: see the constants of
//! `servers::http`, `body`, `parameters` and `conversations`.
#![forbid(unsafe_code)]

mod body;
mod changes;
mod commands;
mod conversations;
mod document;
mod error;
mod events;
mod handlers;
mod parameters;
mod queue_pool;
mod result_stream;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tower_service::Service as _;

use crate::servers::http::{self, Listener, Refusal, Service, Stop};
use crate::work::batch::{OpenQueue, TaskTypes};
use crate::work::commands::WorkStores;
use crate::work::roots::Roots;
use changes::Changes;
use error::ApiError;
use queue_pool::QueuePool;

pub use conversations::ConversationService;
pub use document::document;

/// The maximum number of simultaneous connections. The server closes further ones at once.
const MOST_CONNECTIONS: usize = 256;
/// How long the server waits for pending responses when it stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// The maximum number of requests that wait for a change of the queue or stream results at the same time.
const MOST_WAITING: usize = 64;
/// The maximum number of threads for blocking work, such as calls to the queue and the parsing of submissions.
const MOST_BLOCKING: usize = 32;

pub struct ServeConfig {
    pub open_queue: OpenQueue,
    /// The available task types, built-in and the user's.
    pub types: TaskTypes,
    /// The names of the task types that clients may submit; `None` means all.
    pub accepted_types: Option<BTreeSet<String>>,
    /// The directories below which tasks and the agents of conversations may work.
    pub roots: Roots,
    /// Where conversations are stored and what runs their agents; `None` if the server offers no conversations.
    pub conversations: Option<ConversationService>,
    /// The stores of the batches, tasks, research runs and conversations to which clients can send commands.
    pub work: WorkStores,
}

/// The state that all requests share.
struct Shared {
    queues: QueuePool,
    changes: Changes,
    types: TaskTypes,
    accepted_types: Option<BTreeSet<String>>,
    roots: Roots,
    conversations: Option<conversations::Service>,
    work: WorkStores,
    waiting: Arc<Semaphore>,
    body_budget: Arc<Semaphore>,
    stop: Stop,
}

/// Serves until `stop` is set. Then ends the waiting and streaming requests, cancels the turns of conversations, and
/// returns when they have ended, after 14 seconds at the latest.
pub fn serve(config: ServeConfig, listener: Listener, stop: &Stop) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(MOST_BLOCKING)
        .build()?;
    let shared = Arc::new(Shared {
        queues: QueuePool::new(config.open_queue.clone()),
        changes: Changes::watch(config.open_queue)?,
        types: config.types,
        accepted_types: config.accepted_types,
        roots: config.roots,
        conversations: config.conversations.map(conversations::Service::new),
        work: config.work,
        waiting: Arc::new(Semaphore::new(MOST_WAITING)),
        body_budget: Arc::new(Semaphore::new(body::BUDGET_KIB)),
        stop: stop.clone(),
    });
    let served = runtime.block_on(async {
        let routes = Routes(document::router().with_state(shared.clone()));
        let served = http::serve(listener, routes, MOST_CONNECTIONS, stop).await;
        let served = match served {
            Ok(mut connections) => {
                connections.wait(SHUTDOWN_GRACE).await;
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Some(conversations) = &shared.conversations {
            conversations.wait_for_turns().await;
        }
        served
    });
    runtime.shutdown_background();
    served
}

/// The handlers of all requests.
struct Routes(Router);

impl Service for Routes {
    type Body = Body;
    const WITHOUT_TOKEN: &'static [&'static str] = &document::WITHOUT_TOKEN;

    fn refuse(&self, refusal: Refusal) -> Response<Body> {
        ApiError::from(refusal).into_response()
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        match self.0.clone().call(request.map(Body::new)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

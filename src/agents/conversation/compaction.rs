//! Summarises the older messages of a conversation: on a thread after a turn, or while a caller waits.
//!
//! A read-only run of the agent's CLI with a cheap model writes the summary. Turns never wait for the thread:
//! the prompt of a turn that begins before the summary is ready contains only the newest messages. Dropping the
//! conversation ends the thread and its run.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

use super::record::Settings;
use super::store::Conversation;
use super::{ConversationError, at, context, summary_files};
use crate::agents::exec::{Cancel, ExecRequest, Executor, Sandbox};
use crate::agents::history::{
    Applied, CircuitBreaker, CompactionPlan, GeminiHistoryManager, Summary, SummaryError,
};
use crate::run::outcome::ErrorKind;

/// The time limit for a summary that guard writes in the background, or that the user asks for without another limit.
const BACKGROUND_LIMIT: Duration = Duration::from_secs(60);
/// How often a waiting caller checks whether it was cancelled.
const PERIOD: Duration = Duration::from_millis(50);

/// The result of a compaction, which replaces the oldest messages of a conversation by a summary in later prompts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Compacted {
    /// How many of the oldest messages the summary replaces.
    pub covers: usize,
    /// The estimated number of tokens of the messages that the summary replaces.
    pub replaced_tokens: usize,
    /// The estimated number of tokens of the summary.
    pub summary_tokens: usize,
    /// The model that wrote the summary, or `truncation` if no model could write one.
    pub made_by: String,
    /// Why guard dropped the messages instead of summarising them; null if a model wrote the summary.
    pub warning: Option<String>,
}

/// Why guard summarises the older messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    /// The conversation has become too long.
    Size,
    /// The user asks for a summary.
    Request,
}

/// A compaction that runs on a background thread.
#[derive(Debug)]
pub(super) struct RunningCompaction {
    cancel: Cancel,
    has_ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl RunningCompaction {
    fn has_ended(&self) -> bool {
        *self.has_ended.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the compaction has ended, `limit` has passed, or `cancel` is set.
    fn wait(&self, limit: Duration, cancel: &Cancel) {
        let deadline = Instant::now() + limit;
        let mut ended = self.has_ended.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended && Instant::now() < deadline && !cancel.is_set() {
            ended = self.has_ended.1.wait_timeout(ended, PERIOD).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for RunningCompaction {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.cancel.set();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Everything that a compaction needs, so that it can run on its own thread.
struct Job {
    directory: PathBuf,
    settings: Settings,
    /// The model that writes the summary; `None` means the default model of the agent's CLI.
    summary_model: Option<String>,
    history: GeminiHistoryManager,
    plan: CompactionPlan,
    executor: Executor,
    /// The directory in which the summary's run works if the agent is a command of the user: the conversation's
    /// worktree, or the user's directory if that is not in a repository; `None` if there is no worktree yet.
    worktree: Option<PathBuf>,
}

/// An empty temporary directory for one run. It is removed on drop.
struct EmptyDirectory(PathBuf);

impl EmptyDirectory {
    fn new() -> std::io::Result<Self> {
        let name = format!("guard-summary-{}", uuid::Uuid::new_v4().simple());
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for EmptyDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl Job {
    /// Asks the model for a summary and stores it. If the model has failed repeatedly and the conversation is too long,
    /// stores a summary that only drops the older messages, with a warning. Otherwise fails if the model writes no
    /// usable summary. Also fails if `cancel` is set.
    fn run(mut self, cancel: &Cancel, limit: Duration) -> Result<Compacted, ConversationError> {
        let answer = self.ask(cancel, limit);
        if cancel.is_set() {
            return Err(ConversationError::Summary("the summary was cancelled".to_string()));
        }
        let (plan, failed) = (self.plan.clone(), answer.as_ref().err().map(ToString::to_string));
        let applied = self.history.apply_summary(&plan, answer);
        self.save_breaker(self.history.breaker())?;
        match applied {
            Applied::Accepted(summary) => self.save(&summary, None),
            Applied::Truncated(summary) => {
                let why = failed.unwrap_or_else(|| "the summary model failed again".to_string());
                self.save(&summary, Some(truncation_warning(&self.settings.id, &why)))
            }
            Applied::Rejected(error) => {
                tracing::warn!(conversation = %self.settings.id, %error, "guard could not summarise the older messages");
                Err(ConversationError::Summary(error.to_string()))
            }
        }
    }

    fn save(&self, summary: &Summary, warning: Option<String>) -> Result<Compacted, ConversationError> {
        at("write", &self.directory, summary_files::save(&self.directory, summary))?;
        let replaced = &self.history.messages()[..summary.covers];
        Ok(Compacted {
            covers: summary.covers,
            replaced_tokens: replaced
                .iter()
                .map(|one| crate::agents::history::estimate_tokens(&one.content))
                .sum(),
            summary_tokens: summary.estimated_tokens(),
            made_by: context::made_by(&summary.made_by),
            warning,
        })
    }

    fn save_breaker(&self, breaker: &CircuitBreaker) -> Result<(), ConversationError> {
        at("write", &self.directory, summary_files::save_breaker(&self.directory, breaker))
    }

    /// Runs the agent's CLI with the cheap model, without write access. The run must not be able to read files
    /// that the turns cannot read: the user's checkout may contain files that are not in the conversation's
    /// worktree.
    fn ask(&self, cancel: &Cancel, limit: Duration) -> Result<String, SummaryError> {
        let seconds = limit.as_secs().max(1);
        let empty = EmptyDirectory::new().map_err(|error| SummaryError::Failed {
            reason: format!("cannot create a temporary directory: {error}"),
        })?;
        // A command of the user may be a program in the worktree, so it must run there.
        let cd = match &self.worktree {
            Some(worktree) if self.settings.agent == "generic" => worktree,
            _ => &empty.0,
        };
        let request = ExecRequest {
            command: self.settings.command.clone(),
            agent: Some(self.settings.agent.clone()),
            sandbox: Sandbox::ReadOnly,
            fresh_agent: true,
            model: self.summary_model.clone(),
            timeout: seconds,
            max_duration: seconds,
            max_retries: 0,
            ..ExecRequest::new(self.plan.request.prompt.clone(), cd.clone())
        };
        let result = self.executor.execute(&request, cancel, &mut |_| {});
        match result.run.error_kind {
            None => Ok(result.run.result),
            Some(ErrorKind::IdleTimeout | ErrorKind::Timeout) => Err(SummaryError::Timeout { seconds }),
            Some(kind) => {
                let reason = format!("{kind}: {}", result.run.error.unwrap_or_default());
                Err(SummaryError::Failed { reason })
            }
        }
    }
}

fn truncation_warning(id: &str, why: &str) -> String {
    tracing::warn!(
        conversation = id,
        why,
        "guard leaves older messages out of the prompt instead of summarising them"
    );
    format!("guard leaves older messages out of the prompt, because it could not summarise them: {why}")
}

impl Conversation {
    /// Returns the directory in which the turns run: the worktree, or the user's directory if that is not in a
    /// repository; `None` if the conversation has no worktree.
    fn place_of_turns(&self) -> Option<PathBuf> {
        let cd = &self.record.settings.cd;
        let is_in_repository = cd.ancestors().any(|above| above.join(".git").exists());
        let worktree = self.record.worktree().map(|worktree| PathBuf::from(&worktree.path));
        worktree.or_else(|| (!is_in_repository).then(|| cd.clone()))
    }

    /// Prepares a compaction. Returns the job that asks the model or, if the model keeps failing, drops the messages
    /// from prompts at once and returns the result. Fails if there is nothing to summarise.
    fn job(
        &self,
        executor: &Executor,
        trigger: Trigger,
    ) -> Result<Result<Job, Compacted>, ConversationError> {
        let mut history = self.history();
        let before = history.summary().cloned();
        let job = |history, plan| Job {
            directory: self.directory.clone(),
            settings: self.record.settings.clone(),
            summary_model: self.history_settings.summary_model(&self.record.settings),
            history,
            plan,
            executor: executor.clone(),
            worktree: self.place_of_turns(),
        };
        if trigger == Trigger::Request {
            let plan = history.plan_requested_compaction().ok_or(ConversationError::Nothing(
                "there is nothing to summarise: prompts contain the newest messages word for word, and no older \
                 message lacks a summary",
            ))?;
            return Ok(Ok(job(history, plan)));
        }
        let planned = history.plan_compaction();
        let Some(plan) = history.maybe_compress() else {
            return match (history.summary().cloned(), planned) {
                (Some(summary), Some(plan)) if Some(&summary) != before.as_ref() => {
                    let warning = truncation_warning(self.id(), "the summary model has failed repeatedly");
                    job(history, plan).save(&summary, Some(warning)).map(Err)
                }
                _ => Err(ConversationError::Nothing(
                    "there is nothing to summarise: the conversation is short enough",
                )),
            };
        };
        Ok(Ok(job(history, plan)))
    }

    /// Starts a compaction in the background if the conversation needs one, and none is running. Ignores errors,
    /// because the conversation can continue without a summary.
    pub(super) fn start_compaction(&mut self, executor: &Executor) {
        if self.is_compacting() {
            return;
        }
        self.compaction = None;
        let Ok(Ok(job)) = self.job(executor, Trigger::Size) else { return };
        let (cancel, has_ended) = (Cancel::default(), Arc::new((Mutex::new(false), Condvar::new())));
        let (of_thread, ended) = (cancel.clone(), has_ended.clone());
        let work = move || {
            // `run` logs a failure, and the next turn works without a summary.
            let _ = job.run(&of_thread, BACKGROUND_LIMIT);
            *ended.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            ended.1.notify_all();
        };
        let thread = std::thread::Builder::new().name("compaction".to_string()).spawn(work).ok();
        self.compaction = thread.map(|thread| RunningCompaction { cancel, has_ended, thread: Some(thread) });
    }

    pub fn is_compacting(&self) -> bool {
        self.compaction.as_ref().is_some_and(|running| !running.has_ended())
    }

    /// Waits until the compaction in the background ends, `limit` has passed, or `cancel` is set.
    pub fn wait_for_compaction(&mut self, limit: Duration, cancel: &Cancel) {
        if let Some(running) = &self.compaction {
            running.wait(limit, cancel);
        }
    }

    /// Lets the compaction in the background continue for at most a minute after this conversation is closed.
    /// Servers call this, because their process keeps running after a turn.
    pub fn detach_compaction(&mut self) {
        if let Some(running) = self.compaction.take() {
            // If the thread cannot be started, its closure is dropped, which ends the compaction.
            let wait = move || running.wait(BACKGROUND_LIMIT, &Cancel::default());
            let _ = std::thread::Builder::new().name("compaction-wait".to_string()).spawn(wait);
        }
    }

    /// Summarises the older messages because the user asks for it, and waits for the result for at most a minute.
    pub fn compact_now(
        &mut self,
        executor: &Executor,
        cancel: &Cancel,
    ) -> Result<Compacted, ConversationError> {
        self.compact_within(executor, cancel, BACKGROUND_LIMIT)
    }

    /// Summarises the older messages because the user asks for it, and waits for the result for at most `limit`. Fails
    /// if there is nothing to summarise, or if the model writes no usable summary.
    pub fn compact_within(
        &mut self,
        executor: &Executor,
        cancel: &Cancel,
        limit: Duration,
    ) -> Result<Compacted, ConversationError> {
        self.compact(Trigger::Request, executor, cancel, limit)
    }

    /// Summarises the older messages, and waits for the result for at most `limit`.
    pub(super) fn compact(
        &mut self,
        trigger: Trigger,
        executor: &Executor,
        cancel: &Cancel,
        limit: Duration,
    ) -> Result<Compacted, ConversationError> {
        // End a compaction in the background, because it would ask for the same summary.
        self.compaction = None;
        match self.job(executor, trigger)? {
            Ok(job) => job.run(cancel, limit),
            Err(done) => Ok(done),
        }
    }
}

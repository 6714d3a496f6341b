//! One turn of a conversation: from the user's message to the stored answer.
//!
//! The message is on disk before the agent starts, and the end of the turn is on disk before the caller gets
//! the result. If the session or the worktree is lost, or a long prompt times out, guard tries again within the turn,
//! once for each problem, unless the agent has already changed files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::compaction::Trigger;
use super::context::BuiltPrompt;
use super::message_log::{Ended, Entry, Sent};
use super::model::{Snapshot, TurnState};
use super::record::Turn;
use super::store::Conversation;
use super::turn_control::{TurnControl, is_paused};
use super::worktree_snapshot::ConversationTree;
use super::{ConversationError, check_message};
use crate::agents::adapter::AgentEvent;
use crate::agents::exec::{Cancel, ExecRequest, ExecResult, Executor, Sandbox, check_limits, check_model};
use crate::agents::history::estimate_tokens;
use crate::run::outcome::{ErrorDetail, ErrorKind};
use crate::run::transcript::EventType;
use crate::text::terminal_text;

/// The default idle limit of a turn, in seconds. guard ends an agent that is idle for longer. If the conversation is
/// long, guard then tries again with a shorter prompt.
const IDLE_SECONDS: u64 = 120;
/// Maximum size of a stored answer, in bytes. A longer answer is cut.
const LONGEST_ANSWER: usize = 1 << 20;
/// If the agent times out and the conversation has more tokens than this, guard tries again with a prompt of at
/// most this many tokens.
const SMALL_PROMPT: usize = 8_000;
/// An upper bound for the tokens of a prompt besides the messages: the header and the headings.
const PROMPT_FRAME: usize = 100;
/// The maximum number of times that a turn waits, each time for `WAIT`, for the run of a killed turn to end.
const MOST_WAITS: u32 = 40;
const WAIT: Duration = Duration::from_millis(250);
/// How long a turn waits for a summary without which its prompt would be too large.
const SUMMARY_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct TurnOptions {
    /// The model for this turn only; `None` means the conversation's model.
    pub model: Option<String>,
    /// Which files the agent may write in this turn; `None` means the conversation's setting.
    pub sandbox: Option<Sandbox>,
    /// The idle limit in seconds: guard ends a run that for this long prints nothing, starts no program and uses no
    /// CPU.
    pub timeout: u64,
    /// The limit on the total duration of one attempt, in seconds.
    pub max_duration: u64,
    /// How often guard retries after an error that may be temporary.
    pub max_retries: u32,
    /// The limit on model tokens of one attempt, input and output together; `None` means no limit.
    pub max_tokens: Option<u64>,
    /// The limit on the requests that one attempt sends to a model; `None` means no limit.
    pub max_requests: Option<u64>,
    /// The name of the policy for this turn; `None` means the policy that the sandbox setting selects.
    pub policy: Option<String>,
    /// Whether a turn that may write files gets the policy of `guard run`, which a project or the user chooses, instead of
    /// `strict`.
    pub uses_default_policy: bool,
    /// Whether the agent acts without asking for approval. The sandbox is the same either way.
    pub yolo: bool,
    /// Further files or directories that the agent may read.
    pub read: Vec<PathBuf>,
    /// Further files or directories that the agent may write.
    pub write: Vec<PathBuf>,
    pub environment: BTreeMap<String, String>,
    /// Whether the result contains all events of the agent.
    pub return_all_messages: bool,
    /// Whether the result contains usage figures.
    pub return_metrics: bool,
    /// Whether guard summarises older messages in the background after the turn, if the conversation has become
    /// long.
    pub compacts: bool,
    /// The command with which the user can clear the history, for the error of a turn that timed out; `None` means
    /// `guard history clear ID`.
    pub clear_command: Option<&'static str>,
}

impl Default for TurnOptions {
    fn default() -> Self {
        Self {
            model: None,
            sandbox: None,
            timeout: IDLE_SECONDS,
            max_duration: 1800,
            max_retries: 1,
            max_tokens: None,
            max_requests: None,
            policy: None,
            uses_default_policy: false,
            yolo: true,
            read: Vec::new(),
            write: Vec::new(),
            environment: BTreeMap::new(),
            return_all_messages: false,
            return_metrics: false,
            compacts: true,
            clear_command: None,
        }
    }
}

impl TurnOptions {
    /// Fails if one of the limits or the name of the model is not valid.
    pub fn check(&self) -> Result<(), ConversationError> {
        check_limits(self.timeout, self.max_duration, self.max_retries)
            .and_then(|()| self.model.as_deref().map_or(Ok(()), check_model))
            .map_err(ConversationError::Settings)
    }
}

/// The result of a turn.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TurnResult {
    /// The turn as guard stored it.
    pub turn: Turn,
    /// The result of the turn's run. Its `SESSION_ID` is the id of the conversation.
    #[serde(flatten)]
    pub exec: ExecResult,
    /// Remarks for the user, including those in `exec`.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// The prompt for the agent, and the session in which the agent gets it.
#[derive(Debug, Clone)]
struct Question {
    prompt: String,
    estimated_tokens: usize,
    /// Whether the model receives more than `SMALL_PROMPT` tokens, so that a shorter prompt may help after a time-out.
    is_long: bool,
    /// Whether guard resumes the agent's own session. Otherwise the prompt contains the history.
    resumes: bool,
    session: String,
}

/// The inputs of one turn, and the notes for the user that were made so far.
struct TurnContext<'t> {
    message: &'t str,
    options: &'t TurnOptions,
    executor: &'t Executor,
    cancel: &'t Cancel,
    on_event: &'t mut dyn FnMut(&AgentEvent),
    notes: Vec<String>,
}

impl TurnContext<'_> {
    /// Adds a note for the user, which is reported at once as an event and also with the result.
    fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        (self.on_event)(&AgentEvent::new(EventType::ExecNote, text.clone(), serde_json::json!({})));
        self.notes.push(text);
    }
}

impl Conversation {
    /// Sends a message to the agent and waits for the answer. Always returns a result; if the turn could not
    /// begin, the turn's number is 0 and guard stores nothing.
    pub fn run_turn(
        &mut self,
        message: &str,
        options: &TurnOptions,
        executor: &Executor,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(&AgentEvent),
    ) -> TurnResult {
        let began = Instant::now();
        let mut context = TurnContext { message, options, executor, cancel, on_event, notes: Vec::new() };
        let mut question = match self.begin_turn(&mut context) {
            Ok(question) => question,
            Err(error) => return self.refused(message, &error),
        };
        let control = TurnControl::start(&self.directory, &self.record.settings, cancel);
        let mut exec = self.execute(&question, &mut context);
        self.recover(&mut exec, &mut question, &mut context);
        let result = self.end_turn(exec, &question, began, context.notes);
        if let Some(settings) = control.and_then(TurnControl::changed_settings) {
            self.record.settings = settings;
        }
        if options.compacts && result.turn.state == TurnState::Done && !self.record.settings.is_native() {
            self.start_compaction(executor);
        }
        result
    }

    /// Executes waiting control commands, decides which prompt the agent gets, saves the files of the worktree, and
    /// stores the message. Fails if the message is not valid or the conversation is paused.
    fn begin_turn(&mut self, context: &mut TurnContext<'_>) -> Result<Question, ConversationError> {
        check_message(context.message)?;
        if let Err(error) = self.obey_commands() {
            tracing::warn!(%error, "guard cannot carry out the commands that were sent to the conversation");
        }
        if is_paused(&self.directory) {
            return Err(ConversationError::Paused(self.id().to_string()));
        }
        let number = self.record.next_number();
        let resumes = self.record.can_resume();
        let has_turns = self.record.last_active().is_some();
        let session = self.record.session();
        let question = if resumes {
            let built = self.bare_prompt(context.message);
            Question { resumes, ..question_of(built, session, context) }
        } else {
            self.question_with_history(context, session, None)
        };
        let before = self.save_files(number, context);
        self.store(Entry::Sent(Sent {
            turn: number,
            time: Timestamp::now().to_string(),
            text: context.message.to_string(),
            mode: self.record.settings.turn_mode(),
            estimated_tokens: question.estimated_tokens as u64,
            session: Some(question.session.clone()),
            before,
        }))?;
        self.running = Some(number);
        if self.record.settings.is_native() && has_turns && !resumes {
            context.note(
                "the agent's own session no longer matches this conversation; guard begins a new session with the stored history",
            );
        }
        Ok(question)
    }

    /// Saves the files of the worktree, so that the turn can be undone. Returns `None` if there is no worktree, or,
    /// with a note for the user, if guard cannot save the files.
    fn save_files(&self, number: usize, context: &mut TurnContext<'_>) -> Option<Snapshot> {
        let worktree = self.record.worktree()?.clone();
        let opened = ConversationTree::open(&self.record, &worktree, &self.directory.join("scratch"));
        let saved = opened.and_then(|tree| tree.map(|tree| tree.save_before(self.id(), number)).transpose());
        saved.unwrap_or_else(|error| {
            context.note(format!(
                "this turn cannot be undone later, because guard could not save the files before it: {error}"
            ));
            None
        })
    }

    /// Returns the question for an agent that does not know the conversation: its prompt contains the history.
    /// `max_tokens` limits the size of the prompt instead of the default limit.
    fn question_with_history(
        &self,
        context: &mut TurnContext<'_>,
        session: String,
        max_tokens: Option<usize>,
    ) -> Question {
        let is_first = self.earlier_turns().next().is_none();
        // In the first turn there is no history. If the agent has its own session, the prompt is then the message
        // alone, unless `max_tokens` requires a shorter one.
        let built = if is_first && self.record.settings.is_native() && max_tokens.is_none() {
            self.bare_prompt(context.message)
        } else {
            self.build_prompt(context.message, max_tokens)
        };
        question_of(built, session, context)
    }

    fn execute(&self, question: &Question, context: &mut TurnContext<'_>) -> ExecResult {
        let (settings, options) = (&self.record.settings, context.options);
        let request = ExecRequest {
            command: settings.command.clone(),
            agent: Some(settings.agent.clone()),
            sandbox: options.sandbox.unwrap_or(settings.sandbox),
            policy: options.policy.clone(),
            uses_default_policy: options.uses_default_policy,
            yolo: options.yolo,
            session_id: Some(question.session.clone()),
            fresh_agent: !question.resumes,
            model: options.model.clone().or_else(|| settings.model.clone()),
            timeout: options.timeout,
            max_duration: options.max_duration,
            max_retries: options.max_retries,
            max_tokens: options.max_tokens,
            max_requests: options.max_requests,
            // Do not retry a long prompt unchanged: `recover` makes it shorter first.
            retry_timeouts: !question.is_long,
            read: options.read.clone(),
            write: options.write.clone(),
            environment: options.environment.clone(),
            return_all_messages: options.return_all_messages,
            return_metrics: options.return_metrics,
            ..ExecRequest::new(question.prompt.clone(), settings.cd.clone())
        };
        context.executor.execute(&request, context.cancel, &mut |event| (context.on_event)(&event))
    }

    /// Tries again within the turn after a lost session, a lost worktree, or a time-out of a long conversation, and
    /// while the run of a killed turn still uses the session. Does not send the message again if the agent has changed
    /// files, because the agent could repeat or undo its changes.
    fn recover(&mut self, exec: &mut ExecResult, question: &mut Question, context: &mut TurnContext<'_>) {
        let (mut has_new_session, mut is_shortened, mut waits) = (false, false, 0);
        loop {
            let Some(kind) = exec.run.error_kind.filter(|_| !context.cancel.is_set()) else { return };
            // This process has the conversation's lock, so the busy session belongs to the run of a killed
            // turn, which ends soon.
            if kind == ErrorKind::SessionBusy && waits < MOST_WAITS {
                waits += 1;
                std::thread::sleep(WAIT);
                *exec = self.execute(question, context);
                continue;
            }
            let is_timeout = matches!(kind, ErrorKind::IdleTimeout | ErrorKind::Timeout);
            if !is_timeout && kind != ErrorKind::SessionLost {
                return;
            }
            if self.has_left_work(exec) {
                context.note(
                    "guard did not send the message again, because the agent had already changed files",
                );
                if is_timeout {
                    self.offer_to_clear(exec, context.options);
                }
                return;
            }
            if is_timeout && (is_shortened || !question.is_long) {
                return self.offer_to_clear(exec, context.options);
            }
            if is_timeout && estimate_tokens(context.message) + PROMPT_FRAME > SMALL_PROMPT {
                context.note(
                    "guard did not try again with a shorter prompt: that would cut your message, and the agent could act \
                     on a part of it",
                );
                return self.offer_to_clear(exec, context.options);
            }
            let error = terminal_text::one_line(exec.run.error.as_deref().unwrap_or_default());
            if is_timeout {
                is_shortened = true;
                context.note(format!(
                    "the agent did not answer in time ({kind}); guard tries once more with a shorter prompt"
                ));
                self.summarise_if_too_long(context);
                let shorter =
                    self.question_with_history(context, question.session.clone(), Some(SMALL_PROMPT));
                // `is_long` keeps the executor from sending the shorter prompt again if that times out too.
                *question = Question { is_long: true, ..shorter };
            } else if question.resumes {
                context.note(format!(
                    "the agent's own session is lost, so guard begins a new session with the stored history; the error was: {error}"
                ));
                self.summarise_if_too_long(context);
                *question = self.question_with_history(context, question.session.clone(), None);
            } else if !has_new_session {
                has_new_session = true;
                context.note(format!(
                    "the conversation's worktree is lost, so guard creates a new one at the commit that is checked out in the conversation's directory; the error was: {error}"
                ));
                question.session = uuid::Uuid::now_v7().to_string();
            } else {
                return;
            }
            *exec = self.execute(question, context);
        }
    }

    /// Returns whether the agent has changed files or made commits in this turn; true also if guard cannot find out.
    /// `left_work` alone is not enough, because it also counts what earlier turns left uncommitted.
    fn has_left_work(&self, exec: &ExecResult) -> bool {
        if !exec.attempts.iter().any(|attempt| attempt.left_work) {
            return false;
        }
        let before = self.record.details.last().and_then(|details| details.before.as_ref());
        let (Some(before), Some(worktree)) = (before, &exec.run.worktree) else { return true };
        let tree = ConversationTree::open(&self.record, worktree, &self.directory.join("scratch"));
        let differs =
            tree.and_then(|tree| tree.map_or(Ok(true), |tree| tree.differs_from(self.id(), before)));
        differs.unwrap_or(true)
    }

    /// If the conversation is too long, summarises its older messages and waits for the summary. Without a
    /// summary, the prompt contains only the newest messages, and a note tells the user why.
    fn summarise_if_too_long(&mut self, context: &mut TurnContext<'_>) {
        match self.compact(Trigger::Size, context.executor, context.cancel, SUMMARY_WAIT) {
            Ok(_) | Err(ConversationError::Nothing(_)) => {}
            Err(error) => context.note(error.to_string()),
        }
    }

    /// Adds a hint to the error of a turn that timed out: the user can clear the history.
    fn offer_to_clear(&self, exec: &mut ExecResult, options: &TurnOptions) {
        let command = match options.clear_command {
            Some(command) => command.to_string(),
            None => format!("guard history clear {}", self.short_id()),
        };
        let offer = format!(
            "; if the conversation has become too long, `{command}` clears its history and keeps its files"
        );
        let detail = exec.run.error_detail.as_mut().map(|detail| &mut detail.message);
        exec.run.error.iter_mut().chain(detail).for_each(|text| text.push_str(&offer));
    }

    /// Stores the end of the turn, and returns its result.
    fn end_turn(
        &mut self,
        mut exec: ExecResult,
        question: &Question,
        began: Instant,
        mut notes: Vec<String>,
    ) -> TurnResult {
        exec.run.session_id = self.id().to_string();
        if self.agent() == "generic" {
            exec.run.result.truncate(exec.run.result.trim_end().len());
        }
        let number = self.running.take().unwrap_or(0);
        let usage = exec.run.usage.model.as_ref();
        let ended = Ended {
            turn: number,
            time: Timestamp::now().to_string(),
            state: state_of(&exec),
            text: stored_answer(&exec.run.result, &mut notes),
            run_id: exec.run.run_id.clone(),
            duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            tokens_reported: usage.map(|usage| usage.input_tokens.saturating_add(usage.output_tokens)),
            estimated_tokens: question.estimated_tokens as u64,
            denials: exec.run.usage.refusals,
            mode: self.record.settings.turn_mode(),
            notes: notes.clone(),
            worktree: exec.run.worktree.clone(),
            session: Some(question.session.clone()),
            is_in_native_session: self.record.settings.is_native() && exec.run.success,
        };
        let entry = Entry::Ended(Box::new(ended));
        if let Err(error) = self.store(entry.clone()) {
            // Return the answer all the same, with an error that says that it is not stored.
            self.record.apply(entry);
            set_error(&mut exec, ErrorKind::Internal, &format!("guard could not store the answer: {error}"));
        }
        let turn = self.record.turns.last().cloned();
        let turn = turn.unwrap_or_else(|| empty_turn(""));
        notes.extend(exec.notes.iter().cloned());
        exec.notes.clone_from(&notes);
        TurnResult { turn, exec, notes }
    }

    /// Returns the result of a turn that could not begin.
    fn refused(&self, message: &str, error: &ConversationError) -> TurnResult {
        let text = format!("{error}; {}", error.hint());
        let mut exec = ExecResult::refused(error.kind(), &text);
        exec.run.tool = self.agent().to_string();
        exec.run.session_id = self.id().to_string();
        let state = TurnState::Failed { error_kind: error.kind(), error: text };
        let mode = self.record.settings.turn_mode();
        let turn = Turn { state, mode, ..empty_turn(message) };
        TurnResult { turn, exec, notes: Vec::new() }
    }
}

/// Returns the question with a prompt, in a new session of the agent, and reports the prompt's notes.
fn question_of(built: BuiltPrompt, session: String, context: &mut TurnContext<'_>) -> Question {
    built.notes.into_iter().for_each(|note| context.note(note));
    Question {
        prompt: built.text,
        estimated_tokens: built.estimated_tokens,
        is_long: built.context_tokens > SMALL_PROMPT,
        resumes: false,
        session,
    }
}

fn set_error(exec: &mut ExecResult, kind: ErrorKind, text: &str) {
    exec.run.success = false;
    exec.run.error = Some(text.to_string());
    exec.run.error_kind = Some(kind);
    let detail = exec.run.error_detail.take().unwrap_or_default();
    exec.run.error_detail = Some(ErrorDetail { message: text.to_string(), ..detail });
}

fn empty_turn(message: &str) -> Turn {
    Turn {
        number: 0,
        user: message.to_string(),
        assistant: String::new(),
        run_id: String::new(),
        started: Timestamp::now().to_string(),
        duration_ms: 0,
        tokens_reported: None,
        estimated_tokens: 0,
        state: TurnState::Interrupted,
        denials: 0,
        mode: super::TurnMode::OwnHistory,
        is_active: false,
        notes: Vec::new(),
    }
}

fn state_of(exec: &ExecResult) -> TurnState {
    match exec.run.error_kind {
        None if exec.run.success => TurnState::Done,
        Some(ErrorKind::Cancelled) => TurnState::Cancelled,
        kind => TurnState::Failed {
            error_kind: kind.unwrap_or(ErrorKind::UpstreamError),
            error: exec.run.error.clone().unwrap_or_default(),
        },
    }
}

/// Returns the answer to store: cut, with a note, if it is very long.
fn stored_answer(answer: &str, notes: &mut Vec<String>) -> String {
    if answer.len() <= LONGEST_ANSWER {
        return answer.to_string();
    }
    notes.push(format!(
        "the answer has {} bytes; the conversation stores the first {LONGEST_ANSWER} of them, and the transcript all",
        answer.len()
    ));
    terminal_text::before(answer, LONGEST_ANSWER).to_string()
}

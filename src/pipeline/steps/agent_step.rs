//! Runs a step that an agent performs: asks the agent, parses its answer, verifies its claims, and commits
//! its work.
//!
//! An unusable answer is sent back once for repair. The agent's own statements are never trusted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::answer;
use super::validate_answer::Validation;
use crate::agent_exec::{ExecRequest, ExecResult};
use crate::outcome::ErrorKind;
use crate::pipeline::documents;
use crate::pipeline::runner::{Next, PipelineError, Runner};
use crate::pipeline::task::state::{RUNNER, Status, TaskEvent, Used};
use crate::pipeline::workflow::model::{Role, Step, Work};
use crate::pipeline::workflow::template::Template;
use crate::transcript::EventType;

/// Maximum size of the diff in a prompt, in bytes.
const MOST_DIFF: usize = 192 << 10;
/// Maximum size of the answer quoted in a repair request, in bytes.
const MOST_QUOTED: usize = 16 << 10;

/// The inputs of one agent call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) prompt: String,
    /// The commit that the branch pointed to before the call.
    pub(crate) tip: String,
    /// The one file that the agent may write.
    pub(crate) document: Option<String>,
    /// More files and directories that the agent may write.
    #[serde(default)]
    pub(crate) writes: Vec<String>,
}

/// The result of one agent call.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct AgentReply {
    pub(crate) answer: String,
    pub(crate) run_id: String,
    /// The kind of the error, and its message.
    pub(crate) error: Option<(ErrorKind, String)>,
    pub(crate) used: Used,
    /// The commit that the branch pointed to before the call.
    pub(crate) before: String,
    /// The commit that the branch pointed to after the call.
    pub(crate) after: String,
}

impl Runner<'_> {
    pub(crate) fn role_step(&mut self, step: &Step, role: &str) -> Result<Next, PipelineError> {
        let strange = || PipelineError::Strange(format!("the workflow has no role `{role}`"));
        let role = self.setting.workflow.roles.get(role).cloned().ok_or_else(strange)?;
        let is_user_gate = step.gate.as_ref().is_some_and(|gate| self.setting.gates.contains(gate));
        let answer = if step.must_merge && self.state.merged_by.is_some() {
            match self.accept_user_merge(step, &role)? {
                Ok(answer) => answer,
                Err(stop) => return Ok(stop),
            }
        } else if is_user_gate {
            match self.user_decision()? {
                Some(answer) => answer,
                None => return Ok(Next::Stop(Status::NeedsHuman, self.waiting_reason(step))),
            }
        } else {
            match self.agent_answer(step, &role)? {
                Ok(answer) => answer,
                Err(stop) => return Ok(stop),
            }
        };
        self.finish_role_step(step, &role, &answer)
    }

    /// Asks the agent and validates its answer. An unusable answer is sent back once for repair.
    fn agent_answer(
        &mut self,
        step: &Step,
        role: &Role,
    ) -> Result<Result<Map<String, Value>, Next>, PipelineError> {
        self.announce(RUNNER, format!("Spawning {}...", role.title));
        let asked = self.ask_agent(step, role, "agent", None)?;
        // After a crash the working tree may have changed since the answer was validated. Do not validate
        // again: the journal already shows how that ended.
        let (was_validated, was_repaired) = (self.has_begun("commit")?, self.has_begun("repair")?);
        let validation = match (was_validated, was_repaired) {
            (_, true) => Validation::Invalid("a repair was requested before the interruption".to_string()),
            (true, false) => return self.parse_accepted_answer(step, &asked).map(Ok),
            (false, false) => self.validate(step, role, &asked)?,
        };
        let problem = match validation {
            Validation::Valid(answer) => return Ok(Ok(answer)),
            Validation::Stop(stop) => return Ok(Err(stop)),
            Validation::Invalid(problem) => problem,
        };
        if let Some(reason) = self.exhausted_limit(&step.id) {
            return Ok(Err(Next::Stop(Status::BudgetExhausted, reason)));
        }
        let line = format!("{}'s answer cannot be used ({problem}). Asking once more.", role.title);
        self.announce(RUNNER, line);
        let again = self.ask_agent(step, role, "repair", Some((&problem, &asked.answer)))?;
        // A committing role commits in both calls, so the work starts before the first. A reading role starts
        // over.
        let before = if role.work == Work::Commit { asked.before } else { again.before.clone() };
        let again = AgentReply { before, ..again };
        if was_validated {
            return self.parse_accepted_answer(step, &again).map(Ok);
        }
        Ok(match self.validate(step, role, &again)? {
            Validation::Valid(answer) => Ok(answer),
            Validation::Stop(stop) => Err(stop),
            Validation::Invalid(problem) if step.must_merge => {
                Err(self.hand_over_conflict(&again, &problem)?)
            }
            Validation::Invalid(problem) => {
                Err(Next::Stop(Status::Failed, format!("{}: {problem}", role.title)))
            }
        })
    }

    /// True if the journal has this effect for the current visit, possibly from an earlier process.
    fn has_begun(&self, effect: &str) -> Result<bool, PipelineError> {
        Ok(self.journal.effect_state(&self.id, self.state.visit, effect)?.is_some())
    }

    /// Parses an answer that was accepted before a crash.
    fn parse_accepted_answer(
        &self,
        step: &Step,
        asked: &AgentReply,
    ) -> Result<Map<String, Value>, PipelineError> {
        answer::extract(&asked.answer, &step.answer).map_err(|problem| {
            PipelineError::Strange(format!("the answer in the journal cannot be used: {problem}"))
        })
    }

    /// Makes one agent call. An interrupted call is repeated from the state in which it began.
    pub(crate) fn ask_agent(
        &mut self,
        step: &Step,
        role: &Role,
        name: &str,
        repair: Option<(&str, &str)>,
    ) -> Result<AgentReply, PipelineError> {
        let asked: AgentReply = self.effect(
            &step.id,
            name,
            |runner| runner.question(step, role, repair),
            |runner, question, is_again| {
                if is_again {
                    runner.announce(RUNNER, format!("{} was interrupted; asking again.", role.title));
                    runner.restore(Some(&question.tip))?;
                }
                runner.create_document_file(step, question, repair.is_some())?;
                runner.call_agent(&step.id, role, question)
            },
        )?;
        self.add_usage(&step.id, asked.used);
        Ok(asked)
    }

    fn question(
        &mut self,
        step: &Step,
        role: &Role,
        repair: Option<(&str, &str)>,
    ) -> Result<Question, PipelineError> {
        self.setting.tree.check_worktree()?;
        let tip = self.setting.tree.tip()?.ok_or_else(|| self.missing_branch_error())?;
        let document = self.document_path(step);
        let mut prompt = self.prompt(step, role, document.as_deref())?;
        if let Some((problem, answer)) = repair {
            let mut from = answer.len().saturating_sub(MOST_QUOTED);
            while !answer.is_char_boundary(from) {
                from += 1;
            }
            prompt = format!(
                "{prompt}\n\n## You have done this already\nBut your answer cannot be used: {problem}. Your work is still there. Fix the \
                 problem and answer again, with the JSON object at the end. Your answer was:\n\n{}\n",
                &answer[from..]
            );
        }
        // A committing role writes its document like every other file of the worktree.
        let document = document.filter(|_| role.work == Work::Read);
        Ok(Question { prompt, tip, document, writes: Vec::new() })
    }

    /// The path of the step's document in this round.
    pub(crate) fn document_path(&self, step: &Step) -> Option<String> {
        let document = step.document.as_ref()?;
        let n = self.state.rounds.get(&step.id).copied().unwrap_or(1);
        Some(self.setting.workflow.document_path(&document.path, &self.setting.feat, n))
    }

    fn prompt(&mut self, step: &Step, role: &Role, document: Option<&str>) -> Result<String, PipelineError> {
        let template = Template::read(&step.prompt).map_err(|wrong| {
            PipelineError::Strange(format!("the prompt of the step {}: {}", step.id, wrong.message))
        })?;
        let names = template.names();
        let mut values = self.values(role);
        values.extend(document.map(|place| ("document".to_string(), place.to_string())));
        values.insert("answer_format".to_string(), answer::format(&step.answer, document));
        if names.contains(&"diff") {
            values.insert("diff".to_string(), self.diff()?);
        }
        if names.contains(&"notes") {
            values.insert("notes".to_string(), self.notes()?);
        }
        if names.contains(&"memory") {
            values.insert("memory".to_string(), self.memory()?);
        }
        Ok(template.fill(&values))
    }

    /// The values available to every prompt and message.
    pub(crate) fn values(&self, role: &Role) -> BTreeMap<String, String> {
        let setting = &self.setting;
        let mut values = self.state.documents.clone();
        let tests = self.test_command().ok().flatten();
        let tests = tests.as_ref().map(shell_words::join).unwrap_or_default();
        for (name, value) in [
            ("request", self.request.as_str()),
            ("feat", &setting.feat),
            ("branch", setting.tree.short_branch()),
            ("base", &setting.workflow.base),
            ("role", &role.title),
            ("feedback", &self.state.feedback),
            ("conflicts", &self.state.conflicts),
            ("tests", &tests),
        ] {
            values.insert(name.to_string(), value.to_string());
        }
        values
    }

    fn diff(&self) -> Result<String, PipelineError> {
        let base = format!("refs/heads/{}", self.setting.workflow.base);
        let (text, is_all) = self.setting.tree.diff(&base, MOST_DIFF)?;
        let more = "\n(This is not all of it: the diff is too long. Read the rest with the command above.)\n";
        Ok(format!("{text}{}", if is_all { "" } else { more }))
    }

    /// The user's notes for the agents, read from the user's working tree or else from the base commit.
    fn notes(&self) -> Result<String, PipelineError> {
        let Some(file) = &self.setting.workflow.notes else { return Ok(String::new()) };
        let path = format!("{}/{file}", self.setting.workflow.documents);
        let own =
            self.repository.toplevel.as_ref().and_then(|top| documents::read(top, &path).ok().flatten());
        if let Some(text) = own {
            return Ok(text);
        }
        let committed = self.setting.tree.file_at(&self.setting.tree.base, &path)?;
        Ok(committed.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default())
    }

    fn memory(&self) -> Result<String, PipelineError> {
        let Some(memory) = &self.setting.workflow.memory else { return Ok(String::new()) };
        let text = self.committed(&memory.file)?;
        Ok(documents::select_lessons(&text, &self.request, memory.tokens))
    }

    /// A file below the documents directory, as committed on the branch.
    pub(crate) fn committed(&self, file: &str) -> Result<String, PipelineError> {
        let path = format!("{}/{file}", self.setting.workflow.documents);
        let found = self.setting.tree.file_at(&self.setting.tree.branch, &path)?;
        Ok(found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default())
    }

    /// Creates the one file that the agent may write, because the sandbox can only grant access to an
    /// existing file. Anything else at that path is moved aside: an agent in an earlier role could have
    /// written this document in advance.
    fn create_document_file(
        &mut self,
        step: &Step,
        question: &Question,
        is_repair: bool,
    ) -> Result<(), PipelineError> {
        let (Some(document), Some(place)) = (&step.document, &question.document) else { return Ok(()) };
        let worktree = self.setting.tree.worktree.clone();
        let aside = self.task_store.task_directory(&self.id).join("aside");
        let failed = |source| PipelineError::Io { path: worktree.join(place), source };
        documents::clear(&worktree, place, &aside).map_err(failed)?;
        let is_own = is_repair || self.state.documents.get(&document.name) == Some(place);
        let there = documents::read(&worktree, place).map_err(failed)?;
        if there.is_none() || !is_own {
            documents::write(&worktree, place, "").map_err(failed)?;
        }
        Ok(())
    }

    /// Calls the agent in its role's sandbox, within the step's remaining budget.
    pub(crate) fn call_agent(
        &mut self,
        step: &str,
        role: &Role,
        question: &Question,
    ) -> Result<AgentReply, PipelineError> {
        let tree = self.setting.tree.clone();
        let request = self.build_request(step, role, question);
        let title = role.title.clone();
        let (on_event, cancel) = (&mut *self.on_event, &self.cancel);
        let result = self.task_store.executor.execute(&request, cancel, &mut |event| {
            let data = json!({ "who": title, "event": event.event_type, "data": event.data });
            on_event(TaskEvent::new(EventType::TaskAgent, event.message, data));
        });
        if self.cancel.is_set() {
            return Err(PipelineError::Interrupted);
        }
        let after = tree.tip()?.unwrap_or_default();
        let mut asked = reply_from_result(&result, question.tip.clone(), after);
        if asked.error.as_ref().is_some_and(|(kind, _)| *kind == ErrorKind::Timeout) {
            // A timed-out call used its whole time, whatever was measured.
            asked.used.agent_ms = asked.used.agent_ms.max(request.max_duration.saturating_mul(1000));
        }
        Ok(asked)
    }

    fn build_request(&self, step: &str, role: &Role, question: &Question) -> ExecRequest {
        let setting = &self.setting;
        let (agent, own) = (setting.workflow.agent_of(role), &setting.agent);
        let name = if own.name.is_empty() { agent.name.clone() } else { own.name.clone() };
        let mut request = ExecRequest::new(question.prompt.clone(), setting.tree.worktree.clone());
        request.agent = Some(name);
        request.command = own.command.clone().or(agent.command).into_iter().collect();
        request.model = own.model.clone().or(agent.model);
        request.policy = Some(role.policy.clone());
        request.timeout = own.timeout.or(agent.timeout).unwrap_or(request.timeout);
        request.max_duration = own.max_duration.or(agent.max_duration).unwrap_or(request.max_duration);
        request.max_retries = own.retries.or(agent.retries).unwrap_or(request.max_retries);
        if let Some(minutes) = self.remaining(step, "minutes") {
            let seconds = (minutes * 60.0).ceil().max(1.0) as u64;
            if seconds < request.max_duration {
                // A retry would need the same time again, and none is left.
                request.max_duration = seconds;
                request.max_retries = 0;
            }
        }
        let left = self.remaining(step, "tokens").map(|left| (left as u64).max(1));
        request.max_tokens = [left, agent.max_tokens].into_iter().flatten().min();
        match role.work {
            Work::Read => request.in_place = true,
            Work::Commit => request.here = true,
        }
        let writes = question.document.iter().chain(&question.writes);
        request.write = writes.map(|path| setting.tree.worktree.join(path)).collect();
        request
    }
}

fn reply_from_result(result: &ExecResult, before: String, after: String) -> AgentReply {
    let run = &result.run;
    // Include the usage of failed attempts.
    let models = || result.attempts.iter().filter_map(|attempt| attempt.model.as_ref());
    let error = run.error_kind.map(|kind| (kind, run.error.clone().unwrap_or_default()));
    AgentReply {
        answer: run.result.clone(),
        run_id: run.run_id.clone(),
        error: error.filter(|_| !run.success),
        used: Used {
            tokens: models().map(|model| model.input_tokens.saturating_add(model.output_tokens)).sum(),
            cost: models().map(|model| model.cost).sum(),
            agent_ms: run.duration_ms,
            calls: 1,
        },
        before,
        after,
    }
}

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
    /// The commit of the branch before the call.
    pub(crate) tip: String,
    /// The one file that the agent may write.
    pub(crate) document: Option<String>,
    /// More files and directories that the agent may write.
    #[serde(default)]
    pub(crate) writes: Vec<String>,
}

/// The result of one agent call.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) answer: String,
    pub(crate) run_id: String,
    /// The kind of the error, and its message.
    pub(crate) error: Option<(ErrorKind, String)>,
    pub(crate) used: Used,
    /// The commit of the branch before and after the call.
    pub(crate) before: String,
    pub(crate) after: String,
}

impl Runner<'_> {
    pub(crate) fn role_step(&mut self, step: &Step, role: &str) -> Result<Next, PipelineError> {
        let strange = || PipelineError::Strange(format!("there is no role `{role}`"));
        let role = self.setting.workflow.roles.get(role).cloned().ok_or_else(strange)?;
        let is_persons = step.gate.as_ref().is_some_and(|gate| self.setting.gates.contains(gate));
        let answer = if step.must_merge && self.state.merged_by.is_some() {
            match self.persons_merge(step, &role)? {
                Ok(answer) => answer,
                Err(stop) => return Ok(stop),
            }
        } else if is_persons {
            match self.persons_answer()? {
                Some(answer) => answer,
                None => return Ok(Next::Stop(Status::NeedsHuman, self.waiting(step))),
            }
        } else {
            match self.agents_answer(step, &role)? {
                Ok(answer) => answer,
                Err(stop) => return Ok(stop),
            }
        };
        self.conclude(step, &role, &answer)
    }

    /// Asks the agent and validates its answer. An unusable answer is sent back once for repair.
    fn agents_answer(
        &mut self,
        step: &Step,
        role: &Role,
    ) -> Result<Result<Map<String, Value>, Next>, PipelineError> {
        self.say(RUNNER, format!("Spawning {}...", role.title));
        let asked = self.ask(step, role, "agent", None)?;
        // After a crash the working tree may have changed since the answer was validated. Do not validate
        // again: the journal already shows how that ended.
        let (is_judged, is_mended) = (self.has_begun("commit")?, self.has_begun("repair")?);
        let judged = match (is_judged, is_mended) {
            (_, true) => Validation::Wrong("it was asked to mend it".to_string()),
            (true, false) => return self.taken(step, &asked).map(Ok),
            (false, false) => self.judge(step, role, &asked)?,
        };
        let problem = match judged {
            Validation::Fine(answer) => return Ok(Ok(answer)),
            Validation::Over(stop) => return Ok(Err(stop)),
            Validation::Wrong(problem) => problem,
        };
        if let Some(reason) = self.used_up(&step.id) {
            return Ok(Err(Next::Stop(Status::BudgetExhausted, reason)));
        }
        self.say(RUNNER, format!("{}'s answer cannot be used ({problem}). Asking once more.", role.title));
        let again = self.ask(step, role, "repair", Some((&problem, &asked.answer)))?;
        // A committing role commits in both calls, so the work starts before the first. A reading role starts
        // over.
        let before = if role.work == Work::Commit { asked.before } else { again.before.clone() };
        let again = Asked { before, ..again };
        if is_judged {
            return self.taken(step, &again).map(Ok);
        }
        Ok(match self.judge(step, role, &again)? {
            Validation::Fine(answer) => Ok(answer),
            Validation::Over(stop) => Err(stop),
            Validation::Wrong(problem) if step.must_merge => Err(self.unsolved(&again, &problem)?),
            Validation::Wrong(problem) => {
                Err(Next::Stop(Status::Failed, format!("{}: {problem}", role.title)))
            }
        })
    }

    /// True if the journal has this effect for the current visit, possibly from an earlier process.
    fn has_begun(&self, effect: &str) -> Result<bool, PipelineError> {
        Ok(self.journal.look(&self.id, self.state.visit, effect)?.is_some())
    }

    /// Parses an answer that was accepted before a crash.
    fn taken(&self, step: &Step, asked: &Asked) -> Result<Map<String, Value>, PipelineError> {
        answer::extract(&asked.answer, &step.answer)
            .map_err(|problem| PipelineError::Strange(format!("the journal has another answer: {problem}")))
    }

    /// Makes one agent call. An interrupted call is repeated from the state in which it began.
    pub(crate) fn ask(
        &mut self,
        step: &Step,
        role: &Role,
        name: &str,
        mend: Option<(&str, &str)>,
    ) -> Result<Asked, PipelineError> {
        let asked: Asked = self.effect(
            &step.id,
            name,
            |runner| runner.question(step, role, mend),
            |runner, question, is_again| {
                if is_again {
                    runner.say(RUNNER, format!("{} was interrupted; asking again.", role.title));
                    runner.restore(Some(&question.tip))?;
                }
                runner.lay_out(step, question, mend.is_some())?;
                runner.call(&step.id, role, question)
            },
        )?;
        self.count(&step.id, asked.used);
        Ok(asked)
    }

    fn question(
        &mut self,
        step: &Step,
        role: &Role,
        mend: Option<(&str, &str)>,
    ) -> Result<Question, PipelineError> {
        self.setting.tree.is_there()?;
        let tip = self.setting.tree.tip()?.ok_or_else(|| self.branch_is_gone())?;
        let document = self.place(step);
        let mut prompt = self.prompt(step, role, document.as_deref())?;
        if let Some((problem, answer)) = mend {
            let mut from = answer.len().saturating_sub(MOST_QUOTED);
            while !answer.is_char_boundary(from) {
                from += 1;
            }
            prompt = format!(
                "{prompt}\n\n## You have done this already\nBut your answer cannot be used: {problem}. What you did is still there. Mend it, \
                 and answer again, with the JSON object at the end. Your answer was:\n\n{}\n",
                &answer[from..]
            );
        }
        // A committing role writes its document like every other file of the worktree.
        let document = document.filter(|_| role.work == Work::Read);
        Ok(Question { prompt, tip, document, writes: Vec::new() })
    }

    /// The path of the step's document in this round.
    pub(crate) fn place(&self, step: &Step) -> Option<String> {
        let document = step.document.as_ref()?;
        let n = self.state.rounds.get(&step.id).copied().unwrap_or(1);
        Some(self.setting.workflow.place_of(&document.path, &self.setting.feat, n))
    }

    fn prompt(&mut self, step: &Step, role: &Role, document: Option<&str>) -> Result<String, PipelineError> {
        let template = Template::read(&step.prompt).map_err(|wrong| {
            PipelineError::Strange(format!("the prompt of {}: {}", step.id, wrong.message))
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
        let tests = self.tests_command().ok().flatten();
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
        let more = "\n(This is not all of it: it is too long. Look at the rest with the command above.)\n";
        Ok(format!("{text}{}", if is_all { "" } else { more }))
    }

    /// The user's notes for the agents: from their working tree, or from the base branch.
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
        Ok(documents::relevant(&text, &self.request, memory.tokens))
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
    fn lay_out(&mut self, step: &Step, question: &Question, is_mended: bool) -> Result<(), PipelineError> {
        let (Some(document), Some(place)) = (&step.document, &question.document) else { return Ok(()) };
        let worktree = self.setting.tree.worktree.clone();
        let aside = self.task_store.folder(&self.id).join("aside");
        let failed = |source| PipelineError::Io { path: worktree.join(place), source };
        documents::clear(&worktree, place, &aside).map_err(failed)?;
        let is_own = is_mended || self.state.documents.get(&document.name) == Some(place);
        let there = documents::read(&worktree, place).map_err(failed)?;
        if there.is_none() || !is_own {
            documents::write(&worktree, place, "").map_err(failed)?;
        }
        Ok(())
    }

    /// Calls the agent in its role's sandbox, within the step's remaining budget.
    pub(crate) fn call(
        &mut self,
        step: &str,
        role: &Role,
        question: &Question,
    ) -> Result<Asked, PipelineError> {
        let tree = self.setting.tree.clone();
        let request = self.request_of(step, role, question);
        let title = role.title.clone();
        let (see, cancel) = (&mut *self.see, &self.cancel);
        let result = self.task_store.executor.execute(&request, cancel, &mut |event| {
            let data = json!({ "who": title, "event": event.event_type, "data": event.data });
            see(TaskEvent::new(EventType::TaskAgent, event.message, data));
        });
        if self.cancel.is_set() {
            return Err(PipelineError::Interrupted);
        }
        let after = tree.tip()?.unwrap_or_default();
        let mut asked = asked(&result, question.tip.clone(), after);
        if asked.error.as_ref().is_some_and(|(kind, _)| *kind == ErrorKind::Timeout) {
            // A timed-out call used its whole time, whatever was measured.
            asked.used.agent_ms = asked.used.agent_ms.max(request.max_duration.saturating_mul(1000));
        }
        Ok(asked)
    }

    fn request_of(&self, step: &str, role: &Role, question: &Question) -> ExecRequest {
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
        if let Some(minutes) = self.left(step, "minutes") {
            let seconds = (minutes * 60.0).ceil().max(1.0) as u64;
            if seconds < request.max_duration {
                // A retry would need the same time again, and none is left.
                request.max_duration = seconds;
                request.max_retries = 0;
            }
        }
        let left = self.left(step, "tokens").map(|left| (left as u64).max(1));
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

fn asked(result: &ExecResult, before: String, after: String) -> Asked {
    let run = &result.run;
    // Include the usage of failed attempts.
    let models = || result.attempts.iter().filter_map(|attempt| attempt.model.as_ref());
    let error = run.error_kind.map(|kind| (kind, run.error.clone().unwrap_or_default()));
    Asked {
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

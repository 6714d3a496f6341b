//! A step that an agent does: it is asked, its answer is read, what it claims is looked at, and what it left is committed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::answer;
use super::papers;
use super::runner::{Next, PhaseError, Runner};
use super::task::{RUNNER, Status, TaskEvent, Used};
use super::template::{Template, sentence};
use super::workflow::{BACK, Is, Role, Step, Work};
use crate::executor::{ExecRequest, ExecResult};
use crate::workspace::StepCommit;

/// How much of a diff is put into a prompt.
const MOST_DIFF: usize = 192 << 10;
/// How much of an answer is put into a request to mend it.
const MOST_QUOTED: usize = 16 << 10;

/// What an agent is to be asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Question {
    prompt: String,
    /// Where the branch was.
    tip: String,
    /// The one file it may write.
    document: Option<String>,
}

/// What it answered.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Asked {
    answer: String,
    run_id: String,
    /// Kind and words.
    error: Option<(String, String)>,
    used: Used,
    /// Where the branch was before, and is.
    before: String,
    after: String,
}

/// A commit of the runner's own: what, and with which files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Papers {
    pub(super) commit: StepCommit,
    pub(super) changes: Vec<(String, Option<String>)>,
}

impl Runner<'_> {
    pub(super) fn role_step(&mut self, step: &Step, role: &str) -> Result<Next, PhaseError> {
        let strange = || PhaseError::Strange(format!("there is no role `{role}`"));
        let role = self.setting.workflow.roles.get(role).cloned().ok_or_else(strange)?;
        let is_persons = step.gate.as_ref().is_some_and(|gate| self.setting.gates.contains(gate));
        let answer = if is_persons {
            match self.persons_answer(step)? {
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

    /// Asks, reads, and once asks to mend what cannot be used.
    fn agents_answer(
        &mut self,
        step: &Step,
        role: &Role,
    ) -> Result<Result<Map<String, Value>, Next>, PhaseError> {
        self.say(RUNNER, format!("Spawning {}...", role.title));
        let asked = self.ask(step, role, "agent", None)?;
        let problem = match self.judge(step, role, &asked)? {
            Judged::Fine(answer) => return Ok(Ok(answer)),
            Judged::Over(stop) => return Ok(Err(stop)),
            Judged::Wrong(problem) => problem,
        };
        self.say(RUNNER, format!("{}'s answer cannot be used ({problem}). Asking once more.", role.title));
        let again = self.ask(step, role, "repair", Some((&problem, &asked.answer)))?;
        // Who commits has done so in both calls; who reads looked anew.
        let before = if role.work == Work::Commit { asked.before } else { again.before.clone() };
        let again = Asked { before, ..again };
        Ok(match self.judge(step, role, &again)? {
            Judged::Fine(answer) => Ok(answer),
            Judged::Over(stop) => Err(stop),
            Judged::Wrong(problem) => Err(Next::Stop(Status::Failed, format!("{}: {problem}", role.title))),
        })
    }

    /// One call of the agent. Interrupted, it is made again from where it began.
    fn ask(
        &mut self,
        step: &Step,
        role: &Role,
        name: &str,
        mend: Option<(&str, &str)>,
    ) -> Result<Asked, PhaseError> {
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
                runner.call(role, question)
            },
        )?;
        self.count(asked.used);
        Ok(asked)
    }

    /// Counts what a call used. One that is written down counts once, also when its step is gone through again after a crash:
    /// the state of the task is that of the step's beginning then.
    fn count(&mut self, more: Used) {
        let used = self.state.used;
        self.state.used = Used {
            tokens: used.tokens + more.tokens,
            cost: used.cost + more.cost,
            agent_ms: used.agent_ms + more.agent_ms,
            calls: used.calls + more.calls,
        };
    }

    fn question(
        &mut self,
        step: &Step,
        role: &Role,
        mend: Option<(&str, &str)>,
    ) -> Result<Question, PhaseError> {
        let tree = &self.setting.tree;
        let tip =
            tree.tip()?.ok_or_else(|| PhaseError::Strange(format!("the branch {} is gone", tree.branch)))?;
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
        Ok(Question { prompt, tip, document })
    }

    /// Where the step's document goes, this time.
    fn place(&self, step: &Step) -> Option<String> {
        let document = step.document.as_ref()?;
        let n = self.state.rounds.get(&step.id).copied().unwrap_or(1);
        Some(self.setting.workflow.place_of(&document.path, &self.setting.feat, n))
    }

    fn prompt(&mut self, step: &Step, role: &Role, document: Option<&str>) -> Result<String, PhaseError> {
        let template = Template::read(&step.prompt)
            .map_err(|wrong| PhaseError::Strange(format!("the prompt of {}: {}", step.id, wrong.message)))?;
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

    /// What every prompt and sentence can say.
    pub(super) fn values(&self, role: &Role) -> BTreeMap<String, String> {
        let setting = &self.setting;
        let mut values = self.state.documents.clone();
        let tests = setting.tests.as_ref().map(shell_words::join).unwrap_or_default();
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

    fn diff(&self) -> Result<String, PhaseError> {
        let base = format!("refs/heads/{}", self.setting.workflow.base);
        let (text, is_all) = self.setting.tree.diff(&base, MOST_DIFF)?;
        let more = "\n(This is not all of it: it is too long. Look at the rest with the command above.)\n";
        Ok(format!("{text}{}", if is_all { "" } else { more }))
    }

    /// What a person wrote down for the agents: in their own working tree, or at the base.
    fn notes(&self) -> Result<String, PhaseError> {
        let Some(file) = &self.setting.workflow.notes else { return Ok(String::new()) };
        let path = format!("{}/{file}", self.setting.workflow.documents);
        let own = self.repository.toplevel.as_ref().and_then(|top| papers::read(top, &path).ok().flatten());
        if let Some(text) = own {
            return Ok(text);
        }
        let committed = self.setting.tree.file_at(&self.setting.tree.base, &path)?;
        Ok(committed.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default())
    }

    fn memory(&self) -> Result<String, PhaseError> {
        let Some(memory) = &self.setting.workflow.memory else { return Ok(String::new()) };
        let text = self.committed(&memory.file)?;
        Ok(papers::relevant(&text, &self.request, memory.tokens))
    }

    /// A file below the documents, as it is on the branch.
    fn committed(&self, file: &str) -> Result<String, PhaseError> {
        let path = format!("{}/{file}", self.setting.workflow.documents);
        let found = self.setting.tree.file_at(&self.setting.tree.branch, &path)?;
        Ok(found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default())
    }

    /// Makes the one file that the agent may write: the kernel can only open what is there. What lies there and is not the
    /// step's own is nobody's: an earlier role could have written another's document beforehand.
    fn lay_out(&mut self, step: &Step, question: &Question, is_mended: bool) -> Result<(), PhaseError> {
        let (Some(document), Some(place)) = (&step.document, &question.document) else { return Ok(()) };
        let worktree = self.setting.tree.worktree.clone();
        let aside = self.office.folder(&self.id).join("aside");
        let failed = |source| PhaseError::Io { path: worktree.join(place), source };
        papers::clear(&worktree, place, &aside).map_err(failed)?;
        let is_own = is_mended || self.state.documents.get(&document.name) == Some(place);
        let there = papers::read(&worktree, place).map_err(failed)?;
        if there.is_none() || !is_own {
            papers::write(&worktree, place, "").map_err(failed)?;
        }
        Ok(())
    }

    /// Asks the agent, in the sandbox its role has.
    fn call(&mut self, role: &Role, question: &Question) -> Result<Asked, PhaseError> {
        let tree = self.setting.tree.clone();
        let request = self.request_of(role, question);
        let title = role.title.clone();
        let (see, cancel) = (&mut *self.see, &self.cancel);
        let result = self.office.executor.execute(&request, cancel, &mut |event| {
            let data = json!({ "who": title, "event": event.event_type, "data": event.data });
            see(TaskEvent::new("task.agent", event.message, data));
        });
        if self.cancel.is_set() {
            return Err(PhaseError::Interrupted);
        }
        let after = tree.tip()?.unwrap_or_default();
        Ok(asked(&result, question.tip.clone(), after))
    }

    fn request_of(&self, role: &Role, question: &Question) -> ExecRequest {
        let setting = &self.setting;
        let (agent, own) = (setting.workflow.agent_of(role), &setting.agent);
        let name = if own.name.is_empty() { agent.name.clone() } else { own.name.clone() };
        let limits = self.limits();
        let mut request = ExecRequest::new(question.prompt.clone(), setting.tree.worktree.clone());
        request.agent = Some(name);
        request.command = own.command.clone().or(agent.command).into_iter().collect();
        request.model = own.model.clone().or(agent.model);
        request.policy = Some(role.policy.clone());
        request.timeout = own.timeout.or(agent.timeout).unwrap_or(request.timeout);
        request.max_duration = own.max_duration.or(agent.max_duration).unwrap_or(request.max_duration);
        request.max_retries = own.retries.or(agent.retries).unwrap_or(request.max_retries);
        let left = limits.tokens.map(|bound| bound.saturating_sub(self.state.used.tokens).max(1));
        request.max_tokens = [left, agent.max_tokens].into_iter().flatten().min();
        match role.work {
            Work::Read => request.in_place = true,
            Work::Commit => request.here = true,
        }
        let document = question.document.as_ref().map(|path| setting.tree.worktree.join(path));
        request.write = document.into_iter().collect();
        request
    }

    /// Whether what came back is what was asked for.
    fn judge(&mut self, step: &Step, role: &Role, asked: &Asked) -> Result<Judged, PhaseError> {
        if let Some((kind, words)) = &asked.error {
            let status = match kind.as_str() {
                "budget_exhausted" => Status::BudgetExhausted,
                _ => Status::Failed,
            };
            return Ok(Judged::Over(Next::Stop(status, format!("{}: {kind}: {words}", role.title))));
        }
        if role.work == Work::Read && asked.before != asked.after {
            return Ok(Judged::Wrong("the branch was moved while it looked".to_string()));
        }
        let answer = match answer::extract(&asked.answer, &step.answer) {
            Ok(answer) => answer,
            Err(problem) => return Ok(Judged::Wrong(problem.to_string())),
        };
        let problem = match self.untrue(step, role, asked, &answer)? {
            None => self.dishonest(&answer),
            problem => problem,
        };
        Ok(problem.map_or_else(|| Judged::Fine(answer), Judged::Wrong))
    }

    /// A claim that is not so.
    fn untrue(
        &mut self,
        step: &Step,
        role: &Role,
        asked: &Asked,
        answer: &Map<String, Value>,
    ) -> Result<Option<String>, PhaseError> {
        let text = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or_default().trim();
        if let (Some(document), Some(place)) = (&step.document, self.place(step)) {
            for (name, _) in step.answer.iter().filter(|(_, field)| field.is == Is::Document) {
                let claimed = text(name);
                let worktree = format!("{}/", self.setting.tree.worktree.display());
                let plain = claimed.strip_prefix(&worktree).unwrap_or(claimed).trim_start_matches("./");
                if plain != place {
                    return Ok(Some(format!("`{name}` must be `{place}`, and is `{claimed}`")));
                }
            }
            let written = papers::read(&self.setting.tree.worktree, &place)
                .map_err(|source| PhaseError::Io { path: self.setting.tree.worktree.join(&place), source })?;
            let lacks = papers::missing(document, written.as_deref().unwrap_or_default());
            if let Some(lacks) = lacks.filter(|_| !document.optional) {
                return Ok(Some(format!("the document `{place}` {lacks}")));
            }
        }
        for (name, _) in step.answer.iter().filter(|(_, field)| field.is == Is::Commit) {
            if let Some(problem) = self.no_commit(name, text(name), asked)? {
                return Ok(Some(problem));
            }
        }
        if step.must_merge
            && let Some(problem) = self.not_merged(&asked.after)?
        {
            return Ok(Some(problem));
        }
        if role.work == Work::Commit {
            return self.unfinished(step, role, asked);
        }
        Ok(None)
    }

    /// What is wrong with work on the code: it touches documents of other roles, leaves things, or fails its tests.
    fn unfinished(&mut self, step: &Step, role: &Role, asked: &Asked) -> Result<Option<String>, PhaseError> {
        let workflow = &self.setting.workflow;
        let changed = self.setting.tree.changed_below(&asked.before, &asked.after, &workflow.documents)?;
        if let Some(path) = changed.iter().find(|path| self.is_a_document(path, step.must_merge)) {
            return Ok(Some(format!(
                "`{path}` is another role's document and not yours to change; put it back as it was"
            )));
        }
        if let Some(path) = self.setting.tree.no_folder(&asked.after, &workflow.ways())? {
            return Ok(Some(format!(
                "`{path}` must be a folder, or not be there: documents are kept below it"
            )));
        }
        if !step.must_merge && self.setting.tree.has_merges(&asked.before, &asked.after)? {
            return Ok(Some(
                "there is a merge among the commits, and merging is not this step's".to_string(),
            ));
        }
        let left = self.setting.tree.uncommitted()?;
        if !left.is_empty() {
            let some: Vec<&str> = left.iter().take(5).map(String::as_str).collect();
            return Ok(Some(format!("{} files are not committed: {}", left.len(), some.join(", "))));
        }
        let problem = self.failing_tests(step, role)?;
        if self.setting.tests.is_some() {
            // Tests are the agent's own code: whatever they changed is not what was committed.
            self.restore(Some(&asked.after))?;
        }
        Ok(problem)
    }

    /// Whether a path is where some step's document of this task is, or could be, or what the runner keeps for everybody.
    /// In a merge that is everybody's: both sides may have written to it.
    fn is_a_document(&self, path: &str, is_merge: bool) -> bool {
        let workflow = &self.setting.workflow;
        let memory = workflow.memory.as_ref().map(|memory| &memory.file);
        let shared = [workflow.backlog.as_ref(), memory, workflow.notes.as_ref()].into_iter().flatten();
        let mut shared = shared.map(|file| format!("{}/{file}", workflow.documents));
        if shared.any(|file| path.eq_ignore_ascii_case(&file)) {
            return !is_merge;
        }
        workflow.steps.iter().filter_map(|step| step.document.as_ref()).any(|document| {
            let place =
                format!("{}/{}", workflow.documents, document.path.replace("{feat}", &self.setting.feat));
            match place.split_once("{n}") {
                None => path.eq_ignore_ascii_case(&place),
                Some((head, tail)) => {
                    let (path, head, tail) = (path.to_lowercase(), head.to_lowercase(), tail.to_lowercase());
                    path.starts_with(&head) && path.ends_with(&tail)
                }
            }
        })
    }

    fn no_commit(&self, name: &str, claimed: &str, asked: &Asked) -> Result<Option<String>, PhaseError> {
        let tree = &self.setting.tree;
        let is_hash = claimed.len() >= 7 && claimed.bytes().all(|byte| byte.is_ascii_hexdigit());
        let found = if is_hash { tree.commit_named(claimed)? } else { None };
        let Some(commit) = found else {
            return Ok(Some(format!("`{name}`: there is no commit `{claimed}`")));
        };
        if !tree.contains(&tree.branch, &commit)? {
            return Ok(Some(format!("`{name}`: the commit {claimed} is not on {}", tree.short_branch())));
        }
        if tree.contains(&asked.before, &commit)? {
            return Ok(Some(format!("`{name}`: the commit {claimed} is older than this step")));
        }
        Ok(None)
    }

    fn not_merged(&self, after: &str) -> Result<Option<String>, PhaseError> {
        let (tree, base) = (&self.setting.tree, &self.setting.workflow.base);
        let wanted = tree.commit_named(&format!("refs/heads/{base}"))?.unwrap_or_default();
        if !tree.contains(after, &wanted)? {
            return Ok(Some(format!("{base} is not merged: {wanted} is not among the branch's commits")));
        }
        for file in &self.state.conflict_files {
            let content = tree.file_at(after, file)?.unwrap_or_default();
            let text = String::from_utf8_lossy(&content);
            if text.lines().any(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ")) {
                return Ok(Some(format!("{file} still has conflict markers")));
            }
        }
        Ok(None)
    }

    /// The tests that the user named, run by the runner: in the sandbox of the role that wrote them.
    fn failing_tests(&mut self, step: &Step, role: &Role) -> Result<Option<String>, PhaseError> {
        let Some(words) = self.setting.tests.clone() else { return Ok(None) };
        self.say(RUNNER, format!("Running {}...", shell_words::join(&words)));
        let mut request = ExecRequest::new("", self.setting.tree.worktree.clone());
        request.agent = Some("generic".to_string());
        request.command = words;
        request.policy = Some(role.policy.clone());
        request.max_retries = 0;
        request.here = true;
        let result = self.office.executor.execute(&request, &self.cancel, &mut |_| {});
        if self.cancel.is_set() {
            return Err(PhaseError::Interrupted);
        }
        let data = json!({ "step": step.id, "success": result.run.success, "run_id": result.run.run_id });
        (self.see)(TaskEvent::new("task.tests", if result.run.success { "passed" } else { "failed" }, data));
        if result.run.success {
            return Ok(None);
        }
        let lines: Vec<&str> = result.run.result.lines().rev().take(20).collect();
        let last = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
        Ok(Some(format!("the tests fail: {}\n{last}", result.run.error.unwrap_or_default())))
    }

    /// A success that what is said beside it takes back.
    fn dishonest(&self, answer: &Map<String, Value>) -> Option<String> {
        let remark = answer::remark(answer)?.to_lowercase();
        let word = self.setting.workflow.honesty.iter().find(|word| remark.contains(word.as_str()))?;
        Some(format!("it claims success, and its feedback says `{word}`"))
    }

    /// What a person has decided at this gate.
    fn persons_answer(&mut self, step: &Step) -> Result<Option<Map<String, Value>>, PhaseError> {
        let decision = self.journal.decision(&self.id, self.state.visit)?;
        Ok(decision.map(|decision| {
            let mut answer = Map::new();
            answer.insert("verdict".to_string(), json!(decision.verdict));
            if !decision.feedback.is_empty() {
                answer.insert("feedback".to_string(), json!(decision.feedback));
            }
            answer.insert("decided_by".to_string(), json!("a person"));
            let _ = step;
            answer
        }))
    }

    fn waiting(&self, step: &Step) -> String {
        format!(
            "waiting for a person at the gate {}: `guard task approve {id}` or `guard task reject {id} --feedback …`, then `guard task resume {id}`",
            step.gate.as_deref().unwrap_or(&step.id),
            id = self.id
        )
    }

    /// Says what came of it, commits what it left, and decides where it leads.
    fn conclude(
        &mut self,
        step: &Step,
        role: &Role,
        answer: &Map<String, Value>,
    ) -> Result<Next, PhaseError> {
        let place = self.place(step);
        if let (Some(document), Some(place)) = (&step.document, &place) {
            self.state.documents.insert(document.name.clone(), place.clone());
        }
        let word =
            answer.get("verdict").and_then(Value::as_str).filter(|word| step.verdicts.contains_key(*word));
        let said = answer.get("feedback").and_then(Value::as_str).unwrap_or_default().to_string();
        let mut values = self.values(role);
        values.insert("feedback".to_string(), said.clone());
        for (name, field) in &step.answer {
            let text = answer.get(name).and_then(Value::as_str).unwrap_or_default();
            values.insert(name.clone(), text.to_string());
            if field.is == Is::Commit {
                values.insert("commit".to_string(), text.chars().take(7).collect());
            }
        }
        let says =
            word.map_or(step.says.as_ref(), |word| step.verdicts.get(word).and_then(|one| one.says.as_ref()));
        if let Some(says) = says {
            let line = sentence(says, &values);
            self.say(&role.title, line);
        }
        self.commit_papers(step, word, answer)?;
        self.triage(step, role, answer)?;
        let to = Self::way(step, word)?;
        let goes_back = to == BACK || self.state.rounds.contains_key(&to);
        if word.is_none() || !goes_back {
            return Ok(Next::Go { to, feedback: String::new() });
        }
        let feedback = match &place {
            Some(place) => format!("The review is at `{place}`.\n{said}"),
            None => said,
        };
        if let Some(stop) = self.goes_round(step, &feedback)? {
            return Ok(stop);
        }
        Ok(Next::Go { to, feedback })
    }

    /// A gate that says the same again, or about the same: nothing would come of another round.
    fn goes_round(&mut self, step: &Step, feedback: &str) -> Result<Option<Next>, PhaseError> {
        let workflow = &self.setting.workflow;
        let (base, reviews) =
            (format!("refs/heads/{}", workflow.base), format!("{}/reviews", workflow.documents));
        let about = digest(&self.setting.tree.changed_outside(&base, &reviews)?);
        let written = self
            .place(step)
            .and_then(|place| papers::read(&self.setting.tree.worktree, &place).ok().flatten());
        // The path differs from round to round; what was said does not.
        let words = feedback.lines().skip(1).collect::<Vec<_>>().join("\n");
        let said = digest(format!("{words}\n{}", written.unwrap_or_default()).as_bytes());
        let last = self.state.said.insert(step.id.clone(), (said.clone(), about.clone()));
        Ok(last.and_then(|(last_said, last_about)| {
            let why = match (last_said == said, last_about == about) {
                (true, _) => "said the same twice",
                (_, true) => "was asked about the same twice: nothing had changed",
                _ => return None,
            };
            Some(Next::Stop(Status::NeedsHuman, format!("the step {} {why}", step.id)))
        }))
    }

    /// Commits the step's document, and what the answer has for everybody.
    fn commit_papers(
        &mut self,
        step: &Step,
        word: Option<&str>,
        answer: &Map<String, Value>,
    ) -> Result<(), PhaseError> {
        let intent = |runner: &mut Self| -> Result<Papers, PhaseError> {
            let mut changes = runner.shared_papers(answer)?;
            if let (Some(_), Some(place)) = (&step.document, runner.place(step)) {
                let written = papers::read(&runner.setting.tree.worktree, &place).map_err(|source| {
                    PhaseError::Io { path: runner.setting.tree.worktree.join(&place), source }
                })?;
                // What a person decided is in their words, whatever lies there.
                let is_persons = answer.contains_key("decided_by");
                let text = written.filter(|text| !text.trim().is_empty() && !is_persons);
                // A step always leaves something.
                let text = text.unwrap_or_else(|| runner.decision(step, word, answer));
                changes.push((place, Some(text)));
            }
            let what = step.commit.clone().unwrap_or_else(|| "Notes".to_string());
            let verdict = word.map(|word| format!(": {word}")).unwrap_or_default();
            let subject = format!("{what}: {}{verdict}", runner.setting.feat);
            Ok(Papers { commit: runner.step_commit(step, &subject)?, changes })
        };
        let label = step.commit.clone();
        let done: Option<String> = self.effect(&step.id, "commit", intent, |runner, papers, _| {
            if papers.changes.is_empty() {
                return Ok(None);
            }
            runner.put(papers).map(Some)
        })?;
        if done.is_some()
            && let Some(label) = label
        {
            self.say(RUNNER, format!("Committing {label}... OK."));
        }
        Ok(())
    }

    /// What the runner writes where the agent wrote nothing.
    fn decision(&self, step: &Step, word: Option<&str>, answer: &Map<String, Value>) -> String {
        let object = serde_json::to_string_pretty(answer).unwrap_or_default();
        format!("# {}: {}\n\n```json\n{object}\n```\n", step.status, word.unwrap_or("done"))
    }

    /// Backlog and lessons, with what is new.
    fn shared_papers(
        &self,
        answer: &Map<String, Value>,
    ) -> Result<Vec<(String, Option<String>)>, PhaseError> {
        let workflow = &self.setting.workflow;
        let mut changes = Vec::new();
        let lists = [
            (workflow.backlog.as_ref(), "Backlog", "backlog_items"),
            (workflow.memory.as_ref().map(|memory| &memory.file), "Agent Memory", "lessons"),
        ];
        for (file, title, key) in lists {
            let (Some(file), items) = (file, answer::list(answer, key)) else { continue };
            if let Some(text) = papers::appended(&self.committed(file)?, title, &items) {
                changes.push((format!("{}/{file}", workflow.documents), Some(text)));
            }
        }
        Ok(changes)
    }

    /// A commit of the runner's own, on top of the branch.
    pub(super) fn step_commit(&self, step: &Step, subject: &str) -> Result<StepCommit, PhaseError> {
        let tree = &self.setting.tree;
        let parent =
            tree.tip()?.ok_or_else(|| PhaseError::Strange(format!("the branch {} is gone", tree.branch)))?;
        let message =
            format!("{subject}\n\nGuard-Task: {}\nGuard-Step: {} {}\n", self.id, self.state.visit, step.id);
        let date = format!("{} +0000", jiff::Timestamp::now().as_second());
        Ok(StepCommit { parent, merges: None, tree: None, message, who: self.setting.who.clone(), date })
    }

    /// Writes the files and commits them. Done again it is the same.
    pub(super) fn put(&mut self, papers: &Papers) -> Result<String, PhaseError> {
        let tree = self.setting.tree.clone();
        for (path, text) in &papers.changes {
            let place = tree.worktree.join(path);
            let written = match text {
                Some(text) => papers::write(&tree.worktree, path, text),
                None => papers::remove(&tree.worktree, path),
            };
            written.map_err(|source| PhaseError::Io { path: place, source })?;
        }
        let bytes =
            |(path, text): &(String, Option<String>)| (path.clone(), text.clone().map(String::into_bytes));
        let changes: Vec<(String, Option<Vec<u8>>)> = papers.changes.iter().map(bytes).collect();
        let id = tree.commit(&papers.commit, &changes)?;
        let subject = papers.commit.message.lines().next().unwrap_or_default().to_string();
        (self.see)(TaskEvent::new("task.commit", subject, json!({ "commit": id })));
        Ok(id)
    }

    /// What was said beside the result goes to whoever decides about it.
    fn triage(&mut self, step: &Step, role: &Role, answer: &Map<String, Value>) -> Result<(), PhaseError> {
        let (Some(triage), Some(remark)) = (self.setting.workflow.triage.clone(), answer::remark(answer))
        else {
            return Ok(());
        };
        let Some(judge) = self.setting.workflow.roles.get(&triage.role).cloned() else { return Ok(()) };
        self.say(&role.title, format!("Feedback: {}", remark.lines().next().unwrap_or_default()));
        let asked: Asked = self.effect(
            &step.id,
            "triage",
            |runner| {
                let template =
                    Template::read(&triage.prompt).map_err(|wrong| PhaseError::Strange(wrong.message))?;
                let mut values = runner.values(&judge);
                values.insert("feedback".to_string(), remark.clone());
                values.insert("answer_format".to_string(), answer::format(&triage.answer, None));
                let tip = runner.setting.tree.tip()?.unwrap_or_default();
                Ok(Question { prompt: template.fill(&values), tip, document: None })
            },
            |runner, question, _| runner.call(&judge, question),
        )?;
        self.count(asked.used);
        let decided = answer::extract(&asked.answer, &triage.answer).ok();
        let decision = decided
            .as_ref()
            .and_then(|answer| answer.get("decision"))
            .and_then(Value::as_str)
            .unwrap_or("BACKLOG");
        self.say(&judge.title, format!("Feedback: {decision}."));
        if decision == "IGNORE" {
            return Ok(());
        }
        // What should be written down and cannot be decided about stays visible too.
        let note =
            decided.as_ref().and_then(|answer| answer.get("note")).and_then(Value::as_str).unwrap_or(&remark);
        let item = if decision == "DOCS" { format!("Documentation: {note}") } else { note.to_string() };
        let shared = Map::from_iter([("backlog_items".to_string(), json!([item]))]);
        let _: Option<String> = self.effect(
            &step.id,
            "triage-commit",
            |runner| {
                let changes = runner.shared_papers(&shared)?;
                Ok(Papers {
                    commit: runner.step_commit(step, &format!("Backlog: {}", runner.setting.feat))?,
                    changes,
                })
            },
            |runner, papers, _| {
                if papers.changes.is_empty() { Ok(None) } else { runner.put(papers).map(Some) }
            },
        )?;
        Ok(())
    }
}

/// What became of an answer.
enum Judged {
    Fine(Map<String, Value>),
    /// It can be mended.
    Wrong(String),
    /// It cannot.
    Over(Next),
}

fn asked(result: &ExecResult, before: String, after: String) -> Asked {
    let run = &result.run;
    let model = run.usage.model.clone().unwrap_or_default();
    let error = run.error_kind.clone().map(|kind| (kind, run.error.clone().unwrap_or_default()));
    Asked {
        answer: run.result.clone(),
        run_id: run.run_id.clone(),
        error: error.filter(|_| !run.success),
        used: Used {
            tokens: model.input_tokens + model.output_tokens,
            cost: model.cost,
            agent_ms: run.duration_ms,
            calls: 1,
        },
        before,
        after,
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

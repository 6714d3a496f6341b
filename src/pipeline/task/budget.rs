//! The budget of a task and its steps: limits, usage, and when a limit stops the task. A task stopped by a
//! limit can be resumed.

use super::state::{LimitOverrides, RUNNER, Status, Used};
use crate::pipeline::runner::{PipelineError, Runner};
use crate::pipeline::workflow::model::{Bounds, StepExecutor};

/// One limit, and how much of it is used.
struct Account {
    /// The step; `None` for the whole task.
    step: Option<String>,
    name: &'static str,
    used: f64,
    bound: f64,
}

impl Account {
    fn of(step: Option<&str>, used: Used, bounds: Bounds) -> Vec<Self> {
        let account = |name, used, bound: Option<f64>| {
            bound.map(|bound| Self { step: step.map(str::to_string), name, used, bound })
        };
        let all = [
            account("tokens", used.tokens as f64, bounds.tokens.map(|bound| bound as f64)),
            account("cost", used.cost, bounds.cost),
            account("minutes", used.agent_ms as f64 / 60_000.0, bounds.minutes),
        ];
        all.into_iter().flatten().collect()
    }

    fn whose(&self) -> String {
        self.step.as_ref().map_or_else(|| "the task".to_string(), |step| format!("the step {step}"))
    }

    /// Formats an amount of the resource.
    fn amount(&self, amount: f64) -> String {
        match self.name {
            "tokens" => format!("{amount:.0}"),
            _ => format!("{amount:.2}"),
        }
    }

    /// Says that the limit is reached, and how to continue.
    fn limit_message(&self, id: &str) -> String {
        let more = self.step.as_ref().map(|step| format!("{step}=")).unwrap_or_default();
        format!(
            "{} has used {} of {} {}; `guard task resume {id} --max-{} {more}N` raises the limit",
            self.whose(),
            self.amount(self.used),
            self.amount(self.bound),
            self.name,
            self.name
        )
    }
}

impl Runner<'_> {
    /// Sets another test command; an empty one runs no tests.
    pub fn set_tests(&mut self, words: Vec<String>) -> Result<(), PipelineError> {
        self.state.tests = Some(words);
        self.save_progress(Status::Running, "")
    }

    /// Raises the limits of the task or of its steps.
    pub fn raise_limits(&mut self, more: LimitOverrides) -> Result<(), PipelineError> {
        for step in more.steps.keys() {
            if self.setting.workflow.step(step).is_none() {
                return Err(PipelineError::Strange(format!("the workflow has no step `{step}`")));
            }
        }
        let raised = &mut self.state.raised;
        raised.task = more.task.or(raised.task);
        for (step, bounds) in more.steps {
            let known = raised.steps.entry(step).or_default();
            *known = bounds.or(*known);
        }
        self.save_progress(Status::Running, "")
    }

    /// The task's limits in force.
    pub(crate) fn bounds(&self) -> Bounds {
        let limits = &self.setting.workflow.limits;
        self.state.raised.task.or(Bounds {
            tokens: limits.tokens,
            cost: limits.cost,
            minutes: limits.minutes,
            rounds: Some(limits.rounds),
        })
    }

    /// A step's limits in force.
    fn bounds_of(&self, step: &str) -> Bounds {
        let workflow = &self.setting.workflow;
        let raised = self.state.raised.steps.get(step).copied().unwrap_or_default();
        let own = workflow.step(step).map(|step| step.limits).unwrap_or_default();
        raised.or(own).or(workflow.limits.step)
    }

    /// Every limit on an agent call of this step: the task's, and the step's own if an agent performs it.
    fn accounts(&self, step: &str) -> Vec<Account> {
        let mut all = Account::of(None, self.state.used, self.bounds());
        let doer = self.setting.workflow.step(step).map(|step| &step.doer);
        if matches!(doer, Some(StepExecutor::Role(_))) {
            let used = self.state.used_by.get(step).copied().unwrap_or_default();
            all.extend(Account::of(Some(step), used, self.bounds_of(step)));
        }
        all
    }

    /// A message about the first limit that is reached, of the task or the step.
    pub(crate) fn exhausted_limit(&self, step: &str) -> Option<String> {
        let accounts = self.accounts(step);
        let over = accounts.iter().find(|account| account.used >= account.bound)?;
        Some(over.limit_message(&self.id))
    }

    /// The smallest remainder of a resource for one more call.
    pub(crate) fn remaining(&self, step: &str, name: &str) -> Option<f64> {
        let accounts = self.accounts(step).into_iter().filter(|account| account.name == name);
        accounts.map(|account| (account.bound - account.used).max(0.0)).min_by(f64::total_cmp)
    }

    /// Adds the usage of a call. A call in the journal counts once, even if its step is replayed after a
    /// crash: the replay starts from the task's state at the beginning of the step.
    pub(crate) fn add_usage(&mut self, step: &str, more: Used) {
        self.state.used += more;
        *self.state.used_by.entry(step.to_string()).or_default() += more;
        let near = f64::from(self.setting.workflow.limits.warn_percent);
        for account in self.accounts(step) {
            let key = format!("{} {}", account.whose(), account.name);
            if account.used * 100.0 < account.bound * near || self.state.warned.contains(&key) {
                continue;
            }
            self.state.warned.push(key);
            let percent = account.used / account.bound * 100.0;
            let (name, whose) = (account.name, account.whose());
            self.announce(RUNNER, format!("Warning: {percent:.0} % of the {name} of {whose} are used."));
        }
    }

    /// The status and reason for stopping, if a limit is reached.
    pub(crate) fn reached_limit(&self) -> Option<(Status, String)> {
        let (step, id) = (&self.state.step, &self.id);
        let rounds = self.state.since.get(step).copied().unwrap_or(0);
        let most = self.bounds_of(step).or(self.bounds()).rounds.unwrap_or(1).max(1);
        if rounds > most {
            let reason = format!(
                "the step {step} was asked {} times without success; `guard task resume {id}` allows more",
                rounds - 1
            );
            return Some((Status::NeedsHuman, reason));
        }
        let visits = self.setting.workflow.limits.visits;
        if self.state.since.values().sum::<u32>() > visits {
            let reason =
                format!("the task took more than {visits} steps; `guard task resume {id}` allows more");
            return Some((Status::NeedsHuman, reason));
        }
        self.exhausted_limit(step).map(|reason| (Status::BudgetExhausted, reason))
    }
}

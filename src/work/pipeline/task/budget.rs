//! The budget of a task and its steps: the limits, the usage, and the check whether a limit is reached. A task stopped
//! by a limit can be resumed.

use super::state::{RUNNER, Status, Used};
use crate::work::pipeline::context::Task;
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::workflow::model::{Bounds, StepExecutor};

/// One limit on a resource, and how much of the resource is used.
struct Account {
    /// The step that the limit applies to; `None` if it applies to the whole task.
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

    /// Formats an amount of the limited resource.
    fn amount(&self, amount: f64) -> String {
        match self.name {
            "tokens" => format!("{amount:.0}"),
            _ => format!("{amount:.2}"),
        }
    }

    /// Returns the message for the user that the limit is reached, and how to raise it.
    fn limit_message(&self, id: &str) -> String {
        let more = self.step.as_ref().map(|step| format!("{step}=")).unwrap_or_default();
        let (whose, used, bound) = (self.whose(), self.amount(self.used), self.amount(self.bound));
        let reached = match self.name {
            "cost" => format!("{whose} has cost {used}, and its limit is {bound}"),
            name => format!("{whose} has used {used} of {bound} {name}"),
        };
        format!("{reached}; `guard task resume {id} --max-{} {more}N` raises the limit", self.name)
    }
}

/// Returns the limits on the whole task that are in force: those that the user raised, and otherwise the workflow's.
pub(crate) fn task_bounds(task: &Task) -> Bounds {
    let limits = &task.setting.workflow.limits;
    task.state.raised.task.or(Bounds {
        tokens: limits.tokens,
        cost: limits.cost,
        minutes: limits.minutes,
        rounds: Some(limits.rounds),
    })
}

/// Returns the limits in force on all agent calls of a step: those that the user raised, or else the step's
/// own, or else the workflow's limits for every step.
fn step_bounds(task: &Task, step: &str) -> Bounds {
    let workflow = &task.setting.workflow;
    let raised = task.state.raised.steps.get(step).copied().unwrap_or_default();
    let own = workflow.step(step).map(|step| step.limits).unwrap_or_default();
    raised.or(own).or(workflow.limits.step)
}

/// Returns every limit on an agent call of this step: the task's, and the step's own if an agent performs it.
fn accounts_of(task: &Task, step: &str) -> Vec<Account> {
    let mut all = Account::of(None, task.state.used, task_bounds(task));
    let doer = task.setting.workflow.step(step).map(|step| &step.doer);
    if matches!(doer, Some(StepExecutor::Role(_))) {
        let used = task.state.used_by.get(step).copied().unwrap_or_default();
        all.extend(Account::of(Some(step), used, step_bounds(task, step)));
    }
    all
}

/// Returns a message about the first limit of the task or the step that is reached; `None` if none is.
pub(crate) fn exhausted_limit(task: &Task, step: &str) -> Option<String> {
    let accounts = accounts_of(task, step);
    let over = accounts.iter().find(|account| account.used >= account.bound)?;
    Some(over.limit_message(&task.id))
}

/// Returns how much of the resource `name` one more call may use under all limits of the task and the step; `None` if
/// unlimited.
pub(crate) fn remaining_budget(task: &Task, step: &str, name: &str) -> Option<f64> {
    let accounts = accounts_of(task, step).into_iter().filter(|account| account.name == name);
    accounts.map(|account| (account.bound - account.used).max(0.0)).min_by(f64::total_cmp)
}

/// Adds the usage of a call to the task and the step, and warns the user once about each limit that is nearly reached.
/// A call in the journal counts only once, even if its step is replayed after a crash: the replay starts from the
/// task's state at the beginning of the step.
pub(crate) fn add_usage(context: &mut TaskContext<'_>, step: &str, more: Used) {
    context.task.state.used += more;
    *context.task.state.used_by.entry(step.to_string()).or_default() += more;
    let near = f64::from(context.task.setting.workflow.limits.warn_percent);
    for account in accounts_of(&context.task, step) {
        let key = format!("{} {}", account.whose(), account.name);
        if account.used * 100.0 < account.bound * near || context.task.state.warned.contains(&key) {
            continue;
        }
        context.task.state.warned.push(key);
        let percent = account.used / account.bound * 100.0;
        let (name, whose) = (account.name, account.whose());
        context
            .announce(RUNNER, format!("Warning: {whose} has used {percent:.0} % of its limit for {name}."));
    }
}

/// Returns the status and the reason with which the task stops if a limit on rounds, steps or resources is reached;
/// `None` if none is.
pub(crate) fn reached_limit(task: &Task) -> Option<(Status, String)> {
    let (step, id) = (&task.state.step, &task.id);
    let rounds = task.state.since.get(step).copied().unwrap_or(0);
    let most = step_bounds(task, step).or(task_bounds(task)).rounds.unwrap_or(1).max(1);
    if rounds > most {
        let times = if rounds == 2 { "once".to_string() } else { format!("{} times", rounds - 1) };
        let reason = format!(
            "the step {step} has run {times}, which is its limit; `guard task resume {id}` allows further rounds"
        );
        return Some((Status::NeedsHuman, reason));
    }
    let visits = task.setting.workflow.limits.visits;
    if task.state.since.values().sum::<u32>() > visits {
        let reason = format!(
            "the task has reached its limit on steps ({visits}); `guard task resume {id}` allows further steps"
        );
        return Some((Status::NeedsHuman, reason));
    }
    exhausted_limit(task, step).map(|reason| (Status::BudgetExhausted, reason))
}

//! The steps of a run, from its settings to its result: [`PreparedRun`] → [`OpenedRun`] → [`EndedRun`].

use crate::agents::adapter::{Profile, missing_key};
use crate::judge::policy::Config;
use crate::run::launch;
use crate::run::launch::{Finished, Keys, Launch, LaunchPlan, OutputReader, Planned, RunRequest, Streams};
use crate::run::settings::{RunSettings, WorktreeSettings};
use crate::run::transcript::Observer;
use crate::session::agent_run::AgentOutput;
use crate::session::caller::Caller;
use crate::session::configuration::CompleteSettings;
use crate::session::defaults::CommitWithoutFiles;
use crate::session::not_started::{NotStarted, Problem, result_before_start};
use crate::session::run_request::run_request;
use crate::session::run_workspace::{OpenedWorkspace, WorkspaceRequest};
use crate::session::{agent_run, keep_runs};
use crate::text::terminal_text;

/// A run that guard could start, and for which it has not created anything yet.
pub(crate) struct PreparedRun {
    settings: RunSettings,
    request: RunRequest,
    /// The agent that the command starts, if guard knows it.
    profile: Option<Profile>,
    keys: Keys,
    has_terminal: bool,
    new_commit: Option<CommitWithoutFiles>,
}

impl PreparedRun {
    /// Recognises the agent, and checks that nothing that it needs is missing. `complete` comes from
    /// [`with_defaults`](super::configuration::with_defaults).
    pub(crate) fn new(
        complete: CompleteSettings,
        (config, keys): (Config, Keys),
        caller: &Caller<'_>,
    ) -> Result<Self, NotStarted> {
        let CompleteSettings { settings, policy, new_commit } = complete;
        let has_terminal = caller.has_terminal;
        let profile = agent_run::detect(settings.agent.as_deref(), &settings.command, has_terminal, &config)?;
        let mut request = run_request(&settings, policy, config, &keys, profile.as_ref())?;
        request.options.is_attended = caller.is_attended;
        let mut run = Self { settings, request, profile, keys, has_terminal, new_commit };
        match run.check_and_complete(caller) {
            Ok(()) => Ok(run),
            Err(problem) => Err(NotStarted::before_plan(&run.request, problem)),
        }
    }

    fn check_and_complete(&mut self, caller: &Caller<'_>) -> Result<(), Problem> {
        if let Some(profile) = &self.profile {
            let notes = agent_run::check_agent_version(profile, &self.request)?;
            notes.iter().for_each(|text| (caller.note)(&format!("guard: {text}")));
        }
        self.check_keys()?;
        let login_of = self.settings.home.login_of.as_deref();
        self.request.options.home_state.login =
            agent_run::login(login_of, self.profile.as_ref(), &self.request)?;
        self.settings.dir.as_deref().map_or(Ok(()), launch::check_links)?;
        // Exclude programs in the run's directory before guard searches PATH for any program.
        launch::distrust(&self.request.folder);
        Ok(())
    }

    /// Fails if the API key of a gateway that the run needs is missing.
    fn check_keys(&self) -> Result<(), Problem> {
        let request = &self.request;
        let needs_keys = self.settings.require_keys || self.asks_model();
        // If the program is missing, skip this check: the plan reports that clearer problem.
        if !needs_keys || !agent_run::is_installed(&request.command) {
            return Ok(());
        }
        let is_set = |name: &str| request.key_variables.iter().any(|known| known == name);
        let missing = missing_key(&request.options.presets, &request.config, is_set);
        missing.map_or(Ok(()), |missing| Err(missing.into()))
    }

    fn asks_model(&self) -> bool {
        self.profile.as_ref().is_some_and(|profile| profile.asks_model)
    }

    /// Returns true if only programs that inherit the command's streams may use them. guard takes what an agent prints
    /// as the agent's own words. A command of the agent's CLI that asks no model is like any other command.
    pub(crate) fn is_sealed(&self) -> bool {
        self.settings.seal_stdio || self.asks_model()
    }

    /// Returns what reads the agent's output; `None` if guard does not know the command as an agent.
    pub(crate) fn output_reader(&self) -> Option<Box<dyn OutputReader>> {
        let profile = self.profile.as_ref()?;
        Some(Box::new(AgentOutput::new(profile, self.has_terminal)))
    }

    /// Plans the run, for display. Creates nothing.
    pub(crate) fn plan(mut self, caller: &Caller<'_>) -> Result<LaunchPlan, NotStarted> {
        self.try_plan(caller).map_err(|problem| NotStarted::before_plan(&self.request, problem))
    }

    fn try_plan(&mut self, caller: &Caller<'_>) -> Result<LaunchPlan, Problem> {
        let run_id = run_id();
        let planned = workspace_request(&self.settings.worktree, &self.request, &run_id, caller).planned()?;
        if let Some((checkout, folder)) = planned {
            self.request.folder = folder;
            self.request.checkout = Some(checkout);
        }
        if let Some(profile) = &self.profile {
            agent_run::prepare(profile, &mut self.request);
        }
        Ok(launch::plan(&self.request, run_id)?)
    }

    /// Opens the workspace of the run, plans the run, and takes the planned snapshot.
    pub(crate) fn open(self, caller: &Caller<'_>) -> Result<OpenedRun, NotStarted> {
        let Self { settings, request, profile, keys, new_commit, .. } = self;
        let mut launch = Launch::new(request, run_id())?;
        let opened = open_workspace(&mut launch, &settings.worktree, caller).and_then(|()| {
            if let Some(profile) = &profile {
                agent_run::prepare(profile, &mut launch.request);
            }
            let planned = launch.plan(keys)?;
            let notes = launch.take_snapshot(&planned);
            for text in notes.map_err(|error| Problem::Workspace(error.into()))? {
                (caller.note)(&terminal_text::replace(&format!("guard: {text}")));
            }
            if let Some(commit) = new_commit {
                commit.remember();
            }
            Ok(planned)
        });
        match opened {
            Ok(planned) => Ok(OpenedRun { launch, planned }),
            Err(problem) => Err(NotStarted::before_plan(&launch.request, problem)),
        }
    }
}

/// Creates the id of a new run. Ids sort by time and contain no other information.
fn run_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

fn workspace_request<'a>(
    settings: &'a WorktreeSettings,
    request: &'a RunRequest,
    run_id: &'a str,
    caller: &Caller<'a>,
) -> WorkspaceRequest<'a> {
    let RunRequest { policy, folder, runs, .. } = request;
    WorkspaceRequest { settings, policy, folder, run_id, runs, note: caller.note }
}

/// Creates or opens the worktree of the run, and makes the run work there.
fn open_workspace(
    launch: &mut Launch,
    settings: &WorktreeSettings,
    caller: &Caller<'_>,
) -> Result<(), Problem> {
    let OpenedWorkspace { git_session, folder } =
        workspace_request(settings, &launch.request, launch.run_id(), caller).open()?;
    launch.request.folder = folder;
    if let Some(git_session) = git_session {
        launch.use_worktree(git_session);
    }
    Ok(())
}

/// A run with its workspace and its plan, just before its first process.
pub(crate) struct OpenedRun {
    launch: Launch,
    planned: Planned,
}

impl OpenedRun {
    pub(crate) fn id(&self) -> &str {
        self.launch.run_id()
    }

    pub(crate) fn plan(&self) -> &LaunchPlan {
        &self.planned.plan
    }

    /// Executes the plan and waits for the end of the run. `observer` receives every line of the transcript.
    pub(crate) fn run(
        mut self,
        streams: Streams,
        observer: Option<Observer>,
    ) -> Result<EndedRun, NotStarted> {
        let about = Box::new(result_before_start(&self.planned.plan));
        match self.launch.run(self.planned, streams, observer) {
            Ok(finished) => Ok(EndedRun { launch: self.launch, finished }),
            Err(failure) => Err(NotStarted::Run { about, problem: failure.into() }),
        }
    }
}

/// A run that is over.
pub(crate) struct EndedRun {
    launch: Launch,
    pub(crate) finished: Finished,
}

impl EndedRun {
    /// Deletes old runs and snapshots that exceed the configured limits.
    pub(crate) fn delete_old_runs(&self) {
        let limits = &self.launch.request.config.state;
        keep_runs::delete_old_runs(limits, self.launch.run_id());
        if self.finished.result.snapshot.is_some() {
            keep_runs::delete_old_snapshots(limits, self.launch.run_id());
        }
    }
}

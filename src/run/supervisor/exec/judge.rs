//! Judges an exec by the policy, in every way in which the program may interpret its arguments and environment.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::request::{ExecRequest, text};
use crate::judge::command::{Access, Analysis, Context, Cwd, Request};
use crate::judge::decide;
use crate::judge::decide::Verdict;
use crate::judge::policy::{Action, Policy};
use crate::run::supervisor::Repositories;
use crate::run::supervisor::shim::protocol::{Answer, Question};

pub(crate) struct ExecJudge {
    policy: Arc<Policy>,
    /// Facts about the run that the supervisor needs to judge a command, such as the working tree and the home
    /// directory.
    context: Context,
    repositories: Arc<Repositories>,
    writable: Vec<PathBuf>,
    has_mount_namespace: bool,
}

impl ExecJudge {
    pub(crate) fn new(
        policy: Arc<Policy>,
        context: Context,
        repositories: Arc<Repositories>,
        writable: Vec<PathBuf>,
        has_mount_namespace: bool,
    ) -> Self {
        Self { policy, context, repositories, writable, has_mount_namespace }
    }

    /// Returns the maximum length of a command line that the policy accepts, in bytes.
    pub(crate) fn longest_command(&self) -> usize {
        self.policy.command_limits().bytes
    }

    /// Makes the search for repositories use the root directory of this thread, so that it finds the same files
    /// as the run.
    pub(crate) fn set_root_from(&self, tid: i32) {
        self.repositories.set_root_from(tid);
    }

    /// Judges an exec and returns the strictest verdict over all its possible meanings: the file and each interpreter,
    /// with each reading of the environment. The second value is true if the verdict depends on the current state of a
    /// repository.
    pub(crate) fn judge(&self, exec_request: &ExecRequest) -> (Verdict, bool) {
        let mut worst: Option<Verdict> = None;
        let mut depends_on_repository = false;
        for (argv, resolved) in exec_request.readings() {
            for environment in possible_environments(&exec_request.environment) {
                let context = Context {
                    cwd: Cwd::from_absolute(exec_request.cwd.as_os_str().as_bytes()),
                    environment,
                    resolved: Some(resolved.clone()),
                    ..self.context.clone()
                };
                let request = Request::Argv(argv.clone());
                let judged = self.repositories.judge(&self.policy, &request, &context);
                depends_on_repository |= judged.depends_on_repository;
                let mut verdict = self.with_temporary_directory_hint(judged.verdict, &judged.analysis);
                if worst.as_ref().is_none_or(|known| verdict.action() > known.action()) {
                    decide::explain(&self.policy, &mut verdict, &judged.analysis, &context);
                    worst = Some(verdict);
                }
            }
        }
        (worst.unwrap_or_else(|| Verdict::invalid_request("no program")), depends_on_repository)
    }

    /// Returns a denial with a hint, instead of `verdict`, for an allowed command that would write to a shared
    /// temporary directory such as `/tmp`: a run without a mount namespace cannot write there.
    fn with_temporary_directory_hint(&self, verdict: Verdict, analysis: &Analysis) -> Verdict {
        if self.has_mount_namespace || verdict.action() != Action::Allow {
            return verdict;
        }
        let usual = [Path::new("/tmp"), Path::new("/var/tmp"), Path::new("/dev/shm")];
        let is_foreign = |path: &Path| {
            usual.iter().any(|place| path.starts_with(place))
                && !self.writable.iter().any(|root| path.starts_with(root))
        };
        let writes = analysis.intents.iter().enumerate().find_map(|(index, intent)| {
            let path = intent.paths.iter().find(|used| {
                used.access == Access::Write && is_foreign(Path::new(OsStr::from_bytes(&used.path)))
            })?;
            Some((index, path))
        });
        match writes {
            None => verdict,
            Some((index, path)) => Verdict::denied_shared_tmp_write(analysis, index, &text(&path.path)),
        }
    }

    /// Returns true if a shim that asked why this exec was denied would get a reason.
    pub(crate) fn denies_to_shim(&self, exec_request: &ExecRequest) -> bool {
        let question = Question {
            argv: exec_request.argv.clone(),
            directory: exec_request.cwd.as_os_str().as_bytes().to_vec(),
            environment: exec_request.environment.clone(),
        };
        let answer =
            crate::run::supervisor::answer(&self.policy, &self.context, Some(&self.repositories), &question);
        matches!(answer, Answer::Deny(_))
    }
}

/// Returns the environment in every form in which programs may read it. If a variable occurs twice, most
/// programs use its first value, but some use the last.
fn possible_environments(environment: &[(Vec<u8>, Vec<u8>)]) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = HashSet::new();
    let has_duplicates = !environment.iter().all(|(name, _)| names.insert(name));
    let mut readings = vec![environment.to_vec()];
    if has_duplicates {
        readings.push(environment.iter().rev().cloned().collect());
    }
    readings
}

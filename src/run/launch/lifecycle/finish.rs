//! The end of a run: builds its result, records the result as the last event of the transcript, and removes the files
//! and directories that only the run needed. Every process of the run except init must be dead before this code
//! inspects any file.

use std::sync::PoisonError;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use super::directories;
use super::event_loop::{RunEnd, StopReason, reap_all_descendants};
use super::git_session::{Ending, GitSession};
use super::running::Running;
use super::snapshot::{findings_of_changes, with_deleted};
use super::{Failure, Finished, Started};
use crate::run::egress;
use crate::run::launch::process::protocol::Used;
use crate::run::outcome::{
    Change, Enforcement, ErrorDetail, ErrorKind, Finding, KeptFiles, ModelUsage, RunResult, SnapshotReport,
    TranscriptPlace, Usage, changes, duration,
};
use crate::run::supervisor::Counts;
use crate::run::transcript;
use crate::run::transcript::{EventType, Recorder, Stream};
use crate::sys::process::Ended;

/// What the run left behind and used.
struct Effects {
    git: Ending,
    files: ChangedFiles,
    kept: KeptFiles,
    used: Used,
    traffic: egress::Traffic,
    took: Duration,
}

/// The files that the run changed.
struct ChangedFiles {
    list: Vec<Change>,
    is_complete: bool,
    /// What the snapshot from before the run does not contain; `None` if guard took none.
    report: Option<SnapshotReport>,
}

impl Running {
    /// Builds and records the run's result, ends guard's threads, and removes the run's private directories. If guard
    /// cannot write the transcript, the result becomes a failure.
    pub(crate) fn finish(
        mut self,
        end: &RunEnd,
        enforcement: Enforcement,
        counts: Counts,
        git_session: &mut Option<GitSession>,
    ) -> Result<Finished, Failure> {
        let mut result = self.end_run(end, enforcement, counts, git_session);
        // guard can remove the directories while another thread flushes the transcript to disk and init exits, because
        // no process uses the directories any more. Init has reported that every other process is dead, or `reap_all`
        // waits for that.
        self.writer.close();
        if self.used.is_none() {
            self.reap_all();
        }
        self.links.iter().for_each(|links| links.stop());
        directories::RunCleanup::for_plan(&self.started.plan).clean();
        match self.writer.finish() {
            Ok(head) => result.transcript.head = Some(head.hash),
            Err(error) => {
                result.success = false;
                result.error = Some(format!("guard cannot write the transcript: {error}"));
                result.error_kind = Some(ErrorKind::Internal);
            }
        }
        if !self.all_dead {
            reap_all_descendants(self.started.init_pid);
        }
        Ok(Finished { result, ended: end.ended })
    }

    /// Ends the parts of the run one after the other, and returns the run's result, which it records as the last event
    /// of the transcript.
    fn end_run(
        &mut self,
        end: &RunEnd,
        enforcement: Enforcement,
        counts: Counts,
        git_session: &mut Option<GitSession>,
    ) -> RunResult {
        self.close();
        let used = self.resources_used();
        let mut traffic = self.proxy.take().map(egress::Handle::finish).unwrap_or_default();
        self.network.add_refused(&mut traffic.rows);
        let counts = Counts { refusals: counts.refusals + traffic.refusals, ..counts };
        let took = self.started.began.elapsed();
        let mut git = self.end_git(git_session);
        let files = self.compare_directory(&mut git);
        let kept = self.save_home();
        self.copy_login_back();
        let failure = git.failure.take();
        let effects = Effects { git, files, kept, used, traffic, took };
        let mut result = self.result(end, enforcement, &counts, effects);
        self.describe_failure(end, &mut result);
        self.add_agents_conclusion(&mut result);
        if let Some((kind, message)) = failure {
            fail(&mut result, kind, message);
        }
        result.denials = self.denials(counts);
        let message = match &result.error {
            None => "the command ended by itself".to_string(),
            Some(error) => error.clone(),
        };
        self.recorder.record(EventType::RunFinished, &message, &result);
        result
    }

    /// Returns the resources that all other processes used, as init reports them unless it was killed.
    fn resources_used(&mut self) -> Used {
        self.used.unwrap_or_else(|| {
            self.reap_all();
            Used::by_children()
        })
    }

    /// Ends the git session, and compares the git repositories with their state before the run. Only init may still be
    /// alive, so no process can change the repositories any more.
    fn end_git(&mut self, git_session: &mut Option<GitSession>) -> Ending {
        let ending = git_session.take().map(|session| session.end(&self.recorder, self.started.began_at));
        let mut ending = ending.unwrap_or_default();
        let Started { repositories, has_mount_namespace, plan, .. } = &mut self.started;
        let found = repositories.end(*has_mount_namespace, &plan.run_folder);
        self.add_findings(found, &mut ending);
        ending
    }

    fn add_findings(&self, found: Vec<Finding>, ending: &mut Ending) {
        for finding in found {
            self.recorder.record(EventType::Finding, &finding.message, &finding);
            ending.findings.push(finding);
        }
    }

    /// Finds out which files the run changed, and adds findings about them.
    fn compare_directory(&mut self, ending: &mut Ending) -> ChangedFiles {
        let (mut compared, report) = std::mem::take(&mut self.started.snapshot).finish(self.worktree());
        let plan = &self.started.plan;
        let mut found =
            compared.as_mut().map(|files| std::mem::take(&mut files.findings)).unwrap_or_default();
        let (list, is_complete) = ending.files.take().unwrap_or_else(|| match compared {
            Some(compared) if compared.is_complete => (compared.files, !compared.is_cut),
            // Without a complete list from before the run, only the times of the files show what the run changed.
            incomplete => {
                let changed = changes(self.worktree(), self.started.began_at, plan.checkout.is_some());
                let changed = with_deleted(changed, incomplete);
                if plan.snapshot.is_some() {
                    found = findings_of_changes(self.worktree(), &changed.0);
                }
                changed
            }
        });
        // The git session has inspected the work of a run on a branch.
        if plan.checkout.is_none() {
            self.add_findings(found, ending);
        }
        ChangedFiles { list, is_complete, report }
    }

    /// Saves files of the private home directory for the next run.
    fn save_home(&self) -> KeptFiles {
        let mut kept = self.started.carried.clone();
        let plan = &self.started.plan;
        if let Err(error) = plan.home_state.save_from(&plan.home, &mut kept) {
            let message = format!("cannot save files of the private home for the next run: {error}");
            self.recorder.record(EventType::Note, &message, &json!({}));
        }
        kept
    }

    /// Copies a login that the agent has changed back to the user's file.
    fn copy_login_back(&self) {
        let plan = &self.started.plan;
        let message = match plan.home_state.login.as_ref().map(|login| login.copy_back(&plan.home)) {
            Some(Ok(true)) => {
                "the agent refreshed its login, and guard copied the tokens to your credential file"
                    .to_string()
            }
            Some(Err(error)) => format!("cannot copy the refreshed login to your credential file: {error}"),
            Some(Ok(false)) | None => return,
        };
        self.recorder.record(EventType::Note, &message, &json!({}));
    }

    /// Returns the result of the run without errors and denials.
    fn result(&self, end: &RunEnd, enforcement: Enforcement, counts: &Counts, effects: Effects) -> RunResult {
        let Effects { git, files, kept, used, traffic, took } = effects;
        let plan = &self.started.plan;
        let (text, is_truncated) = self.output_tail();
        let ended = end.ended.filter(|_| end.not_started.is_none());
        RunResult {
            success: end.stop_reason.is_none() && ended == Some(Ended::Code(0)),
            tool: plan
                .program
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
            session_id: plan.run_id.clone(),
            result: text,
            result_truncated: is_truncated,
            duration: duration(took),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            run_id: plan.run_id.clone(),
            policy: plan.policy.clone(),
            enforcement,
            exit_code: ended.map(|ended| exit_code(ended, end)),
            signal: ended.and_then(Ended::signal),
            commits: git.commits,
            worktree: git.worktree,
            findings: git.findings,
            files_changed: files.list,
            files_changed_truncated: !files.is_complete,
            snapshot: files.report,
            usage: Usage {
                programs: counts.starts,
                refusals: counts.refusals,
                cpu_ms: used.cpu_ms,
                max_rss_kib: used.max_rss_kib,
                model: model_usage(&traffic.spent),
            },
            network: traffic.rows,
            kept_files: (kept != KeptFiles::default()).then_some(kept),
            transcript: TranscriptPlace {
                path: plan.run_folder.join(transcript::FILE).to_string_lossy().into_owned(),
                head: None,
            },
            ..RunResult::default()
        }
    }

    /// Adds what the parser of the agent's output concludes.
    fn add_agents_conclusion(&mut self, result: &mut RunResult) {
        let Some(reader) = self.reader.take() else { return };
        let stderr = self.tails.iter().find(|(stream, _)| *stream == Stream::Stderr);
        let stderr = stderr.map(|(_, tail)| tail.text().0).unwrap_or_default();
        reader.lock().unwrap_or_else(PoisonError::into_inner).conclude(result, &stderr);
    }

    /// Returns the last part of the agent's standard output, or of its terminal's output, and true if an earlier part
    /// is missing. Returns an empty text if the run has neither stream.
    fn output_tail(&self) -> (String, bool) {
        let wanted = [Stream::Stdout, Stream::Terminal];
        let tail = self.tails.iter().find(|(stream, _)| wanted.contains(stream));
        tail.map(|(_, tail)| tail.text()).unwrap_or_default()
    }

    /// Adds the error message and its details to the result. Changes nothing if guard did not end the run and the
    /// command exited with code 0.
    fn describe_failure(&self, end: &RunEnd, result: &mut RunResult) {
        let plan = &self.started.plan;
        let (kind, error) = match (end, end.ended) {
            (RunEnd { not_started: Some(failure), .. }, _) => {
                let kind = match (failure.errno, &failure.denial) {
                    (libc::ENOENT, _) => ErrorKind::CommandNotFound,
                    (_, Some(_)) => ErrorKind::PolicyDenied,
                    (_, None) => ErrorKind::UpstreamError,
                };
                let errno = || std::io::Error::from_raw_os_error(failure.errno).to_string();
                let denied = failure.denial.as_ref().map(|denial| format!("the policy refuses {denial}"));
                let problem = denied.unwrap_or_else(errno);
                (kind, format!("cannot start {}: {problem}", plan.program.display()))
            }
            (RunEnd { stop_reason: Some(reason), .. }, _) => {
                (reason.kind(), reason.message(plan, &self.recorder))
            }
            (_, Some(Ended::Code(0))) => return,
            (_, Some(Ended::Code(code))) => {
                (ErrorKind::UpstreamError, format!("{} ended with code {code}", result.tool))
            }
            (_, Some(Ended::Signal(signal))) => {
                (ErrorKind::UpstreamError, format!("signal {signal} ended {}", result.tool))
            }
            (_, None) => (ErrorKind::Internal, "something outside guard killed the run".to_string()),
        };
        let printed: Vec<String> = self.tails.iter().map(|(_, tail)| tail.text().0).collect();
        let mut last_lines: Vec<String> =
            printed.iter().rev().flat_map(|text| text.lines()).map(str::to_string).collect();
        if last_lines.len() > 20 {
            last_lines = last_lines.split_off(last_lines.len() - 20);
        }
        result.error_detail = Some(ErrorDetail {
            message: error.clone(),
            exit_code: result.exit_code,
            last_lines,
            idle_timeout_s: plan.limits.idle_seconds,
            max_duration_s: plan.limits.total_seconds,
            ..ErrorDetail::default()
        });
        result.error = Some(error);
        result.error_kind = Some(kind);
    }
}

/// Returns the exit code of a run whose command has ended. When the user presses Ctrl-C at a terminal, guard ends the
/// command with SIGTERM, because the command has received the Ctrl-C already; the exit code is still that of Ctrl-C.
fn exit_code(ended: Ended, end: &RunEnd) -> i32 {
    let is_interrupted = matches!(end.stop_reason, Some(StopReason::Signal(Signal::SIGINT)));
    match ended {
        Ended::Signal(libc::SIGTERM) if is_interrupted => 128 + libc::SIGINT,
        _ => ended.shell_code(),
    }
}

/// Marks a result as failed for a reason other than the exit of the command. If the result already contains an error
/// of the command, moves that error to the last lines of the details.
fn fail(result: &mut RunResult, kind: ErrorKind, message: String) {
    result.success = false;
    let detail = result.error_detail.get_or_insert_with(ErrorDetail::default);
    if let Some(error) = result.error.take() {
        detail.last_lines.push(error);
    }
    detail.message.clone_from(&message);
    detail.exit_code = result.exit_code;
    result.error = Some(message);
    result.error_kind = Some(kind);
}

impl StopReason {
    pub(crate) fn kind(self) -> ErrorKind {
        match self {
            Self::Idle => ErrorKind::IdleTimeout,
            Self::Total => ErrorKind::Timeout,
            Self::Signal(_) => ErrorKind::Cancelled,
            Self::Transcript | Self::Supervisor => ErrorKind::Internal,
            Self::Record => ErrorKind::RecordFull,
            Self::Budget => ErrorKind::BudgetExhausted,
            Self::Memory => ErrorKind::MemoryExhausted,
        }
    }

    fn message(self, plan: &crate::run::launch::LaunchPlan, recorder: &Recorder) -> String {
        match self {
            Self::Idle => {
                format!(
                    "the run was idle (no output, no new program, no CPU work) for {} s, which is the idle limit; `--timeout TIME` sets another limit, and `--timeout 0` sets none",
                    plan.limits.idle_seconds.unwrap_or_default()
                )
            }
            Self::Total => {
                format!(
                    "the run did not end within {} s, which is the limit for the whole run; `--max-duration TIME` sets another limit, and `--max-duration 0` sets none",
                    plan.limits.total_seconds.unwrap_or_default()
                )
            }
            Self::Signal(signal) => format!("the run was cancelled by {signal}"),
            Self::Supervisor => "guard's supervisor failed, so guard ended the run; please report this to the maintainers of guard".to_string(),
            Self::Budget => "the run has used up its budget for model requests; raise it with `--max-tokens`, `--max-requests`, \
                             `--max-cost` or the policy's [budget]"
                .to_string(),
            Self::Memory => {
                format!(
                    "the kernel killed a process because the run used more than {} MiB of memory; `memory_mib` in the policy's [limits] sets this limit",
                    plan.limits.memory_mib.unwrap_or_default()
                )
            }
            Self::Transcript => {
                format!("guard cannot write the transcript: {}", recorder.failure().unwrap_or_default())
            }
            Self::Record => format!(
                "the transcript reached its limit of {} MiB, and guard runs nothing that it cannot record; if the run \
                 needs more, raise `output_mib` in the policy's [limits]",
                recorder.full_at().unwrap_or_default() >> 20
            ),
        }
    }
}

/// Returns the tokens, requests and cost of models; `None` if the run made no model requests.
fn model_usage(spent: &egress::Spent) -> Option<ModelUsage> {
    (*spent != egress::Spent::default()).then(|| ModelUsage {
        requests: spent.requests,
        refused: spent.refused,
        input_tokens: spent.tokens.input,
        output_tokens: spent.tokens.output,
        cached_tokens: spent.tokens.cached,
        estimated: spent.estimated,
        cost: spent.cost_micros as f64 / 1e6,
    })
}

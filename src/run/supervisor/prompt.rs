//! Questions to the user about execs with an `ask` verdict.
//!
//! One question is open at a time, on its own thread; further execs wait. The queue also remembers those answers that
//! apply to later execs.

use std::sync::mpsc;

use super::background::{BackgroundResult, BackgroundSender};
use super::question::{Ask, Choice, PendingExec, UserAnswer};
use crate::judge::decide::Verdict;

/// What happens to an exec after [`PromptQueue::ask`].
pub(crate) enum Asked {
    Waits,
    /// There is no user to ask, or the asking thread cannot start. `ask` returns the exec, and the caller must deny it.
    CannotAsk(Box<PendingExec>),
}

pub(crate) struct PromptQueue {
    /// Asks the user. `None` while a question is open, because the asking thread then owns it, or if there is no user
    /// to ask.
    asker: Option<Box<dyn Ask>>,
    is_asking: bool,
    /// Execs that wait because a question about a different exec is open.
    waiting: Vec<PendingExec>,
    /// Ids of the rules for which the user chose [`Choice::Always`] or [`Choice::Save`].
    always_allowed_rules: Vec<String>,
    /// The last exec that the user denied: thread id and argv.
    last_denial: Option<(i32, Vec<Vec<u8>>)>,
}

impl PromptQueue {
    pub(crate) fn new(asker: Option<Box<dyn Ask>>) -> Self {
        Self {
            asker,
            is_asking: false,
            waiting: Vec::new(),
            always_allowed_rules: Vec::new(),
            last_denial: None,
        }
    }

    /// Returns true if the user has allowed every exec about which this verdict's rule asks.
    pub(crate) fn is_always_allowed(&self, verdict: &Verdict) -> bool {
        self.always_allowed_rules.contains(&verdict.cause.rule)
    }

    /// Returns true if the user's last denial was about this exec. After a denial, a shell tries the same command in
    /// the next PATH directory, and guard must not ask the user again.
    pub(crate) fn is_last_denial(&self, tid: i32, argv: &[Vec<u8>]) -> bool {
        self.last_denial.as_ref().is_some_and(|(known, denied)| *known == tid && denied == argv)
    }

    /// Asks the user about an exec on a separate thread. If a question is already open, the exec waits until the user
    /// has answered that question. Returns the exec if there is no user to ask, or if the thread cannot start.
    pub(crate) fn ask(&mut self, pending: PendingExec, background: BackgroundSender) -> Asked {
        if self.is_asking {
            self.waiting.push(pending);
            return Asked::Waits;
        }
        let Some(asker) = self.asker.take() else { return Asked::CannotAsk(Box::new(pending)) };
        // Give the thread the asker and the exec only after it has started. If the thread cannot start, everything that
        // its closure owns is dropped.
        let (question, asked) = mpsc::channel::<(Box<dyn Ask>, PendingExec)>();
        let work = move || {
            let Ok((mut asker, pending)) = asked.recv() else { return };
            let choice = asker.ask(&pending.verdict);
            let answer = UserAnswer { pending: Box::new(pending), choice, asker };
            background.send(BackgroundResult::UserAnswered(answer));
        };
        if std::thread::Builder::new().name("ask".to_string()).spawn(work).is_err() {
            self.asker = Some(asker);
            return Asked::CannotAsk(Box::new(pending));
        }
        self.is_asking = true;
        let _ = question.send((asker, pending));
        Asked::Waits
    }

    /// Closes the open question, and remembers the answer for later execs. Returns the exec that the question was
    /// about, and the user's choice.
    pub(crate) fn close(&mut self, answer: UserAnswer) -> (PendingExec, Choice) {
        let UserAnswer { pending, choice, asker } = answer;
        self.asker = Some(asker);
        self.is_asking = false;
        match choice {
            Choice::Deny => {
                self.last_denial = Some((pending.notification.tid, pending.exec_request.argv.clone()));
            }
            Choice::Always | Choice::Save => {
                self.always_allowed_rules.push(pending.verdict.cause.rule.clone());
            }
            Choice::Once => {}
        }
        (*pending, choice)
    }

    /// Removes and returns the execs that waited because a question was open. The caller must handle them again after
    /// [`PromptQueue::close`] has closed the question.
    pub(crate) fn take_waiting(&mut self) -> Vec<PendingExec> {
        std::mem::take(&mut self.waiting)
    }
}

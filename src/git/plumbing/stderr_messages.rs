//! The table of all messages of git that guard recognises by their text, because a decision of guard depends on them.
//!
//! git has no error codes for these cases. guard runs git with `LC_ALL=C`, so the messages are not translated.

/// A message from git that guard recognises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GitMessage {
    NotARepository,
    /// The repository belongs to another user.
    DubiousOwnership,
    /// Another git process is creating or removing a worktree: a `commondir` file is empty or missing.
    UnfinishedWorktree,
    NoSuchRemote,
    /// The remote is a local path, and guard has forbidden this git call to push to local paths.
    FileTransportForbidden,
    /// Objects of a partial clone are missing, and guard has forbidden git to fetch them.
    MissingPromisedObjects,
    /// `receive-pack` received more bytes than `receive.maxInputSize` allows.
    PackTooLarge,
    /// git rejected a push because the remote branch has commits that the local branch lacks.
    NotFastForward,
    /// git rejected a push because the ref would point to an object that is not a commit.
    NotACommit,
    /// git rejected a push because the receiving git could not unpack the objects.
    NotUnpacked,
    /// git could not open a file or directory. It then takes a changed file for an unchanged one, and succeeds.
    PermissionDenied,
}

/// The texts of a table entry, and how guard compares a message of git with them.
enum Texts {
    /// The message contains any of these texts.
    AnyOf(&'static [&'static str]),
    /// The message begins with any of these texts.
    BeginsWith(&'static [&'static str]),
    /// The message contains the text in the first field, and any of the texts in the second.
    Both(&'static str, &'static [&'static str]),
}

impl GitMessage {
    const fn texts(self) -> Texts {
        match self {
            Self::NotARepository => Texts::AnyOf(&["not a git repository"]),
            Self::DubiousOwnership => Texts::AnyOf(&["dubious ownership"]),
            Self::UnfinishedWorktree => Texts::AnyOf(&["/commondir: "]),
            Self::NoSuchRemote => Texts::AnyOf(&["No such remote"]),
            Self::FileTransportForbidden => Texts::AnyOf(&["transport 'file' not allowed"]),
            Self::MissingPromisedObjects => {
                Texts::AnyOf(&["promisor remote", "lazy fetching", "transport '"])
            }
            Self::PackTooLarge => Texts::AnyOf(&["pack exceeds maximum allowed size"]),
            Self::NotFastForward => Texts::Both("[rejected]", &["(non-fast-forward)", "(fetch first)"]),
            Self::NotACommit => Texts::BeginsWith(&["bad ref", "invalid new value provided"]),
            Self::NotUnpacked => Texts::BeginsWith(&["unpack"]),
            Self::PermissionDenied => Texts::AnyOf(&["Permission denied"]),
        }
    }

    pub(crate) fn is_in(self, message: &str) -> bool {
        let contains = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
        match self.texts() {
            Texts::AnyOf(texts) => contains(texts),
            Texts::BeginsWith(texts) => texts.iter().any(|text| message.starts_with(text)),
            Texts::Both(first, others) => message.contains(first) && contains(others),
        }
    }
}

/// The texts before the path of a directory that `git status` or `git add` could not read. The path ends at the next
/// quote.
pub(crate) const UNREADABLE_DIRECTORY: [&str; 2] = ["could not open directory '", "unable to access '"];

#[cfg(test)]
mod tests {
    use super::GitMessage;

    #[test]
    fn messages_of_git_are_recognised() {
        let recognised = [
            (
                GitMessage::NotARepository,
                "fatal: not a git repository (or any of the parent directories): .git",
            ),
            (GitMessage::DubiousOwnership, "fatal: detected dubious ownership in repository at '/srv/x'"),
            (GitMessage::UnfinishedWorktree, "fatal: unable to read /r/.git/worktrees/w/commondir: Success"),
            (GitMessage::NoSuchRemote, "error: No such remote 'upstream'"),
            (GitMessage::FileTransportForbidden, "fatal: transport 'file' not allowed"),
            (GitMessage::MissingPromisedObjects, "fatal: could not fetch 1234 from promisor remote"),
            (GitMessage::PackTooLarge, "fatal: pack exceeds maximum allowed size (1.00 MiB)"),
            (GitMessage::NotFastForward, "[rejected] (fetch first)"),
            (GitMessage::NotACommit, "bad ref"),
            (GitMessage::NotUnpacked, "unpack index-pack abnormal exit"),
        ];
        for (message, text) in recognised {
            assert!(message.is_in(text), "{message:?}: {text}");
        }
        for (message, text) in [
            // A hook of the remote can print any text.
            (GitMessage::NotFastForward, "[remote rejected] (pre-receive hook declined: (fetch first))"),
            (GitMessage::NotFastForward, "[rejected] (stale info)"),
            (GitMessage::NotACommit, "hook declined: bad ref"),
        ] {
            assert!(!message.is_in(text), "{message:?}: {text}");
        }
    }
}

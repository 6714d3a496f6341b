//! Reads the URLs of the user's remotes, and pushes one branch to a remote.
//!
//! A push is the only git call that guard makes in order to use the network. (In a partial clone that the user trusts,
//! git may also fetch missing objects during other calls.) The push uses the user's git configuration, and creates or
//! moves forward one branch and nothing else. It runs no hooks of the local repository (they may call a file that an
//! agent wrote) and has no terminal. If an agent may have written to the repository, the push obeys no repository
//! setting that chooses programs or receives credentials.

use std::time::Duration;

use super::command::{Git, Trust};
use super::config::Settings;
use super::outcome::GitError;
use super::repository::{QUERY_TIMEOUT, Repository};
use super::stderr_messages::GitMessage;
use crate::git::{WorkspaceError, trust};

/// The URLs of a remote from the user's git configuration. Both may contain credentials, which
/// [`without_credentials`] removes.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteUrls {
    pub fetch: String,
    /// The URL that git pushes to; the first one if there are several.
    pub push: String,
}

/// The result of pushing a branch to a remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pushed {
    /// The remote's branch is now at the local branch's commit.
    Done {
        /// The commit that both branches are at.
        tip: String,
        /// True if the remote's branch was already at this commit before the push.
        already: bool,
    },
    /// The remote's branch has commits that the local branch lacks, so git pushed nothing.
    NotForward,
    /// The remote or git refused the push; the text is the error message.
    Refused(String),
}

/// The protocols that a push may use if an agent may have written to the repository. A local path is not among them:
/// git would run the hooks of the repository at that path on this machine.
const NETWORK_PROTOCOLS: &str = "git:http:https:ssh";

impl Repository {
    /// Returns the URLs of the remote `name`; `None` if there is no such remote.
    pub fn remote(&self, name: &str) -> Result<Option<RemoteUrls>, WorkspaceError> {
        let Some(fetch) = self.urls(&["get-url", "--", name])?.into_iter().next() else { return Ok(None) };
        let push = self.push_urls(name)?.into_iter().next();
        Ok(Some(RemoteUrls { push: push.unwrap_or_else(|| fetch.clone()), fetch }))
    }

    fn push_urls(&self, name: &str) -> Result<Vec<String>, WorkspaceError> {
        self.urls(&["get-url", "--push", "--all", "--", name])
    }

    /// Returns the URLs that `git remote` prints for these arguments, one per line; empty if there is no such remote.
    fn urls(&self, args: &[&str]) -> Result<Vec<String>, WorkspaceError> {
        let git = self.git("remote")?.git_dir(&self.common_dir).current_dir(&self.place());
        let answer = git.args(args).timeout(QUERY_TIMEOUT).max_output(1 << 20).output()?;
        if answer.status.success() {
            let text = String::from_utf8_lossy(&answer.output);
            return Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_string).collect());
        }
        if GitMessage::NoSuchRemote.is_in(&answer.message) {
            return Ok(Vec::new());
        }
        let (code, message) = (answer.code(), without_credentials(&answer.message));
        Err(GitError::Failed { verb: "remote".to_string(), code, message }.into())
    }

    /// Returns the short name of the remote's default branch, to which the local ref `refs/remotes/REMOTE/HEAD` points;
    /// `None` if git recorded no such ref.
    pub fn default_branch(&self, remote: &str) -> Result<Option<String>, WorkspaceError> {
        let prefix = format!("refs/remotes/{remote}/");
        let git = self.git("symbolic-ref")?.git_dir(&self.common_dir).timeout(QUERY_TIMEOUT);
        let answer = git.args(["--quiet", &format!("{prefix}HEAD")]).output()?;
        let text = String::from_utf8_lossy(&answer.output);
        let name = text.trim_end().strip_prefix(&prefix).filter(|_| answer.status.success());
        Ok(name.map(str::to_string))
    }

    /// Creates a branch of a remote at the local branch of the same name, or moves it forward to that branch. `branch`
    /// is a full ref name, and `limit` is the timeout. Fails without a push if the name is invalid, if the branch or
    /// the remote does not exist, or if guard does not trust the repository's settings.
    pub fn push(&self, remote: &str, branch: &str, limit: Duration) -> Result<Pushed, WorkspaceError> {
        let hint = "`git branch` lists the branches, and `git remote` the remotes";
        let refused = |problem: String| WorkspaceError::refused(problem, hint);
        if !is_branch(branch) {
            return Err(refused(format!("{:?} is not a valid name of a branch to push", truncate(branch))));
        }
        let Some(tip) = self.commit(branch)? else {
            return Err(refused(format!("the repository has no branch {branch}")));
        };
        // Accept only a configured remote, never a URL: the user's configuration decides where guard may push.
        let urls = self.push_urls(remote)?;
        if urls.is_empty() {
            return Err(refused(format!("there is no remote {:?}", truncate(remote))));
        }
        let settings = Settings::parse(&Settings::list_call(self)?.git_dir(&self.common_dir).run()?);
        trust::check_push(self, &settings)?;
        let answer =
            self.push_call(remote, limit)?.args(["--", remote, &format!("{branch}:{branch}")]).output()?;
        let message = without_credentials(&answer.message);
        let message = urls.iter().fold(message, |text, url| remove_url_credentials(&text, url));
        Ok(match parse_report(&answer.output, branch) {
            Some((b' ' | b'*', _)) if answer.status.success() => Pushed::Done { tip, already: false },
            Some((b'=', _)) if answer.status.success() => Pushed::Done { tip, already: true },
            Some((b'!', why)) if GitMessage::NotFastForward.is_in(&why) => Pushed::NotForward,
            Some((b'!', why)) if message.is_empty() => Pushed::Refused(why),
            Some((b'!', why)) => Pushed::Refused(format!("{why}; {message}")),
            _ if GitMessage::FileTransportForbidden.is_in(&message) => {
                return Err(self.local_remote_error(remote));
            }
            _ if message.is_empty() => {
                Pushed::Refused(format!("git push failed with exit code {}", answer.code()))
            }
            _ => Pushed::Refused(message),
        })
    }

    /// Builds a `git push` call with the timeout `limit`. The caller adds the remote and the branch. git pushes
    /// nothing else, even if the user's git configuration adds other branches. Unless the user trusts the repository,
    /// git uses only network protocols.
    fn push_call(&self, remote: &str, limit: Duration) -> Result<Git, GitError> {
        let git = Git::new(Trust::User, "push")?
            .args(["--porcelain", "--recurse-submodules=no", "--no-follow-tags", "--no-signed"])
            // git resolves relative URLs from the main working tree, which no agent writes.
            .git_dir(&self.common_dir)
            .current_dir(&self.place())
            .config("safe.directory", "*")
            .config("protocol.ext.allow", "never")
            .config("hook.pre-push.enabled", "false")
            .config(&format!("remote.{remote}.mirror"), "false")
            .timeout(limit)
            .max_output(1 << 20)
            .in_own_session();
        let network_only =
            |git: Git| git.env("GIT_ALLOW_PROTOCOL", NETWORK_PROTOCOLS).env("GIT_NO_LAZY_FETCH", "1");
        Ok(if self.trusted { git } else { network_only(git) })
    }

    fn local_remote_error(&self, remote: &str) -> WorkspaceError {
        WorkspaceError::refused(
            format!(
                "the remote {remote} is a directory on this machine: a push would run its hooks, which \
                 an agent could have written"
            ),
            "if you trust that directory, give --trust-repository, or push the branch yourself",
        )
    }
}

/// True if the name is `refs/heads/` followed by a valid branch name of at most 1024 bytes, without characters that
/// have a meaning in a refspec.
fn is_branch(name: &str) -> bool {
    let Some(short) = name.strip_prefix("refs/heads/") else { return false };
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && !"~^:?*[\\".contains(c);
    let is_part = |part: &str| !part.is_empty() && !part.starts_with(['.', '-']) && !part.ends_with(".lock");
    short.chars().all(is_plain)
        && short.split('/').all(is_part)
        && !short.contains("..")
        && !short.contains("@{")
        && !short.ends_with('.')
        && short.len() <= 1024
}

fn truncate(text: &str) -> String {
    text.chars().take(120).collect()
}

/// Parses the line about a branch in the output of `git push --porcelain`: `FLAG<TAB>FROM:TO<TAB>SUMMARY`. Returns
/// the flag, and at most 400 characters of the summary; `None` if there is no such line.
fn parse_report(output: &[u8], branch: &str) -> Option<(u8, String)> {
    let text = String::from_utf8_lossy(output);
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, '\t');
        let (flag, names, summary) = (parts.next()?, parts.next()?, parts.next()?);
        let names = names.split_once(':')?;
        let plain =
            || summary.chars().filter(|c| !crate::text::terminal_text::is_unsafe(*c)).take(400).collect();
        (names.1 == branch && flag.len() == 1).then(|| (flag.as_bytes()[0], plain()))
    })
}

/// Replaces the credentials of `url` in a message of git by `…`. Credentials can appear outside a URL too, because git
/// quotes parts of URLs that it cannot parse.
fn remove_url_credentials(text: &str, url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return text.to_string() };
    let Some((user, _)) = rest.rsplit_once('@') else { return text.to_string() };
    match user.split_once(':') {
        Some((_, "")) => text.to_string(),
        Some((_, password)) => text.replace(user, "…").replace(password, "…"),
        // A user name in an HTTP URL may be a token. A short name like `git` is an ordinary word, and stays.
        None if scheme.starts_with("http") && user.len() > 8 => text.replace(user, "…"),
        None => text.to_string(),
    }
}

/// Removes the text after `://` up to and including the last `@` from every URL in `text`, because that part may
/// contain a password. `text` is a URL or a message of git.
pub fn without_credentials(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        plain.push_str(before);
        // Look for the `@` up to the end of the URL, not only up to its first slash: some people do not escape
        // slashes in passwords.
        let end = after.find(|c: char| c.is_whitespace() || "'\"<>`".contains(c)).unwrap_or(after.len());
        rest = after[..end].rfind('@').map_or(after, |sign| &after[sign + 1..]);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_cut_out_wherever_they_stand() {
        for (text, plain) in [
            ("https://me:tok@host/x.git", "https://host/x.git"),
            (
                "fatal: unable to access 'https://me:t@k@host/x/': no",
                "fatal: unable to access 'https://host/x/': no",
            ),
            ("a https://x:y@b c ssh://git@d:22/e f", "a https://b c ssh://d:22/e f"),
            ("https://me:sla/sh@host/x", "https://host/x"),
            ("https://a:b@c://d:e@f/", "https://f/"),
            ("git@host:path", "git@host:path"),
            ("https://", "https://"),
        ] {
            assert_eq!(without_credentials(text), plain, "{text}");
        }
    }

    #[test]
    fn only_plain_branches_are_pushed() {
        for good in ["refs/heads/task/x", "refs/heads/größe", "refs/heads/a.b", "refs/heads/a@b"] {
            assert!(is_branch(good), "{good}");
        }
        for bad in [
            "task/x",
            "refs/heads/",
            "refs/tags/v1",
            "+refs/heads/x",
            "refs/heads/x:refs/heads/main",
            "refs/heads/*",
            "refs/heads/a b",
            "refs/heads/a\nb",
            "refs/heads/../tags/x",
            "refs/heads/x^",
            "refs/heads/a//b",
            "refs/heads/-x",
            "refs/heads/x.lock",
            "refs/heads/x@{1}",
        ] {
            assert!(!is_branch(bad), "{bad}");
        }
    }

    #[test]
    fn reports_are_read_strictly() {
        let name = "refs/heads/x";
        let said = |text: &str| parse_report(text.as_bytes(), name);
        assert_eq!(
            said("To /x\n*\trefs/heads/x:refs/heads/x\t[new branch]\nDone\n"),
            Some((b'*', "[new branch]".to_string()))
        );
        assert_eq!(said("=\trefs/heads/x:refs/heads/x\t[up to date]\n").map(|found| found.0), Some(b'='));
        let (flag, why) =
            said("!\trefs/heads/x:refs/heads/x\t[rejected] (fetch first)\n").unwrap_or_default();
        assert!(flag == b'!' && GitMessage::NotFastForward.is_in(&why));
        assert!(
            !GitMessage::NotFastForward.is_in("[remote rejected] (pre-receive hook declined: (fetch first))")
        );
        assert_eq!(said("*\trefs/heads/y:refs/heads/y\t[new branch]\n"), None);
        assert_eq!(said("Done\n\t\t\t\n"), None);
    }
}

//! Policy files in directories that a run could write. The run may have changed such a file, and the policy decides what
//! the next run may do. So guard remembers the content of each policy file that it has used, and uses different content
//! of a file in such a directory only when the user has confirmed it.

use std::io;
use std::path::{Path, PathBuf};

use crate::judge::policy::{PROJECT_POLICY, Policy};
use crate::session::Failure;
use crate::session::caller::{Ask, Question};
use crate::session::content_record::{ContentRecord, hash};
use crate::sys::agent_paths::{AgentPaths, AgentPlace, PlaceKind};
use crate::text::terminal_text;

/// The directory, in guard's state directory, with a file for each policy file: the hash of the content in use.
const DIRECTORY: &str = "policy-files";

/// A policy file with the hash of the content that guard has loaded.
struct PolicyFile {
    path: PathBuf,
    hash: String,
}

/// Fails if guard has used one of the policy's files with other content before, a run may have changed it since, and the
/// user does not confirm the new content. First asks the user.
pub(crate) fn confirm(policy: &Policy, ask: &Ask) -> Result<(), Failure> {
    for file in files(policy) {
        let record = file.record()?;
        match record.known()? {
            Some(known) if known == file.hash => continue,
            Some(_) => {
                if let Some(place) = file.written_place()? {
                    file.question(&place).confirm(ask)?;
                }
            }
            None => {}
        }
        record.remember(&file.hash)?;
    }
    Ok(())
}

/// Records that the user has confirmed the content of the policy's files. Returns their paths.
pub(crate) fn trust(policy: &Policy) -> Result<Vec<PathBuf>, Failure> {
    let files: Vec<PolicyFile> = files(policy).collect();
    files.iter().try_for_each(PolicyFile::remember)?;
    Ok(files.into_iter().map(|file| file.path).collect())
}

/// Records the content that guard itself has written to a policy file.
pub(crate) fn remember_written(path: &Path, text: &str) -> Result<(), Failure> {
    match std::path::absolute(path) {
        Ok(path) => PolicyFile::new(path, text).remember(),
        Err(_) => Ok(()),
    }
}

/// Returns the files of a policy. Leaves out sources that are no files, such as a commit or an option.
fn files(policy: &Policy) -> impl Iterator<Item = PolicyFile> {
    let own = policy.sources.iter().filter(|source| !source.built_in && source.name != PROJECT_POLICY);
    let files = own.filter_map(|source| Some((std::path::absolute(&source.name).ok()?, &source.text)));
    // The path as named and the real path: another spelling of the path is not another file, and a run can replace the
    // file by a link.
    files.filter(|(path, _)| path.is_file()).flat_map(|(path, text)| {
        let real = path.canonicalize().ok().filter(|real| *real != path);
        std::iter::once(path).chain(real).map(move |path| PolicyFile::new(path, text))
    })
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| {
        Failure::usage(
            format!("cannot {what}: {error}"),
            "check the owner and mode of guard's state directory",
        )
    }
}

impl PolicyFile {
    fn new(path: PathBuf, text: &str) -> Self {
        Self { path, hash: hash(text.as_bytes()) }
    }

    /// Returns the first directory on the way to the file that a run could write; `None` if there is none.
    fn written_place(&self) -> Result<Option<AgentPlace>, Failure> {
        let places = AgentPaths::from_environment().map_err(failed("read where agents have worked"))?;
        let place = places.first_place(&self.path).map_err(failed("find the policy file"))?;
        Ok(place.filter(|place| place.kind != PlaceKind::WorkingTree))
    }

    fn record(&self) -> Result<ContentRecord, Failure> {
        ContentRecord::of(DIRECTORY, &self.path)
    }

    fn remember(&self) -> Result<(), Failure> {
        self.record()?.remember(&self.hash)
    }

    fn question(&self, place: &AgentPlace) -> Question {
        let path = terminal_text::replace(&self.path.to_string_lossy());
        let message = format!(
            "the policy {path} has changed since guard last used it, and a run could have changed it: it is in {}",
            terminal_text::replace(&place.to_string())
        );
        let hint = format!(
            "read the file, then run `guard config trust --policy {path}`; or keep the file outside of directories where \
             agents work"
        );
        let refusal = ("nobody confirmed the changed policy", "correct the file, or give another --policy");
        Question { message, question: "use the changed policy?", hint, refusal }
    }
}

//! Finds the run that a user names: by its id, the beginning or end of an id, its branch, its name, `@` or a path.
//! Also opens its transcript and computes the short ids that tables print. Every command with a RUN argument uses this
//! module, which changes nothing.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::git::{Repository, main_directory};
use crate::run::transcript::{FindError, Reader, Run, Store};
use crate::session::Failure;
use crate::text::terminal_text;

/// The minimum length of the ids that tables print. If a text of at least this length may be part of an id, guard
/// looks for an id before it looks for a name.
const SHORTEST_ID: usize = 8;
/// The maximum number of candidates that an error message lists.
const MOST_LISTED: usize = 10;
/// The maximum length of text for which guard suggests similar names. Longer text is hardly a typing error, and
/// comparing it would be slow.
const LONGEST_TYPED: usize = 64;

/// A run that the user may have named, with its id, branch and repository.
#[derive(Debug, Clone, Default)]
pub(crate) struct Candidate {
    pub(crate) id: String,
    /// The run's branch, without `refs/heads/`.
    pub(crate) branch: Option<String>,
    pub(crate) repository: Option<PathBuf>,
    pub(crate) started: Option<Timestamp>,
}

impl From<&Run> for Candidate {
    fn from(run: &Run) -> Self {
        Self {
            id: run.id.clone(),
            branch: run.branch().map(str::to_string),
            repository: run.repository().map(Path::to_path_buf),
            started: run.started(),
        }
    }
}

impl From<FindError> for Failure {
    fn from(error: FindError) -> Self {
        let hint = match &error {
            FindError::Folder { .. } => "check the owner and mode of the directory",
            FindError::Empty(_) => "`guard run` creates the first run",
            FindError::Unknown(_) => "`guard runs` lists the runs; a path must contain a slash",
            FindError::Ambiguous { .. } => "give more characters of the id",
        };
        Failure::usage(error.to_string(), hint)
    }
}

/// Opens the store of the user's runs.
pub(crate) fn store() -> Result<Store, Failure> {
    Store::open()
        .map_err(|error| Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path"))
}

pub(crate) fn open_transcript(run: &Run) -> Result<Reader, Failure> {
    Reader::open(&run.transcript).map_err(|error| unreadable(run, &error))
}

/// Returns the error for a transcript that guard cannot read.
pub(crate) fn unreadable(run: &Run, error: &io::Error) -> Failure {
    Failure::usage(
        format!("cannot read {}: {error}", run.transcript.display()),
        "`guard runs` lists the runs and their state",
    )
}

/// Finds the run that the user named, or the newest run if the user named none.
pub(crate) fn find(reference: Option<&str>) -> Result<Run, Failure> {
    find_in(&store()?, reference.unwrap_or("@"))
}

fn find_in(store: &Store, reference: &str) -> Result<Run, Failure> {
    if reference.starts_with(['/', '.']) {
        return Ok(Run::at(Path::new(reference)));
    }
    if let Some(number) = position(reference) {
        let mut runs = store.newest_first()?.filter(|run| run.first.is_some());
        return match runs.nth(number - 1) {
            Some(run) => Ok(run),
            None if number == 1 => Err(FindError::Empty(store.folder().to_path_buf()).into()),
            None => Err(no_such_position(reference)),
        };
    }
    // Look for an id first, which does not require reading the other runs.
    let ids: Vec<Candidate> =
        store.ids()?.into_iter().map(|id| Candidate { id, ..Candidate::default() }).collect();
    if let [only] = matching_ids(reference, &ids).as_slice()
        && can_be_id(reference)
    {
        return Ok(Run::read(&store.folder().join(&ids[*only].id)));
    }
    let mut runs = store.list()?;
    let candidates: Vec<Candidate> = runs.iter().map(Candidate::from).collect();
    match pick(reference, &candidates) {
        Ok(found) => Ok(runs.swap_remove(found)),
        Err(_) if reference.contains('/') && Path::new(reference).exists() => {
            Ok(Run::at(Path::new(reference)))
        }
        Err(failure) => Err(failure),
    }
}

/// Returns the shortest text that identifies a run for every command with a RUN argument: `@` if the run is the newest
/// one, otherwise its short id. Returns the whole id if guard cannot read the store of runs.
pub(crate) fn shortest(run_id: &str) -> String {
    let found = || {
        let store = store().ok()?;
        let newest = find_in(&store, "@").ok()?;
        if newest.id == run_id {
            return Some("@".to_string());
        }
        let ids = store.ids().ok()?;
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        short_ids(&ids).get(run_id).map(|short| (*short).to_string())
    };
    found().unwrap_or_else(|| run_id.to_string())
}

/// Returns the index of the candidate that the user named. `candidates` must be sorted, with the newest run first.
/// Fails if no candidate matches, or if several do.
pub(crate) fn pick(reference: &str, candidates: &[Candidate]) -> Result<usize, Failure> {
    if let Some(number) = position(reference) {
        return if number <= candidates.len() { Ok(number - 1) } else { Err(no_such_position(reference)) };
    }
    let ids = matching_ids(reference, candidates);
    if can_be_id(reference) && !ids.is_empty() {
        return only_one(reference, &ids, candidates);
    }
    let branches: [&dyn Fn(&str) -> bool; 2] = [&|branch| branch == reference, &|branch| {
        branch.strip_suffix(reference).is_some_and(|prefix| prefix.ends_with('/'))
    }];
    for is_meant in branches {
        let found = newest_of_each_branch(candidates, is_meant);
        if !reference.is_empty() && !found.is_empty() {
            return only_one(reference, &prefer_current_repository(found, candidates), candidates);
        }
    }
    if ids.is_empty() {
        return Err(unknown(reference, candidates));
    }
    only_one(reference, &ids, candidates)
}

/// Returns the position in the list of runs, counted from 1, that `@` or `@N` means; `None` for any other text.
fn position(reference: &str) -> Option<usize> {
    match reference.strip_prefix('@')? {
        "" => Some(1),
        number => number.parse().ok().filter(|number| *number > 0),
    }
}

/// Returns true if text is long enough for an id and contains only characters of ids. Shorter text, such as `add`, is
/// more likely a name.
fn can_be_id(reference: &str) -> bool {
    reference.len() >= SHORTEST_ID && reference.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Returns the indexes of the candidates with this id or, if there are none, of those whose id begins or ends with this
/// text.
fn matching_ids(reference: &str, candidates: &[Candidate]) -> Vec<usize> {
    let matching = |test: &dyn Fn(&str) -> bool| -> Vec<usize> {
        (0..candidates.len()).filter(|&index| test(&candidates[index].id)).collect()
    };
    let exact = matching(&|id| id == reference);
    if !exact.is_empty() || reference.is_empty() {
        return exact;
    }
    matching(&|id| id.starts_with(reference) || id.ends_with(reference))
}

/// Returns the index of the newest run on each branch for which `is_meant` is true. Leaves out earlier runs on the same
/// branch, because a user who names a branch means its newest run.
fn newest_of_each_branch(candidates: &[Candidate], is_meant: &dyn Fn(&str) -> bool) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let is_known = || {
            found.iter().any(|&known| {
                let known = &candidates[known];
                (&known.branch, &known.repository) == (&candidate.branch, &candidate.repository)
            })
        };
        if candidate.branch.as_deref().is_some_and(is_meant) && !is_known() {
            found.push(index);
        }
    }
    found
}

/// If several runs were found, keeps only those in the repository of the current directory, unless there are none.
fn prefer_current_repository(found: Vec<usize>, candidates: &[Candidate]) -> Vec<usize> {
    if found.len() < 2 {
        return found;
    }
    let Some(current) = current_repository() else { return found };
    let here: Vec<usize> = found
        .iter()
        .copied()
        .filter(|&index| candidates[index].repository.as_deref() == Some(current.as_path()))
        .collect();
    if here.is_empty() { found } else { here }
}

/// Returns the main directory of the repository that contains the current directory; `None` if guard finds no
/// repository.
fn current_repository() -> Option<PathBuf> {
    let repository = Repository::find(&std::env::current_dir().ok()?).ok()??;
    Some(main_directory(&repository.common_dir).to_path_buf())
}

fn only_one(reference: &str, found: &[usize], candidates: &[Candidate]) -> Result<usize, Failure> {
    if let [only] = found {
        return Ok(*only);
    }
    let ids: Vec<&str> = candidates.iter().map(|candidate| candidate.id.as_str()).collect();
    let short = short_ids(&ids);
    let mut message = format!("{reference:?} matches {} runs:", found.len());
    for &index in found.iter().take(MOST_LISTED) {
        message += &format!("\n  {}", described(&candidates[index], &short));
    }
    if found.len() > MOST_LISTED {
        message += &format!("\n  … and {} more", found.len() - MOST_LISTED);
    }
    Err(Failure::usage(message, "give the id as the list shows it"))
}

fn described(candidate: &Candidate, short: &HashMap<&str, &str>) -> String {
    let id = short.get(candidate.id.as_str()).copied().unwrap_or(&candidate.id);
    let branch = terminal_text::escape(candidate.branch.as_deref().unwrap_or("no branch"));
    let started = match candidate.started {
        Some(time) => format!("started {}", time.strftime("%Y-%m-%d %H:%M:%SZ")),
        None => "not started".to_string(),
    };
    format!("{}  {branch}  {started}", terminal_text::escape(id))
}

fn unknown(reference: &str, candidates: &[Candidate]) -> Failure {
    let message = format!("no run matches {reference:?}");
    let ids: Vec<&str> = candidates.iter().map(|candidate| candidate.id.as_str()).collect();
    let short = short_ids(&ids);
    let nearest = nearest(reference, candidates, &short);
    if nearest.is_empty() {
        return Failure::usage(message, "`guard runs` lists the runs; a path must contain a slash");
    }
    let similar: String =
        nearest.into_iter().map(|index| format!("\n  {}", described(&candidates[index], &short))).collect();
    Failure::usage(format!("{message}; similar runs:{similar}"), "`guard runs` lists all runs")
}

/// Returns the indexes of at most three runs whose short id, branch or name is most similar to the text that the user
/// typed. Returns none if nothing is similar, or if the text is longer than `LONGEST_TYPED`.
fn nearest(reference: &str, candidates: &[Candidate], short: &HashMap<&str, &str>) -> Vec<usize> {
    if reference.len() > LONGEST_TYPED {
        return Vec::new();
    }
    let limit = reference.chars().count() / 3 + 1;
    let mut similar: Vec<(usize, usize)> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let branch = candidate.branch.as_deref();
        let name = branch.and_then(|branch| branch.rsplit('/').next());
        let known = [short.get(candidate.id.as_str()).copied(), branch, name];
        let distances = known.into_iter().flatten().filter(|known| known.len() <= LONGEST_TYPED);
        let distance = distances.map(|known| strsim::damerau_levenshtein(reference, known)).min();
        similar.extend(distance.filter(|distance| *distance <= limit).map(|distance| (distance, index)));
    }
    similar.sort();
    similar.into_iter().take(3).map(|(_, index)| index).collect()
}

fn no_such_position(reference: &str) -> Failure {
    Failure::usage(
        format!("{reference} matches no run: guard has recorded fewer runs"),
        "`guard runs` lists the runs; `@` is the newest",
    )
}

/// Returns a short form of each id: its shortest ending of 8, 12, 16 or 24 characters that no other id has, or else the
/// whole id.
pub(crate) fn short_ids<'a>(ids: &[&'a str]) -> HashMap<&'a str, &'a str> {
    let mut short = HashMap::with_capacity(ids.len());
    let mut left = ids.to_vec();
    for length in [SHORTEST_ID, 12, 16, 24] {
        let ending =
            |id: &'a str| id.len().checked_sub(length).and_then(|start| id.get(start..)).unwrap_or(id);
        let mut count: HashMap<&str, usize> = HashMap::with_capacity(ids.len());
        ids.iter().for_each(|id| *count.entry(ending(id)).or_default() += 1);
        left.retain(|id| {
            let is_unique = count[ending(id)] == 1;
            if is_unique {
                short.insert(*id, ending(id));
            }
            !is_unique
        });
        if left.is_empty() {
            break;
        }
    }
    short.extend(left.into_iter().map(|id| (id, id)));
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: &str, branch: Option<&str>) -> Candidate {
        Candidate { id: id.to_string(), branch: branch.map(str::to_string), ..Candidate::default() }
    }

    fn picked(reference: &str) -> Result<usize, String> {
        let candidates = [
            candidate("0197f0a3-0000-7000-8000-000000000add", Some("task/x")),
            candidate("0197f0a2-0000-7000-8000-0000aaaaaaaa", Some("task/add")),
            candidate("0197f0a1-0000-7000-8000-0000bbbbbbbb", Some("task/x")),
            candidate("0197f0a0-0000-7000-8000-0000cccccccc", None),
        ];
        pick(reference, &candidates).map_err(|failure| match failure {
            Failure::Usage { message, hint } => format!("{message}\n{hint}"),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_run_has_many_names() {
        for (reference, found) in [
            ("@", 0),
            ("@4", 3),
            ("aaaaaaaa", 1),
            ("bbbb", 2),
            ("0197f0a0", 3),
            ("0197f0a0-0000-7000-8000-0000cccccccc", 3),
            ("task/x", 0),
            ("x", 0),
            // `add` is a name here, not the end of an id.
            ("add", 1),
        ] {
            assert_eq!(picked(reference), Ok(found), "{reference}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_reference_is_said() {
        for (reference, wanted) in [
            ("0197f", "matches 4 runs"),
            ("@5", "fewer runs"),
            ("", "no run matches"),
            ("tsk/add", "task/add"),
            ("nothing-like-it", "`guard runs` lists the runs"),
            ("@0", "no run matches"),
            ("@x", "no run matches"),
        ] {
            let said = picked(reference).err().unwrap_or_default();
            assert!(said.contains(wanted), "{reference}: {said}");
        }
    }

    #[test]
    fn short_ids_are_unique_endings() {
        let ids = ["11-aaaaaaaa", "22-aaaaaaaa", "33-bbbbbbbb", "short"];
        let short = short_ids(&ids);
        assert_eq!(short["11-aaaaaaaa"], "11-aaaaaaaa");
        assert_eq!(short["33-bbbbbbbb"], "bbbbbbbb");
        assert_eq!(short["short"], "short");
    }
}

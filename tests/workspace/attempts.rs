// slow
//! An agent makes three commits on its branch and tries to change everything else. Nothing else may change.
//!
//! While the agent runs, it makes the attempts in `fixtures/attempts/while_running.sh`; after every attempt the test
//! compares the user's files, byte for byte, from outside. For each attempt in `left_behind.sh`, a separate run leaves
//! files behind, which guard then receives and the user's git reads. The tests also make every attempt without guard,
//! where it must change something unless a note in its script says otherwise.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{RunOutcome, TestEnvironment, guard_program, in_every_environment_at_once};

/// The time limit for a list of attempts. It is long, because the machine may be busy and guard may be an unoptimized
/// build.
const PATIENCE: Duration = Duration::from_secs(1200);
/// The number of failures after which the test stops.
const MOST_FAILURES: usize = 20;
/// The directory in the worktree in which the agent and the test create files to signal that it is the other's turn.
const TURNS: &str = ".turns";

/// One attempt of the agent to change something that does not belong to its branch.
#[derive(Debug, Clone)]
struct Attempt {
    name: String,
    script: String,
    /// The lines `#! KEY: VALUE` of the attempt's script, which tell the test what to expect.
    notes: BTreeMap<String, String>,
}

/// A list of attempts, and the script that runs before each.
struct List {
    prelude: String,
    attempts: Vec<Attempt>,
}

impl List {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/attempts").join(name);
        let text = std::fs::read_to_string(path).unwrap();
        let mut list = Self { prelude: String::new(), attempts: Vec::new() };
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("#: ") {
                let name = name.to_string();
                assert!(list.attempts.iter().all(|other| other.name != name), "{name} is there twice");
                list.attempts.push(Attempt { name, script: String::new(), notes: BTreeMap::new() });
            } else if let Some(attempt) = list.attempts.last_mut() {
                match line.strip_prefix("#! ").and_then(|note| note.split_once(": ")) {
                    Some((key, value)) => drop(attempt.notes.insert(key.to_string(), value.to_string())),
                    None => attempt.script += &format!("{line}\n"),
                }
            } else {
                list.prelude += &format!("{line}\n");
            }
        }
        // To run only some attempts, a developer sets GUARD_ATTEMPTS to a part of their names.
        if let Some(words) = std::env::var("GUARD_ATTEMPTS").ok().filter(|words| !words.is_empty()) {
            list.attempts.retain(|attempt| attempt.name.contains(&words));
        }
        list
    }
}

/// All files below some directories, with type, mode, owner and content.
type Snapshot = BTreeMap<PathBuf, (u32, u32, u32, Vec<u8>)>;

fn snapshot(folders: &[PathBuf]) -> Snapshot {
    fn walk(path: &Path, found: &mut Snapshot) {
        let Ok(data) = path.symlink_metadata() else { return };
        let content = if data.is_dir() {
            for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
                walk(&entry.path(), found);
            }
            Vec::new()
        } else if data.is_symlink() {
            std::fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec()
        } else if data.is_file() {
            std::fs::read(path).unwrap_or_default()
        } else {
            Vec::new()
        };
        found.insert(path.to_path_buf(), (data.mode(), data.uid(), data.gid(), content));
    }
    let mut found = Snapshot::new();
    for folder in folders {
        walk(folder, &mut found);
    }
    found
}

/// Returns the paths that differ, each with a description of the change.
fn differences(before: &Snapshot, after: &Snapshot) -> Vec<(PathBuf, &'static str)> {
    let mut found = Vec::new();
    for (path, was) in before {
        match after.get(path) {
            None => found.push((path.clone(), "gone")),
            Some(is) if is.0 != was.0 => found.push((path.clone(), "of another kind or mode")),
            Some(is) if is != was => found.push((path.clone(), "changed")),
            Some(_) => {}
        }
    }
    found.extend(after.keys().filter(|path| !before.contains_key(*path)).map(|path| (path.clone(), "new")));
    found
}

/// The files that the agent must not change: a user's repository with content of many kinds, and beside it another
/// worktree, a remote and a home directory.
struct AttemptFixture<'a> {
    environment: &'a TestEnvironment,
    root: PathBuf,
}

const SETUP: &str = r#"
mkdir home tools canary
export HOME=$PWD/home
git config --global user.name User
git config --global user.email user@example.org
git init -q --bare -b main remote.git
cd repository
say() { echo "$1" > "$1"; git add "$1"; git commit -qm "$1"; }
git tag -a v1 -m v1
git branch feature
say second
git remote add origin "$OLDPWD/remote.git"
git push -q origin main main:gone
git fetch -q
say third
git push -q origin main
git reset -q --hard HEAD^
git checkout -q feature
say on-feature
git checkout -q main
git tag light
git notes add -m words HEAD
echo more >> tracked
git stash push -q
git pack-refs --all
git branch loose
git update-ref refs/heads/main HEAD^
git update-ref refs/heads/main HEAD@{1}
git config alias.st status
printf '#!/bin/sh\nexit 0\n' > .git/hooks/pre-commit
chmod +x .git/hooks/pre-commit
mkdir -p .git/info
echo '*.bin -diff' > .git/info/attributes
git rev-parse HEAD | git pack-objects --revs -q .git/objects/pack/pack
echo unreachable | git hash-object -w --stdin
echo untracked > untracked
cd ../project
echo changed > tracked
"#;

impl<'a> AttemptFixture<'a> {
    fn new(environment: &'a TestEnvironment) -> Self {
        let root = environment.directory.parent().unwrap().to_path_buf();
        environment.run_outside(SETUP);
        let probe = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/probes/attempts.py");
        std::fs::copy(probe, root.join("tools/attempts.py")).unwrap();
        Self { environment, root }
    }

    fn tree(&self, name: &str) -> PathBuf {
        self.root.join(".worktrees").join(format!("repository-{name}"))
    }

    /// Returns a snapshot of the user's files.
    fn user(&self) -> Snapshot {
        snapshot(&["repository", "project", "home", "remote.git", "canary"].map(|name| self.root.join(name)))
    }

    fn git(&self, folder: &Path, words: &[&str]) -> String {
        let mut command = self.command("git");
        let output = command.args(words).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_string()
    }

    fn repository(&self) -> PathBuf {
        self.root.join("repository")
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.environment.command(program);
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.root.join("home"))
            .current_dir(self.repository());
        command
    }

    /// Writes the file that tells the agent which attempts to make. Returns its path.
    fn plan(&self, name: &str, list: &List, attempts: &[Attempt], turns: bool, bare: bool) -> PathBuf {
        let path = |name: &str| self.root.join(name).to_str().unwrap().to_string();
        let attempts: Vec<Value> = attempts
            .iter()
            .map(|attempt| json!({ "name": attempt.name, "script": attempt.script }))
            .collect();
        let mut plan = json!({
            "variables": {
                "ROOT": path(""), "REPO": path("repository"), "REAL": path("repository/.git"),
                "OTHER": path("project"), "REMOTE": path("remote.git"), "USERHOME": path("home"),
                "CANARY": path("canary"), "BRANCH": format!("refs/heads/task/{name}"),
                "BASE": self.git(&self.repository(), &["rev-parse", "main"]),
                "OLD": self.git(&self.repository(), &["rev-parse", "main^"]),
            },
            "prelude": list.prelude,
            "attempts": attempts,
        });
        if turns {
            plan["turns"] = json!(TURNS);
        }
        if bare {
            plan["places"] = json!([path("repository"), path("project"), path("home"), path("remote.git")]);
        }
        let file = self.root.join(format!("tools/{name}.json"));
        std::fs::write(&file, plan.to_string()).unwrap();
        file
    }

    /// Starts the agent in the sandbox of a new run. `plan` is the file that lists its attempts.
    fn guarded(&self, name: &str, plan: &Path) -> Child {
        let namespaces = if self.environment.namespaces { "require" } else { "off" };
        let mut command = self.command(guard_program());
        command.args(["run", "--json", "--quiet", "--policy", "strict", "--namespaces", namespaces]);
        command.args(["--name", name, "--read"]).arg(self.root.join("tools"));
        command.args(["--", "python3"]).arg(self.root.join("tools/attempts.py")).arg(plan);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Starts the agent without guard, in a worktree like the one that guard makes.
    fn bare(&self, name: &str, plan: &Path) -> Child {
        let tree = self.tree(name);
        let branch = format!("task/{name}");
        self.git(&self.repository(), &["worktree", "add", "-q", "-b", &branch, tree.to_str().unwrap()]);
        let mut command = self.command("python3");
        command.arg(self.root.join("tools/attempts.py")).arg(plan).current_dir(tree);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits while the agent makes its attempts. After every attempt, passes two snapshots of the user's files to
    /// `judge`: one from before the first attempt, and one from now. Returns the outcome and the failures.
    fn watch(
        &self,
        name: &str,
        mut child: Child,
        count: usize,
        mut judge: impl FnMut(&Value, &Snapshot, &Snapshot) -> Result<(), String>,
    ) -> (RunOutcome, Vec<String>) {
        let mut failures = Vec::new();
        let turns = self.tree(name).join(TURNS);
        let started = Instant::now();
        let mut before = Snapshot::new();
        for number in 0..=count {
            let done = turns.join(format!("{number}.done"));
            while !done.exists() {
                let ended = child.try_wait().unwrap().is_some();
                if ended || started.elapsed() > PATIENCE {
                    let _ = child.kill();
                    let outcome = self.environment.collect_outcome(child, started);
                    panic!(
                        "{}: {name}: the agent came to {number} of {count}: {} {}",
                        self.environment.name(),
                        String::from_utf8_lossy(&outcome.output),
                        outcome.error
                    );
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let report: Value = serde_json::from_slice(&std::fs::read(&done).unwrap()).unwrap();
            let now = self.user();
            if number == 0 {
                before = now;
            } else {
                let judged = judge(&report, &before, &now).err();
                failures.extend(judged.map(|found| format!("{report}: {found}")));
                if !came_to_its_end(&report) {
                    failures.push(format!("{report}: not made to its end"));
                }
            }
            if failures.len() > MOST_FAILURES {
                let _ = child.kill();
                break;
            }
            std::fs::write(turns.join(format!("{number}.go")), "").unwrap();
        }
        (self.environment.collect_outcome(child, started), failures)
    }
}

/// Returns true if the attempt ran to its end; otherwise it proves nothing.
fn came_to_its_end(report: &Value) -> bool {
    report["said"].as_str().is_some_and(|said| said.trim_end().ends_with("(came to its end)"))
}

/// Returns true if a run may change this path in the user's repository: the path belongs to the run's branch, or to
/// the git directory of the run's worktree.
fn is_own(path: &Path, git: &Path, name: &str) -> bool {
    let Ok(inside) = path.strip_prefix(git) else { return false };
    let branch = ["refs/heads/task/", "logs/refs/heads/task/"].map(|folder| Path::new(folder).join(name));
    branch.iter().any(|own| own == inside)
        || inside.starts_with(Path::new("worktrees").join(format!("repository-{name}")))
}

#[test]
fn hostile_attempts_during_a_run_change_nothing_of_the_user() {
    let list = List::read("while_running.sh");
    assert!(list.attempts.len() >= 60 || std::env::var_os("GUARD_ATTEMPTS").is_some());
    in_every_environment_at_once(|environment| {
        let fixture = AttemptFixture::new(environment);
        let before = fixture.user();
        let plan = fixture.plan("live", &list, &list.attempts, true, false);
        let mut last: Option<Snapshot> = None;
        let agent = fixture.guarded("live", &plan);
        let (outcome, failures) = fixture.watch("live", agent, list.attempts.len(), |_, first, now| {
            // Not even the run's branch and the git directory of its worktree may change, because guard receives
            // nothing before the agent ends.
            let found = differences(last.as_ref().unwrap_or(first), now);
            if found.is_empty() {
                return Ok(());
            }
            last = Some(now.clone());
            Err(format!("{found:?}"))
        });
        assert!(failures.is_empty(), "{}:\n{}", environment.name(), failures.join("\n"));
        let result = &outcome.result;
        let problem = || format!("{}: {result:#}\n{}", environment.name(), outcome.error);
        assert_eq!((&result["success"], outcome.code), (&json!(true), 0), "{}", problem());
        let subjects: Vec<&str> =
            result["commits"].as_array().unwrap().iter().filter_map(|one| one["subject"].as_str()).collect();
        assert_eq!(subjects, ["honest 1", "honest 2", "honest 3"], "{}", problem());
        assert_eq!(result["findings"], json!([]), "{}", problem());
        assert!(!result["denials"].as_array().unwrap().is_empty(), "{}", problem());
        let range = "main..refs/heads/task/live";
        assert_eq!(fixture.git(&fixture.repository(), &["rev-list", "--count", range]), "3", "{}", problem());
        let found = foreign(&fixture, "live", &before, true);
        assert!(found.is_empty(), "{}: {found:?}", environment.name());
    });
}

/// Returns the changes that the run must not have made: those outside its branch, the git directory of its worktree
/// and, if `received` is true, the objects of its commits.
fn foreign(
    fixture: &AttemptFixture<'_>,
    name: &str,
    before: &Snapshot,
    received: bool,
) -> Vec<(PathBuf, &'static str)> {
    let repository = fixture.repository();
    let git = repository.join(".git");
    let mut allowed: Vec<PathBuf> =
        ["worktrees", "refs/heads/task", "logs/refs/heads/task"].map(|folder| git.join(folder)).to_vec();
    if received {
        let range = format!("main..refs/heads/task/{name}");
        let objects = fixture.git(&repository, &["rev-list", "--objects", "--no-object-names", &range]);
        for (folder, file) in objects.lines().map(|id| id.split_at(2)) {
            allowed.push(git.join("objects").join(folder));
            allowed.push(git.join("objects").join(folder).join(file));
        }
    }
    let mut found = differences(before, &fixture.user());
    found.retain(|(path, what)| !(is_own(path, &git, name) || allowed.contains(path) && *what == "new"));
    found
}

#[test]
fn every_hostile_attempt_succeeds_without_guard() {
    let list = List::read("while_running.sh");
    in_every_environment_at_once(|environment| {
        // Without guard there are no namespaces, so the environments without namespaces are enough.
        if environment.namespaces {
            return;
        }
        let fixture = AttemptFixture::new(environment);
        let plan = fixture.plan("live", &list, &list.attempts, true, true);
        let git = fixture.repository().join(".git");
        let attempts: BTreeMap<&str, &Attempt> =
            list.attempts.iter().map(|attempt| (attempt.name.as_str(), attempt)).collect();
        let agent = fixture.bare("live", &plan);
        let (_, failures) = fixture.watch("live", agent, list.attempts.len(), |report, first, now| {
            let found = differences(first, now);
            // New objects and new directories do not count as a change, unless the attempt has the note `objects`.
            let is_object = |path: &Path| {
                let inside = path.strip_prefix(git.join("objects")).ok();
                inside
                    .and_then(|inside| inside.to_str())
                    .is_some_and(|id| id.as_bytes().get(2) == Some(&b'/'))
            };
            let mut foreign = found.iter().filter(|(path, what)| {
                let counts = attempts[report["name"].as_str().unwrap()].notes.contains_key("objects");
                !is_own(path, &git, "live")
                    && (*what != "new" || counts || !(is_object(path) || path.is_dir()))
            });
            foreign.next().map(drop).ok_or_else(|| format!("only {found:?}"))
        });
        assert!(failures.is_empty(), "{}:\n{}", environment.name(), failures.join("\n"));
    });
}

/// Does what a user typically does when a run has ended: calls git in the run's worktree and compares the run's branch.
/// Returns the exit code of `git status`.
fn look_around(fixture: &AttemptFixture<'_>, name: &str) -> i32 {
    let script = r#"
        cd "$1" && timeout 10 git status > /dev/null; status=$?
        for words in 'diff' 'diff HEAD~1' 'log -p -2' 'submodule status' 'stash list'; do timeout 10 git $words; done
        cd "$2/repository"
        for words in "status" "log -p $3 -2" "diff main...$3"; do timeout 10 git $words; done
        git merge-base --is-ancestor "$3" main && exit $status
        rm -rf "$2/tmp/clone" && timeout 10 git clone -q . "$2/tmp/clone" && cd "$2/tmp/clone" \
            && timeout 10 git merge --no-commit --no-ff "origin/$3"
        exit $status"#;
    let mut command = fixture.command("bash");
    command.args(["-c", script, "-"]).arg(fixture.tree(name)).arg(&fixture.root).arg(format!("task/{name}"));
    let output = command.output().unwrap();
    output.status.code().unwrap_or(-1)
}

/// Returns true if a program that the agent planted has run outside the sandbox: it would have created a marker file.
/// Removes the file.
fn canary(fixture: &AttemptFixture<'_>) -> bool {
    std::fs::remove_file(fixture.root.join("canary/ran")).is_ok()
}

#[test]
fn hostile_leftovers_of_a_run_change_nothing_of_the_user() {
    let list = List::read("left_behind.sh");
    in_every_environment_at_once(|environment| {
        let fixture = AttemptFixture::new(environment);
        let mut failures = Vec::new();
        for (number, attempt) in list.attempts.iter().enumerate() {
            // guard receives outside the sandbox, so one environment is enough for most attempts. The four
            // environments take turns.
            let turn = usize::from(environment.namespaces) + 2 * usize::from(environment.user.name == "root");
            if number % 4 != turn && !attempt.notes.contains_key("environments") {
                continue;
            }
            let name = format!("left-{number}");
            let found = leave(&fixture, &name, &list, attempt);
            failures.extend(found.into_iter().map(|found| format!("{}: {found}", attempt.name)));
        }
        assert!(failures.is_empty(), "{}:\n{}", environment.name(), failures.join("\n"));
    });
}

/// Starts a run whose agent leaves this attempt's files in its worktree. When guard has ended, calls the user's git
/// there. Returns what went wrong.
fn leave(fixture: &AttemptFixture<'_>, name: &str, list: &List, attempt: &Attempt) -> Vec<String> {
    let before = fixture.user();
    let plan = fixture.plan(name, list, std::slice::from_ref(attempt), false, false);
    let outcome = fixture.environment.collect_outcome(fixture.guarded(name, &plan), Instant::now());
    let (result, repository) = (&outcome.result, fixture.repository());
    let mut wrong = Vec::new();
    let ends = attempt.notes.get("ends").map_or("received 3", String::as_str);
    let branch = format!("refs/heads/task/{name}");
    let reported = outcome.printed();
    if !serde_json::from_str(reported.trim()).is_ok_and(|report| came_to_its_end(&report)) {
        wrong.push("the attempt was not made".to_string());
    }
    if canary(fixture) {
        wrong.push("guard ran what was planted".to_string());
    }
    if let Some(words) = ends.strip_prefix("refused ") {
        let error = result["error"].as_str().unwrap_or_default();
        if outcome.kind() != "receive_refused" || !error.contains(words) || result["commits"] != json!([]) {
            wrong.push(format!("not refused for {words:?}"));
        }
        let run = result["run_id"].as_str().unwrap_or_default();
        let kept = fixture.environment.runs_directory().join(run).join("git");
        if kept.symlink_metadata().is_err() || result["worktree"]["unreceived"] != json!(true) {
            wrong.push("the quarantine was not kept".to_string());
        }
        if fixture.git(&repository, &["rev-parse", &branch])
            != fixture.git(&repository, &["rev-parse", "main"])
        {
            wrong.push("the branch was moved".to_string());
        }
    } else {
        let count = ends.strip_prefix("received ").and_then(|count| count.parse::<usize>().ok()).unwrap();
        let commits = result["commits"].as_array().map_or(0, Vec::len);
        let range = format!("main..{branch}");
        let real = fixture.git(&repository, &["rev-list", "--count", &range]);
        if result["success"] != json!(true) || commits != count || real != count.to_string() {
            wrong.push(format!("{commits} and {real} commits instead of {count}"));
        }
    }
    let found = foreign(fixture, name, &before, ends.starts_with("received"));
    if !found.is_empty() {
        wrong.push(format!("changed: {found:?}"));
    }
    let status = look_around(fixture, name);
    if status != 0 {
        wrong.push(format!("git status in the worktree ends with {status}"));
    }
    if canary(fixture) {
        wrong.push("the user's git ran what was planted".to_string());
    }
    if !wrong.is_empty() {
        wrong.push(format!("{result}\n{}", outcome.error));
    }
    wrong
}

#[test]
fn every_hostile_leftover_has_an_effect_without_guard() {
    let list = List::read("left_behind.sh");
    in_every_environment_at_once(|environment| {
        if environment.namespaces {
            return;
        }
        let fixture = AttemptFixture::new(environment);
        let plan = fixture.plan("left", &list, &list.attempts, true, true);
        let attempts: BTreeMap<&str, &Attempt> =
            list.attempts.iter().map(|attempt| (attempt.name.as_str(), attempt)).collect();
        let agent = fixture.bare("left", &plan);
        let (_, failures) = fixture.watch("left", agent, list.attempts.len(), |report, first, now| {
            let expected = attempts[report["name"].as_str().unwrap()].notes.get("canary").map(String::as_str);
            let found = differences(first, now);
            let is_real = match expected {
                Some("git") => {
                    look_around(&fixture, "left");
                    canary(&fixture)
                }
                Some(_) => true,
                None => !found.is_empty(),
            };
            if is_real { Ok(()) } else { Err(format!("only {found:?}")) }
        });
        assert!(failures.is_empty(), "{}:\n{}", environment.name(), failures.join("\n"));
    });
}

//! Tests many git calls at once, broken environments, and a killed supervisor. No work may be lost, and no lock may be
//! left.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guard::git::{KeepPolicy, Limits, State, Workspace, WorkspaceError, list};

use crate::support::{
    Random, RunOutcome, TestEnvironment, in_every_environment, in_two_environments, is_root, one_environment,
    run_tool, skip, skip_unsupported, wait_until,
};

fn root(environment: &TestEnvironment) -> PathBuf {
    environment.temporary_directory().parent().unwrap().to_path_buf()
}

/// Returns a command `guard run --name NAME` for a script, in the main repository of the environment.
fn task(environment: &TestEnvironment, name: &str, options: &[&str], script: &str) -> Command {
    let options = [&["--json", "--policy", "strict", "--name", name, "--no-toolchains"], options].concat();
    let mut command = environment.guard_run(&options, &["bash", "-c", script]);
    command.current_dir(root(environment).join("repository"));
    command
}

fn run(environment: &TestEnvironment, name: &str, options: &[&str], script: &str) -> RunOutcome {
    environment.run_to_end(task(environment, name, options, script), b"")
}

/// A script that commits one file.
const COMMIT: &str = "echo work > work; git add work; git commit -qm work";

fn fsck(environment: &TestEnvironment) {
    let said = environment.run_outside("cd repository && git fsck --full --strict 2>&1");
    let real: Vec<&str> = said.lines().filter(|line| !line.starts_with("dangling")).collect();
    assert!(real.is_empty(), "{}: {said}", environment.name());
}

/// Returns the lock files and incomplete objects that git left in the user's repository.
fn leftovers(environment: &TestEnvironment) -> String {
    // `find` may report files that disappear while it runs. They are not left over, so its error is ignored.
    let find = "find repository/.git \\( -name '*.lock' -o -name 'tmp_*' -o -name 'incoming-*' \\) -print";
    environment.run_outside(&format!("{find} || [ -d repository/.git ]"))
}

/// Starts a run that creates `ready.log` in its worktree and then waits for `go.log`.
fn waiting(environment: &TestEnvironment, name: &str, script: &str) -> (Child, PathBuf) {
    let script = format!("{script}\ntouch ready.log; until [ -e go.log ]; do sleep 0.01; done");
    environment
        .run_outside("cd repository && grep -q log .git/info/exclude || echo '*.log' >> .git/info/exclude");
    let mut command = task(environment, name, &["--keep"], &script);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let tree = root(environment).join(format!(".worktrees/repository-{name}"));
    wait_until("the run is ready", || tree.join("ready.log").exists());
    (child, tree)
}

fn go(environment: &TestEnvironment, child: Child, tree: &Path) -> RunOutcome {
    std::fs::write(tree.join("go.log"), "").unwrap();
    environment.collect_outcome(child, Instant::now())
}

#[test]
fn three_thousand_calls_in_one_run() {
    let environment = one_environment();
    let head = environment.run_outside("cd repository && git rev-parse HEAD");
    let mut command = task(
        &environment,
        "many",
        &["--timeout", "600", "--max-duration", "1200"],
        "seq 3000 | xargs -P 4 -I{} git rev-parse HEAD | sort | uniq -c",
    );
    // The test waits for guard without the usual time limit, because this many git calls through a shim take long.
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert_eq!(
        result["result"].as_str().unwrap_or_default().trim(),
        format!("3000 {}", head.trim()),
        "{result:#}"
    );
    assert_eq!(result["denials"], serde_json::json!([]), "{result:#}");
}

/// A program that sends invalid data to the shim socket until it is told to stop, and holds some connections open.
const GARBAGE: &str = r#"
import os, random, socket, struct, sys
address, held, random.seed = os.environ["GUARD_CONTROL"], [], random.seed(7)
def send(data, keep=False):
    try:
        s = socket.socket(socket.AF_UNIX); s.settimeout(2); s.connect(address); s.sendall(data)
        if keep: held.append(s); return
        s.shutdown(socket.SHUT_WR); s.recv(64); s.close()
    except OSError: pass
while not os.path.exists("stop.log"):
    send(os.urandom(random.randrange(1, 3000)))
    send(b"GRD\x01" + struct.pack("<I", 0xffffffff) + b"x" * 100)
    send(b"GRD\x01" + struct.pack("<I", 1 << 20) + b"y" * 1000)
    send(b"GRD\x09" + struct.pack("<I", 0))
    send(b"GRD\x01" + struct.pack("<I", 12) + struct.pack("<III", 0xfffffff, 0, 0))
    if len(held) < 16: send(b"GRD", keep=True)
    elif random.random() < 0.3: held.pop(0).close()
"#;

#[test]
fn sixty_four_at_once_beside_garbage() {
    in_two_environments(|environment| {
        let head = environment.run_outside("cd repository && git rev-parse HEAD");
        let garbage = root(environment).join("garbage.py");
        std::fs::write(&garbage, GARBAGE).unwrap();
        let mut command = environment.guard_run(
            &["--json", "--policy", "strict", "--name", "crowd", "--read", garbage.to_str().unwrap()],
            &[
                "bash",
                "-c",
                &format!(
                    "python3 {} & seq 640 | xargs -P 64 -I{{}} git rev-parse HEAD | sort | uniq -c; touch stop.log; wait; rm stop.log; {COMMIT}",
                    garbage.display()
                ),
            ],
        );
        command.current_dir(root(environment).join("repository"));
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(outcome.printed().trim(), format!("640 {}", head.trim()), "{outcome}");
        assert_eq!(outcome.result["success"], true, "{outcome}");
        assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(1), "{}", environment.name());
        fsck(environment);
    });
}

#[test]
fn a_lock_that_a_killed_git_left_inside() {
    in_two_environments(|environment| {
        let outcome = run(
            environment,
            "locked",
            &[],
            &format!(
                "touch \"$(git rev-parse --git-path index.lock)\"; echo a > a; git add a 2>&1; echo code $?
                 rm \"$(git rev-parse --git-path index.lock)\"; {COMMIT}; echo code $?
                 touch \"$(git rev-parse --git-path index.lock)\" \"$(git rev-parse --git-path HEAD.lock)\" \"$(git rev-parse --git-path refs/heads/task/locked.lock)\""
            ),
        );
        let said = outcome.printed();
        assert!(
            said.contains("index.lock': File exists") && said.contains("code 128\ncode 0\n"),
            "{}: {said}",
            environment.name()
        );
        assert_eq!(
            outcome.result["success"],
            true,
            "locks inside are nothing outside; {}: {:#}",
            environment.name(),
            outcome.result
        );
        assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(1), "{outcome}");
        assert_eq!(leftovers(environment), "", "{}", environment.name());
        fsck(environment);
    });
}

/// A killed git left lock files in the real repository. A lock of the user's index must not affect a run. A lock of
/// the task's branch or index must keep guard from receiving, and the user must be able to receive later.
#[test]
fn locks_that_a_killed_git_left_outside() {
    // The test process itself repeats the end of the run, so it only tests runs of its own user.
    let environment = one_environment();
    environment.run_outside(
        "touch repository/.git/index.lock repository/.git/config.lock repository/.git/HEAD.lock",
    );
    let outcome = run(&environment, "users", &[], COMMIT);
    assert_eq!(outcome.result["success"], true, "{outcome}");
    assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(1), "{outcome}");
    environment.run_outside("cd repository/.git && rm index.lock config.lock HEAD.lock");

    for lock in ["refs/heads/task/NAME.lock", "worktrees/repository-NAME/index.lock"] {
        let name = lock.replace(|c: char| !c.is_ascii_lowercase(), "");
        let lock = root(&environment).join("repository/.git").join(lock.replace("NAME", &name));
        let (child, tree) = waiting(&environment, &name, COMMIT);
        std::fs::write(&lock, "").unwrap();
        let outcome = go(&environment, child, &tree);
        assert_eq!(outcome.code, 125, "{}: {:#}", lock.display(), outcome.result);
        let told = outcome.result["error"].as_str().unwrap_or_default();
        assert!(told.contains("lock"), "{}: {told}", lock.display());
        assert!(lock.exists(), "somebody else's lock is theirs");
        std::fs::remove_file(&lock).unwrap();
        let id = outcome.result["run_id"].as_str().unwrap();
        let mut workspace = Workspace::load(&environment.runs_directory().join(id)).unwrap();
        workspace.receive(&Limits::default()).unwrap();
        let settled = workspace.dispose(KeepPolicy::Keep).unwrap();
        assert!(settled.kept && settled.has_commits && !settled.unreceived, "{settled:?}");
        assert_eq!(
            environment
                .run_outside(&format!("cd {} && git status -s && git log -1 --format=%s", tree.display())),
            "work\n"
        );
        fsck(&environment);
    }
}

#[test]
fn places_that_are_taken() {
    in_two_environments(|environment| {
        let state = || {
            environment.run_outside(
                "cd repository && git for-each-ref && git worktree list --porcelain && ls -A ../.worktrees",
            )
        };
        environment.run_outside(
            "mkdir -p .worktrees/repository-there && echo mine > .worktrees/repository-there/file",
        );
        environment.run_outside(
            "cd repository && git branch task/branch && git worktree add -q -b task/elsewhere ../elsewhere",
        );
        // git has records of two worktrees whose directories are gone. One of them is locked.
        environment.run_outside(
            "cd repository && for name in stale kept; do git worktree add -q --detach ../.worktrees/repository-$name; done
             echo c > ../.worktrees/repository-kept/c && cd ../.worktrees/repository-kept && git add c && git -c user.name=n -c user.email=e commit -qm kept
             cd ../../repository && git worktree lock ../.worktrees/repository-kept && rm -rf ../.worktrees/repository-stale ../.worktrees/repository-kept",
        );
        let before = state();
        for (name, wanted) in [
            ("there", "already exists"),
            ("branch", "the branch task/branch already exists"),
            ("elsewhere", "the branch task/elsewhere already exists"),
            ("kept", "worktree"),
        ] {
            let mut command = task(environment, name, &[], "true");
            let output = command.output().unwrap();
            let told = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(
                output.status.code() == Some(125) && told.contains(wanted),
                "{}: {name}: {told}",
                environment.name()
            );
            assert_eq!(state(), before, "{}: {name}", environment.name());
        }
        // If git's record of the missing worktree is not locked, the run may either use the name or be refused. Nothing
        // may be lost in either case.
        let outcome = run(environment, "stale", &["--keep"], COMMIT);
        if outcome.code == 0 {
            assert_eq!(
                environment.run_outside("cd .worktrees/repository-stale && git log -1 --format=%s"),
                "work\n"
            );
        } else {
            assert_eq!(state(), before, "{outcome}");
        }
        assert_eq!(environment.run_outside("cat .worktrees/repository-there/file"), "mine\n");
        fsck(environment);
    });
}

/// The user checks out the task's branch in a second worktree while a run works on it. guard must refuse to move the
/// branch.
#[test]
fn a_branch_that_somebody_checks_out_meanwhile() {
    let environment = one_environment();
    let (child, tree) = waiting(&environment, "twice", COMMIT);
    environment.run_outside("cd repository && git worktree add -q --force ../second task/twice");
    let outcome = go(&environment, child, &tree);
    outcome.expect_code_and_kind(125, "receive_refused");
    assert_eq!(environment.run_outside("cd second && git status -s && git log -1 --format=%s"), "first\n");
    environment.run_outside("cd repository && git worktree remove ../second");
    let id = outcome.result["run_id"].as_str().unwrap();
    let mut workspace = Workspace::load(&environment.runs_directory().join(id)).unwrap();
    assert_eq!(workspace.receive(&Limits::default()).unwrap().commits.len(), 1);
    workspace.dispose(KeepPolicy::Keep).unwrap();
    fsck(&environment);
}

#[test]
fn many_runs_at_once_in_one_repository() {
    in_every_environment(|environment| {
        let start = |name: Option<&str>| {
            let script = format!("{COMMIT}; for i in 1 2 3; do echo $i >> work; git commit -qam $i; done");
            let mut options = vec!["--json", "--auto", "--policy", "strict", "--no-toolchains"];
            options.extend(name.iter().flat_map(|name| ["--name", *name]));
            let mut command = environment.guard_run(&options, &["bash", "-c", &script]);
            command.current_dir(root(environment).join("repository"));
            (command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), Instant::now())
        };
        let running: Vec<_> = [None, None, None, Some("same"), Some("same")].map(start).into_iter().collect();
        let outcome: Vec<RunOutcome> =
            running.into_iter().map(|(child, begun)| environment.collect_outcome(child, begun)).collect();
        for outcome in &outcome[..3] {
            assert_eq!(outcome.result["success"], true, "{outcome}");
            assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(4), "{outcome}");
            let broken = outcome.result["findings"].to_string().contains("repository.broken");
            assert!(!broken, "{}: {:#}", environment.name(), outcome.result["findings"]);
        }
        // Of two runs with the same name, exactly one must start.
        let mut codes = [outcome[3].code, outcome[4].code];
        codes.sort();
        assert_eq!(codes, [0, 125], "{}: {} {}", environment.name(), outcome[3].error, outcome[4].error);
        let branches = environment.run_outside("cd repository && git for-each-ref --format='%(refname)' refs/heads/task | grep -v task/work | wc -l");
        assert_eq!(branches.trim(), "4", "{}", environment.name());
        let prunable = environment
            .run_outside("cd repository && git worktree list --porcelain | grep -c prunable || true");
        assert_eq!(prunable.trim(), "0", "{}", environment.name());
        assert_eq!(leftovers(environment), "", "{}", environment.name());
        fsck(environment);
    });
}

/// A mounted file system. Dropping the value unmounts it.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    pub(crate) fn new(at: PathBuf, size: &str) -> Option<Self> {
        if !is_root() {
            skip("a full disk", "only root can mount one");
            return None;
        }
        std::fs::create_dir_all(&at).unwrap();
        let size = format!("size={size},mode=755");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "guard-test"]).arg(&at).status();
        if !mounted.is_ok_and(|status| status.success()) {
            skip_unsupported("a full disk", "mounting is not allowed here");
            return None;
        }
        Some(Self(at))
    }

    /// Fills the file system, except for this many bytes.
    pub(crate) fn fill(&self, left: usize) {
        let mut size = 1 << 20;
        while size >= 4096 {
            let file = self.0.join(format!("filler-{size}"));
            let mut bytes = Vec::new();
            while std::fs::write(&file, vec![0u8; bytes.len() + size]).is_ok() {
                bytes.resize(bytes.len() + size, 0u8);
            }
            // Another process may use the space that a smaller file leaves.
            while std::fs::write(&file, &bytes).is_err() && !bytes.is_empty() {
                bytes.truncate(bytes.len() - size);
            }
            size /= 16;
        }
        if left > 0 {
            let file = self.0.join("filler-1048576");
            let length = std::fs::metadata(&file).unwrap().len();
            std::fs::OpenOptions::new()
                .write(true)
                .open(&file)
                .unwrap()
                .set_len(length.saturating_sub(left as u64))
                .unwrap();
        }
    }

    pub(crate) fn free(&self) {
        for entry in std::fs::read_dir(&self.0).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("filler-") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run_tool("umount", &["-l".as_ref(), self.0.as_ref()]);
    }
}

#[test]
fn a_full_disk_under_the_repository() {
    let environment = one_environment();
    let Some(disk) = Mounted::new(root(&environment).join("disk"), "8m") else { return };
    environment.run_outside("mv repository disk/repository && rm -rf project && cd disk/repository && git worktree prune && git branch -qD task/work && head -c 300000 /dev/urandom > big && git add big && git -c user.name=n -c user.email=e commit -qm big");
    let run = |name: &str, script: &str| {
        let mut command = task(&environment, name, &["--keep"], script);
        command.current_dir(root(&environment).join("disk/repository"));
        command
    };
    let state = || {
        environment.run_outside("cd disk/repository && git for-each-ref && git worktree list --porcelain && find .git -name '*.lock'")
    };
    let before = state();
    // With so little space, guard cannot make the worktree.
    disk.fill(100_000);
    let output = run("full", "true").output().unwrap();
    let told =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(125) && told.contains("unable to write file"), "{told}");
    disk.free();
    assert_eq!(state(), before, "what was made is undone");
    // With so little space, guard cannot receive. The commits must stay in the run's directory, which is on another
    // disk.
    let mut command = run(
        "late",
        "head -c 2000000 /dev/urandom > large && git add large && git commit -qm large && touch ready.log; until [ -e go.log ]; do sleep 0.01; done; rm *.log",
    );
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let tree = root(&environment).join("disk/.worktrees/repository-late");
    wait_until("the run is ready", || tree.join("ready.log").exists());
    std::fs::write(tree.join("go.log.new"), "").unwrap();
    disk.fill(0);
    std::fs::rename(tree.join("go.log.new"), tree.join("go.log")).unwrap();
    let outcome = environment.collect_outcome(child, Instant::now());
    outcome.expect_code(125);
    disk.free();
    let id = outcome.result["run_id"].as_str().unwrap();
    assert!(
        list(&environment.runs_directory()).unwrap().iter().any(|entry| entry.run_folder.ends_with(id)),
        "it is in the list"
    );
    let mut workspace = Workspace::load(&environment.runs_directory().join(id)).unwrap();
    let received = workspace.receive(&Limits::default()).unwrap();
    assert_eq!(received.commits.len(), 1, "{received:?}");
    workspace.dispose(KeepPolicy::Keep).unwrap();
    assert_eq!(
        environment
            .run_outside("cd disk/.worktrees/repository-late && git status -s && git log -1 --format=%s"),
        "large\n"
    );
    let said =
        environment.run_outside("cd disk/repository && git fsck --strict 2>&1 | grep -v dangling || true");
    assert_eq!(said, "");
}

#[test]
fn a_full_disk_under_the_runs() {
    let environment = one_environment();
    let Some(disk) = Mounted::new(root(&environment).join("state"), "6m") else { return };
    // git in the run reports the full disk and leaves an incomplete object. guard cannot record the receive, so it
    // must receive nothing.
    let script = format!(
        "{COMMIT}; head -c 20000000 /dev/urandom > large; git add large 2>&1; echo code $?; rm large"
    );
    let outcome = run(&environment, "small", &["--keep"], &script);
    assert!(outcome.printed().contains("No space left"), "{outcome}");
    outcome.expect_code(125);
    // When there is space again, guard must receive the commit.
    let folder = environment.runs_directory().join(outcome.result["run_id"].as_str().unwrap());
    environment.run_outside(&format!("find {}/git -name 'tmp_obj_*' -delete", folder.display()));
    let mut workspace = Workspace::load(&folder).unwrap();
    assert_eq!(workspace.receive(&Limits::default()).unwrap().commits.len(), 1);
    workspace.dispose(KeepPolicy::Keep).unwrap();
    assert_eq!(
        environment.run_outside("cd .worktrees/repository-small && git status -s && git log -1 --format=%s"),
        "work\n"
    );
    // There is no space for a run at all.
    disk.fill(0);
    let before = environment.run_outside("cd repository && git for-each-ref && git worktree list");
    let output = task(&environment, "none", &[], "true").output().unwrap();
    let told =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && told.contains("No space left"), "{told}");
    assert_eq!(environment.run_outside("cd repository && git for-each-ref && git worktree list"), before);
    assert_eq!(leftovers(&environment), "");
    fsck(&environment);
}

/// The supervisor is killed at any moment between its start and the end of the receive. Another process must be able to
/// finish its work.
#[test]
fn the_supervisor_is_killed_and_the_work_is_finished() {
    in_every_environment(|environment| {
        // The test process itself finishes the run, so it only tests runs of its own user.
        if is_root() && environment.user.name != "root" {
            return;
        }
        let mut random = Random(0x2545_f491_4f6c_dd1d ^ u64::from(environment.namespaces));
        let script = format!(
            "{COMMIT}; for i in 1 2 3; do echo $i >> work; git commit -qam $i; done; echo loose > loose"
        );
        let whole = run(environment, "whole", &["--keep"], &script).took;
        let mut whole = u64::try_from(whole.as_micros()).unwrap();
        let base = environment.run_outside("cd repository && git rev-parse main");
        let mut states = std::collections::BTreeMap::<&str, usize>::new();
        // If another program slowed the machine down after the measurement, all kills come too early, so the test
        // continues until they have hit different states.
        for turn in 0..60 {
            if turn >= 12 && states.len() > 2 {
                break;
            }
            if turn > 0 && turn % 12 == 0 {
                let again = run(environment, &format!("whole{turn}"), &["--keep"], &script).took;
                whole = u64::try_from(again.as_micros()).unwrap();
            }
            let name = format!("k{turn}");
            let mut command = task(environment, &name, &["--keep"], &script);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // Every second kill falls into the last third of the run, in which guard receives the branch and hands
            // the worktree back.
            let delay =
                if turn % 2 == 0 { random.below(whole) } else { whole * 2 / 3 + random.below(whole / 2) };
            std::thread::sleep(Duration::from_micros(delay));
            if child.try_wait().unwrap().is_some() {
                // The first, measured run was slower because the machine was busier, so the estimate is lowered.
                whole = whole * 4 / 5;
            }
            let _ = child.kill();
            child.wait().unwrap();
            // The kernel also ends the git processes of the killed guard, which takes a moment on a busy machine.
            wait_until("the git of the killed run ends", || !is_in_use(&format!("repository-{name}")));
            finish(environment, &name, base.trim(), &mut states);
        }
        eprintln!("{}: killed while {states:?}", environment.name());
        assert!(states.len() > 2, "{}: the moments hit nothing: {states:?}", environment.name());
        // The repository must still work for another run.
        let outcome = run(environment, "after", &[], COMMIT);
        assert_eq!(outcome.result["success"], true, "{outcome}");
    });
}

/// Returns true if a process has this text in its arguments or variables.
fn is_in_use(text: &str) -> bool {
    let mentions = |process: &Path| {
        ["cmdline", "environ"].iter().any(|file| {
            let bytes = std::fs::read(process.join(file)).unwrap_or_default();
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        })
    };
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| mentions(&entry.path()))
}

/// Checks what a killed run left, finishes it as another guard process would, and checks the result.
fn finish(
    environment: &TestEnvironment,
    name: &str,
    base: &str,
    states: &mut std::collections::BTreeMap<&str, usize>,
) {
    let branch = format!("refs/heads/task/{name}");
    let ours = list(&environment.runs_directory()).unwrap();
    let mine = ours.iter().find(|entry| entry.record.as_ref().is_ok_and(|record| record.branch == branch));
    let Some(entry) = mine else {
        *states.entry("nothing").or_default() += 1;
        let left = environment.run_outside(&format!("cd repository && git for-each-ref {branch}; ls -d ../.worktrees/repository-{name} 2> /dev/null || true"));
        assert_eq!(left, "", "{}: {name}: made before it was written down", environment.name());
        return;
    };
    let mut workspace = None;
    wait_until("the run lets go of its folder", || match Workspace::load(&entry.run_folder) {
        Ok(loaded) => {
            workspace = Some(loaded);
            true
        }
        Err(WorkspaceError::Busy(_)) => false,
        Err(error) => panic!("{}: {name}: {error}", environment.name()),
    });
    let mut workspace = workspace.unwrap();
    let state = workspace.record().state;
    *states.entry(state.name()).or_default() += 1;
    let told = format!("{}: {name}, killed while {}", environment.name(), state.name());
    // A kept workspace has already been received, and a part of its quarantine may be gone.
    if matches!(state, State::Open | State::Receiving | State::Received) && workspace.quarantine().exists() {
        let received =
            workspace.receive(&Limits::default()).unwrap_or_else(|error| panic!("{told}: {error}"));
        assert_eq!(
            environment.run_outside(&format!("cd repository && git rev-parse {branch}")).trim(),
            received.new,
            "{told}"
        );
    }
    let settled = workspace.dispose(KeepPolicy::Auto).unwrap_or_else(|error| panic!("{told}: {error}"));
    assert_eq!(leftovers(environment), "", "{told}");
    fsck(environment);
    let folder = format!(".worktrees/repository-{name}");
    if settled.kept {
        let known = environment.run_outside(&format!("cd {folder} && git status -s && git rev-parse --abbrev-ref HEAD && git merge-base --is-ancestor {base} HEAD"));
        assert!(known.ends_with(&format!("task/{name}\n")), "{told}: {known}");
        let settled =
            workspace.dispose(KeepPolicy::Discard).unwrap_or_else(|error| panic!("{told}: {error}"));
        assert!(!settled.kept, "{told}: {settled:?}");
    }
    drop(workspace);
    let left = environment.run_outside(&format!("cd repository && git for-each-ref {branch}; git worktree list | grep repository-{name} || true; ls -d ../{folder} 2> /dev/null || true"));
    assert_eq!(left, "", "{told}");
    fsck(environment);
}

/// Only the user may read what guard keeps of a run.
#[test]
fn what_is_kept_of_a_run_is_the_users_own() {
    let environment = one_environment();
    let outcome = run(&environment, "private", &["--keep"], COMMIT);
    let folder = environment.runs_directory().join(outcome.result["run_id"].as_str().unwrap());
    let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{}: {mode:o}", folder.display());
}

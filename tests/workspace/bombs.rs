// slow
//! Tests commits that are small on disk and huge when they are read.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{RunOutcome, TestEnvironment, guard_program, in_every_environment, one_environment};

/// Python functions that write git objects and refs as files, without git.
const OBJECTS: &str = "
import hashlib, os, zlib
def put(objects, kind, body):
    raw = kind.encode() + b' ' + str(len(body)).encode() + b'\\0' + body
    name = hashlib.sha1(raw).hexdigest()
    place = os.path.join(objects, name[:2])
    os.makedirs(place, exist_ok=True)
    path = os.path.join(place, name[2:])
    if not os.path.exists(path): open(path, 'wb').write(zlib.compress(raw))
    return name
def bomb(objects, parent, tree_mode='40000'):
    below, mode = put(objects, 'blob', b'x'), '100644'
    for level in range(10):
        body = b''.join(b'%s %s\\0' % (mode.encode(), b'd%d' % i) + bytes.fromhex(below) for i in range(10))
        below, mode = put(objects, 'tree', body), tree_mode
    who = 'a <a@b> 1700000000 +0000'
    return put(objects, 'commit', f'tree {below}\\nparent {parent}\\nauthor {who}\\ncommitter {who}\\n\\nbomb\\n'.encode())
";

/// The time limit for guard in these tests, which is generous for a busy machine. A program that reads all eleven
/// thousand million files of a bomb does not end in this time.
pub(super) const SOON: Duration = Duration::from_secs(120);

/// Runs guard in the repository. `start` is a command that executes guard, such as `prlimit` with its options; it may
/// be empty.
pub(super) fn guard(environment: &TestEnvironment, start: &[&str], words: &[&str]) -> RunOutcome {
    let mut command = match start {
        [] => environment.command(guard_program()),
        [first, rest @ ..] => {
            let mut command = environment.command(first);
            command.args(rest).arg(guard_program());
            command
        }
    };
    command.args(words).current_dir(environment.directory.with_file_name("repository"));
    environment.run_to_end(command, b"")
}

pub(super) fn run(environment: &TestEnvironment, start: &[&str], name: &str, script: &str) -> RunOutcome {
    let namespaces = if environment.namespaces { "require" } else { "off" };
    let words = [
        "run",
        "--json",
        "--namespaces",
        namespaces,
        "--name",
        name,
        "--keep",
        "--",
        "python3",
        "-c",
        script,
    ];
    guard(environment, start, &words)
}

#[test]
fn git_bomb_is_refused_and_can_be_cleaned_up() {
    in_every_environment(|environment| refuse_bomb(environment, "40000"));
    // git reads an entry with any mode of a directory as a tree.
    refuse_bomb(&one_environment(), "40755");
}

/// Fails unless guard refuses a bomb whose trees have entries with this mode, and can clean up after the run.
fn refuse_bomb(environment: &TestEnvironment, tree_mode: &str) {
    let began = Instant::now();
    let script = format!(
            "{OBJECTS}
git = open('.git').read().split(None, 1)[1].strip()
tip = open(git + '/refs/heads/task/bomb').read().strip() if os.path.exists(git + '/refs/heads/task/bomb') else \\
    [line.split()[0] for line in open(git + '/packed-refs') if line.strip().endswith('refs/heads/task/bomb')][0]
os.makedirs(git + '/refs/heads/task', exist_ok=True)
new = bomb(git + '/objects', tip, '{tree_mode}')
open(git + '/refs/heads/task/bomb', 'w').write(new + '\\n')"
        );
    let outcome = run(environment, &[], "bomb", &script);
    let problem = || format!("{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
    assert_eq!(outcome.kind(), "receive_refused", "{}", problem());
    let error = outcome.result["error"].as_str().unwrap_or_default();
    assert!(error.contains("11111111110 files and directories"), "{}", problem());
    let findings = outcome.result["findings"].to_string();
    assert!(findings.contains("danger.tree"), "{}", problem());
    assert!(began.elapsed() < SOON, "{:?}: {}", began.elapsed(), problem());
    // The commit must not have reached the user's repository.
    let tips = environment.run_outside("cd repository && git rev-parse main task/bomb");
    let mut tips = tips.lines();
    assert_eq!(tips.next(), tips.next(), "{}", problem());
    let outcome = guard(environment, &[], &["worktree", "clean", "task/bomb"]);
    outcome.expect_code(0);
    assert!(!environment.directory.with_file_name("repository").join(".worktrees/repository-bomb").exists());
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

/// guard must be able to clean up a repository that already contains a git bomb (a commit that is small on disk and
/// huge when it is read), because an earlier version received it or the user fetched it.
#[test]
fn git_bomb_in_the_repository_can_be_cleaned_up() {
    in_every_environment(|environment| {
        let outcome = run(environment, &[], "bomb", "open('file', 'w').write('uncommitted')");
        outcome.expect_code(0);
        let began = Instant::now();
        let make = format!(
            "{OBJECTS}
import glob, json, subprocess
old = subprocess.check_output(['git', '-C', 'repository', 'rev-parse', 'main'], text=True).strip()
new = bomb('repository/.git/objects', old)
subprocess.check_call(['git', '-C', 'repository', 'update-ref', 'refs/heads/task/bomb', new])
[path] = glob.glob('state/guard/runs/*/workspace.json')
record = json.load(open(path)); record['tip'] = new
json.dump(record, open(path, 'w'))"
        );
        let mut python = environment.command("python3");
        let made =
            python.args(["-c", &make]).current_dir(environment.directory.parent().unwrap()).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let outcome = guard(environment, &[], &["worktree", "clean", "task/bomb"]);
        outcome.expect_code(0);
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        let worktree = environment.run_outside("git -C repository worktree list --porcelain");
        assert!(!worktree.contains("task/bomb"), "{worktree}");
        // guard must have kept the uncommitted file.
        let kept = environment.run_outside("grep -rl uncommitted state/guard/runs/*/foreign");
        assert!(kept.lines().any(|path| Path::new(path).ends_with("file")), "{kept}");
    });
}

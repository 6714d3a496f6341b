// slow
//! The reason for a denied exec must reach the output that an agent reads, whatever program tried the exec and wherever
//! the standard error of its child leads.

use std::process::Command;

use crate::egress::run_options::events;
use crate::support::{RunOutcome, TestEnvironment, in_every_environment, skip};

/// Each attempt `n` removes the file that [`target`] names, which the policy denies. `rm` without a directory is
/// searched for in PATH.
const PYTHON: &str = r#"
import os, socket, subprocess
def remove(number):
    return ["rm", "-f", f"/etc/guard-notice-{number}-"]
def attempt(way):
    try:
        way()
    except PermissionError:
        print("PermissionError")
attempt(lambda: subprocess.run(remove(0), capture_output=True))
attempt(lambda: subprocess.run(remove(1)))
attempt(lambda: subprocess.run(remove(2), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
attempt(lambda: subprocess.run(remove(3), stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
attempt(lambda: subprocess.run(remove(4), capture_output=True, preexec_fn=lambda: None))
attempt(lambda: os.spawnvp(os.P_WAIT, "rm", remove(5)))
attempt(lambda: os.posix_spawnp("rm", remove(6), os.environ))
attempt(lambda: subprocess.run(remove(7), stderr=socket.socketpair()[0]))
attempt(lambda: subprocess.run(["/usr/bin/" + remove(8)[0]] + remove(8)[1:], capture_output=True))
attempt(lambda: subprocess.run(remove(9), stderr=open("of-the-child", "w")))
attempt(lambda: subprocess.run(remove(10), capture_output=True, close_fds=False))
"#;

const NODE: &str = r#"
const { exec, execFile, spawn, spawnSync } = require('child_process');
const remove = (number) => ['-f', `/etc/guard-notice-${number}-`];
const ignore = () => console.log('EACCES');
spawnSync('rm', remove(0));
execFile('rm', remove(1), ignore);
exec(['rm', ...remove(2)].join(' '), ignore);
spawn('rm', remove(3), { stdio: 'inherit' }).on('error', ignore);
spawn('rm', remove(4), { stdio: 'ignore' }).on('error', ignore);
"#;

const PERL: &str = r#"
use IPC::Open3;
my $of = sub { ("rm", "-f", "/etc/guard-notice-$_[0]-") };
system($of->(0));
my @lines = do { open(my $from, "-|", $of->(1)) or (); $from ? <$from> : () };
eval { waitpid(open3(my $in, my $out, my $err = undef, $of->(2)), 0) };
"#;

const OTHERS: &str = "
printf 'all:\\n\\trm -f /etc/guard-notice-0-\\n' > Makefile; make
timeout 20 rm -f /etc/guard-notice-1-
echo /etc/guard-notice-2- | xargs rm -f
/usr/bin/env rm -f /etc/guard-notice-3-
find Makefile -exec rm -f /etc/guard-notice-4- ';'
rm -f /etc/guard-notice-5-
/bin/bash -c 'rm -f /etc/guard-notice-6-; true'
true";

/// Returns the lines in which guard explains the attempt with this number.
fn notices(text: &str, number: usize) -> usize {
    let target = format!("/etc/guard-notice-{number}-");
    text.lines()
        .filter(|line| line.starts_with("guard: Permission denied: ") && line.contains(&target))
        .count()
}

/// Runs a command as the shell tool of an agent does: its output and its error messages go to one pipe.
fn run(environment: &TestEnvironment, command: &[&str]) -> RunOutcome {
    environment.run(&[], &[&["bash", "-c", "exec \"$@\" 2>&1", "-"], command].concat())
}

fn attempt(environment: &TestEnvironment, command: &[&str], attempts: usize) -> RunOutcome {
    let outcome = run(environment, command);
    let problem = || format!("{}: {}", environment.name(), outcome.printed());
    let refusals = events(&outcome, "deny.exec");
    for number in 0..attempts {
        assert_eq!(notices(&outcome.printed(), number), 1, "attempt {number}, {}", problem());
        let target = format!("/etc/guard-notice-{number}-");
        let recorded =
            refusals.iter().filter(|event| event["data"]["what"].to_string().contains(&target)).count();
        assert_eq!(recorded, 1, "attempt {number} is recorded {recorded} times, {}", problem());
    }
    let printed = outcome.printed();
    let told =
        printed.lines().find(|line| line.starts_with("guard: Permission denied: ")).unwrap_or_default();
    assert!(told.contains("(rule outside): ") && told.contains(" Instead: "), "{told}");
    outcome
}

fn is_installed(program: &str) -> bool {
    let is_found = Command::new(program).arg("--version").output().is_ok();
    if !is_found {
        skip(program, "it is not installed; scripts/setup installs it");
    }
    is_found
}

#[test]
fn notice_of_a_refused_child_is_written_once_for_the_parent() {
    in_every_environment(|environment| {
        let outcome = attempt(environment, &["python3", "-c", PYTHON], 11);
        assert_eq!(outcome.printed().matches("PermissionError").count(), 10, "{outcome}");
        let of_child = std::fs::read_to_string(environment.directory.join("of-the-child")).unwrap();
        assert_eq!(notices(&of_child, 9), 1, "{of_child}");
        if is_installed("node") {
            let outcome = attempt(environment, &["node", "-e", NODE], 5);
            assert_eq!(outcome.printed().matches("EACCES").count(), 4, "{outcome}");
        }
        if is_installed("perl") {
            attempt(environment, &["perl", "-e", PERL], 3);
        }
        std::fs::write(environment.directory.join("others"), OTHERS).unwrap();
        attempt(environment, &["bash", "others"], 7);
    });
}

/// A shell prints the error where the command's standard error leads, so guard must not write anywhere else.
#[test]
fn notice_goes_where_the_shell_redirects_standard_error() {
    in_every_environment(|environment| {
        let script =
            "/bin/rm -f /etc/guard-notice-0- 2> told\n/bin/rm -f /etc/guard-notice-1- 2> /dev/null\ntrue\n";
        std::fs::write(environment.directory.join("script"), script).unwrap();
        let outcome = run(environment, &["bash", "script"]);
        let problem = || format!("{}: {}", environment.name(), outcome.printed());
        let told = std::fs::read_to_string(environment.directory.join("told")).unwrap();
        assert_eq!(notices(&told, 0), 1, "{told}");
        assert_eq!([0, 1].map(|number| notices(&outcome.printed(), number)), [0, 0], "{}", problem());
        assert_eq!(events(&outcome, "deny.exec").len(), 2, "{}", problem());
    });
}

/// A program that has closed its standard error may get another file under the number 2. guard must not write into it.
#[test]
fn notices_are_not_written_into_files_or_connections() {
    in_every_environment(|environment| {
        let script = r#"
import os, socket
def denied(descriptor):
    child = os.fork()
    if child == 0:
        os.dup2(descriptor, 2)
        try:
            os.execv("/bin/rm", ["rm", "-f", "/etc/guard-notice-0-"])
        except PermissionError:
            os._exit(0)
    os.waitpid(child, 0)
data = os.open("data", os.O_RDWR | os.O_CREAT)
denied(data)
listener = socket.socket(socket.AF_UNIX)
listener.bind("server")
listener.listen()
client = socket.socket(socket.AF_UNIX)
client.connect("server")
server, _ = listener.accept()
denied(client.fileno())
client.close()
print("data:", os.path.getsize("data"), "server:", len(server.recv(1000)))
"#;
        let outcome = run(environment, &["python3", "-c", script]);
        let problem = || format!("{}: {}", environment.name(), outcome.printed());
        assert!(outcome.printed().ends_with("data: 0 server: 0\n"), "{}", problem());
        // The parent is told instead.
        assert_eq!(notices(&outcome.printed(), 0), 2, "{}", problem());
    });
}

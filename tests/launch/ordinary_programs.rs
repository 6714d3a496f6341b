// slow
//! Everyday developer commands must work under `strict`, and guard must refuse none of them.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    TestEnvironment, guard_program, in_every_environment, in_two_environments, one_environment, skip,
};

/// Returns true if the program is installed; otherwise skips the test.
fn has(program: &str) -> bool {
    let there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        skip(program, "it is not installed; scripts/setup installs it");
    }
    there
}

/// Shell scripts that must work in a run, each with the output that it must print.
const SCRIPTS: &[(&str, &str)] = &[
    ("printf 'c\\na\\nb\\n' | sort | head -2 | tr '\\n' ' '", "a b "),
    (
        "cat <<EOF\n$((6 * 7)) $(echo inner)\nEOF\ncat <<'EOF' | wc -l\na\nb\nEOF\ncat <<< word",
        "42 inner\n2\nword\n",
    ),
    (
        "diff <(seq 3) <(seq 3) && paste -d, <(seq 2) <(seq 3 4); seq 3 > >(cat > f; mv f g); until [ -e g ]; do sleep 0.01; done; cat g; rm g",
        "1,3\n2,4\n1\n2\n3\n",
    ),
    ("for i in 1 2 3; do (sleep 0.0$i; echo $i >> order) & done; wait; wc -l < order; rm order", "3\n"),
    (
        "sleep 60 & kill %1; wait %1; echo $?; (trap 'echo caught; exit 0' TERM; kill $BASHPID; sleep 1); timeout 0.05 sleep 5; echo $?",
        "143\ncaught\n124\n",
    ),
    (
        "f=$(mktemp); d=$(mktemp -d); echo x > $f; cp $f $d/y; cat $d/y; mv $d/y moved; cat moved; rm -r $f $d moved",
        "x\nx\n",
    ),
    ("printf '#!/bin/sh\\necho ran $1\\n' > s; chmod +x s; ./s now; stat -c %a s; rm s", "ran now\n755\n"),
    (
        "printf '#!/usr/bin/env bash\\necho ${BASH_VERSION:+bash} \"$@\"\\n' > s; chmod 750 s; ./s 'a b'; bash ./s c; rm s",
        "bash a b\nbash c\n",
    ),
    (
        "echo x > a; touch -d '2020-01-02 03:04:05 UTC' a; chmod 640 a; cp -p a b; stat -c '%a %Y' b; install -m 600 a c; stat -c %a c; rm a b c",
        "640 1577934245\n600\n",
    ),
    (
        "mkdir -p t/d out; echo x > t/d/f; chmod 751 t/d/f; touch -d @1000000000 t/d/f; ln -s f t/d/l; ln t/d/f t/d/h; tar c t | tar x -C out; stat -c '%a %Y %h' out/t/d/f; readlink out/t/d/l; rm -r t out",
        "751 1000000000 2\nf\n",
    ),
    (
        "seq 2000 | cat | cat | cat | cat | cat | cat | cat | cat | cat | cat | cat | cat | cat | cat | cat | cat | cat | cat | cat | sort -n | uniq | tail -1",
        "2000\n",
    ),
    (
        "for i in $(seq 100); do sh -c \"echo $i\" & done | sort -n | tail -1; wait; seq 100 | xargs -P 100 -n 1 echo | awk '{s += $1} END {print s}'",
        "100\n5050\n",
    ),
    (
        "mkfifo p; echo through > p & cat p; wait; rm p; exec 3> f; echo x >&3; exec 3>&-; flock f cat f; rm f",
        "through\nx\n",
    ),
    (
        "echo old > f; sed -i s/old/new/ f; cat f; find . -name f -exec cat {} +; find . -name f -delete; test ! -e f; echo $?",
        "new\nnew\n0\n",
    ),
    ("yes line | head -200000 > f; sort -S 1M f | uniq -c | awk '{print $1, $2}'; rm f", "200000 line\n"),
    (
        "nohup setsid true > /dev/null 2>&1; nice -n 5 echo nice; env -i /bin/echo empty; time -p true 2>/dev/null; ulimit -n > /dev/null; dd if=/dev/zero bs=1k count=3 2>/dev/null | wc -c; cmp /dev/null /dev/null; echo > /dev/null; head -c 4 /dev/urandom | wc -c",
        "nice\nempty\n3072\n4\n",
    ),
    (
        "cd sub 2>/dev/null || mkdir sub && cd sub; pwd | sed 's,.*/,,'; cd ..; rmdir sub; umask; echo \"$HOME\" | grep -c /; cd; pwd -P > x; test -s x; echo $?",
        "sub\n0022\n1\n0\n",
    ),
    (
        "printf 'gz' | gzip | gunzip; printf 'one\\ntwo\\n' > a; printf 'one\\n2\\n' > b; diff -u a b > p; patch -s a p; cat a; rm a b p",
        "gzone\n2\n",
    ),
];

#[test]
fn everyday_shell_scripts_work_without_refusals() {
    in_every_environment(|environment| {
        for (script, printed) in SCRIPTS {
            assert_eq!(environment.expect_success(script), *printed, "{}: {script}", environment.name());
        }
    });
}

#[test]
fn script_in_tmp_runs_only_with_namespaces() {
    let script = "printf '#!/bin/sh\\necho from tmp\\n' > /tmp/guard-everyday; chmod +x /tmp/guard-everyday; /tmp/guard-everyday";
    in_every_environment(|environment| {
        if environment.namespaces {
            assert_eq!(environment.expect_success(script), "from tmp\n", "{}", environment.name());
        } else {
            // Without namespaces, /tmp is shared with the whole machine. guard must refuse the script, and the
            // message must name $TMPDIR.
            let outcome = environment.run(&[], &["bash", "-c", script]);
            assert_ne!(outcome.code, 0, "{outcome:?}");
            let told = outcome.result["denials"][0]["message"].as_str().unwrap_or_default();
            assert!(told.contains("$TMPDIR"), "{outcome}");
            let elsewhere = script.replace("/tmp/", "$TMPDIR/");
            assert_eq!(environment.expect_success(&elsewhere), "from tmp\n", "{}", environment.name());
        }
        assert!(!Path::new("/tmp/guard-everyday").exists());
    });
}

#[test]
fn cargo_builds_and_tests_a_project() {
    if !has("cargo") {
        return;
    }
    in_every_environment(|environment| {
        environment.copy_fixture_project("rust");
        let printed = environment
            .expect_success("cargo build -q && cargo test -q && ./target/debug/small && ls Cargo.lock");
        assert_eq!(printed.matches("test result: ok. 1 passed").count(), 2, "{printed}");
        assert_eq!(printed.matches("test result: ok. 2 passed").count(), 1, "{printed}");
        assert!(printed.ends_with("the sum is 42\nCargo.lock\n"), "{printed}");
    });
}

#[test]
fn cargo_builds_offline_with_cached_packages() {
    if !has("cargo") {
        return;
    }
    in_every_environment(|environment| {
        environment.copy_fixture_project("rust-dependency");
        let printed = environment.expect_success("cargo build -q --offline && ./target/debug/dependent && cargo metadata --offline --format-version 1 | grep -c shell-words");
        assert_eq!(printed, "[\"a\", \"b c\"]\n1\n", "{}", environment.name());
    });
}

/// cargo looks for settings files in every parent directory, and fails if it may not read one of them. guard must let
/// it read those files.
#[test]
fn cargo_reads_settings_above_the_working_directory() {
    if !has("cargo") {
        return;
    }
    in_every_environment(|environment| {
        environment.copy_fixture_project("rust");
        environment.run_outside(
            "mkdir .cargo && printf '[env]\\nABOVE = \"seen\"\\n' > .cargo/config.toml && touch beside",
        );
        environment.expect_success("cargo build -q --offline");
        assert_eq!(
            environment.expect_success("cat ../.cargo/config.toml"),
            "[env]\nABOVE = \"seen\"\n",
            "{}",
            environment.name()
        );
        // guard must also give access to the settings if many other files are in the same directory.
        environment.run_outside(
            "mkdir crowd && touch $(seq -f crowd/a-file-with-a-long-name-%g 300) && mv crowd/* .",
        );
        assert_eq!(
            environment.expect_success("cat ../.cargo/config.toml"),
            "[env]\nABOVE = \"seen\"\n",
            "{}",
            environment.name()
        );
        environment.run_outside("rm a-file-*");
        // guard must not show other files of that directory, nor the settings if they contain a token.
        assert_ne!(
            environment.run_bash("cat ../beside || cat ../.cargo/other").code,
            0,
            "{}",
            environment.name()
        );
        environment.run_outside("printf '[registry]\\ntoken = \"hidden\"\\n' > .cargo/config.toml");
        let outcome = environment.run_bash("cat ../.cargo/config.toml");
        assert_ne!(outcome.code, 0, "{outcome}");
        let plan = environment.guard_run(&["--dry-run"], &["cargo", "build"]).output().unwrap();
        let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
        assert!(
            plan.contains(".cargo/config.toml, which may hold a secret"),
            "{}: {plan}",
            environment.name()
        );
        // An earlier process has made a symbolic link, a hard link and a linked directory with the names of settings
        // files. guard must not follow them.
        environment.run_outside("mkdir own && echo private > own/diary && cp own/diary own/config && ln -s own/diary Cargo.toml && ln own/diary tox.ini && mv .cargo real && ln -s own .cargo");
        for name in ["Cargo.toml", "tox.ini", ".cargo/config"] {
            let outcome = environment.run_bash(&format!("cat ../{name}"));
            assert_ne!(outcome.code, 0, "{name}: {outcome}");
            assert!(!outcome.printed().contains("private"), "{}: {name}", environment.name());
        }
        environment.run_outside("rm .cargo Cargo.toml tox.ini && mv real .cargo");
        let file = environment.temporary_directory().with_file_name(".cargo").join("config.toml");
        let outcome =
            environment.run(&["--read", file.to_str().unwrap()], &["cargo", "build", "-q", "--offline"]);
        outcome.expect_code(0);
    });
}

#[test]
fn npm_installs_and_tests_a_project() {
    if !has("npm") {
        return;
    }
    in_every_environment(|environment| {
        environment.copy_fixture_project("node-left");
        environment.run_outside(
            "cd project && npm pack -s && mv left-1.0.0.tgz .. && rm package.json index.js cli.js",
        );
        environment.copy_fixture_project("node");
        environment.run_outside(
            "cp left-1.0.0.tgz project/ && cd project && npm install -s --package-lock-only --offline",
        );
        let printed = environment.expect_success("npm ci --prefer-offline --no-audit --no-fund && npm test");
        assert!(printed.contains("added 1 package"), "{printed}");
        assert!(printed.contains("# pass 3") || printed.contains("pass 3"), "{printed}");
    });
}

#[test]
fn node_servers_talk_over_unix_sockets() {
    if !has("node") {
        return;
    }
    let script = r#"node -e '
        const net = require("net"), { fork } = require("child_process"), path = require("path"), os = require("os");
        const at = path.join(os.tmpdir(), "socket");
        const server = net.createServer(socket => socket.end("hello")).listen(at, () => {
            net.connect(at).on("data", data => process.stdout.write(data)).on("close", () => server.close(() => console.log(" closed")));
        });'"#;
    in_every_environment(|environment| {
        assert_eq!(environment.expect_success(script), "hello closed\n", "{}", environment.name())
    });
}

#[test]
fn pip_installs_and_pytest_runs() {
    let wheels = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/wheels");
    if !has("python3") {
        return;
    }
    if !wheels.is_dir() {
        skip("pytest", &format!("no wheels in {}; scripts/setup downloads them", wheels.display()));
        return;
    }
    in_two_environments(|environment| {
        environment.copy_fixture_project("python");
        environment.run_outside(&format!("cp -R {} wheels", wheels.display()));
        environment.run_outside("mv wheels project/");
        let outcome = environment.run_bash(
            "python3 -m venv .venv && . .venv/bin/activate && pip install -q --no-index --find-links wheels pytest \
             && pytest -q && python -m pytest -q tests/test_small.py",
        );
        let printed = outcome.printed();
        assert_eq!(outcome.result["success"], true, "{outcome}");
        assert_eq!(printed.matches("3 passed").count(), 2, "{}: {printed}", environment.name());
        // pip binds to an IPv6 port to find out whether IPv6 works. guard refuses that, and pip continues without
        // IPv6.
        for denial in outcome.result["denials"].as_array().unwrap() {
            let what = denial["message"].as_str().unwrap();
            assert!(what.starts_with("bind to [::1]:0:"), "{}: {what}", environment.name());
        }
    });
    in_every_environment(|environment| {
        environment.copy_fixture_project("python");
        let printed = environment.expect_success("python3 -m unittest -v tests.test_small 2>&1 | tail -1");
        assert_eq!(printed, "OK\n", "{}", environment.name());
    });
}

#[test]
fn make_builds_and_checks_a_project() {
    if !has("make") || !has("cc") {
        return;
    }
    in_every_environment(|environment| {
        environment.copy_fixture_project("make");
        let printed =
            environment.expect_success("make -s -j4 && make -s check && ./program && make -s clean && ls");
        assert_eq!(printed, "checked\n42\nMakefile\none.c\ntracked\ntwo.c\n", "{}", environment.name());
    });
}

#[test]
fn python_processes_share_memory() {
    let script = "python3 -c '
import multiprocessing
with multiprocessing.Pool(4) as pool:
    print(sum(pool.map(abs, range(-9, 10))))
'";
    in_every_environment(|environment| {
        if environment.namespaces {
            assert_eq!(environment.expect_success(script), "90\n", "{}", environment.name());
            return;
        }
        // The C library puts semaphores into /dev/shm. Without namespaces the whole machine shares that directory, so
        // guard refuses it. This is a known limit.
        let outcome = environment.run_bash(script);
        outcome.expect_code(1);
        assert!(
            outcome.result["error_detail"]["last_lines"].to_string().contains("Permission denied"),
            "{outcome}"
        );
        let processes = "python3 -c '
import multiprocessing
ends = [multiprocessing.Pipe() for _ in range(4)]
workers = [multiprocessing.Process(target=lambda end: end.send(end.recv() ** 2), args=(there,)) for _, there in ends]
for worker in workers: worker.start()
for number, (here, _) in enumerate(ends): here.send(number)
print(sum(here.recv() for here, _ in ends))
for worker in workers: worker.join()
'";
        assert_eq!(environment.expect_success(processes), "14\n", "{}", environment.name());
    });
}

#[test]
fn unix_socket_server_and_client_talk() {
    let script = "python3 - <<'EOF'
import os, socket, tempfile, threading
os.chdir(tempfile.mkdtemp())
path = 'socket'
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
def serve():
    for _ in range(20):
        peer, _ = server.accept()
        peer.sendall(peer.recv(100).upper())
        peer.close()
threading.Thread(target=serve, daemon=True).start()
for number in range(20):
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    client.sendall(b'word')
    answer = client.recv(100)
print(answer.decode())
a, b = socket.socketpair()
a.sendall(b'pair')
print(b.recv(10).decode())
EOF";
    in_every_environment(|environment| {
        assert_eq!(environment.expect_success(script), "WORD\npair\n", "{}", environment.name())
    });
}

/// git must be able to read in a linked worktree that guard did not make, and must not be able to change its
/// repository.
#[test]
fn git_reads_but_cannot_change_a_linked_worktree() {
    in_every_environment(|environment| {
        let everything = "find . -path ./objects -prune -o -type f -print0 | sort -z | xargs -0 sha256sum";
        let before = environment.run_outside(&format!("cd repository/.git && {everything}"));
        let printed = environment.expect_success(
            "echo changed >> tracked; git status --short; git diff --stat | tail -1; git log --oneline | wc -l; \
             git show HEAD:tracked; git branch --show-current; git blame -s tracked | wc -l; git ls-files; \
             git grep -c first; git rev-parse --is-inside-work-tree; /usr/bin/env git status --porcelain | wc -l",
        );
        let expected = " M tracked\n 1 file changed, 1 insertion(+)\n1\nfirst\ntask/work\n2\ntracked\ntracked:1\ntrue\n1\n";
        assert_eq!(printed, expected, "{}", environment.name());
        let outcome = environment
            .run_bash("git add tracked; echo $?; git -c user.name=n -c user.email=e commit -qam x; echo $?");
        assert_eq!(outcome.printed(), "128\n128\n", "{outcome}");
        let after = environment.run_outside(&format!("cd repository/.git && {everything}"));
        assert_eq!(before, after, "{}", environment.name());
    });
}

/// Runs a command on a terminal. For each pair it waits for the first text and then types the second. Returns the
/// screen and the exit code.
fn on_terminal(environment: &TestEnvironment, command: &str, conversation: &[(&str, &str)]) -> (String, i32) {
    let words = environment.guard_run_arguments(&["-q"], &["bash", "-c", command]);
    let quoted: Vec<String> = words.iter().map(|word| shell_words::quote(word).into_owned()).collect();
    let line = format!("stty rows 33 cols 77; exec {} {}", guard_program().display(), quoted.join(" "));
    let mut script = environment.command("script");
    script.args(["-qefc", &line, "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/bash");
    let mut child =
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (sender, pieces) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0u8; 4096];
        while let Ok(got) = screen.read(&mut buffer) {
            if got == 0 || sender.send(buffer[..got].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut seen = String::new();
    let started = Instant::now();
    for (awaited, typed) in conversation {
        while !seen.contains(awaited) {
            match pieces.recv_timeout(Duration::from_secs(120)) {
                Ok(piece) => seen.push_str(&String::from_utf8_lossy(&piece)),
                Err(_) => panic!("{}: waited for {awaited:?} and saw {seen:?}", environment.name()),
            }
        }
        keys.write_all(typed.as_bytes()).unwrap();
    }
    while let Ok(piece) = pieces.recv_timeout(Duration::from_secs(120)) {
        seen.push_str(&String::from_utf8_lossy(&piece));
    }
    drop(keys);
    let code = child.wait().unwrap().code().unwrap_or(-1);
    assert!(started.elapsed() < Duration::from_secs(120), "{}: hangs: {seen:?}", environment.name());
    (seen, code)
}

#[test]
fn program_on_a_terminal_has_its_size_and_input() {
    if !has("script") {
        return;
    }
    in_every_environment(|environment| {
        let command = "stty size; tty; test -t 0 && test -t 1 && test -t 2 && echo all; read -p 'name? ' name; echo \"hello $name\"; \
             python3 -c 'import sys; print(sys.stdin.isatty(), sys.stdout.isatty())'; exit 7";
        let (seen, code) = on_terminal(environment, command, &[("name? ", "world\r")]);
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!(code, 7, "{}: {seen:?}", environment.name());
        assert_eq!(lines[0], "33 77", "{}: {seen:?}", environment.name());
        assert!(lines[1].starts_with("/dev/pts/"), "{}: {seen:?}", environment.name());
        for expected in ["all", "hello world", "True True"] {
            assert!(lines.contains(&expected), "{}: no {expected:?} in {seen:?}", environment.name());
        }
    });
}

#[test]
fn ctrl_c_on_a_terminal_reaches_the_program() {
    if !has("script") {
        return;
    }
    in_every_environment(|environment| {
        let command = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.05; done";
        let (seen, code) = on_terminal(environment, command, &[("ready", "\x03")]);
        assert!(seen.contains("interrupted"), "{}: {seen:?}", environment.name());
        assert_eq!(code, 5, "{}: {seen:?}", environment.name());
    });
}

/// Job control and line editing must work in an interactive shell.
#[test]
fn interactive_shell_has_job_control_and_line_editing() {
    if !has("script") {
        return;
    }
    let environment = one_environment();
    let conversation = [
        ("bash-", "PS1=ok\\>; sleep 60 &\r"),
        ("ok>", "jobs; kill %1; echo wor\x08\x08\x08gone\r"),
        ("gone\r\n", "exit 3\r"),
    ];
    let (seen, code) = on_terminal(&environment, "exec bash --norc -i", &conversation);
    assert!(seen.contains("Running"), "{seen:?}");
    assert_eq!(code, 3, "{seen:?}");
}

/// A script that makes and uses its own repository in a temporary directory, as test suites do.
const OWN_REPOSITORY: &str = "d=$(mktemp -d); cd $d; git init -q -b main; git config user.name t; git config user.email t@example.org; \
     echo a > f; git add f; git commit -q -m one; git checkout -q -b topic; git reset -q --hard HEAD; git branch -d -q main; git tag v1; \
     git stash list; git clone -q . copy; cd copy; git switch -q -c other; git push -q origin other; cd ..; git branch --list other; \
     git init -q --bare bare; git -C bare update-ref refs/heads/x $(git -C . hash-object -w f) 2>/dev/null; git -C bare config core.x y; git -C bare config core.x";

#[test]
fn git_works_in_repositories_a_run_creates() {
    in_every_environment(|environment| {
        assert_eq!(environment.expect_success(OWN_REPOSITORY), "  other\ny\n", "{}", environment.name());
        // The script must also work if it runs git without the shim, and in a repository below the working directory.
        let script = "mkdir t; cd t; g=$(ls /usr/bin/git); $g init -q -b main; $g -c user.name=t -c user.email=t@example.org commit -q --allow-empty -m one; \
             $g checkout -q -b topic; $g branch --show-current; cd ..; git -C t switch -q -c more; git -C t branch --show-current; git init -q u; git -C u checkout -q -b v; rm -rf t u";
        assert_eq!(environment.expect_success(script), "topic\nmore\n", "{}", environment.name());
    });
}

#[test]
fn git_refusals_hold_for_the_repository_under_other_names() {
    in_every_environment(|environment| {
        if !environment.namespaces {
            // Without mounts guard cannot protect a repository inside the working directory, so it refuses such a
            // run.
            return;
        }
        environment.run_outside("git init -q -b main . && git -c user.name=t -c user.email=t@example.org commit -q --allow-empty -m one");
        for script in [
            "git checkout -q -b x",
            "ln -s $PWD $TMPDIR/l; git -C $TMPDIR/l checkout -q -b x",
            "ln -s $PWD $TMPDIR/l; cd $TMPDIR/l; /usr/bin/git checkout -q -b x",
            "mkdir -p sub; cd sub; git checkout -q -b x",
            "mkdir -p $TMPDIR/p; echo gitdir: $PWD/.git > $TMPDIR/p/.git; git -C $TMPDIR/p checkout -q -b x",
            "mkdir -p $TMPDIR/p; python3 -c 'import os; os.symlink(os.environ[\"PWD\"] + \"/.git\", os.environ[\"TMPDIR\"] + \"/p/.git\")'; git -C $TMPDIR/p checkout -q -b x",
            "cd .git; git checkout -q -b x",
            "git init -q .",
        ] {
            let outcome = environment.run(&[], &["bash", "-c", script]);
            assert_eq!(outcome.code, 126, "{script}: {outcome}");
            assert_eq!(
                outcome.result["denials"].as_array().map(Vec::len).unwrap_or(0),
                1,
                "{script}: {outcome}"
            );
        }
        environment.run_outside("rm -rf .git sub");
    });
}

// slow
//! Tests `guard run` at a real terminal: the test types lines into a shell in tmux and reads the screen.

use crate::support::{TaskFixture, Terminal, in_two_environments, make_program, one_environment};

/// A pager reads a run's output from a pipe. The pager must receive the keys, its lines must begin at the left
/// margin, and the terminal mode must be restored afterwards.
#[test]
fn pager_behind_a_pipe_gets_the_terminal() {
    in_two_environments(|environment| {
        let Some(terminal) = Terminal::open(environment) else { return };
        terminal.types("$RUN -q -- seq 1000 | less");
        let screen = terminal.shows("\n28\n");
        assert!(screen.contains("\n5\n6\n7\n"), "{screen}");
        terminal.press("G");
        terminal.shows("\n1000\n");
        terminal.press("q");
        terminal.types("echo done-$?");
        terminal.shows("done-0");
        terminal.types("stty -a | grep -c ' icanon'");
        terminal.shows("\n1\n");
    });
}

/// A typed line must reach a program in the run whose output goes into a pipe.
#[test]
fn typed_line_reaches_a_program_whose_output_is_piped() {
    let environment = one_environment();
    let Some(terminal) = Terminal::open(&environment) else { return };
    terminal.types("$RUN -q -- bash -c 'echo asks; read -r answer; echo got-$answer' | cat");
    terminal.shows("\nasks\n");
    terminal.types("bluebell");
    terminal.shows("\ngot-bluebell\n");
}

/// A run in the background must continue; the kernel must not stop it for using the terminal.
#[test]
fn background_job_is_not_stopped_by_terminal_access() {
    in_two_environments(|environment| {
        let Some(terminal) = Terminal::open(environment) else { return };
        terminal.types("$RUN -q -- bash -c 'echo worked > result; echo printed' &");
        terminal.types("wait; jobs; cat result; echo still-here");
        let screen = terminal.shows("\nstill-here\n");
        assert!(
            screen.contains("printed\n") && screen.contains("\nworked\n") && !screen.contains("Stopped"),
            "{screen}"
        );
    });
}

/// An agent can end in the middle of a control sequence, or leave the terminal in another state. The user must see
/// guard's last line nevertheless.
#[test]
fn summary_is_visible_after_an_unfinished_control_sequence() {
    let environment = one_environment();
    let Some(terminal) = Terminal::open(&environment) else { return };
    for unfinished in
        ["\\033]0;title", "\\033P1;2", "\\033_text", "\\033[3", "\\033", "\\033(0\\016", "\\303"]
    {
        terminal.types("clear");
        terminal.types(&format!("$RUN -- printf 'printed{unfinished}'; echo ended-$?"));
        let screen = terminal.shows("ended-0");
        assert!(screen.contains("printed"), "{unfinished}: {screen}");
        let summary = screen.lines().find(|line| line.contains("guard: ok in ") && line.ends_with(" s"));
        assert!(summary.is_some(), "{unfinished}: {screen}");
    }
    // On the alternate screen, the line would disappear with the next program that leaves it.
    terminal.types("clear; echo before");
    terminal.types("$RUN -- printf '\\033[?1049h\\033[?25l\\033[2;4rdrawn'; echo ended-$?");
    let screen = terminal.shows("ended-0");
    assert!(screen.contains("before") && screen.contains("guard: ok in "), "{screen}");
    let modes = terminal.tmux(&["display", "-p", "#{alternate_on} #{cursor_flag} #{scroll_region_upper}"]);
    assert_eq!(modes.trim(), "0 1 0");
}

/// Standard error alone can be the terminal, too.
#[test]
fn summary_is_visible_after_an_unfinished_error_message() {
    let environment = one_environment();
    let Some(terminal) = Terminal::open(&environment) else { return };
    terminal.types("$RUN -- sh -c 'printf \"\\033]0;title\" >&2; exit 3' > output; echo ended-$?");
    let screen = terminal.shows("ended-3");
    assert!(screen.contains("guard: exit code 3") || screen.contains("ended with code 3"), "{screen}");
}

/// One press of Ctrl-C must say what the next one does, if the command runs on.
#[test]
fn first_ctrl_c_explains_the_second_one() {
    in_two_environments(|environment| {
        let Some(terminal) = Terminal::open(environment) else { return };
        // On a terminal of its own, the command gets the Ctrl-C, and runs on as long as it wants.
        terminal.types("$RUN -- bash -c 'trap \"\" INT; echo begun; while :; do sleep 0.1; done'");
        terminal.shows("\nbegun\n");
        terminal.press("C-c");
        terminal.shows("the command got Ctrl-C and runs on; press it again within 5 seconds");
        press_until_cancelled(&terminal);
        // Without one, guard passes the signal on and ends the command after some seconds, or at the next press.
        terminal.types(
            "clear; $RUN -q -- bash -c 'trap \"\" INT; echo begun >&2; while :; do sleep 0.1; done' > output",
        );
        terminal.shows("begun\n");
        terminal.press("C-c");
        terminal.shows("the command got SIGINT and has 4 more seconds to end; Ctrl-C ends it at once");
        terminal.press("C-c");
        terminal.types("echo code-$?");
        terminal.shows("code-137");
        let last =
            environment.run_outside("ls -t \"$XDG_STATE_HOME\"/guard/runs/*/transcript.jsonl | head -n 1");
        let checked = guard::run::transcript::check(std::path::Path::new(last.trim())).unwrap();
        assert_eq!(checked.outcome, guard::run::transcript::Outcome::Complete);
    });
}

/// A command that the Ctrl-C ends, and a shell in the run that goes on after a command in it was interrupted, need no
/// such line.
#[test]
fn ctrl_c_that_ends_the_program_prints_no_hint() {
    let environment = one_environment();
    let Some(terminal) = Terminal::open(&environment) else { return };
    terminal.types("$RUN -- bash --norc --noprofile -i");
    terminal.types("echo begu''n; sleep 600");
    terminal.shows("begun\n");
    terminal.press("C-c");
    terminal.types("sleep 2; echo goes''-on");
    let screen = terminal.shows("goes-on\n");
    assert!(!screen.contains("the command got Ctrl-C"), "{screen}");
    terminal.types("exit");
    terminal.shows("guard: ");
}

/// guard must end a program that ignores the first Ctrl-C when the user presses Ctrl-C again.
#[test]
fn second_ctrl_c_ends_the_run() {
    in_two_environments(|environment| {
        let Some(terminal) = Terminal::open(environment) else { return };
        terminal.types("$RUN -- bash -c 'trap \"echo heard\" INT; echo begun; while :; do sleep 0.1; done'");
        terminal.shows("\nbegun\n");
        terminal.press("C-c");
        terminal.shows("heard");
        let screen = press_until_cancelled(&terminal);
        terminal.types("echo code-$?");
        assert!(terminal.shows("code-1").contains("code-130"), "{screen}");
    });
}

/// A program that reads single keys must receive every Ctrl-C. After many presses of Ctrl-C guard must still end the
/// run.
#[test]
fn program_that_reads_keys_receives_every_ctrl_c() {
    let environment = one_environment();
    let Some(terminal) = Terminal::open(&environment) else { return };
    terminal.types(
        "$RUN -- bash -c 'stty raw -echo; printf beg%s un; while :; do head -c 1 > /dev/null; printf k%s ey; done'",
    );
    terminal.shows("begun");
    for keys in ["key", "keykey"] {
        terminal.press("C-c");
        terminal.shows(keys);
    }
    terminal.waits_for("the number of presses left", |screen| {
        let is_there = screen.contains("the command handles Ctrl-C itself; press it ");
        if !is_there {
            terminal.press("C-c");
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        is_there || screen.contains("cancelled by SIGINT")
    });
    press_until_cancelled(&terminal);
}

/// Presses Ctrl-C again and again, until guard has ended the run. guard counts only presses that it reads one by one,
/// and not too far apart, which a busy machine can prevent for some of them. Returns the screen.
fn press_until_cancelled(terminal: &Terminal<'_>) -> String {
    terminal.waits_for("the end of the run", |screen| {
        let is_cancelled = screen.contains("cancelled by SIGINT");
        if !is_cancelled {
            terminal.press("C-c");
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        is_cancelled
    })
}

/// On a terminal guard must print one line before and one line after a run. With `-v` or into a pipe it must print
/// the whole summary.
#[test]
fn run_on_a_terminal_prints_one_line_before_and_after() {
    let environment = one_environment();
    let Some(terminal) = Terminal::open(&environment) else { return };
    terminal.types(
        "printf 'git push\\nexit 3\\n' > script; clear; $RUN --timeout 5m -- bash script; echo first-$?",
    );
    let screen = terminal.shows("first-3");
    for text in [
        "guard: strict · directory ",
        " · network: ",
        " · ends when idle for 5m",
        "guard: bash ended with code 3 after ",
        "1 action refused (guard why @)",
    ] {
        assert!(screen.contains(text), "{text:?} is missing:\n{screen}");
    }
    assert!(!screen.contains("transcript:") && !screen.contains("  refused: "), "{screen}");
    terminal.types("clear; $RUN -- true; echo second-$?");
    let screen = terminal.shows("second-0");
    assert!(screen.contains(" · no time limits") && screen.contains("guard: ok in "), "{screen}");
    terminal.types("clear; $RUN -v -- true; echo third-$?");
    terminal.shows("transcript: guard log");
    terminal.types("clear; $RUN -- true 2>&1 | cat; echo fourth-$?");
    let screen = terminal.shows("fourth-0");
    assert!(screen.contains("transcript: guard log") && !screen.contains("no time limits"), "{screen}");
    terminal.types("clear; $RUN -q -- true; echo fifth-$?");
    let screen = terminal.shows("fifth-0");
    assert!(!screen.contains("guard:"), "{screen}");
}

/// `guard exec` must print progress and the answer's text on a terminal, and JSON into a pipe.
#[test]
fn exec_prints_text_on_a_terminal_and_json_into_a_pipe() {
    let environment = one_environment();
    let Some(terminal) = Terminal::open(&environment) else { return };
    terminal.types("clear; $GUARD exec --in-place -- bash -c 'sleep 5; echo the-answer'; echo first-$?");
    let is_time = |screen: &str| (1..60).any(|seconds| screen.contains(&format!("0m{seconds:02}s ")));
    terminal.waits_for("the elapsed time", is_time);
    let screen = terminal.shows("first-0");
    assert!(screen.contains("the-answer\n") && screen.contains("guard: ok in "), "{screen}");
    assert!(!screen.contains("\"success\""), "{screen}");
    terminal.types("clear; $GUARD exec --in-place -- echo piped | cat");
    terminal.shows("\"success\":true");
    terminal.types("clear; $GUARD exec --in-place --json -- echo asked");
    terminal.shows("\"success\":true");
    terminal.types("clear; $GUARD exec --cd /no/such/directory -- true; echo failed-$?");
    let screen = terminal.shows("failed-2");
    assert!(screen.contains("/no/such/directory") && !screen.contains("\"success\""), "{screen}");
}

/// The policy's time limits must not end a run whose input is a terminal, and must end one without a terminal.
#[test]
fn policy_time_limits_do_not_end_a_run_on_a_terminal() {
    let environment = one_environment();
    environment.run_outside(
        "policy() { printf 'version = 1\\nname = \"%s\"\\nextends = \"strict\"\\n[limits]\\n%s\\n' $1 \"$2\" > $1.toml; }
         policy idle 'idle_seconds = 1'; policy both \"$(printf 'idle_seconds = 1\\ntotal_seconds = 2')\"",
    );
    let Some(terminal) = Terminal::open(&environment) else { return };
    let command_with =
        |policy: &str| format!("$RUN --policy {} -q", environment.directory.with_file_name(policy).display());
    let command = command_with("both.toml");
    terminal.types(&format!("{command} -- bash -c 'sleep 3; echo patient'"));
    // What the test types before the prompt is there would be input of the run.
    terminal.shows("\npatient\nREADY>");
    // Without a terminal the limits must end the run, and guard must say which limit did, even with `-q`.
    terminal.types(&format!("{} -- sleep 60 < /dev/null", command_with("idle.toml")));
    terminal.shows("the idle limit; `--timeout TIME` sets another limit, and `--timeout 0` sets none");
    terminal.types(&format!("{command} --timeout 0 -- sleep 60 < /dev/null"));
    terminal
        .shows("the limit for the whole run; `--max-duration TIME` sets another limit, and `--max-duration 0` sets none");
    terminal.types(&format!(
        "{command} --timeout 0 --max-duration 0 -- bash -c 'sleep 3; echo unbounded' < /dev/null"
    ));
    terminal.shows("\nunbounded\n");
}

/// A user ends a task on a terminal by a signal. The task must end as cleanly as a task without a terminal.
#[test]
fn task_on_a_terminal_ends_cleanly_on_a_signal() {
    let fixture = TaskFixture::new();
    let agent = fixture.environment.directory.with_file_name("sleeper.sh");
    make_program(&agent, b"#!/bin/sh\nsleep 60\n");
    for signal in ["INT", "TERM", "HUP"] {
        let Some(terminal) = Terminal::open(&fixture.environment) else { return };
        terminal
            .types(&format!("cd repository; $GUARD task --agent-command {} 'Say {signal}'", agent.display()));
        terminal.shows("[PLANNING");
        match signal {
            "INT" => terminal.press("C-c"),
            _ => drop(
                fixture.environment.run_outside(&format!("pkill -{signal} -f 'guard task .*Say {signal}'")),
            ),
        }
        let screen = terminal.shows("guard task resume");
        assert!(screen.contains("5 seconds; Ctrl-C again ends it at once"), "{screen}");
        terminal.types("echo code-$?");
        assert!(terminal.shows("code-1").contains("code-130"), "{screen}");
    }
}

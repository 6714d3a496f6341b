// slow
//! guard must pass the standard input, output and error of a run through unchanged, even a gibibyte of data, and must
//! also work when these streams are closed.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guard::run::transcript::{Outcome, check};

use crate::support::{
    expect_no_process_left, guard_program, in_every_environment, in_two_environments, one_environment,
    peak_memory, unique_mark,
};

#[test]
fn standard_input_and_output_pass_unchanged() {
    let mut bytes: Vec<u8> = (0..=255u8).cycle().take(1 << 20).collect();
    // The bytes must not repeat every 64 KiB, so that swapped or repeated pieces are detected.
    let mut state = 1u32;
    for byte in &mut bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte ^= (state >> 24) as u8;
    }
    in_every_environment(|environment| {
        let outcome = environment.run_to_end(environment.guard_run(&["-q"], &["cat"]), &bytes);
        outcome.expect_code(0);
        assert!(
            outcome.output == bytes,
            "{}: {} of {} bytes",
            environment.name(),
            outcome.output.len(),
            bytes.len()
        );
        assert_eq!(outcome.error, "");
        let outcome = environment
            .run_to_end(environment.guard_run(&["-q"], &["sh", "-c", "wc -c; printf '\\377\\0e' >&2"]), b"");
        assert_eq!(outcome.output, b"0\n", "{}", environment.name());
        assert_eq!(outcome.error, "\u{fffd}\0e");
    });
}

#[test]
fn run_ends_when_its_output_reader_goes_away() {
    in_every_environment(|environment| {
        let mark = unique_mark();
        let guard = environment.guard_run_arguments(&["-q", "--env", &mark], &["yes"]);
        let mut command = environment.command("bash");
        command
            .args(["-c", "\"$@\" | head -1; echo ${PIPESTATUS[0]}", "bash"])
            .arg(guard_program())
            .args(guard);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(String::from_utf8_lossy(&outcome.output), "y\n141\n", "{outcome}");
        assert!(outcome.took < Duration::from_secs(60), "{}: {:?}", environment.name(), outcome.took);
        expect_no_process_left(&mark, Duration::ZERO);
    });
}

/// The agent fills its output and exits before guard has read it. guard must deliver all of it, also from a sealed
/// stream, which holds more than a pipe.
#[test]
fn last_output_arrives_after_the_end_of_the_agent() {
    let bytes = "1700000";
    for options in [&["-q"][..], &["-q", "--seal-stdio"]] {
        let environment = one_environment();
        let mut command =
            environment.guard_run(options, &["sh", "-c", "head -c \"$1\" /dev/zero; echo end", "sh", bytes]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // The agent writes as much as fits and, in a sealed stream, ends meanwhile.
        std::thread::sleep(Duration::from_secs(2));
        let mut output = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{options:?}");
        assert_eq!(output.len().to_string(), "1700004", "{options:?}");
        assert!(output.ends_with(b"end\n"), "{options:?}");
    }
}

#[test]
fn gibibyte_of_output_needs_little_memory() {
    let bytes: u64 = 1 << 30;
    in_two_environments(|environment| {
        let policy = environment.directory.join("little.toml");
        std::fs::write(
            &policy,
            "version = 1\nname = \"little\"\nextends = \"strict\"\n[limits]\noutput_mib = 2\n",
        )
        .unwrap();
        let options = ["-q", "--policy", policy.to_str().unwrap()];
        let mut command = environment.guard_run(&options, &["head", "-c", &bytes.to_string(), "/dev/zero"]);
        let started = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let counter = std::thread::spawn(move || {
            let (mut buffer, mut count) = (vec![0u8; 1 << 16], 0u64);
            while let Ok(got @ 1..) = output.read(&mut buffer) {
                assert!(buffer[..got].iter().all(|&byte| byte == 0));
                count += got as u64;
            }
            count
        });
        let mut highest = 0;
        while child.try_wait().unwrap().is_none() {
            highest = highest.max(peak_memory(child.id()));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(counter.join().unwrap(), bytes, "{}", environment.name());
        let outcome = environment.collect_outcome(child, started);
        outcome.expect_code(0);
        // The figure includes the pages of guard's own program: an unoptimized guard needs 50 MiB without any output.
        assert!(highest > 1000 && highest < 96 << 10, "{}: {highest} KiB", environment.name());
        eprintln!("{}: 1 GiB in {:?}, at most {highest} KiB", environment.name(), outcome.took);
        let run = std::fs::read_dir(environment.runs_directory()).unwrap().next().unwrap().unwrap().path();
        let transcript = run.join("transcript.jsonl");
        assert_eq!(check(&transcript).unwrap().outcome, Outcome::Complete);
        let size = transcript.metadata().unwrap().len();
        assert!(size < 140 << 20, "{}: a transcript of {size} bytes", environment.name());
        let text = std::fs::read_to_string(&transcript).unwrap();
        let cut = text.lines().filter(|line| line.contains("\"event_type\":\"transcript.cut\"")).count();
        assert_eq!(cut, 1, "{}: the transcript says once that output was left out", environment.name());
    });
}

#[test]
fn agent_that_closes_its_output_continues() {
    in_every_environment(|environment| {
        let outcome = environment.run_bash("echo first; exec >&- 2>&- <&-; sleep 0.3; touch went-on");
        assert_eq!((outcome.code, outcome.printed()), (0, "first\n".to_string()), "{outcome}");
        assert!(environment.directory.join("went-on").exists());
        assert!(outcome.created_file("went-on"), "{outcome}");
    });
}

/// guard must work if its caller closed all three standard streams.
#[test]
fn run_works_with_closed_standard_streams() {
    in_two_environments(|environment| {
        let guard =
            environment.guard_run_arguments(&["-q"], &["bash", "-c", "echo x; echo y >&2; cat; touch ran"]);
        let mut command: Command = environment.command("bash");
        command.args(["-c", "exec \"$@\" <&- >&- 2>&-", "bash"]).arg(guard_program()).args(guard);
        let outcome = environment.run_to_end(command, b"");
        assert!(environment.directory.join("ran").exists(), "{}: {outcome:?}", environment.name());
    });
    // guard must write and flush all output before it exits.
    let environment = one_environment();
    let mut child = environment
        .guard_run(&["-q"], &["cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for word in ["one\n", "two\n"] {
        input.write_all(word.as_bytes()).unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, word);
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

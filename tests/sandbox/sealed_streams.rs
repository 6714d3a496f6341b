// slow
//! With sealed streams (`--seal-stdio`), only the programs that inherit the standard input and output of the command can
//! use them. Without, every program of the run can open them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{
    SandboxConfiguration, SandboxFixture, in_every_configuration, probe_directory, system_python,
};

/// Runs a command that starts the forging program, and then copies its own input to its output. Returns the output,
/// and the report of the forging program.
fn forge(
    configuration: SandboxConfiguration,
    fixture: &SandboxFixture,
    options: &[&str],
    redirection: &str,
) -> (String, Value) {
    let probe = probe_directory().join("forge_output.py");
    let python = system_python().unwrap();
    let script =
        format!("{python} -B {} FORGED < /dev/null > report {redirection}; cat; echo end", probe.display());
    let mut guard = fixture.guard(configuration, options);
    guard.args(["bash", "-c", &script]);
    let mut child = guard.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"input\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let report = std::fs::read(fixture.work.join("report")).unwrap();
    let report: Value = serde_json::from_slice(&report)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&report)));
    (String::from_utf8_lossy(&output.stdout).into_owned(), report["value"].clone())
}

#[test]
fn other_programs_of_the_run_cannot_use_sealed_streams() {
    if system_python().is_none() {
        return;
    }
    in_every_configuration(|configuration, fixture| {
        // The streams of a plain command are open to every program of the run. This shows that the attack works.
        let (output, report) = forge(configuration, fixture, &[], "");
        assert!(output.contains("FORGED"), "{configuration:?}: {output} {report}");
        let (output, report) = forge(configuration, fixture, &["--seal-stdio"], "");
        assert_eq!(output, "input\nend\n", "{configuration:?}: {report}");
        assert_eq!(report["worked"], serde_json::json!([]), "{configuration:?}: {report}");
        assert!(report["tried"].as_u64() > Some(1), "{configuration:?}: {report}");
    });
}

/// The command itself can use its streams, but not open them by name. Its children inherit them.
#[test]
fn children_inherit_sealed_streams_but_cannot_open_them_by_name() {
    in_every_configuration(|configuration, fixture| {
        let script = "bash -c 'cat; echo child'; (echo background &) | cat; echo opened > /dev/stdout || echo refused; \
                      cat /dev/stdin || echo refused; echo error > /dev/stderr";
        let mut guard = fixture.guard(configuration, &["--seal-stdio"]);
        guard.args(["bash", "-c", script]);
        let mut child =
            guard.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"input\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(printed, "input\nchild\nbackground\nrefused\nrefused\n", "{configuration:?}: {output:?}");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("No such device or address") && errors.ends_with("error\n"), "{errors}");
    });
}

/// Makefiles and scripts open their streams by name. Those of a plain command are not sealed.
#[test]
fn plain_command_can_open_its_streams_by_name() {
    in_every_configuration(|configuration, fixture| {
        let makefile = "all:\n\t@echo to-error > /dev/stderr\n\t@echo to-output | tee /dev/stdout\n\t@cat /dev/stdin\n\t@echo direct > /dev/stdout\n";
        fixture.file(&fixture.work.join("Makefile"), makefile);
        let mut guard = fixture.guard(configuration, &[]);
        let mut child = guard
            .args(["make", "-s"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"to-input\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "to-output\nto-output\nto-input\ndirect\n",
            "{configuration:?}: {output:?}"
        );
        assert_eq!(String::from_utf8_lossy(&output.stderr), "to-error\n", "{configuration:?}");
        assert!(output.status.success(), "{configuration:?}: {output:?}");
    });
}

/// A server that answers each line of its standard input, with the classes of `asyncio` that watch both streams for
/// their end.
const SERVER: &str = r#"
import asyncio, sys

async def main():
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    while line := await reader.readline():
        writer.write(b"answer to " + line)
        await writer.drain()

asyncio.run(main())
"#;

/// Starts a command of guard with pipes for its input and output.
fn server(mut guard: Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = guard.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// Messages must pass both ways at once, small and large, until the client closes the stream.
#[test]
fn server_on_sealed_streams_exchanges_messages() {
    let Some(python) = system_python() else { return };
    in_every_configuration(|configuration, fixture| {
        let mut guard = fixture.guard(configuration, &["--seal-stdio"]);
        guard.args([python, "-B", "-c", SERVER]);
        let (mut child, mut output) = server(guard);
        let mut input = child.stdin.take().unwrap();
        let mut ask = |message: &str| {
            input.write_all(format!("{message}\n").as_bytes()).unwrap();
            let mut answer = String::new();
            output.read_line(&mut answer).unwrap();
            assert_eq!(answer, format!("answer to {message}\n"), "{configuration:?}");
        };
        ask("first");
        let began = Instant::now();
        (0..200).for_each(|number| ask(&number.to_string()));
        // A fixed pause between two messages, such as 10 ms, would be noticeable to the user.
        eprintln!("{configuration:?}: 200 messages in {:?}", began.elapsed());
        ask(&"long ".repeat(9_000));
        drop(input);
        assert!(child.wait().unwrap().success(), "{configuration:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{configuration:?}: {:?}", began.elapsed());
    });
}

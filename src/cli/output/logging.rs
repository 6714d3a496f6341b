//! The log of guard's own work, for finding the cause of a problem: `-v`, `-vv`, `GUARD_LOG`.
//!
//! The log goes to standard error or to a file, never to standard output, which is for results. Three rules keep it
//! from leaking secrets or controlling the terminal:
//! - Only guard's own spans and events are logged. Messages of libraries could contain anything.
//! - No event contains the value of a variable, a key, a prompt or an argument of a command.
//! - Every line is escaped, because an agent may have chosen the paths in it.
//!
//! [`start`] is called once, by the process that was started as `guard`, before it forks. A forked process inherits the
//! log in its memory but writes nothing: between fork and exec, nothing may block on a terminal or a pipe.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::Args;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::cli::Failure;
use crate::session::checkout::split;
use crate::sys::directory::Directory;
use crate::text::terminal_text;

/// The environment variable that contains the log filter.
const FILTER: &str = "GUARD_LOG";
/// The environment variable that contains the path of the log file.
const FILE: &str = "GUARD_LOG_FILE";

/// The logging options that every subcommand has.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LogOptions {
    /// Log what guard does, and print details at the end of a run; -vv also logs every program start
    ///
    /// GUARD_LOG gives a finer filter, such as `debug` or `guard::run=debug,guard::git=info`. The log goes to
    /// standard error, or to the file of --log-file or GUARD_LOG_FILE.
    #[arg(long, short, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    verbose: u8,
    /// Append the log to FILE instead of writing it to standard error
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    log_file: Option<PathBuf>,
}

/// The environment variables that make child processes of guard write to the same log file.
static FOR_CHILDREN: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// Returns the environment variables that make a child process of guard log as this process does. Empty unless the
/// log goes to a file, because the parent includes the child's standard error in error messages.
pub(in crate::cli) fn for_children() -> Vec<(OsString, OsString)> {
    FOR_CHILDREN.get().cloned().unwrap_or_default()
}

static IS_VERBOSE: OnceLock<bool> = OnceLock::new();

/// Returns true if the user asked for details with `-v`.
pub(in crate::cli) fn is_verbose() -> bool {
    IS_VERBOSE.get().copied().unwrap_or(false)
}

/// Starts the log, if the user asked for one with `-v` or `GUARD_LOG`; `-v` overrides `GUARD_LOG`. Fails if the filter
/// is invalid or guard cannot open the log file.
pub(in crate::cli) fn start(options: &LogOptions) -> Result<(), Failure> {
    let _ = IS_VERBOSE.set(options.verbose > 0);
    let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let filter: OsString = match options.verbose {
        0 => match given(FILTER) {
            Some(filter) => filter,
            None => return Ok(()),
        },
        1 => "guard=info".into(),
        2 => "guard=debug".into(),
        _ => "guard=trace".into(),
    };
    let targets = parse(&filter)?;
    let file = options.log_file.clone().or_else(|| given(FILE).map(PathBuf::from));
    let target = match &file {
        Some(path) => Target::File(open(path)?),
        None => Target::StandardError { line_end: if io::stderr().is_terminal() { "\r\n" } else { "\n" } },
    };
    if let Some(file) = file {
        let file = std::path::absolute(&file).unwrap_or(file);
        let _ = FOR_CHILDREN.set(vec![(FILTER.into(), filter), (FILE.into(), file.into())]);
    }
    let is_own = |target: &str| target == "guard" || target.starts_with("guard::");
    let layer = fmt::layer()
        .with_ansi(false)
        .with_span_events(FmtSpan::CLOSE)
        .log_internal_errors(false)
        .with_writer(LogWriter { target, process: std::process::id() })
        .with_filter(targets.and(filter_fn(move |metadata| is_own(metadata.target()))));
    // This cannot fail: no other code installs a subscriber.
    let _ = tracing_subscriber::registry().with(layer).try_init();
    Ok(())
}

fn parse(filter: &OsStr) -> Result<Targets, Failure> {
    let hint = "write for example GUARD_LOG=debug or GUARD_LOG=guard::run=debug,guard::git=info";
    let bad = |problem: &str| {
        Failure::usage(
            format!("{FILTER}={}: {problem}", terminal_text::escape(&filter.to_string_lossy())),
            hint,
        )
    };
    let text = filter.to_str().ok_or_else(|| bad("the text is not UTF-8"))?;
    text.parse().map_err(|error: tracing_subscriber::filter::ParseError| bad(&error.to_string()))
}

/// Opens the log file for appending, and creates it if it does not exist. Refuses a symbolic link, and directories to
/// which a link of an agent leads, because an agent could have created one that leads to another file of the user. Refuses everything else that is not a regular file.
fn open(path: &Path) -> Result<File, Failure> {
    let bad = |problem: &str| {
        Failure::usage(
            format!("cannot log to {}: {problem}", path.display()),
            "give a writable regular file with --log-file FILE or GUARD_LOG_FILE",
        )
    };
    // Without O_NONBLOCK, opening a named pipe would block until another process reads from it.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let (parent, name) = split(path).ok_or_else(|| bad("the path names a directory, not a file"))?;
    let directory = Directory::open_named(&parent).map_err(|error| bad(&error.to_string()))?;
    let path = directory.path_of(name);
    let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => bad("the path is a symbolic link"),
        _ => bad(&error.to_string()),
    })?;
    match file.metadata() {
        Ok(found) if found.is_file() => Ok(file),
        _ => Err(bad("the path is not a regular file")),
    }
}

enum Target {
    /// Standard error. On a terminal, each line ends with a carriage return and a line feed, because a program in the
    /// sandbox may have put the terminal into raw mode, where a line feed alone does not move the cursor to the first
    /// column.
    StandardError {
        line_end: &'static str,
    },
    File(File),
}

/// Writes complete, escaped lines to the log, and only in the process that started the log.
struct LogWriter {
    target: Target,
    process: u32,
}

impl Write for &LogWriter {
    /// Writes one event to the log. Ignores errors: a log that cannot be written must not make guard fail.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        if std::process::id() == self.process {
            let text = String::from_utf8_lossy(event);
            let line = terminal_text::escape(text.trim_end_matches('\n'));
            let _ = match &self.target {
                Target::StandardError { line_end } => {
                    io::stderr().write_all(format!("{line}{line_end}").as_bytes())
                }
                Target::File(file) => { file }.write_all(format!("{line}\n").as_bytes()),
            };
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for LogWriter {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> Self::Writer {
        self
    }
}

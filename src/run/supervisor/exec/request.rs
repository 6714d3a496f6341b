//! An exec request: what a process asks to execute, and how the transcript records it.

use std::borrow::Cow;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::Serialize;

use super::executable_identity::{Executable, Identities, Identity, Kind, LoadedProgram, is_loader};
use crate::judge::command::{Context, Cwd, Request};
use crate::judge::decide::Verdict;
use crate::run::supervisor::process_info::parent_of;

/// The maximum number of bytes of a command's arguments that an event contains.
const RECORDED: usize = 64 << 10;

/// An exec request as the process made it.
#[derive(Debug, Clone)]
pub(crate) struct ExecRequest {
    /// The path of the file to execute, as the process passed it.
    pub(crate) path: Vec<u8>,
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) environment: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) cwd: PathBuf,
    /// The executed file, followed by its `#!` interpreters.
    pub(crate) chain: Vec<Executable>,
    /// If the program, or the script's interpreter, is the dynamic loader: the copies of known programs that it may run.
    pub(crate) loaded: Vec<LoadedProgram>,
}

#[derive(Serialize)]
pub(crate) struct ExecData<'a> {
    pid: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<i32>,
    path: Cow<'a, str>,
    argv: Vec<Cow<'a, str>>,
    /// The git subcommand, if `argv` is too long for an event to contain all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    git: Option<String>,
    directory: Cow<'a, str>,
    /// The same, under the former name of the field, for programs that read it.
    folder: Cow<'a, str>,
    /// The command that was denied, or the denied part of a compound command.
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interpreter: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copy_of: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instead: Option<&'a str>,
    /// The file and line that define the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// The options of `guard run` that would allow the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_with: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ancestors: Vec<String>,
}

pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

impl ExecRequest {
    /// Fills in [`ExecRequest::loaded`] for a request of the thread `tid`.
    pub(crate) fn find_loaded_programs(&mut self, identities: &mut Identities, tid: i32) -> io::Result<()> {
        if self.chain.last().is_some_and(|file| is_loader(file.judged_path())) {
            let (_, argv) = self.expected_program();
            self.loaded = identities.loaded_programs(tid, &self.cwd, &argv)?;
        }
        Ok(())
    }

    /// Returns the resolved path of the file to execute, before any interpreter. If guard has resolved no file, returns
    /// the path that the process passed.
    pub(crate) fn program_path(&self) -> Cow<'_, str> {
        text(self.chain.first().map_or(&self.path, |file| &file.path))
    }

    pub(crate) fn data(&self, pid: i32) -> ExecData<'_> {
        ExecData {
            pid,
            parent: parent_of(pid),
            path: self.program_path(),
            argv: recorded_argv(&self.argv, RECORDED),
            git: self.hidden_git_verb(),
            what: None,
            directory: text(self.cwd.as_os_str().as_bytes()),
            folder: text(self.cwd.as_os_str().as_bytes()),
            interpreter: self.chain.get(1).map(|file| text(&file.path)),
            copy_of: self.chain.iter().find_map(|file| file.copy_of.as_deref()).map(text),
            rule: None,
            reason: None,
            instead: None,
            source: None,
            allow_with: None,
            ancestors: Vec::new(),
        }
    }

    pub(crate) fn denial_data<'a>(&'a self, pid: i32, verdict: &'a Verdict) -> ExecData<'a> {
        ExecData {
            what: Some(verdict.shown_part()),
            rule: Some(&verdict.cause.rule),
            reason: Some(&verdict.cause.reason),
            instead: Some(&verdict.cause.instead),
            source: verdict.cause.source.as_ref().map(ToString::to_string),
            allow_with: verdict.allow_with.as_deref(),
            ancestors: ancestors(pid),
            ..self.data(pid)
        }
    }

    /// Returns the subcommand of a git command whose arguments are too long for an event; `None` for a shorter command
    /// or another program.
    fn hidden_git_verb(&self) -> Option<String> {
        if length_of(&self.argv) <= RECORDED {
            return None;
        }
        let (argv, resolved) = self.readings().into_iter().last()?;
        let context = Context {
            cwd: Cwd::from_absolute(self.cwd.as_os_str().as_bytes()),
            environment: self.environment.clone(),
            resolved: Some(resolved),
            ..Context::default()
        };
        let analysis = crate::judge::command::analyze(&Request::Argv(argv), &context);
        Some(analysis.intents.first()?.git.as_ref()?.name())
    }

    /// Returns the command as one line of text for the transcript, shortened as in [`line`]. If an event cannot contain
    /// all arguments of a git command, the line begins with its subcommand.
    pub(crate) fn line(&self) -> String {
        match self.hidden_git_verb() {
            Some(verb) => format!("git {verb}: {}", line(&self.argv)),
            None => line(&self.argv),
        }
    }

    /// Returns what the kernel will execute: the identity of the file or, for a script, of its last interpreter, and
    /// argv including the arguments that `#!` lines add. The kernel replaces an empty argv by one empty argument.
    pub(crate) fn expected_program(&self) -> (Identity, Vec<Vec<u8>>) {
        let mut argv = if self.argv.is_empty() { vec![Vec::new()] } else { self.argv.clone() };
        let mut name = self.path.clone();
        let mut identity = Identity { device: 0, inode: 0 };
        for file in &self.chain {
            identity = file.identity;
            if let Kind::Script(interpreter, argument) = &file.kind {
                let mut words = vec![interpreter.clone()];
                words.extend(argument.clone());
                words.push(name.clone());
                words.extend(argv.drain(..).skip(1));
                argv = words;
                name.clone_from(interpreter);
            }
        }
        (identity, argv)
    }

    /// Returns every command that this exec stands for, as (argv, program): the file as the process called it, each
    /// interpreter with its script, and each known program that the dynamic loader would run. The policy must allow all
    /// of them.
    pub(crate) fn readings(&self) -> Vec<(Vec<Vec<u8>>, Vec<u8>)> {
        let mut readings = Vec::new();
        let mut argv = if self.argv.is_empty() { vec![self.path.clone()] } else { self.argv.clone() };
        let mut name = self.path.clone();
        readings.extend(self.loaded.iter().map(|program| (program.argv.clone(), program.original.clone())));
        for file in &self.chain {
            if argv.first().is_none_or(Vec::is_empty) {
                argv[0].clone_from(&name);
            }
            match &file.kind {
                Kind::Program => readings.push((argv.clone(), file.judged_path().to_vec())),
                Kind::Script(interpreter, argument) => {
                    // A script never sees the argv[0] with which a process called it: the kernel passes the script's
                    // path instead.
                    argv[0].clone_from(&name);
                    readings.push((argv.clone(), file.judged_path().to_vec()));
                    let mut words = vec![interpreter.clone()];
                    words.extend(argument.clone());
                    words.append(&mut argv);
                    argv = words;
                    name.clone_from(interpreter);
                }
            }
        }
        readings
    }
}

/// Returns the names and ids of at most 16 ancestors of a process, nearest first, without process 1.
fn ancestors(pid: i32) -> Vec<String> {
    let mut names = Vec::new();
    let mut next = parent_of(pid);
    while let Some(parent) = next.filter(|&parent| parent > 1 && names.len() < 16) {
        let Ok(name) = std::fs::read(format!("/proc/{parent}/comm")) else { break };
        names.push(format!("{} ({parent})", text(name.trim_ascii_end())));
        next = parent_of(parent);
    }
    names
}

/// Returns a command as one line for the transcript. Shortens a very long command to its beginning and its end.
pub(crate) fn line(argv: &[Vec<u8>]) -> String {
    const LONGEST: usize = 400;
    let mut line = String::new();
    for word in recorded_argv(argv, LONGEST) {
        if !line.is_empty() {
            line.push(' ');
        }
        if word.is_empty()
            || word.contains(|c: char| c.is_whitespace() || c.is_control() || "'\"\\$`".contains(c))
        {
            line.push_str(&format!("{word:?}"));
        } else {
            line.push_str(&word);
        }
    }
    line
}

/// Returns the length of a command line, counting a separator after each argument.
fn length_of(argv: &[Vec<u8>]) -> usize {
    argv.iter().map(|word| word.len() + 1).sum()
}

/// Returns the arguments to record in an event: all of them if they fit in `most` bytes, otherwise the first and the
/// last part, with a note about what is missing. Without the last part, an agent could hide the end of a command behind
/// many arguments.
fn recorded_argv(argv: &[Vec<u8>], most: usize) -> Vec<Cow<'_, str>> {
    let total = length_of(argv);
    if total <= most {
        return argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
    }
    let (mut head_room, mut tail_room) = (most / 2, most - most / 2);
    let mut head = Vec::new();
    let mut rest = argv;
    while let Some((word, others)) = rest.split_first()
        && word.len() < head_room
    {
        head_room -= word.len() + 1;
        head.push(String::from_utf8_lossy(word));
        rest = others;
    }
    let mut tail = Vec::new();
    while let Some((word, others)) = rest.split_last()
        && word.len() < tail_room
    {
        tail_room -= word.len() + 1;
        tail.push(String::from_utf8_lossy(word));
        rest = others;
    }
    // Of the arguments that do not fit, record a part of the first and a part of the last. Both may be the same long
    // argument.
    if let Some(first) = rest.first() {
        let part = String::from_utf8_lossy(&first[..head_room.min(first.len())]);
        head.push(Cow::Owned(format!("{part}…")));
    }
    let left_out = length_of(rest).saturating_sub(head_room + tail_room);
    let hidden = rest.len().saturating_sub(2);
    head.push(Cow::Owned(format!("… {hidden} arguments and {left_out} bytes are not recorded …")));
    if let Some(last) = rest.last() {
        let part = String::from_utf8_lossy(&last[last.len() - tail_room.min(last.len())..]);
        head.push(Cow::Owned(format!("…{part}")));
    }
    head.extend(tail.into_iter().rev());
    head
}

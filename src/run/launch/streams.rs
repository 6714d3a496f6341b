//! The caller's streams of a run, and the parser of the agent's output.

use std::os::fd::OwnedFd;

use crate::run::outcome::RunResult;

/// Parses the standard output of an agent whose output format guard knows, and adds information from the output to
/// the run's result.
pub trait OutputReader: Send {
    /// Receives the next bytes of output. They may end in the middle of a line or a character.
    fn read(&mut self, bytes: &[u8]);
    /// Completes the result after the last byte of output and before guard records the result. `stderr` is the last
    /// part of the agent's standard error.
    fn conclude(&mut self, result: &mut RunResult, stderr: &str);
}

/// The caller's streams to which guard connects the agent's standard streams.
pub struct Streams {
    /// The stream from which guard copies the agent's standard input.
    pub input: OwnedFd,
    /// The stream to which guard copies the agent's standard output. With `None`, only the transcript and the result
    /// get the output.
    pub output: Option<OwnedFd>,
    /// The stream to which guard copies the agent's standard error. With `None`, only the transcript and the result
    /// get it.
    pub error: Option<OwnedFd>,
    /// For the caller's input, output and error: true if the stream is the user's terminal.
    pub is_terminal: [bool; 3],
    /// True if a program reads the agent's standard output as a protocol, so that only the programs that inherit the
    /// agent's standard input and output may use them. Does not apply to a stream that is a terminal.
    pub is_sealed: bool,
    /// The terminal on which guard asks the user for approval, if there is one.
    pub questions: Option<OwnedFd>,
    /// The terminal on which guard says what a signal has done to the run, if there is one.
    pub notes: Option<OwnedFd>,
    /// The parser of the agent's standard output, if guard knows the agent's program.
    pub reader: Option<Box<dyn OutputReader>>,
}

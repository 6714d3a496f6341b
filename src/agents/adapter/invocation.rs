//! Turns a request to an agent ([`InvocationSpec`]) into a command line for the agent's CLI ([`Invocation`]):
//! arguments, standard input, environment, files in the home directory, and network presets.
//!
//! This module only computes data: it starts no process and reads no file. It substitutes the prompt last, so that
//! placeholders inside a prompt are never expanded.

use crate::agents::adapter::known::{Adapter, OutputFormat};

/// A prompt longer than this, in bytes, is passed on standard input instead of the command line. If a CLI cannot read
/// prompts from standard input, this is the length of its longest prompt.
const LONG_PROMPT: usize = 100 << 10;

/// The longest prompt, in bytes, that is passed on standard input. A CLI may repeat the prompt in its output, and when
/// the CLI exits, it loses output that does not fit into the pipe to guard. So the prompt must be smaller than that
/// pipe.
const LONGEST_PROMPT: usize = 512 << 10;

/// What to ask an agent, and with which options: the input of [`Adapter::invocation`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InvocationSpec {
    pub prompt: String,
    /// The model to use. `None` means the adapter's default.
    pub model: Option<String>,
    /// Whether the agent acts without asking for approval.
    pub yolo: bool,
    /// The session's id, and whether to resume the session instead of beginning it; `None` without a session.
    pub session: Option<(String, bool)>,
    pub format: OutputFormat,
}

/// How to start a CLI for one prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The arguments after the program name.
    pub arguments: Vec<String>,
    /// The text to pass on standard input, if any.
    pub input: Option<String>,
    pub environment: Vec<(String, String)>,
    /// Files to create in the run's private home directory: path and content.
    pub home_files: Vec<(String, String)>,
    /// Network presets that the run needs.
    pub presets: Vec<String>,
    /// Hosts that the CLI contacts directly instead of through a gateway.
    pub hosts: Vec<String>,
    /// Paths in the home directory that guard saves for the next turn of the session.
    pub keep: Vec<String>,
}

impl Adapter {
    pub fn invocation(&self, spec: &InvocationSpec) -> Invocation {
        let whole = self.escape_leading_command(&spec.prompt);
        let short = self.start.long_prompt.as_ref().filter(|_| whole.len() > LONG_PROMPT);
        let (prompt, input) = match short {
            Some(short) => (short.clone(), Some(whole)),
            None => (whole, None),
        };
        Invocation {
            arguments: self.arguments(spec, &prompt),
            input,
            environment: self
                .start
                .environment
                .iter()
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            home_files: self
                .start
                .home_file
                .iter()
                .map(|file| (file.path.clone(), file.text.clone()))
                .collect(),
            presets: self.presets.clone(),
            hosts: self.hosts(),
            keep: self.start.keep.clone(),
        }
    }

    /// Returns the maximum length of a prompt for this CLI, in bytes.
    pub fn longest_prompt(&self) -> usize {
        if self.start.long_prompt.is_some() { LONGEST_PROMPT } else { LONG_PROMPT }
    }

    /// Escapes the beginning of a prompt if the CLI would interpret it as one of its own commands.
    fn escape_leading_command(&self, prompt: &str) -> String {
        let leading = self.start.leading.iter().find(|(begins, _)| prompt.starts_with(begins.as_str()));
        match leading {
            Some((begins, text)) => format!("{text}{}", &prompt[begins.len()..]),
            None => prompt.to_string(),
        }
    }

    fn arguments(&self, spec: &InvocationSpec, prompt: &str) -> Vec<String> {
        let requested = spec.model.as_ref().or(self.model.as_ref());
        let model = requested.map(|name| self.models.get(name).unwrap_or(name));
        let approval = if spec.yolo { &self.start.approval.yolo } else { &self.start.approval.asks };
        let session: Vec<String> = match &spec.session {
            Some((id, resumes)) => {
                let more = if *resumes { &self.start.resume_session } else { &self.start.begin_session };
                more.iter().map(|word| word.replace("{session}", id)).collect()
            }
            None => Vec::new(),
        };
        let has_place = self.start.arguments.iter().any(|word| word == "{session}");
        let mut arguments: Vec<String> = if has_place { Vec::new() } else { session.clone() };
        for word in &self.start.arguments {
            match word.as_str() {
                "{session}" => arguments.extend(session.iter().cloned()),
                "{format}" => {
                    arguments.extend(self.start.formats.get(&spec.format).into_iter().flatten().cloned());
                }
                "{approval}" if approval.is_empty() => {}
                word if word.contains("{model}") && model.is_none() => {
                    // Drop the option that precedes the missing value as well.
                    arguments.pop();
                }
                word => {
                    // Substitute the prompt last, so that placeholders in it are not expanded.
                    let word = word
                        .replace("{approval}", approval)
                        .replace("{model}", model.map(String::as_str).unwrap_or_default());
                    arguments.push(word.replace("{prompt}", prompt));
                }
            }
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::super::named;
    use super::*;

    fn words(agent: &str, spec: &InvocationSpec) -> Vec<String> {
        named(agent).unwrap_or_else(|| panic!("{agent}")).invocation(spec).arguments
    }

    fn has(words: &[String], pair: [&str; 2]) -> bool {
        words.windows(2).any(|found| found == pair)
    }

    #[test]
    fn how_it_is_asked() {
        let spec = InvocationSpec {
            prompt: "-x {model} {prompt}".into(),
            yolo: true,
            session: Some(("s".into(), true)),
            ..InvocationSpec::default()
        };
        let gemini = words("gemini", &spec);
        assert_eq!(gemini[..2], ["--resume", "s"]);
        assert!(gemini.contains(&"--prompt=-x {model} {prompt}".to_string()), "{gemini:?}");
        assert!(has(&gemini, ["--model", "gemini-3-pro-preview"]), "{gemini:?}");
        assert!(has(&gemini, ["--approval-mode", "yolo"]), "{gemini:?}");
        assert!(has(&gemini, ["--output-format", "stream-json"]), "{gemini:?}");
        let claude = words("claude", &InvocationSpec { prompt: "p".into(), ..InvocationSpec::default() });
        assert!(!claude.iter().any(|word| word == "--model"), "{claude:?}");
        let codex = words("codex", &spec);
        assert_eq!(codex[..3], ["exec", "resume", "s"], "{codex:?}");
        assert_eq!(codex.last().map(String::as_str), Some("-x {model} {prompt}"), "{codex:?}");
        let codex = words("codex", &InvocationSpec { session: Some(("s".into(), false)), ..spec.clone() });
        assert!(!codex.iter().any(|word| word == "s" || word == "resume"), "{codex:?}");
        let agy = words("agy", &InvocationSpec { prompt: "p".into(), ..InvocationSpec::default() });
        assert!(!agy.iter().any(String::is_empty), "{agy:?}");
    }

    #[test]
    fn models_have_other_names_and_formats_their_words() {
        let spec = |model: &str, format| InvocationSpec {
            prompt: "p".into(),
            model: Some(model.into()),
            format,
            ..InvocationSpec::default()
        };
        let gemini = words("gemini", &spec("gemini-3-pro", OutputFormat::Json));
        assert!(has(&gemini, ["--model", "gemini-3-pro-preview"]), "{gemini:?}");
        assert!(has(&gemini, ["--output-format", "json"]), "{gemini:?}");
        let gemini = words("gemini", &spec("gemini-2.5-flash", OutputFormat::Text));
        assert!(has(&gemini, ["--model", "gemini-2.5-flash"]), "{gemini:?}");
        assert!(has(&gemini, ["--output-format", "text"]), "{gemini:?}");
    }

    #[test]
    fn a_prompt_is_no_command_of_the_cli() {
        let gemini = named("gemini").unwrap_or_else(|| panic!("gemini"));
        let ask = |prompt: String| gemini.invocation(&InvocationSpec { prompt, ..InvocationSpec::default() });
        let short = ask("/quit now".into()).arguments;
        assert!(short.contains(&"--prompt= /quit now".to_string()), "{short:?}");
        let long = ask(format!("/quit {}", "x".repeat(LONG_PROMPT)));
        assert!(long.input.is_some_and(|input| input.starts_with(" /quit x")));
        for plain in ["//quit", "see /etc/hosts", " /quit", "-x"] {
            let said = ask(plain.into()).arguments;
            let as_it_is = format!("--prompt={plain}");
            let with_a_space = format!("--prompt= {plain}");
            assert!(said.contains(&as_it_is) || said.contains(&with_a_space), "{said:?}");
        }
    }
}

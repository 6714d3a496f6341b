//! Distinguishes messages from slash commands in the user's input. This module does no I/O.

use std::num::NonZeroUsize;

/// A command that the user can type instead of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SlashCommand {
    Help,
    /// Shows the changes of the last turn or, if `is_whole` is true, of all turns. Passes `arguments` to `guard diff`.
    Diff {
        is_whole: bool,
        arguments: Vec<String>,
    },
    /// Applies the changes to the user's branch. Passes the given arguments to `guard apply`.
    Apply(Vec<String>),
    Undo,
    /// Makes the agent forget the earlier messages.
    Clear,
    Compact,
    /// Uses the given model from the next message on; `None` shows the current model.
    Model(Option<String>),
    /// Continues in a copy of the conversation that ends with the given turn; `None` means the last turn.
    Fork(Option<NonZeroUsize>),
    /// Explains why guard refused actions in the last turn. Passes the given arguments to `guard why`.
    Why(Vec<String>),
    History,
    Quit,
}

/// The parsed input of the user: a message, a command, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Typed {
    Nothing,
    Message(String),
    Command(SlashCommand),
}

/// Why a line that begins with a slash is not a valid command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CommandError {
    #[error("there is no command {typed}")]
    Unknown { typed: String, nearest: Option<&'static str> },
    #[error("{command} does not accept the argument {argument:?}")]
    Argument { command: &'static str, argument: String },
    #[error("the quotes in the arguments of {command} do not match")]
    Quotes { command: &'static str },
}

impl CommandError {
    pub(super) fn hint(&self) -> String {
        match self {
            Self::Unknown { nearest: Some(nearest), .. } => {
                format!("did you mean {nearest}? /help lists the commands")
            }
            Self::Unknown { .. } => {
                "/help lists the commands; put a space before a message that begins with a slash".to_string()
            }
            Self::Argument { command, .. } | Self::Quotes { command } => match find(command) {
                Some(entry) => format!("usage: {} {}", entry.name, entry.arguments).trim_end().to_string(),
                None => "/help lists the commands".to_string(),
            },
        }
    }
}

/// The name, arguments and description of a slash command, for `/help`.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) arguments: &'static str,
    pub(super) description: &'static str,
}

/// All commands, in the order in which `/help` lists them.
pub(super) const COMMANDS: [Entry; 11] = [
    entry("/help", "", "show this list"),
    entry("/diff", "[all] [--stat] [-- PATH…]", "show the work of the last turn, or of all turns"),
    entry(
        "/apply",
        "[--squash | --uncommitted]",
        "bring the work into your branch; the conversation goes on",
    ),
    entry("/undo", "", "undo the last turn and its changes to files"),
    entry("/clear", "", "make the agent forget the earlier messages; the files stay"),
    entry("/compact", "", "summarise the older messages now"),
    entry("/model", "[NAME]", "use another model from the next message on, or show the model"),
    entry("/fork", "[TURN]", "continue in a copy of the conversation, up to this turn"),
    entry("/why", "[EVENT]", "explain what guard refused in the last turn, and what would allow it"),
    entry("/history", "", "list the turns"),
    entry("/quit", "", "leave; the conversation is stored"),
];

/// Alternative names of commands, which users know from other programs.
const ALIASES: [(&str, &str); 3] = [("/exit", "/quit"), ("/q", "/quit"), ("/?", "/help")];

const fn entry(name: &'static str, arguments: &'static str, description: &'static str) -> Entry {
    Entry { name, arguments, description }
}

fn find(name: &str) -> Option<&'static Entry> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
    COMMANDS.iter().find(|entry| entry.name == name)
}

/// Parses the user's input. The input is a command if it begins with a slash and its first word contains no other
/// slash, so `/etc/hosts` is a message. Fails if there is no such command, or if its arguments are invalid.
pub(super) fn parse(text: &str) -> Result<Typed, CommandError> {
    let text = text.trim_end();
    if text.trim().is_empty() {
        return Ok(Typed::Nothing);
    }
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let is_command = word.strip_prefix('/').is_some_and(|name| !name.contains('/'));
    if !is_command {
        return Ok(Typed::Message(text.trim_start().to_string()));
    }
    let Some(entry) = find(word) else {
        return Err(CommandError::Unknown { typed: shortened(word), nearest: nearest(word) });
    };
    let command = entry.name;
    let arguments = shell_words::split(rest).map_err(|_| CommandError::Quotes { command })?;
    let none = |made: SlashCommand| match arguments.first() {
        None => Ok(made),
        Some(argument) => Err(CommandError::Argument { command, argument: shortened(argument) }),
    };
    let at_most_one = || match arguments.get(1) {
        None => Ok(arguments.first().cloned()),
        Some(argument) => Err(CommandError::Argument { command, argument: shortened(argument) }),
    };
    let made = match command {
        "/help" => none(SlashCommand::Help)?,
        "/undo" => none(SlashCommand::Undo)?,
        "/clear" => none(SlashCommand::Clear)?,
        "/compact" => none(SlashCommand::Compact)?,
        "/history" => none(SlashCommand::History)?,
        "/quit" => none(SlashCommand::Quit)?,
        "/model" => SlashCommand::Model(at_most_one()?),
        "/fork" => {
            let number = |argument: String| {
                argument
                    .parse()
                    .map_err(|_| CommandError::Argument { command, argument: shortened(&argument) })
            };
            SlashCommand::Fork(at_most_one()?.map(number).transpose()?)
        }
        "/diff" => {
            let is_whole = arguments.first().is_some_and(|first| first == "all");
            let arguments = arguments.into_iter().skip(usize::from(is_whole)).collect();
            SlashCommand::Diff { is_whole, arguments }
        }
        "/apply" => SlashCommand::Apply(arguments),
        _ => SlashCommand::Why(arguments),
    };
    Ok(Typed::Command(made))
}

/// Returns the word for an error message, cut to 40 characters and `…` if it is longer.
fn shortened(word: &str) -> String {
    let mut short: String = word.chars().take(40).collect();
    if short.len() < word.len() {
        short.push('…');
    }
    short
}

/// Returns the command whose name is most similar to a word; `None` if none is similar enough.
fn nearest(word: &str) -> Option<&'static str> {
    if word.len() > 20 {
        return None;
    }
    let begins = COMMANDS.iter().find(|entry| word.len() > 1 && entry.name.starts_with(word));
    let similar = || {
        let distance = |entry: &&Entry| strsim::damerau_levenshtein(entry.name, word);
        COMMANDS.iter().min_by_key(distance).filter(|entry| distance(entry) <= 2)
    };
    begins.or_else(similar).map(|entry| entry.name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn command(text: &str) -> SlashCommand {
        match parse(text) {
            Ok(Typed::Command(command)) => command,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn every_listed_command_is_known() {
        for entry in &COMMANDS {
            assert!(matches!(parse(entry.name), Ok(Typed::Command(_))), "{}", entry.name);
        }
        for (alias, _) in ALIASES {
            assert!(matches!(parse(alias), Ok(Typed::Command(_))), "{alias}");
        }
    }

    #[test]
    fn arguments_are_understood() {
        assert_eq!(command("/model gemini-3-pro "), SlashCommand::Model(Some("gemini-3-pro".to_string())));
        assert_eq!(command("/model"), SlashCommand::Model(None));
        assert_eq!(command("/fork 3"), SlashCommand::Fork(NonZeroUsize::new(3)));
        assert_eq!(command("/fork"), SlashCommand::Fork(None));
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            command("/diff all --stat -- 'a b'"),
            SlashCommand::Diff { is_whole: true, arguments: words(&["--stat", "--", "a b"]) }
        );
        assert_eq!(command("/diff"), SlashCommand::Diff { is_whole: false, arguments: Vec::new() });
        assert_eq!(
            command("/apply --squash -m 'One, two'"),
            SlashCommand::Apply(words(&["--squash", "-m", "One, two"]))
        );
        assert_eq!(command("/why 17"), SlashCommand::Why(words(&["17"])));
    }

    #[test]
    fn messages_stay_messages() {
        for text in ["hello", "/etc/hosts is wrong", "/usr", "a /help", "1/2", " /help me", "//"] {
            let wanted = if text == "/usr" { None } else { Some(text.trim_start().to_string()) };
            let found = match parse(text) {
                Ok(Typed::Message(message)) => Some(message),
                _ => None,
            };
            assert_eq!(found, wanted, "{text:?}");
        }
        assert_eq!(parse("a\nb\n"), Ok(Typed::Message("a\nb".to_string())));
        assert_eq!(parse(" \n\t"), Ok(Typed::Nothing));
    }

    #[test]
    fn a_wrong_command_gets_a_hint() {
        let said = |text: &str| {
            let error = parse(text).expect_err(text);
            format!("{error}; {}", error.hint())
        };
        assert_eq!(said("/hlep"), "there is no command /hlep; did you mean /help? /help lists the commands");
        assert_eq!(
            said("/hist"),
            "there is no command /hist; did you mean /history? /help lists the commands"
        );
        assert!(said("/frobnicate now").ends_with("put a space before a message that begins with a slash"));
        assert_eq!(said("/fork 0"), "/fork does not accept the argument \"0\"; usage: /fork [TURN]");
        assert_eq!(said("/undo 3"), "/undo does not accept the argument \"3\"; usage: /undo");
        assert_eq!(said("/model a b"), "/model does not accept the argument \"b\"; usage: /model [NAME]");
        assert!(said("/apply -m 'open").starts_with("the quotes in the arguments of /apply do not match"));
    }

    proptest! {
        /// Every input must parse to a message, a command or nothing, or fail with a hint. A message must contain the
        /// whole input except for white space at its ends.
        #[test]
        fn every_text_is_understood_or_explained(text in "(/?[a-z]{0,8})?[ \n]?\\PC{0,40}") {
            match parse(&text) {
                Ok(Typed::Nothing) => prop_assert!(text.trim().is_empty()),
                Ok(Typed::Message(message)) => prop_assert_eq!(message, text.trim()),
                Ok(Typed::Command(_)) => prop_assert!(text.starts_with('/')),
                Err(error) => {
                    prop_assert!(text.starts_with('/'));
                    prop_assert!(!error.hint().is_empty() && error.to_string().len() < 300);
                }
            }
        }
    }
}

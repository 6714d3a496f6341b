//! Stores conversations. Each has a directory with `conversation.json` (settings, replaced by rename),
//! `messages.jsonl` (entries, only appended), `summaries/` (one file per summary, named after the digest of the
//! summarised messages) and `lock`.
//!
//! Only the process that holds the lock writes settings and entries. Reading needs no lock.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::fcntl::{Flock, FlockArg};
use schemars::JsonSchema;
use serde::Serialize;
use utoipa::ToSchema;

use super::compaction::RunningCompaction;
use super::context::HistorySettings;
use super::message_log;
use super::message_log::Entry;
use super::model::Mode;
use super::record::{NewConversation, Record, Settings, Turn};
use super::{ConversationError, at, summary_files};
use crate::agents::adapter;
use crate::agents::exec::check_model;
use crate::sys::agent_paths::own_real_path;
use crate::sys::append_log;
use crate::sys::fs::{Durability, replace_file};
use crate::sys::remove_tree::remove_tree;

const SETTINGS: &str = "conversation.json";
const MESSAGES: &str = "messages.jsonl";
const LOCK: &str = "lock";
const VERSION: u32 = 1;
/// A user can refer to a conversation by the end of its id if that end has at least this many characters.
const SHORTEST_ID: usize = 4;
/// The number of characters at the end of an id that lists show.
const SHORT_ID: usize = 8;
/// The number of characters around a match that [`Conversations::search`] shows.
const EXCERPT: usize = 60;

/// All stored conversations of a user.
#[derive(Debug, Clone)]
pub struct Conversations {
    root: PathBuf,
    history_settings: HistorySettings,
}

/// A conversation in a list.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct ConversationLine {
    /// The id of the conversation.
    pub id: String,
    /// The end of the id, which is long enough to refer to the conversation in commands.
    pub short_id: String,
    /// The title of the conversation.
    pub title: String,
    /// The agent's name.
    pub agent: String,
    /// The model that the agent uses; null if it is not known.
    pub model: Option<String>,
    /// The directory in which the agent works.
    #[schema(value_type = String)]
    pub cd: PathBuf,
    /// The number of turns that were neither cleared nor undone.
    pub turns: usize,
    /// The state of the last turn: `done`, `failed`, `cancelled`, `interrupted`, or `running` while the turn is in
    /// progress; null if there are no turns.
    pub state: Option<String>,
    /// When the conversation began (RFC 3339, UTC).
    pub created: String,
    /// When the last turn ended or, without turns, when the conversation began (RFC 3339, UTC).
    pub updated: String,
}

/// A message or an answer that contains the text for which the user searched.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SearchHit {
    /// The id of the conversation.
    pub id: String,
    /// The end of the id, which is long enough to refer to the conversation in commands.
    pub short_id: String,
    /// The title of the conversation.
    pub title: String,
    /// The number of the turn that contains the text.
    pub turn: usize,
    /// Who wrote the text: `user` or `assistant`.
    pub role: &'static str,
    /// The found text with the text around it, on one line.
    pub excerpt: String,
}

/// A conversation that this process has opened and locked.
#[derive(Debug)]
pub struct Conversation {
    pub(super) directory: PathBuf,
    pub(super) record: Record,
    pub(super) history_settings: HistorySettings,
    /// The turns that were neither cleared nor undone.
    active: Vec<Turn>,
    pub(super) compaction: Option<RunningCompaction>,
    /// The number of the turn that is in progress; `None` between turns.
    pub(super) running: Option<usize>,
    _lock: Flock<File>,
}

fn now() -> String {
    Timestamp::now().to_string()
}

fn short_id(id: &str) -> String {
    id.get(id.len().saturating_sub(SHORT_ID)..).unwrap_or(id).to_string()
}

impl Conversations {
    /// Returns the conversations that are stored below the directory `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), history_settings: HistorySettings::default() }
    }

    #[must_use]
    pub fn with_history_settings(self, history_settings: HistorySettings) -> Self {
        Self { history_settings, ..self }
    }

    pub(super) fn history_settings(&self) -> &HistorySettings {
        &self.history_settings
    }

    /// Creates and locks a new conversation. Fails if its settings contradict each other, or name an unknown agent or a
    /// directory that does not exist.
    pub fn create(&self, new: NewConversation) -> Result<Conversation, ConversationError> {
        let settings = settings_of(new)?;
        self.create_with(settings, Vec::new())
    }

    /// Creates the directory of a conversation with these settings and entries, and locks it. Removes the directory
    /// again if that fails.
    fn create_with(
        &self,
        settings: Settings,
        entries: Vec<Entry>,
    ) -> Result<Conversation, ConversationError> {
        let directory = self.root.join(&settings.id);
        at("create", &directory, DirBuilder::new().mode(0o700).recursive(true).create(&directory))?;
        let made = self.fill(&directory, settings, entries);
        if made.is_err() {
            let _ = fs::remove_dir_all(&directory);
        }
        made
    }

    fn fill(
        &self,
        directory: &Path,
        settings: Settings,
        entries: Vec<Entry>,
    ) -> Result<Conversation, ConversationError> {
        let lock = lock(directory, &settings.id)?;
        let messages = directory.join(MESSAGES);
        for entry in &entries {
            at("write", &messages, message_log::append(&messages, entry))?;
        }
        if entries.is_empty() {
            at("create", &messages, message_log::create(&messages))?;
        }
        // A directory without settings is not a conversation, so an interrupted copy is never listed.
        write_settings(directory, &settings)?;
        // Without syncing the directories, a power failure could lose the new files or the new directory.
        for synced in [directory, &self.root] {
            at("sync", synced, File::open(synced).and_then(|directory| directory.sync_all()))?;
        }
        Ok(self.conversation(directory.to_path_buf(), Record::new(settings, entries, 0), lock))
    }

    /// Opens and locks a conversation. `text` is its id, the end of its id, or `@` for the one that was used last.
    /// Removes an incomplete last line of its log. Fails if another process has the conversation open.
    pub fn open(&self, text: &str) -> Result<Conversation, ConversationError> {
        let id = self.find(text)?;
        let directory = self.root.join(&id);
        let lock = lock(&directory, &id)?;
        let messages = directory.join(MESSAGES);
        at("repair", &messages, append_log::cut_torn_line(&messages))?;
        let record = self.load(&id)?;
        Ok(self.conversation(directory, record, lock))
    }

    fn conversation(&self, directory: PathBuf, record: Record, lock: Flock<File>) -> Conversation {
        let active = record.active_turns().cloned().collect();
        let history_settings = self.history_settings.clone();
        Conversation {
            directory,
            record,
            history_settings,
            active,
            compaction: None,
            running: None,
            _lock: lock,
        }
    }

    /// Returns the id and the control directory of a conversation. `text` is its id, the end of its id, or `@`.
    pub fn control_directory(&self, text: &str) -> Result<(String, PathBuf), ConversationError> {
        let id = self.find(text)?;
        let directory = super::turn_control::control_directory(&self.root.join(&id));
        Ok((id, directory))
    }

    /// Reads a conversation without locking it. `text` is its id, the end of its id, or `@`.
    pub fn read(&self, text: &str) -> Result<Record, ConversationError> {
        let id = self.find(text)?;
        let mut record = self.load(&id)?;
        record.is_open = is_locked(&self.root.join(&id));
        Ok(record)
    }

    fn load(&self, id: &str) -> Result<Record, ConversationError> {
        let directory = self.root.join(id);
        let path = directory.join(SETTINGS);
        let bytes = at("read", &path, fs::read(&path))?;
        let damaged = |problem: String| ConversationError::Damaged { path: path.clone(), problem };
        let settings: Settings =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if settings.version != VERSION {
            return Err(ConversationError::UnknownFormat { path, version: settings.version });
        }
        let path = directory.join(MESSAGES);
        let (entries, damaged) = at("read", &path, message_log::read(&path))?;
        Ok(Record::new(settings, entries, damaged))
    }

    pub(super) fn directory(&self, id: &str) -> PathBuf {
        self.root.join(id)
    }

    /// Returns whether `id` is the complete id of a stored conversation.
    pub fn contains(&self, id: &str) -> bool {
        is_id(id) && self.root.join(id).join(SETTINGS).is_file()
    }

    /// Returns the ids of all conversations, the oldest first.
    fn ids(&self) -> Result<Vec<String>, ConversationError> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => at("read", &self.root, entries)?,
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut ids: Vec<String> = names.filter(|name| self.contains(name)).collect();
        // Ids begin with the time at which they were created.
        ids.sort();
        Ok(ids)
    }

    /// Returns the id of a conversation. `text` is its id, at least four characters at the end of its id, or `@` for
    /// the one that was used last. Fails if no conversation matches, or more than one.
    pub fn find(&self, text: &str) -> Result<String, ConversationError> {
        let ids = self.ids()?;
        if text == "@" {
            let updated = |id: &&String| {
                let written =
                    |name: &str| self.root.join(id).join(name).metadata().and_then(|data| data.modified());
                written(MESSAGES).or_else(|_| written(SETTINGS)).ok()
            };
            return ids.iter().max_by_key(updated).cloned().ok_or(ConversationError::None);
        }
        if let Some(id) = ids.iter().find(|id| *id == text) {
            return Ok(id.clone());
        }
        let text = text.to_lowercase();
        let matching: Vec<&String> =
            ids.iter().filter(|id| text.len() >= SHORTEST_ID && id.ends_with(&text)).collect();
        match matching.as_slice() {
            [only] => Ok((*only).clone()),
            [] if ids.is_empty() => Err(ConversationError::None),
            [] => Err(ConversationError::Unknown(text)),
            several => {
                let candidates = several.iter().take(10).map(|id| (*id).clone()).collect();
                Err(ConversationError::Ambiguous { text, candidates })
            }
        }
    }

    /// Lists the conversations, the one with the newest turn first. Leaves out those whose files cannot be read.
    pub fn list(&self) -> Result<Vec<ConversationLine>, ConversationError> {
        let mut lines: Vec<ConversationLine> =
            self.ids()?.iter().filter_map(|id| self.load(id).ok()).map(|record| self.line(&record)).collect();
        lines.sort_by(|a, b| (&b.updated, &b.id).cmp(&(&a.updated, &a.id)));
        Ok(lines)
    }

    fn line(&self, record: &Record) -> ConversationLine {
        let settings = &record.settings;
        let last = record.active_turns().next_back();
        let state = last.map(|turn| match turn.state.name() {
            "interrupted" if is_locked(&self.root.join(&settings.id)) => "running".to_string(),
            name => name.to_string(),
        });
        ConversationLine {
            id: settings.id.clone(),
            short_id: short_id(&settings.id),
            title: record.title(),
            agent: settings.agent.clone(),
            model: settings.model_in_use(),
            cd: settings.cd.clone(),
            turns: record.active_turns().count(),
            state,
            created: settings.created.clone(),
            updated: record.updated(),
        }
    }

    /// Searches the messages and answers of all conversations for a text, ignoring case. Also searches turns that were
    /// cleared or undone. The conversation that began last comes first. Skips conversations that cannot be read.
    pub fn search(&self, text: &str) -> Result<Vec<SearchHit>, ConversationError> {
        let wanted = text.to_lowercase();
        let mut hits = Vec::new();
        for id in self.ids()?.iter().rev() {
            let Ok(record) = self.load(id) else { continue };
            for turn in &record.turns {
                for (role, said) in [("user", &turn.user), ("assistant", &turn.assistant)] {
                    let Some(excerpt) = excerpt(said, &wanted) else { continue };
                    hits.push(SearchHit {
                        id: id.clone(),
                        short_id: short_id(id),
                        title: record.title(),
                        turn: turn.number,
                        role,
                        excerpt,
                    });
                }
            }
        }
        Ok(hits)
    }

    /// Deletes a conversation and the agent's own sessions that belong to it. Returns its id. Keeps its runs, its
    /// worktree and its branch. `text` is its id, the end of its id, or `@`. Fails if another process has the
    /// conversation open.
    pub fn delete(&self, text: &str) -> Result<String, ConversationError> {
        let id = self.find(text)?;
        let directory = self.root.join(&id);
        let _lock = lock(&directory, &id)?;
        // A conversation whose log cannot be read can be deleted too.
        if let Ok(record) = self.load(&id) {
            let sessions = self.root.with_file_name("sessions").join(&record.settings.agent);
            let of_turns = record.details.iter().filter_map(|details| details.session.as_deref());
            for session in
                of_turns.chain([id.as_str()]).filter(|session| uuid::Uuid::parse_str(session).is_ok())
            {
                let place = sessions.join(session);
                at("remove", &place, remove_tree(&place))?;
            }
        }
        at("remove", &directory, fs::remove_dir_all(&directory))?;
        Ok(id)
    }

    /// Creates a new conversation with a copy of the active turns of another one, and of its summaries. Copies the
    /// turns up to the turn `at_turn`, or all if it is `None`; fails if that turn is not active. The two conversations
    /// do not share a worktree: the first turn of the new one creates a worktree at the last commit.
    pub fn fork(&self, record: &Record, at_turn: Option<usize>) -> Result<Conversation, ConversationError> {
        let last = match at_turn {
            Some(number) if record.active_turns().any(|turn| turn.number == number) => number,
            Some(number) => return Err(ConversationError::NoTurn(number)),
            None => record.active_turns().next_back().map_or(0, |turn| turn.number),
        };
        let settings = Settings {
            id: uuid::Uuid::now_v7().to_string(),
            title: Some(record.title()).filter(|title| !title.is_empty()),
            created: now(),
            forked_from: Some((record.settings.id.clone(), last)),
            ..record.settings.clone()
        };
        let turns = record.active_turns().filter(|turn| turn.number <= last);
        let entries: Vec<Entry> = turns.flat_map(super::export::entries).collect();
        let fork = self.create_with(settings, entries)?;
        // Copy the summaries too, so that guard need not ask the model for them again.
        let copied = summary_files::copy(&self.directory(&record.settings.id), &fork.directory);
        if let Err(error) = copied {
            tracing::warn!(conversation = %fork.id(), %error, "guard cannot copy the summaries of the conversation");
        }
        Ok(fork)
    }
}

/// Returns the text around the first occurrence of `wanted`, which is in lower case; `None` if there is none.
fn excerpt(text: &str, wanted: &str) -> Option<String> {
    // Converting to lower case can change the number of bytes, so express the position as a number of characters.
    let lower = text.to_lowercase();
    let at = lower.find(wanted)?;
    let skipped = lower[..at].chars().count();
    let from = skipped.saturating_sub(EXCERPT / 2);
    let part: String = text.chars().skip(from).take(EXCERPT + wanted.chars().count()).collect();
    Some(part.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn is_id(text: &str) -> bool {
    uuid::Uuid::parse_str(text).map(|uuid| uuid.to_string()).as_deref() == Ok(text)
}

/// Maximum length of a title, in characters.
const LONGEST_TITLE: usize = 200;

/// Checks the settings of a new conversation and completes them.
fn settings_of(new: NewConversation) -> Result<Settings, ConversationError> {
    let wrong = |problem: String| Err(ConversationError::Settings(problem));
    let usual = if new.command.is_empty() { "gemini" } else { "generic" };
    let of_program = new.command.first().and_then(|program| adapter::of_program(Path::new(program)));
    let agent = new.agent.or(of_program.map(|adapter| adapter.name)).unwrap_or_else(|| usual.to_string());
    let adapter = adapter::named(&agent);
    if adapter.is_none() && agent != "generic" {
        let names: Vec<&str> = adapter::AGENTS.iter().map(|(name, _)| *name).collect();
        return wrong(format!("unknown agent {agent:?}; known agents are {}, generic", names.join(", ")));
    }
    if agent == "generic" && new.command.is_empty() {
        return wrong(
            "the agent `generic` needs a command that gets the prompt on its standard input".to_string(),
        );
    }
    if new.mode == Mode::Native && !adapter.is_some_and(|adapter| adapter.has_sessions()) {
        return wrong(format!("{agent} has no sessions of its own; choose the mode own-history or auto"));
    }
    check_model_name(new.model.as_deref())?;
    let cd = at("open", &new.cd, own_real_path(&new.cd))?;
    if !cd.is_dir() {
        return wrong(format!("{} is not a directory", cd.display()));
    }
    Ok(Settings {
        version: VERSION,
        id: uuid::Uuid::now_v7().to_string(),
        title: new
            .title
            .map(|title| title.chars().take(LONGEST_TITLE).collect::<String>())
            .filter(|title| !title.trim().is_empty()),
        agent,
        command: new.command,
        model: new.model,
        cd,
        sandbox: new.sandbox,
        mode: new.mode,
        created: now(),
        forked_from: None,
    })
}

fn check_model_name(model: Option<&str>) -> Result<(), ConversationError> {
    model.map_or(Ok(()), check_model).map_err(ConversationError::Settings)
}

/// Writes the settings of a conversation with another model. Returns the new settings.
pub(super) fn write_model(
    directory: &Path,
    settings: &Settings,
    model: Option<String>,
) -> Result<Settings, ConversationError> {
    check_model_name(model.as_deref())?;
    let settings = Settings { model, ..settings.clone() };
    write_settings(directory, &settings)?;
    Ok(settings)
}

fn write_settings(directory: &Path, settings: &Settings) -> Result<(), ConversationError> {
    let path = directory.join(SETTINGS);
    let text = serde_json::to_vec_pretty(settings).unwrap_or_default();
    at("write", &path, replace_file(&path, &text, 0o600, Durability::Synced))
}

fn lock(directory: &Path, id: &str) -> Result<Flock<File>, ConversationError> {
    let path = directory.join(LOCK);
    let open = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = at("open", &path, open)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| ConversationError::Busy(id.to_string()))
}

fn is_locked(directory: &Path) -> bool {
    let Ok(file) = File::open(directory.join(LOCK)) else { return false };
    Flock::lock(file, FlockArg::LockSharedNonblock).is_err()
}

impl Conversation {
    pub fn id(&self) -> &str {
        &self.record.settings.id
    }

    /// Returns the end of the id, which is long enough to refer to the conversation in commands.
    pub fn short_id(&self) -> String {
        short_id(self.id())
    }

    /// Returns the title that the user gave or, if there is none, the beginning of the first message.
    pub fn title(&self) -> String {
        self.record.title()
    }

    pub fn agent(&self) -> &str {
        &self.record.settings.agent
    }

    /// Returns the model in use: the user's choice or else the agent's default; `None` if there is neither.
    pub fn model(&self) -> Option<String> {
        self.record.settings.model_in_use()
    }

    /// Returns the settings and all turns of the conversation.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the turns that were neither cleared nor undone, oldest first.
    pub fn turns(&self) -> &[Turn] {
        &self.active
    }

    /// Sets the model for the next turns; `None` selects the agent's default. Fails if the name is not valid.
    pub fn set_model(&mut self, model: Option<String>) -> Result<(), ConversationError> {
        self.record.settings = write_model(&self.directory, &self.record.settings, model)?;
        Ok(())
    }

    /// Appends an entry to the log and updates the record. If the entry cannot be stored, nothing changes.
    pub(super) fn store(&mut self, entry: Entry) -> Result<(), ConversationError> {
        let path = self.directory.join(MESSAGES);
        at("write", &path, message_log::append(&path, &entry))?;
        self.record.apply(entry);
        self.active = self.record.active_turns().cloned().collect();
        Ok(())
    }

    /// Clears the history: the agent no longer receives the earlier turns. The stored turns stay readable, and
    /// the worktree stays.
    pub fn clear(&mut self) -> Result<(), ConversationError> {
        self.store(Entry::Cleared { time: now() })
    }

    /// Returns the active turns as a document in the given format.
    pub fn export(&self, format: super::Format) -> String {
        self.record.export(format)
    }

    /// Creates a new conversation with a copy of the active turns of this one, up to the turn `at_turn`, or of all if
    /// it is `None`. Fails if that turn is not active.
    pub fn fork(&self, at_turn: Option<usize>) -> Result<Conversation, ConversationError> {
        let root = self.directory.parent().unwrap_or(Path::new("/"));
        let conversations = Conversations::at(root).with_history_settings(self.history_settings.clone());
        conversations.fork(&self.record, at_turn)
    }
}

//! The JSON output of `guard` whose schemas are published.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Serialize;

use crate::agents::adapter::AgentEvent;
use crate::agents::conversation::TurnResult;
use crate::agents::exec::{ExecRequest, ExecResult};
use crate::cli::commands::check_connect::ConnectJson;
use crate::judge::command::Analysis;
use crate::judge::decide::{Decision, Verdict};
use crate::judge::policy;
use crate::judge::policy::Location;
use crate::run::outcome::RunResult;
use crate::run::transcript::Event;
use crate::work::research;

/// The output of `guard check --json`, and of `guard check --stdin` for each command.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerdictJson<'a> {
    /// The number of the line of standard input that contains the command, from 1 (`--stdin` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// The caller's id for this command, returned unchanged (`--stdin` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a serde_json::Value>,
    /// Whether the policy allows the command (`allow`), denies it (`deny`), or lets the user decide (`ask`).
    decision: DecisionJson,
    /// The id of the rule that caused the decision; `default`, `git.default` or `git.other` if no rule matches;
    /// `deferred` if guard judges the command when it runs; `input.…` if guard cannot parse the command.
    rule: &'a str,
    /// The reason for the decision.
    reason: &'a str,
    /// What to do instead of running the command; empty if there is no advice.
    instead: &'a str,
    /// The options of `guard run` that would allow the command; absent if the command is allowed, or if no option can
    /// allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_with: Option<&'a str>,
    /// The position of the rule, or of the default, in its policy file; null if no policy file contains it.
    source: Option<SourceJson<'a>>,
    /// The part of the command that caused the decision; null if no single part caused it.
    part: Option<&'a str>,
    /// The name of the policy by which guard judged the command.
    policy: &'a str,
    /// The parts of the command that guard judges again when they run.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    deferred: Vec<DeferredJson<'a>>,
    /// Every program start that guard found in the command (`--json` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    intents: Option<Vec<IntentJson>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum DecisionJson {
    Allow,
    Ask,
    Deny,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SourceJson<'a> {
    /// The path of the policy file, or `builtin:NAME.toml` for a built-in policy.
    file: &'a str,
    /// The line in the file, from 1.
    line: usize,
    /// The column in the line, from 1.
    column: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DeferredJson<'a> {
    /// The text of the part of the command.
    part: &'a str,
    /// Why guard can judge this part only when it runs.
    why: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct IntentJson {
    /// The program with its arguments, as one line.
    command: String,
    /// The name of the program; empty if it is only known when the command runs.
    program: String,
    /// Where guard found the program start: `asked` (it is the command itself), `shell` (in shell text), `wrapped` (in
    /// the arguments of a wrapper such as `env`), `alias` (in a git alias), `git` (git runs the program because of an
    /// option, a variable or configuration).
    origin: &'static str,
    /// The index in `intents` of the program start that contains this one; null if no other one contains it.
    parent: Option<usize>,
    /// The git verb, such as `commit`, after guard has resolved aliases; absent if the program is not git.
    #[serde(skip_serializing_if = "Option::is_none")]
    verb: Option<String>,
    /// The git refs that the command would create, move or delete, as far as the command names them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refs: Vec<String>,
    /// What the program start would do, as names of effects that policy rules can match, such as `git.refs`.
    effects: Vec<&'static str>,
    /// The files that the program would read or write, as far as guard knows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paths: Vec<PathJson>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PathJson {
    /// The path of the file.
    path: String,
    /// How the program would use the file: `read` or `write`.
    access: &'static str,
}

impl<'a> VerdictJson<'a> {
    /// Creates the JSON output for a verdict by the policy with the name `policy`. The output has no line, id or
    /// intents.
    pub fn new(verdict: &'a Verdict, policy: &'a str) -> Self {
        let (decision, deferred) = match &verdict.decision {
            Decision::Allow(conditions) => (
                DecisionJson::Allow,
                conditions
                    .deferred
                    .iter()
                    .map(|(part, why)| DeferredJson { part, why: why.explain() })
                    .collect(),
            ),
            Decision::Ask => (DecisionJson::Ask, Vec::new()),
            Decision::Deny => (DecisionJson::Deny, Vec::new()),
        };
        Self {
            line: None,
            id: None,
            decision,
            rule: &verdict.cause.rule,
            reason: &verdict.cause.reason,
            instead: &verdict.cause.instead,
            allow_with: verdict.allow_with.as_deref(),
            source: verdict.cause.source.as_ref().map(source),
            part: verdict.part.as_deref(),
            policy,
            deferred,
            intents: None,
        }
    }

    /// Adds the line number and the caller's id of the request that this verdict answers.
    #[must_use]
    pub fn answering(mut self, line: usize, id: Option<&'a serde_json::Value>) -> Self {
        self.line = Some(line);
        self.id = id;
        self
    }

    #[must_use]
    pub fn with_intents(mut self, analysis: &Analysis) -> Self {
        self.intents = Some(analysis.intents.iter().map(intent).collect());
        self
    }
}

fn source(location: &Location) -> SourceJson<'_> {
    SourceJson { file: &location.file, line: location.line, column: location.column }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn intent(intent: &crate::judge::command::Intent) -> IntentJson {
    let path = |used: &crate::judge::command::PathUse| PathJson {
        path: lossy(&used.path),
        access: match used.access {
            crate::judge::command::Access::Read => "read",
            crate::judge::command::Access::Write => "write",
        },
    };
    IntentJson {
        command: intent.line(),
        program: lossy(&intent.program.name),
        origin: intent.origin.name(),
        parent: intent.parent,
        verb: intent.git.as_ref().map(|git| lossy(&git.verb)),
        refs: intent.git.iter().flat_map(|git| git.refs.iter().map(|name| lossy(name))).collect(),
        effects: intent.effects.names().collect(),
        paths: intent.paths.iter().map(path).collect(),
    }
}

/// A published schema: the name of its file in `schemas/`, and the function that generates it.
type Published = (&'static str, fn() -> serde_json::Value);

pub const SCHEMAS: &[Published] = &[
    ("policy.schema.json", policy::schema),
    ("check.schema.json", || titled(as_written::<VerdictJson<'static>>(), "guard check --json")),
    ("event.schema.json", || titled(as_written::<Event>(), "a line of a transcript")),
    ("connect.schema.json", || titled(as_written::<ConnectJson<'static>>(), "guard check --connect --json")),
    ("openapi.json", crate::servers::serve::document),
    ("exec-event.schema.json", || titled(as_written::<AgentEvent>(), "guard exec --stream-json: an event")),
    ("exec-request.schema.json", || titled(as_read::<ExecRequest>(), "guard exec: a request")),
    ("exec-result.schema.json", || titled(as_written::<ExecResult>(), "guard exec: the result")),
    ("chat-result.schema.json", || titled(as_written::<TurnResult>(), "guard chat --json")),
    ("research.schema.json", || titled(as_written::<research::Report>(), "guard research --json")),
    ("asyncapi.json", research::asyncapi),
    ("events/decomposition_started.schema.json", || event(research::EVENT_DECOMPOSITION_STARTED)),
    ("events/decomposition_complete.schema.json", || event(research::EVENT_DECOMPOSITION_COMPLETE)),
    ("events/sub_query_started.schema.json", || event(research::EVENT_SUB_QUERY_STARTED)),
    ("events/sub_query_completed.schema.json", || event(research::EVENT_SUB_QUERY_COMPLETED)),
    ("events/sub_query_failed.schema.json", || event(research::EVENT_SUB_QUERY_FAILED)),
    ("events/round_planned.schema.json", || event(research::EVENT_ROUND_PLANNED)),
    ("events/research_note.schema.json", || event(research::EVENT_RESEARCH_NOTE)),
    ("events/synthesis_started.schema.json", || event(research::EVENT_SYNTHESIS_STARTED)),
    ("events/final_result.schema.json", || event(research::EVENT_FINAL_RESULT)),
    ("events/research_failed.schema.json", || event(research::EVENT_RESEARCH_FAILED)),
    ("result.schema.json", || titled(as_written::<RunResult>(), "guard run --json")),
];

/// Returns the schema of a research event; null if there is no event of this type.
fn event(event_type: &str) -> serde_json::Value {
    research::EventSpec::named(event_type).map(research::EventSpec::schema).unwrap_or_default()
}

/// Returns the schema of a type that guard reads: fields with a default are not required.
fn as_read<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>()
}

/// Returns the schema of a type that guard prints: fields that guard may omit are not required.
fn as_written<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>()
}

fn titled(schema: Schema, title: &str) -> serde_json::Value {
    let mut value = schema.to_value();
    value["title"] = title.into();
    value
}

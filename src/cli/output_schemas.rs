//! The JSON that `guard` prints: shapes with published schemas.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Serialize;

use super::check_connect::ConnectJson;
use crate::agent::AgentEvent;
use crate::agent_exec::{ExecRequest, ExecResult};
use crate::command::Analysis;
use crate::decide::{Decision, Verdict};
use crate::outcome::RunResult;
use crate::policy::{self, Location};
use crate::research;
use crate::transcript::Event;

/// `guard check --json`, and each line of `guard check --stdin`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerdictJson<'a> {
    /// The line of standard input this answers, from 1 (`--stdin` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// The caller's id for this command, returned unchanged (`--stdin` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a serde_json::Value>,
    /// The decision.
    decision: DecisionJson,
    /// The rule that decided: its id, `default`, `git.default`, `deferred`, or `input.…` for input that cannot be parsed.
    rule: &'a str,
    /// Why the rule decides so.
    reason: &'a str,
    /// What to do instead; empty if there is no advice.
    instead: &'a str,
    /// The options of `guard run` that would allow it; absent if it is allowed, or if no option can.
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_with: Option<&'a str>,
    /// Where the rule is written; null for rules built into guard.
    source: Option<SourceJson<'a>>,
    /// The part of the command that caused the decision.
    part: Option<&'a str>,
    /// The name of the policy.
    policy: &'a str,
    /// The parts of the command that guard judges again when they run.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    deferred: Vec<DeferredJson<'a>>,
    /// Every program start found in the command (`--json` only).
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
    /// The policy file.
    file: &'a str,
    /// Line, from 1.
    line: usize,
    /// Column, from 1.
    column: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DeferredJson<'a> {
    /// The part of the command.
    part: &'a str,
    /// Why the decision is deferred.
    why: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct IntentJson {
    /// The command as one line.
    command: String,
    /// The program's name; empty if it is only known when the command runs.
    program: String,
    /// How guard found it: `asked` (the command itself), `shell` (in shell text), `wrapped` (an argument of a wrapper such
    /// as `env`), `alias` (a git alias), `git` (started by git).
    origin: &'static str,
    /// The index in `intents` of the program start that contains this one; null for the outermost.
    parent: Option<usize>,
    /// The git verb, after resolving aliases.
    #[serde(skip_serializing_if = "Option::is_none")]
    verb: Option<String>,
    /// The git refs it would change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refs: Vec<String>,
    /// What it would do, in terms that policy rules can match.
    effects: Vec<&'static str>,
    /// The files it would read or write, as far as known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paths: Vec<PathJson>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PathJson {
    path: String,
    access: &'static str,
}

impl<'a> VerdictJson<'a> {
    /// Creates the JSON output for a verdict.
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

    /// Adds the command's intents to the output.
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

fn intent(intent: &crate::command::Intent) -> IntentJson {
    let path = |used: &crate::command::PathUse| PathJson {
        path: lossy(&used.path),
        access: match used.access {
            crate::command::Access::Read => "read",
            crate::command::Access::Write => "write",
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

/// The schemas that this version of guard publishes.
pub const SCHEMAS: &[Published] = &[
    ("policy.schema.json", policy::schema),
    ("check.schema.json", || titled(as_written::<VerdictJson<'static>>(), "guard check --json")),
    ("event.schema.json", || titled(as_written::<Event>(), "a line of a transcript")),
    ("connect.schema.json", || titled(as_written::<ConnectJson<'static>>(), "guard check --connect --json")),
    ("openapi.json", crate::serve::document),
    ("exec-event.schema.json", || titled(as_written::<AgentEvent>(), "guard exec --stream-json: an event")),
    ("exec-request.schema.json", || titled(as_read::<ExecRequest>(), "guard exec: a request")),
    ("exec-result.schema.json", || titled(as_written::<ExecResult>(), "guard exec: the result")),
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

/// The schema of an event of research.
fn event(event_type: &str) -> serde_json::Value {
    research::EventSpec::named(event_type).map(research::EventSpec::schema).unwrap_or_default()
}

/// The schema of a type that guard reads: fields with a default are not required.
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

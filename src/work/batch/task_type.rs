//! Task types, which are TOML files: each contains the schema of the parameters, what a worker does, and the schema
//! of the output.
//!
//! The built-in types are in `policies/task-types/`. Users add types, or replace built-in ones, with files in the
//! configuration directory. A type file can make its tasks read-only, but cannot choose their policy, so it cannot give
//! them more rights than the default policy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::model::{TaskFailure, TaskKind};
use crate::agents::exec::Sandbox;
use crate::sys::fs::{Links, open_regular_file};
use crate::text::json_schema::JsonSchema;
use crate::text::template::Template;

/// The name of the directory with a user's task types, inside the configuration directory.
const DIRECTORY: &str = "task-types";
/// The maximum size of a type file, in bytes.
const LARGEST_FILE: u64 = 1 << 20;
/// The maximum number of type files in the user's directory of task types. With more, guard reports an error.
const MOST_FILES: usize = 1_000;
/// The maximum number of problems with the parameters or the output of one task that an error lists.
const MOST_PROBLEMS: usize = 20;

const BUILT_IN: &[(&str, &str)] = &[
    ("echo", include_str!("../../../policies/task-types/echo.toml")),
    ("execute_shell_command", include_str!("../../../policies/task-types/execute_shell_command.toml")),
    ("get_memory_summary", include_str!("../../../policies/task-types/get_memory_summary.toml")),
    ("propose_strategy", include_str!("../../../policies/task-types/propose_strategy.toml")),
    ("propose_test", include_str!("../../../policies/task-types/propose_test.toml")),
    ("query_coverage", include_str!("../../../policies/task-types/query_coverage.toml")),
    ("refine_test", include_str!("../../../policies/task-types/refine_test.toml")),
    ("research", include_str!("../../../policies/task-types/research.toml")),
];

#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct TaskTypeError {
    /// The path of the type file, or the name of a built-in type.
    pub file: String,
    pub problem: String,
}

/// The task types whose work is implemented in guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Builtin {
    /// Returns the parameters as the output.
    Echo,
    /// Reads coverage reports and returns the coverage.
    Coverage,
    /// Searches for keywords in the agents' memory file and in the records of past runs.
    Memory,
    /// Answers a query by several sub-queries, each a read-only run of an agent.
    Research,
}

/// What the output of a task is, if its type runs a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CommandOutput {
    /// An object with `stdout`, `stderr` and `exit_code`, and with `branch` if the command left changes on a branch.
    /// The task succeeds whatever the exit code is, unless guard ended the command.
    #[default]
    Process,
    /// The JSON object that the command prints. The task fails if the exit code is not 0.
    Json,
}

/// What a worker does for a task of this type.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Work {
    Builtin(Builtin),
    /// Runs a command in the sandbox. The program and each argument are templates.
    Command(Vec<String>, CommandOutput),
    /// Starts an agent with a prompt. The prompt is a template, and the agent's answer must match the output schema.
    Prompt(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypeFile {
    description: String,
    work: WorkSection,
    parameters: Value,
    #[serde(default)]
    output: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkSection {
    builtin: Option<Builtin>,
    command: Option<Vec<String>>,
    #[serde(default)]
    command_output: CommandOutput,
    prompt: Option<String>,
    #[serde(default)]
    sandbox: Sandbox,
    /// The name of the parameter that contains the path of a source file. The uncovered lines of that file become the
    /// template value `uncovered_lines`.
    coverage_of: Option<String>,
}

/// A task type: its schemas and what a worker does for its tasks.
#[derive(Debug)]
pub struct TaskType {
    /// The name of the type, which a task gives in its field `type`.
    pub name: String,
    /// What tasks of this type do, in one sentence.
    pub description: String,
    /// The JSON schema of the tasks' parameters.
    pub parameters: Value,
    /// The JSON schema of the tasks' output.
    pub output: Value,
    pub(super) work: Work,
    pub(super) sandbox: Sandbox,
    pub(super) coverage_of: Option<String>,
    parameters_schema: JsonSchema,
    output_schema: JsonSchema,
}

impl TaskType {
    pub fn parse(name: &str, text: &str) -> Result<Self, TaskTypeError> {
        let bad = |problem: String| TaskTypeError { file: name.to_string(), problem };
        let file: TypeFile = toml::from_str(text).map_err(|error| bad(error.to_string()))?;
        let section = file.work;
        let work = match (section.builtin, section.command, section.prompt) {
            (Some(builtin), None, None) => Work::Builtin(builtin),
            (None, Some(command), None) if !command.is_empty() => {
                Work::Command(command, section.command_output)
            }
            (None, None, Some(prompt)) => Work::Prompt(prompt),
            _ => {
                let problem = "[work] must have exactly one of `builtin`, `command` and `prompt`, and `command` must not be empty";
                return Err(bad(problem.to_string()));
            }
        };
        let templates = match &work {
            Work::Builtin(_) => &[][..],
            Work::Command(command, _) => command.as_slice(),
            Work::Prompt(prompt) => std::slice::from_ref(prompt),
        };
        let known = |value: &str| {
            value == "uncovered_lines" && section.coverage_of.is_some()
                || file.parameters["properties"].get(value).is_some()
        };
        for text in templates {
            let template = Template::read(text).map_err(|error| bad(error.message))?;
            if let Some(unknown) = template.names().into_iter().find(|name| !known(name)) {
                return Err(bad(format!("`{{{{{unknown}}}}}` is not a property of [parameters]")));
            }
        }
        let output = file.output.unwrap_or_else(|| serde_json::json!({ "type": "object" }));
        let schema = |schema: &Value, section: &str| {
            JsonSchema::parse(schema).map_err(|error| {
                bad(format!("[{section}] is not a JSON schema that guard supports: {error}"))
            })
        };
        Ok(Self {
            name: name.to_string(),
            description: file.description,
            parameters_schema: schema(&file.parameters, "parameters")?,
            output_schema: schema(&output, "output")?,
            parameters: file.parameters,
            output,
            work,
            sandbox: section.sandbox,
            coverage_of: section.coverage_of,
        })
    }

    /// Checks the parameters of a task against the schema. The failure lists the first 20 problems.
    pub fn check_parameters(&self, parameters: &Map<String, Value>) -> Result<(), TaskFailure> {
        let problems = self.parameters_schema.problems(&Value::Object(parameters.clone()), MOST_PROBLEMS);
        if problems.is_empty() {
            return Ok(());
        }
        let message = format!("invalid parameters for `{}`: {}", self.name, problems.join("; "));
        Err(TaskFailure::permanent(TaskKind::InvalidParameters, message))
    }

    /// Returns the first 20 problems of an output; the list is empty if the output matches the schema.
    pub(super) fn output_problems(&self, output: &Map<String, Value>) -> Vec<String> {
        self.output_schema.problems(&Value::Object(output.clone()), MOST_PROBLEMS)
    }
}

/// All task types that are available to a user.
#[derive(Debug, Default)]
pub struct TaskTypes {
    types: BTreeMap<String, TaskType>,
}

impl TaskTypes {
    /// Loads the built-in types, and the user's types from the configuration directory, if there is one. A user's type
    /// replaces the built-in type with the same name. Fails if any file is invalid, or if there are too many.
    pub fn load(config_dir: Option<&Path>) -> Result<Self, TaskTypeError> {
        let mut types = BTreeMap::new();
        for (name, text) in BUILT_IN {
            types.insert((*name).to_string(), TaskType::parse(name, text)?);
        }
        for path in config_dir.map_or_else(|| Ok(Vec::new()), type_files)? {
            let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
            let text = read_file(&path)?;
            let parsed = TaskType::parse(name, &text)
                .map_err(|error| TaskTypeError { file: path.display().to_string(), ..error })?;
            types.insert(name.to_string(), parsed);
        }
        Ok(Self { types })
    }

    /// Returns the type with this name. If there is no such type, returns the failure with which the task ends.
    pub fn get(&self, name: &str) -> Result<&TaskType, TaskFailure> {
        self.types.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.types.keys().map(String::as_str).collect();
            let message = format!("unknown task type {name:?}; the types are {}", known.join(", "));
            TaskFailure::permanent(TaskKind::UnknownType, message)
        })
    }

    /// Returns all types, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &TaskType> {
        self.types.values()
    }
}

/// Returns the user's type files, sorted. Fails if there are more than `MOST_FILES`.
fn type_files(config_dir: &Path) -> Result<Vec<PathBuf>, TaskTypeError> {
    let directory = config_dir.join(DIRECTORY);
    let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .take(MOST_FILES + 1)
        .collect();
    if files.len() > MOST_FILES {
        let problem = format!("the directory has more than {MOST_FILES} files with task types");
        return Err(TaskTypeError { file: directory.display().to_string(), problem });
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path) -> Result<String, TaskTypeError> {
    let bad = |problem: String| TaskTypeError { file: path.display().to_string(), problem };
    let file = open_regular_file(path, LARGEST_FILE, Links::Follow)
        .map_err(|error| bad(std::io::Error::from(error).to_string()))?;
    std::io::read_to_string(file).map_err(|error| bad(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn too_many_type_files_are_refused() {
        let dir = std::env::temp_dir().join(format!("guard-task-types-{}", std::process::id()));
        let types = dir.join(DIRECTORY);
        std::fs::create_dir_all(&types).unwrap_or_else(|error| panic!("{error}"));
        for n in 0..=MOST_FILES {
            std::fs::write(types.join(format!("{n}.toml")), "").unwrap_or_else(|error| panic!("{error}"));
        }
        let error = TaskTypes::load(Some(&dir)).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("more than 1000 files"), "{error}");
        let _ = std::fs::remove_dir_all(dir);
    }

    fn parameters(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn the_built_in_types_are_valid_and_accept_the_examples() {
        let types = TaskTypes::load(None).unwrap_or_else(|error| panic!("{error}"));
        for (name, value) in [
            ("query_coverage", json!({"scope": "all", "format": "minizinc_dzn"})),
            (
                "propose_test",
                json!({"target_cpp_file": "lib/parser.cpp", "target_line_range": "100-150",
                    "semantic_context": "parsing of MiniZinc variables"}),
            ),
            ("get_memory_summary", json!({"keywords": ["OODA", "oxidation"]})),
            ("execute_shell_command", json!({"command": "ls -la", "description": "List files"})),
            ("research", json!({"query": "What is new?", "max_queries": 7, "timeout": 45})),
        ] {
            let found = types.get(name).and_then(|known| known.check_parameters(&parameters(&value)));
            assert_eq!(found, Ok(()), "{name}");
        }
    }

    #[test]
    fn wrong_parameters_are_all_named() {
        let types = TaskTypes::load(None).unwrap_or_else(|error| panic!("{error}"));
        let wrong = parameters(&json!({"scope": "java", "format": 7}));
        let failure = types.get("query_coverage").and_then(|known| known.check_parameters(&wrong));
        let message = failure.err().map(|failure| failure.message).unwrap_or_default();
        assert!(message.contains("/scope") && message.contains("/format"), "{message}");
        for wrong in [json!({}), json!({"query": " \n"}), json!({"query": "q", "max_queries": 65})] {
            let found = types.get("research").and_then(|known| known.check_parameters(&parameters(&wrong)));
            assert!(found.is_err(), "{wrong}");
        }
        let unknown = types.get("nothing").err().map(|failure| failure.message).unwrap_or_default();
        assert!(unknown.contains("query_coverage"), "{unknown}");
    }

    #[test]
    fn a_type_file_with_a_mistake_is_refused() {
        let with = |work: &str| {
            let text = format!(
                "description = 'x'\n[work]\n{work}\n[parameters]\ntype = 'object'\n[parameters.properties.file]\ntype = 'string'\n"
            );
            TaskType::parse("x", &text).map_err(|error| error.to_string())
        };
        assert!(with("prompt = 'read {{file}}'").is_ok());
        for (work, expected) in [
            ("", "exactly one"),
            ("prompt = 'a'\nbuiltin = 'echo'", "exactly one"),
            ("command = []", "exactly one"),
            ("prompt = '{{flie}}'", "{{flie}}"),
            ("prompt = '{{file'", "without"),
            ("policy = 'none'\nprompt = 'a'", "unknown field"),
        ] {
            assert!(with(work).is_err_and(|error| error.contains(expected)), "{work}");
        }
        let schema = "description = 'x'\n[work]\nbuiltin = 'echo'\n[parameters]\ntype = 'nothing'\n";
        assert!(TaskType::parse("x", schema).is_err_and(|error| error.to_string().contains("JSON schema")));
    }
}

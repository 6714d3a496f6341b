//! Parses a submission: a JSON array of tasks, or one task per line. If any task has a problem, guard refuses the whole
//! submission, and the error lists the problems.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::model::{BatchOptions, NewTask};
use super::task_type::TaskTypes;
use crate::sys::agent_paths::own_real_path;
use crate::work::roots::Roots;

/// The maximum size of a submission, in bytes.
pub const LARGEST_INPUT: usize = 256 << 20;
pub const MOST_TASKS: usize = 100_000;
/// The maximum number of JSON values in a submission, counting each element of an array and each value of an object. A
/// number of one byte takes at least 32 bytes of memory when it is parsed, so the size alone does not bound the memory.
pub const MOST_VALUES: usize = 2_000_000;
/// The maximum length of the text in a field of a task, such as its id, type or directory, in bytes. The task's
/// parameters have no such limit.
const LONGEST_NAME: usize = 256;
/// The maximum number of problems that one error lists. The error counts further problems.
const MOST_PROBLEMS: usize = 100;
/// The maximum value of the duration options `timeout` and `expires_after`.
const LONGEST_TIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// How many times guard retries a task after a temporary failure, unless the task sets `max_retries`.
const DEFAULT_RETRIES: u32 = 2;

/// Why guard refuses a submission. guard then queues none of the submission's tasks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    #[error("the submission is empty; it must be a JSON array of tasks")]
    Empty,
    /// The submission is neither a JSON text nor one JSON object per line.
    #[error("the submission is not valid JSON: {0}")]
    NotJson(String),
    /// The submission is one JSON value, but neither an array nor a task.
    #[error("the submission must be a JSON array of tasks, but is {0}")]
    NotAnArray(&'static str),
    /// The submission has too many tasks.
    #[error("the submission has {0} tasks; the maximum is {MOST_TASKS}")]
    TooMany(usize),
    /// The submission has too many JSON values, in all tasks together.
    #[error(
        "the submission has more than {MOST_VALUES} JSON values; make several submissions, or put the data into files"
    )]
    TooManyValues,
    /// Some tasks have problems. Each message names its task.
    #[error("{}", problems.join("\n"))]
    Tasks {
        /// The problems. Those of the fields come first, then those of the dependencies, then those of the parameters.
        /// After 100 problems, a last entry says how many more there are.
        problems: Vec<String>,
    },
}

impl InputError {
    /// Returns the error for these problems. One entry that counts them replaces the problems after the first 100.
    pub(crate) fn of_tasks(problems: Vec<String>) -> Self {
        let mut all = Problems::default();
        problems.into_iter().for_each(|problem| all.add(|| problem));
        all.into_error()
    }
}

/// The first problems of a submission, and how many there are.
#[derive(Default)]
struct Problems {
    first: Vec<String>,
    total: usize,
}

impl Problems {
    /// Counts a problem, and keeps its text if the error lists it.
    fn add(&mut self, problem: impl FnOnce() -> String) {
        self.total += 1;
        if self.first.len() < MOST_PROBLEMS {
            self.first.push(problem());
        }
    }

    fn into_error(mut self) -> InputError {
        if self.total > MOST_PROBLEMS {
            self.first.push(format!("and {} more problems", self.total - MOST_PROBLEMS));
        }
        InputError::Tasks { problems: self.first }
    }
}

/// Parses a submission that the user made on the command line, and checks the parameters of every task whose type is
/// known. `directory` is the working directory of tasks that name none; relative directories are resolved against it.
/// A task of an unknown type is accepted here, and fails when a worker runs it.
pub fn parse_tasks(text: &str, directory: &Path, types: &TaskTypes) -> Result<Vec<NewTask>, InputError> {
    parse(text, directory, types, None)
}

/// Parses a submission from a client of a server, as [`parse_tasks`] does. In addition, the tasks must work below the
/// server's roots (the directories that clients may use). They may name built-in and configured policies, but no policy
/// files, because an agent could have written such a file.
pub fn parse_client_tasks(
    text: &str,
    directory: &Path,
    types: &TaskTypes,
    roots: &Roots,
) -> Result<Vec<NewTask>, InputError> {
    parse(text, directory, types, Some(roots))
}

fn parse(
    text: &str,
    directory: &Path,
    types: &TaskTypes,
    roots: Option<&Roots>,
) -> Result<Vec<NewTask>, InputError> {
    let values = parse_json(text)?;
    if values.len() > MOST_TASKS {
        return Err(InputError::TooMany(values.len()));
    }
    let mut problems = Problems::default();
    let mut tasks = Vec::with_capacity(values.len());
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut repositories = HashMap::new();
    for (index, value) in values.into_iter().enumerate() {
        let mut reader = TaskReader { index, roots, problems: &mut problems };
        let Some(mut task) = reader.read(value, directory) else { continue };
        if let Some(first) = places.insert(task.task_id.clone(), index) {
            reader.problem(&format!("`task_id` {:?} is already the id of task {}", task.task_id, first + 1));
        }
        let of = task.options.directory.clone();
        task.repository = repositories.entry(of).or_insert_with_key(|path| repository_of(path)).clone();
        tasks.push(task);
    }
    check_dependencies(&tasks, &mut problems);
    for task in &tasks {
        let checked = types.get(&task.task_type).map(|known| known.check_parameters(&task.parameters));
        if let Ok(Err(failure)) = checked {
            problems.add(|| format!("task {:?}: {}", task.task_id, failure.message));
        }
    }
    if problems.total == 0 { Ok(tasks) } else { Err(problems.into_error()) }
}

fn parse_json(text: &str) -> Result<Vec<Value>, InputError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(InputError::Empty);
    }
    if exceeds_values(text) {
        return Err(InputError::TooManyValues);
    }
    match serde_json::from_str(text) {
        Ok(Value::Array(values)) => Ok(values),
        // A single object may be JSON Lines with one line. In that case it must have the fields of a task.
        Ok(Value::Object(object)) if object.contains_key("task_id") => Ok(vec![Value::Object(object)]),
        Ok(other) => Err(InputError::NotAnArray(type_name(&other))),
        Err(error) if text.trim_start().starts_with('{') => parse_lines(text, &error),
        Err(error) => Err(InputError::NotJson(error.to_string())),
    }
}

/// Returns true if the text could contain more than `MOST_VALUES` JSON values: every value but the first follows a comma or
/// an opening bracket outside of strings. Needs no memory.
fn exceeds_values(text: &str) -> bool {
    let (mut values, mut in_string, mut is_escaped) = (0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values > MOST_VALUES
}

fn parse_lines(text: &str, as_one: &serde_json::Error) -> Result<Vec<Value>, InputError> {
    let mut values = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str::<Value>(line) {
            Ok(value) => values.push(value),
            // The first line is not a complete JSON value, so the text is one invalid JSON text and not JSON Lines.
            Err(_) if values.is_empty() => return Err(InputError::NotJson(as_one.to_string())),
            Err(error) => {
                let column = error.column();
                return Err(InputError::NotJson(format!("line {}, column {column}: {error}", number + 1)));
            }
        }
    }
    Ok(values)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Parses one task and collects its problems.
struct TaskReader<'p> {
    index: usize,
    /// The roots of the server, if a client of a server submitted the task.
    roots: Option<&'p Roots>,
    problems: &'p mut Problems,
}

impl TaskReader<'_> {
    fn problem(&mut self, problem: &str) {
        let number = self.index + 1;
        self.problems.add(|| format!("task {number}: {problem}"));
    }

    fn read(&mut self, value: Value, directory: &Path) -> Option<NewTask> {
        let Value::Object(mut fields) = value else {
            self.problem(&format!("a task must be a JSON object, but is {}", type_name(&value)));
            return None;
        };
        let before = self.problems.total;
        let task_id = self.name(&mut fields, "task_id", true);
        let task_type = self.name(&mut fields, "type", true);
        let parameters = match fields.remove("parameters") {
            Some(Value::Object(parameters)) => parameters,
            Some(other) => {
                self.problem(&format!("`parameters` must be an object, but is {}", type_name(&other)));
                Map::new()
            }
            None => {
                self.problem("`parameters` is missing");
                Map::new()
            }
        };
        let priority = self.integer(&mut fields, "priority", -1000..=1000).unwrap_or(0);
        let max_retries = self.integer(&mut fields, "max_retries", 0..=10);
        let options = BatchOptions {
            directory: self.directory(&mut fields, directory),
            policy: self.policy(&mut fields),
            agent: self.name(&mut fields, "agent", false),
            timeout: self.seconds(&mut fields, "timeout"),
            max_retries: max_retries.and_then(|n| u32::try_from(n).ok()).unwrap_or(DEFAULT_RETRIES),
        };
        let task = NewTask {
            task_id: task_id.unwrap_or_default(),
            task_type: task_type.unwrap_or_default(),
            parameters,
            priority: i32::try_from(priority).unwrap_or(0),
            depends_on: self.names(&mut fields, "depends_on"),
            idempotency_key: self.name(&mut fields, "idempotency_key", false),
            expires_after: self.seconds(&mut fields, "expires_after"),
            options,
            repository: String::new(),
        };
        for field in fields.keys() {
            let known = "task_id, type, parameters, priority, depends_on, idempotency_key, expires_after, timeout, \
                         max_retries, policy, directory, agent";
            self.problem(&format!("unknown field {field:?}; the fields of a task are {known}"));
        }
        (self.problems.total == before).then_some(task)
    }

    /// Removes a string field from `fields` and returns its value; `None` if the field is missing or invalid. Reports a
    /// problem if a required field is missing, or if the value is not one line of 1 to `LONGEST_NAME` bytes.
    fn name(&mut self, fields: &mut Map<String, Value>, field: &str, is_required: bool) -> Option<String> {
        match fields.remove(field) {
            Some(Value::String(text)) if text.is_empty() => self.problem(&format!("`{field}` is empty")),
            Some(Value::String(text)) if text.len() > LONGEST_NAME => {
                self.problem(&format!("`{field}` is longer than {LONGEST_NAME} bytes"));
            }
            Some(Value::String(text)) if text.chars().any(char::is_control) => {
                self.problem(&format!("`{field}` {text:?} contains control characters"));
            }
            Some(Value::String(text)) => return Some(text),
            Some(Value::Null) | None if !is_required => {}
            None => self.problem(&format!("`{field}` is missing")),
            Some(other) => self.problem(&format!("`{field}` must be a string, but is {}", type_name(&other))),
        }
        None
    }

    fn names(&mut self, fields: &mut Map<String, Value>, field: &str) -> Vec<String> {
        let list = match fields.remove(field) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(other) => {
                self.problem(&format!(
                    "`{field}` must be an array of task ids, but is {}",
                    type_name(&other)
                ));
                return Vec::new();
            }
        };
        let mut seen = HashSet::new();
        let mut names = Vec::new();
        for value in list {
            match value {
                Value::String(text) if seen.insert(text.clone()) => names.push(text),
                Value::String(_) => {}
                other => self.problem(&format!("`{field}` must contain task ids, not {}", type_name(&other))),
            }
        }
        names
    }

    fn integer(
        &mut self,
        fields: &mut Map<String, Value>,
        field: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Option<i64> {
        let value = fields.remove(field).filter(|value| !value.is_null())?;
        let number = value.as_i64().filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = (range.start(), range.end());
            self.problem(&format!("`{field}` must be an integer from {least} to {most}, but is {value}"));
        }
        number
    }

    fn seconds(&mut self, fields: &mut Map<String, Value>, field: &str) -> Option<Duration> {
        let value = fields.remove(field).filter(|value| !value.is_null())?;
        let time = value.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let time = time.filter(|time| !time.is_zero() && *time <= LONGEST_TIME);
        if time.is_none() {
            let most = LONGEST_TIME.as_secs();
            self.problem(&format!("`{field}` must be a number of seconds, more than 0 and at most {most}"));
        }
        time
    }

    fn directory(&mut self, fields: &mut Map<String, Value>, base: &Path) -> PathBuf {
        let Some(given) = self.name(fields, "directory", false) else { return base.to_path_buf() };
        let path = base.join(given);
        match self.roots.map(|roots| roots.find("directory", &path.to_string_lossy())) {
            Some(Ok(real)) => return real,
            Some(Err(error)) => self.problem(&error.to_string()),
            None => match own_real_path(&path) {
                Ok(real) if real.is_dir() => return real,
                Err(error) if error.kind() == std::io::ErrorKind::Other => {
                    self.problem(&format!("`directory` {}: {error}", path.display()));
                }
                _ => self.problem(&format!("`directory` {} is not a directory", path.display())),
            },
        }
        path
    }

    fn policy(&mut self, fields: &mut Map<String, Value>) -> Option<String> {
        let policy = self.name(fields, "policy", false)?;
        if self.roots.is_some() && (policy.contains('/') || policy.ends_with(".toml")) {
            self.problem(&format!("`policy` must be the name of a policy, not a file, but is {policy:?}"));
        }
        Some(policy)
    }
}

/// Reports dependencies on unknown tasks. If there are cyclic dependencies, also reports the first task that could
/// therefore never start.
fn check_dependencies(tasks: &[NewTask], problems: &mut Problems) {
    let places: HashMap<&str, usize> =
        tasks.iter().enumerate().map(|(at, task)| (task.task_id.as_str(), at)).collect();
    let mut unmet: Vec<usize> = vec![0; tasks.len()];
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); tasks.len()];
    for (at, task) in tasks.iter().enumerate() {
        for needed in &task.depends_on {
            match places.get(needed.as_str()) {
                Some(place) => {
                    unmet[at] += 1;
                    dependents[*place].push(at);
                }
                None => problems.add(|| {
                    format!(
                        "task {:?}: `depends_on` names {needed:?}, which is not a task of this batch",
                        task.task_id
                    )
                }),
            }
        }
    }
    let mut ready: Vec<usize> = (0..tasks.len()).filter(|at| unmet[*at] == 0).collect();
    let mut reached = 0;
    while let Some(at) = ready.pop() {
        reached += 1;
        for dependent in &dependents[at] {
            unmet[*dependent] -= 1;
            if unmet[*dependent] == 0 {
                ready.push(*dependent);
            }
        }
    }
    if reached < tasks.len()
        && let Some(at) = unmet.iter().position(|count| *count > 0)
    {
        problems.add(|| {
            format!(
                "task {:?}: its `depends_on` leads into a cycle of tasks, so the task could never start",
                tasks[at].task_id
            )
        });
    }
}

/// Returns the root directory of the git repository that contains `directory`, or `directory` itself outside a
/// repository.
fn repository_of(directory: &Path) -> String {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_path_buf());
    let root = directory.ancestors().find(|path| path.join(".git").exists()).unwrap_or(&directory);
    root.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<NewTask>, InputError> {
        parse_tasks(text, Path::new("/"), &TaskTypes::default())
    }

    fn problems(text: &str) -> String {
        match parse(text) {
            Ok(tasks) => panic!("accepted: {tasks:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn problems_beyond_the_limit_are_counted() {
        let InputError::Tasks { problems } = InputError::of_tasks(vec!["x".to_string(); 102]) else {
            panic!("another error");
        };
        assert_eq!(problems.len(), MOST_PROBLEMS + 1);
        assert_eq!(problems.last().map(String::as_str), Some("and 2 more problems"));
    }

    #[test]
    fn values_are_counted_before_they_are_parsed() {
        let many = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert_eq!(parse(&many(MOST_VALUES + 1)), Err(InputError::TooManyValues));
        assert_eq!(parse(&many(MOST_TASKS + 1)), Err(InputError::TooMany(MOST_TASKS + 1)));
        let nested = format!(r#"[{{"task_id":"a","type":"t","parameters":{{"x":{}}}}}]"#, many(MOST_VALUES));
        assert_eq!(parse(&nested), Err(InputError::TooManyValues));
        // Commas and brackets in strings, also after an escaped quotation mark, are no values.
        let text = format!(
            r#"[{{"task_id":"a","type":"t","parameters":{{"x":"\"{}\\"}}}}]"#,
            ",[{".repeat(MOST_VALUES)
        );
        assert_eq!(parse(&text).map(|tasks| tasks.len()), Ok(1));
        // The texts of problems take no memory beyond those that the error lists.
        let numbers =
            format!(r#"[{{"task_id":"a","type":"t","parameters":{{}},"depends_on":{}}}]"#, many(200_000));
        assert!(problems(&numbers).ends_with("and 199900 more problems"));
    }

    #[test]
    fn arrays_and_lines_are_accepted() {
        let one = r#"{"task_id": "a", "type": "t", "parameters": {}}"#;
        let two =
            r#"{"task_id": "b", "type": "t", "parameters": {"x": [1]}, "depends_on": ["a"], "priority": 3}"#;
        for text in [format!("[{one}, {two}]"), format!("{one}\n\n{two}\n"), format!("\u{feff}[{one},{two}]")]
        {
            let tasks = parse(&text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(tasks.len(), 2);
            assert_eq!((tasks[1].priority, tasks[1].depends_on.as_slice()), (3, &["a".to_string()][..]));
        }
        assert_eq!(parse(one).map(|tasks| tasks.len()), Ok(1));
        assert_eq!(parse("[]").map(|tasks| tasks.len()), Ok(0));
    }

    #[test]
    fn all_problems_are_reported() {
        let text = r#"[
            {"task_id": "a", "type": "t", "parameters": {}},
            {"task_id": "a", "type": "t", "parameters": {}},
            {"type": 1, "parameters": []},
            7,
            {"task_id": "x", "type": "t", "parameters": {}, "timeout": -1, "priority": "high", "colour": 1}
        ]"#;
        let found = problems(text);
        for expected in [
            "task 2: `task_id` \"a\" is already the id of task 1",
            "task 3: `task_id` is missing",
            "task 3: `type` must be a string, but is a number",
            "task 3: `parameters` must be an object, but is an array",
            "task 4: a task must be a JSON object, but is a number",
            "task 5: `timeout` must be a number of seconds",
            "task 5: `priority` must be an integer from -1000 to 1000, but is \"high\"",
            "task 5: unknown field \"colour\"",
        ] {
            assert!(found.contains(expected), "{expected}\n{found}");
        }
    }

    #[test]
    fn clients_name_directories_below_the_roots_and_policies_but_no_files() -> std::io::Result<()> {
        let place = std::env::temp_dir().join(format!("guard-input-{}", uuid::Uuid::now_v7())).join("root");
        std::fs::create_dir_all(place.join("inner"))?;
        let place = place.canonicalize()?;
        let roots = Roots::new(std::slice::from_ref(&place)).unwrap_or_else(|error| panic!("{error}"));
        let parse = |field: &str| {
            let text = format!(r#"[{{"task_id": "a", "type": "t", "parameters": {{}}, {field}}}]"#);
            let tasks = parse_client_tasks(&text, &place, &TaskTypes::default(), &roots);
            tasks.map(|mut tasks| tasks.remove(0).options).map_err(|error| error.to_string())
        };
        let inner = place.join("inner");
        for directory in ["inner", "inner/../inner", "./inner"] {
            let found = parse(&format!("\"directory\": \"{directory}\"")).map(|options| options.directory);
            assert_eq!(found.as_ref(), Ok(&inner), "{directory}");
        }
        for directory in ["..", "/", "/etc", "none", "/none"] {
            let found = parse(&format!("\"directory\": \"{directory}\""));
            assert!(found.is_err_and(|error| error.contains("must be a directory in")), "{directory}");
        }
        assert_eq!(
            parse("\"policy\": \"strict\"").map(|options| options.policy),
            Ok(Some("strict".to_string()))
        );
        for policy in ["./p", "/tmp/p.toml", "p.toml"] {
            let found = parse(&format!("\"policy\": \"{policy}\""));
            assert!(found.is_err_and(|error| error.contains("not a file")), "{policy}");
        }
        std::fs::remove_dir_all(place.parent().unwrap_or(&place))
    }

    #[test]
    fn what_is_no_list_of_tasks_is_named() {
        for (text, expected) in [
            ("", "empty"),
            (" \n", "empty"),
            ("{", "not valid JSON"),
            ("[1,", "not valid JSON"),
            ("nonsense", "not valid JSON"),
            ("{\"tasks\": []}", "but is an object"),
            ("7", "but is a number"),
            ("{\"task_id\": \"a\"}\n{\"task_id\"\n", "line 2"),
        ] {
            assert!(problems(text).contains(expected), "{text}: {}", problems(text));
        }
    }

    #[test]
    fn circles_and_unknown_dependencies_are_refused() {
        let task = |id: &str, needs: &str| {
            format!(r#"{{"task_id": "{id}", "type": "t", "parameters": {{}}, "depends_on": [{needs}]}}"#)
        };
        let circle = format!("[{},{},{}]", task("a", "\"c\""), task("b", "\"a\""), task("c", "\"b\""));
        assert!(problems(&circle).contains("a cycle of tasks"));
        assert!(problems(&format!("[{}]", task("a", "\"a\""))).contains("a cycle of tasks"));
        assert!(problems(&format!("[{}]", task("a", "\"z\""))).contains("not a task of this batch"));
    }
}

//! Compares the reference pages with the program's own tables. `scripts/regenerate` writes the pages.

use std::fmt::Write;

use guard::cli::{EXIT_CODES, SCHEMAS};
use serde_json::{Map, Value};

use super::meanings::{ERROR_KINDS, EVENTS, EXEC_EVENTS, TASK_EVENTS};
use super::{read, root};
use crate::support::{guard, text};

const GENERATED: &str = "<!-- Generated from the code by scripts/regenerate. Do not edit. -->\n\n";

#[test]
fn reference_pages_are_up_to_date() {
    let pages: [(&str, String); 8] = [
        ("policy-format.md", policy_format()),
        ("result.md", result()),
        ("exec-request.md", exec_request()),
        ("check-output.md", check_output()),
        ("events.md", events()),
        ("exit-codes.md", exit_codes()),
        ("error-kinds.md", error_kinds()),
        ("config-toml.md", config_toml()),
    ];
    let directory = root().join("docs/reference");
    for (file, made) in pages {
        let path = directory.join(file);
        if std::env::var_os("GUARD_REGENERATE").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(&path, &made).unwrap();
        }
        assert!(read(&path) == made, "docs/reference/{file} is out of date; run scripts/regenerate");
    }
}

/// git ignores the page with the help of all commands. This test generates it all the same, to check the help.
#[test]
fn every_command_has_help_that_fits_the_terminal() {
    let page = cli();
    if std::env::var_os("GUARD_REGENERATE").is_some() {
        std::fs::write(root().join("docs/reference/cli.md"), &page).unwrap();
    }
    let commands = page.matches("```text").count();
    assert!(commands > 60, "only {commands} commands have help");
    assert_eq!(page.matches("\nUsage: guard").count(), commands);
    let long: Vec<&str> = page.lines().filter(|line| line.chars().count() > 110).collect();
    assert!(long.is_empty(), "these lines of help are too long: {long:#?}");
}

/// `scripts/regenerate` must run every test file that has snapshots; otherwise their snapshots would become outdated.
#[test]
fn regenerate_script_runs_every_test_with_a_snapshot() {
    let script = read(&root().join("scripts/regenerate"));
    let mut found = 0;
    for directory in std::fs::read_dir(root().join("tests")).unwrap().map(|entry| entry.unwrap().path()) {
        for file in std::fs::read_dir(&directory).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            if file.is_file()
                && String::from_utf8_lossy(&std::fs::read(&file).unwrap()).contains("assert_snapshot!(")
            {
                let module = directory.file_name().unwrap().to_string_lossy();
                let test = format!("{module}::{}", file.file_stem().unwrap().to_string_lossy());
                let is_run = script.contains(&format!(" {module}:: ")) || script.contains(&test);
                assert!(is_run || module == "docs", "scripts/regenerate does not run {test}");
                found += 1;
            }
        }
    }
    assert!(found > 5, "only {found} files of tests have snapshots");
}

/// Returns the page with the `--help` output of every command, below headings.
fn cli() -> String {
    let mut page = format!(
        "# Command line\n\n{GENERATED}This is the output of `--help` for every command of guard. [Exit codes](exit-codes.md) have a page of\n\
         their own.\n"
    );
    help_of(&[], &mut page);
    page
}

fn help_of(command: &[String], page: &mut String) {
    let output = guard().args(command).arg("--help").env("COLUMNS", "100").output().unwrap();
    let help: Vec<String> = text(&output).lines().map(|line| line.trim_end().to_string()).collect();
    let (level, name) = ("#".repeat((command.len() + 2).min(4)), command.join(" "));
    let heading = if name.is_empty() { "guard".to_string() } else { format!("guard {name}") };
    write!(page, "\n{level} {heading}\n\n```text\n{}\n```\n", help.join("\n").trim_end()).unwrap();
    // The help of guard itself lists its commands below several headings, all between the usage and the options.
    let commands = help.iter().skip_while(|line| !line.starts_with("Usage:")).skip(1);
    let is_command = |line: &&String| {
        line.strip_prefix("  ").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_lowercase()))
    };
    for line in commands.take_while(|line| *line != "Options:").filter(is_command) {
        let word = line.split_whitespace().next().unwrap();
        if word != "help" || command.is_empty() {
            help_of(&[command, &[word.to_string()]].concat(), page);
        }
    }
}

fn schema(file: &str) -> Value {
    SCHEMAS.iter().find(|(name, _)| *name == file).unwrap().1()
}

/// Returns a text that fits into a table cell.
fn cell(value: &Value) -> String {
    value.as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|")
}

fn name_of(reference: &str) -> &str {
    reference.rsplit('/').next().unwrap()
}

fn constants(value: &Value) -> Option<Vec<String>> {
    let list = value["enum"].as_array().cloned();
    let of_variants =
        value["oneOf"].as_array().map(|all| all.iter().map(|one| one["const"].clone()).collect::<Vec<_>>());
    let list = list.or(of_variants)?;
    list.iter().map(|one| one.as_str().map(|text| format!("`\"{text}\"`"))).collect()
}

/// Describes the type of a JSON schema in words.
fn type_of(value: &Value) -> String {
    if let Some(reference) = value["$ref"].as_str() {
        return format!("[{0}](#{1})", name_of(reference), name_of(reference).to_lowercase());
    }
    if let Some(words) = constants(value) {
        return if words.len() > 8 { "name".to_string() } else { words.join(", ") };
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(choices) = value[key].as_array() {
            return choices.iter().map(type_of).collect::<Vec<_>>().join(" or ");
        }
    }
    let one = |name: &str| match name {
        "array" => format!("list of {}", plural(&type_of(&value["items"]))),
        "object" if value["additionalProperties"].is_object() => {
            format!("table of {}", plural(&type_of(&value["additionalProperties"])))
        }
        "object" => "table".to_string(),
        "integer" if value["minimum"].is_number() && value["minimum"] == value["maximum"] => {
            value["minimum"].to_string()
        }
        "integer" if value["maximum"].is_number() => {
            format!("integer, {} to {}", value["minimum"], value["maximum"])
        }
        other => other.to_string(),
    };
    match &value["type"] {
        Value::String(name) => one(name),
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).map(one).collect::<Vec<_>>().join(" or ")
        }
        _ => "any".to_string(),
    }
}

fn plural(name: &str) -> String {
    match name {
        "string" | "integer" | "number" | "table" | "name" => format!("{name}s"),
        other if other.starts_with("integer, ") => other.replacen("integer", "integers", 1),
        other => other.to_string(),
    }
}

/// Appends a table of the fields of an object. One column says whether a field is always present.
fn fields(object: &Value, page: &mut String) {
    let required: Vec<&str> =
        object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    page.push_str("| field | type | always there | meaning |\n|---|---|---|---|\n");
    for (name, value) in object["properties"].as_object().unwrap() {
        let always = if required.contains(&name.as_str()) { "yes" } else { "no" };
        let meaning = cell(&value["description"]);
        writeln!(page, "| `{name}` | {} | {always} | {meaning} |", type_of(value).replace('|', "\\|"))
            .unwrap();
    }
}

/// Appends the types that a schema refers to.
fn definitions(schema: &Value, page: &mut String) {
    for (name, value) in schema["$defs"].as_object().unwrap_or(&Map::new()) {
        write!(page, "\n### {name}\n\n").unwrap();
        if let Some(meaning) = value["description"].as_str() {
            write!(page, "{meaning}\n\n").unwrap();
        }
        if value["properties"].is_object() {
            fields(value, page);
        } else if let Some(variants) = value["oneOf"].as_array() {
            page.push_str("| value | meaning |\n|---|---|\n");
            for one in variants {
                writeln!(page, "| `{}` | {} |", one["const"], cell(&one["description"])).unwrap();
            }
        } else {
            writeln!(page, "One of {}.", constants(value).unwrap_or_default().join(", ")).unwrap();
        }
    }
}

fn result() -> String {
    let (run, exec) = (schema("result.schema.json"), schema("exec-result.schema.json"));
    let mut page = format!(
        "# Results\n\n{GENERATED}`guard run --json` prints one JSON object. It is also the last line of `guard run --stream-json`, and the \
         `data` of the transcript's last event. The JSON Schema is [schemas/result.schema.json](../../schemas/result.schema.json). New \
         versions may add fields; readers ignore those they do not know.\n\n## Result of guard run\n\n"
    );
    fields(&run, &mut page);
    page.push_str(
        "\n## Result of guard exec\n\n`guard exec` prints the same fields, and these \
                   ([schema](../../schemas/exec-result.schema.json)):\n\n",
    );
    let mut more = exec.clone();
    let of_run = run["properties"].as_object().unwrap();
    more["properties"].as_object_mut().unwrap().retain(|name, _| !of_run.contains_key(name));
    fields(&more, &mut page);
    page.push_str("\n## Types\n");
    definitions(&exec, &mut page);
    page
}

fn exec_request() -> String {
    let request = schema("exec-request.schema.json");
    let mut page = format!(
        "# Requests of guard exec\n\n{GENERATED}`guard exec` reads one JSON object from standard input, or from `--request FILE`. A field \
         that is left out has its default. The JSON Schema is \
         [schemas/exec-request.schema.json](../../schemas/exec-request.schema.json). See [guard exec](../agents/exec.md).\n\n\
         | field | type | default | meaning |\n|---|---|---|---|\n"
    );
    for (name, value) in request["properties"].as_object().unwrap() {
        let default = match &value["default"] {
            Value::Null => "–".to_string(),
            default => format!("`{default}`"),
        };
        writeln!(page, "| `{name}` | {} | {default} | {} |", type_of(value), cell(&value["description"]))
            .unwrap();
    }
    page.push_str("\n## Types\n");
    definitions(&request, &mut page);
    page
}

fn check_output() -> String {
    let (check, connect) = (schema("check.schema.json"), schema("connect.schema.json"));
    let mut page = format!(
        "# Output of guard check\n\n{GENERATED}`guard check --json` prints one object, `guard check --stdin` one for each line \
         ([schema](../../schemas/check.schema.json)).\n\n## A command\n\n"
    );
    fields(&check, &mut page);
    page.push_str("\n## A connection\n\n`guard check --connect HOST:PORT --json` ([schema](../../schemas/connect.schema.json)):\n\n");
    fields(&connect, &mut page);
    page.push_str("\n## Types\n");
    definitions(&check, &mut page);
    page
}

fn events() -> String {
    let mut page = format!(
        "# Events\n\n{GENERATED}A transcript is a file of JSON lines, one event each. `guard log --json` and `guard run --stream-json` print \
         them. New versions may add event types and fields; readers ignore those they do not know.\n\n## Fields of every event\n\n"
    );
    fields(&schema("event.schema.json"), &mut page);
    for (part, events) in EVENTS {
        write!(page, "\n## {part}\n\n").unwrap();
        event_table(events, &mut page);
    }
    page.push_str("\n## Events of guard exec\n\n`guard exec --stream-json` prints the events of the run and these, with fewer fields \
                   ([schema](../../schemas/exec-event.schema.json)):\n\n");
    fields(&schema("exec-event.schema.json"), &mut page);
    page.push('\n');
    event_table(EXEC_EVENTS, &mut page);
    page.push_str("\n## Events of guard task\n\n`guard task --stream-json` prints these, and the events of the agents inside \
                   `task.agent`.\n\n");
    event_table(TASK_EVENTS, &mut page);
    page.push_str(
        "\n## Events of guard research\n\n`guard research --stream-json` prints these \
                   ([schemas](../../schemas/events), [AsyncAPI](../../schemas/asyncapi.json)).\n\n",
    );
    let of_research: Vec<(&str, &str)> =
        guard::work::research::EVENTS.iter().map(|spec| (spec.event_type, spec.meaning)).collect();
    event_table(&of_research, &mut page);
    page
}

fn event_table(events: &[(&str, &str)], page: &mut String) {
    page.push_str("| event | meaning |\n|---|---|\n");
    for (name, meaning) in events {
        writeln!(page, "| `{name}` | {meaning} |").unwrap();
    }
}

fn exit_codes() -> String {
    let mut page = format!("# Exit codes\n\n{GENERATED}");
    for (commands, codes) in EXIT_CODES {
        write!(page, "## {commands}\n\n| code | meaning |\n|---|---|\n").unwrap();
        for (code, meaning) in *codes {
            writeln!(page, "| {code} | {meaning} |").unwrap();
        }
        page.push('\n');
    }
    page.trim_end().to_string() + "\n"
}

fn error_kinds() -> String {
    let mut page = format!(
        "# Error kinds\n\n{GENERATED}A result with `success: false` has an `error_kind` for programs, an `error` for people, and an \
         `error_detail` with the last lines of output and the limits. New versions may add kinds. The last column says whether \
         [`guard exec`](../agents/exec.md#retries) tries again.\n\n| `error_kind` | meaning | tried again |\n|---|---|---|\n"
    );
    for (name, meaning, again) in ERROR_KINDS {
        writeln!(page, "| `{name}` | {meaning} | {again} |").unwrap();
    }
    page
}

fn config_toml() -> String {
    let config = schemars::schema_for!(guard::judge::policy::Config).to_value();
    let mut page = format!(
        "# config.toml\n\n{GENERATED}The user's configuration is `$XDG_CONFIG_HOME/guard/config.toml`, or `~/.config/guard/config.toml`. \
         guard never reads it from a project, because it decides which program prints a key and which host receives it. An unknown key \
         is an error.\n\n| table | meaning |\n|---|---|\n"
    );
    // Some tables contain one table per name.
    let heading = |name: &str, table: &Value| match table["additionalProperties"].is_object() {
        true => format!("[{name}.NAME]"),
        false => format!("[{name}]"),
    };
    for (name, value) in config["properties"].as_object().unwrap() {
        writeln!(page, "| `{}` | {} |", heading(name, value), cell(&value["description"])).unwrap();
    }
    let resolve = |value: &Value| match value["$ref"].as_str() {
        Some(reference) => config["$defs"][name_of(reference)].clone(),
        None => value.clone(),
    };
    for (name, table) in config["properties"].as_object().unwrap() {
        let heading = heading(name, table);
        let named = &table["additionalProperties"];
        let table = resolve(if named.is_object() { named } else { table });
        write!(
            page,
            "\n## {heading}\n\n{}\n\n| key | type | required | meaning |\n|---|---|---|---|\n",
            cell(&table["description"])
        )
        .unwrap();
        let required = table["required"].as_array().cloned().unwrap_or_default();
        for (key, value) in table["properties"].as_object().unwrap() {
            let kind = type_of(&resolve(value)).replace(" or null", "");
            let is_required = if required.contains(&key.as_str().into()) { "yes" } else { "no" };
            writeln!(page, "| `{key}` | {kind} | {is_required} | {} |", cell(&value["description"])).unwrap();
        }
    }
    page.push_str(
        "\n## Example\n\n```toml\n[gateway.gemini]\nkey_command = [\"pass\", \"show\", \"gemini\"]\nupstream = \
         \"https://models.example.org\"\n\n[prices.\"gemini-2.5-flash\"]\ninput = 0.30\noutput = 2.50\ncached = 0.075\n```\n",
    );
    let example = super::blocks(&page).pop().unwrap().text;
    guard::judge::policy::Config::parse(&example).unwrap();
    page
}

/// The sections of a policy, in the order of the reference page.
const SECTIONS: [&str; 10] = [
    "filesystem",
    "network",
    "environment",
    "limits",
    "budget",
    "sandbox",
    "home",
    "toolchains",
    "worktree",
    "git",
];

fn policy_format() -> String {
    let policy = guard::judge::policy::schema();
    let properties = policy["properties"].as_object().unwrap();
    let mut page = format!(
        "# Policy format\n\n{GENERATED}A policy is a TOML file. [Policies](../guide/policies.md) explains how to write one. Editors can \
         complete the format with [schemas/policy.schema.json](../../schemas/policy.schema.json); `guard policy schema` prints the \
         same.\n\n## Top level\n\n"
    );
    let is_section =
        |value: &Value| value["properties"].is_object() || value["items"]["properties"].is_object();
    keys(properties.iter().filter(|(_, value)| !is_section(value)), &["version", "name"], &mut page);
    let mut left: Vec<&String> =
        properties.iter().filter(|(_, value)| is_section(value)).map(|(name, _)| name).collect();
    left.retain(|name| *name != "command");
    for name in SECTIONS {
        assert!(left.iter().any(|other| *other == name), "a policy has no section `{name}`");
        left.retain(|other| *other != name);
        section(name, &properties[name], &mut page);
    }
    for name in left {
        section(name, &properties[name], &mut page);
    }
    let rule = &properties["command"]["items"];
    write!(page, "\n## [[command]]\n\n{}\n\n", cell(&properties["command"]["description"])).unwrap();
    let required: Vec<&str> = rule["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    keys(rule["properties"].as_object().unwrap().iter(), &required, &mut page);
    page.push_str("\n### examples\n\n");
    keys(rule["properties"]["examples"]["properties"].as_object().unwrap().iter(), &[], &mut page);
    page.push_str("\n### Effects\n\nThe names that `effects` and `only_effects` take:\n\n| effect | meaning |\n|---|---|\n");
    for effect in rule["properties"]["effects"]["oneOf"][0]["oneOf"].as_array().unwrap() {
        writeln!(page, "| `{}` | {} |", effect["const"].as_str().unwrap(), cell(&effect["description"]))
            .unwrap();
    }
    page
}

fn section(name: &str, value: &Value, page: &mut String) {
    write!(page, "\n## [{name}]\n\n{}\n\n", cell(&value["description"])).unwrap();
    keys(value["properties"].as_object().unwrap().iter(), &[], page);
}

fn keys<'a>(all: impl Iterator<Item = (&'a String, &'a Value)>, required: &[&str], page: &mut String) {
    page.push_str("| key | type | meaning |\n|---|---|---|\n");
    for (name, value) in all {
        let must = if required.contains(&name.as_str()) { " (required)" } else { "" };
        writeln!(
            page,
            "| `{name}` | {}{must} | {} |",
            type_of(value).replace('|', "\\|"),
            cell(&value["description"])
        )
        .unwrap();
    }
}

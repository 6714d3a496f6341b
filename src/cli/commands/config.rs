//! `guard config show`, `guard config trust` and `guard init`: show, confirm and create the defaults of runs in a
//! directory.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::Failure;
use crate::cli::args::{ConfigAction, Init};
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::judge::policy::{PROJECT_CONFIG, PROJECT_POLICY, PolicyDirs};
use crate::session::checkout::{Checkout, split, unusable};
use crate::session::defaults::Defaults;
use crate::session::policy_files;
use crate::text::terminal_text;

pub(in crate::cli) fn config(action: &ConfigAction, out: &mut dyn Write) -> Result<Exit, Failure> {
    match action {
        ConfigAction::Show { origin, json } => show(*origin, *json, out),
        ConfigAction::Trust { policy: None } => trust(out),
        ConfigAction::Trust { policy: Some(policy) } => trust_policy(policy, out),
    }
}

fn here() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| {
        Failure::usage(
            format!("guard cannot use the current directory: {error}"),
            "change to a directory that exists",
        )
    })
}

fn defaults() -> Result<Defaults, Failure> {
    let config = crate::session::user_config()?;
    Defaults::find(&here()?, None, None, &config)
}

fn show(with_origin: bool, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let defaults = defaults()?;
    let settings = defaults.settings();
    if json {
        let entry = |(key, value, origin): &(&str, String, crate::session::defaults::Origin)| {
            (key.to_string(), json!({ "value": value, "origin": origin.to_string() }))
        };
        print_json(&serde_json::Value::Object(settings.iter().map(entry).collect()), out)?;
        return Ok(Exit::Success);
    }
    for (key, value, origin) in settings {
        let value = terminal_text::replace(&value);
        if with_origin {
            writeln!(out, "{key:<14} {value:<20} {}", terminal_text::replace(&origin.to_string()))?;
        } else {
            writeln!(out, "{key:<14} {value}")?;
        }
    }
    let requests = defaults.requests()?;
    let what = if !requests.is_empty() && defaults.is_confirmed()? {
        "you have confirmed what the project asks for"
    } else {
        "the project asks for more than you allow"
    };
    for request in requests {
        writeln!(out, "{what}: {}", terminal_text::replace(&request))?;
    }
    Ok(Exit::Success)
}

fn trust_policy(named: &str, out: &mut dyn Write) -> Result<Exit, Failure> {
    let policy = crate::judge::decide::load(named, &PolicyDirs::from_environment(), false)?;
    for path in policy_files::trust(&policy)? {
        let path = terminal_text::replace(&path.to_string_lossy());
        writeln!(out, "you have confirmed this content of {path}")?;
    }
    Ok(Exit::Success)
}

fn trust(out: &mut dyn Write) -> Result<Exit, Failure> {
    let defaults = defaults()?;
    let requests = defaults.requests()?;
    let Some(project) = &defaults.project else {
        writeln!(out, "the commit at HEAD has neither {PROJECT_CONFIG} nor {PROJECT_POLICY}")?;
        return Ok(Exit::Success);
    };
    for request in &requests {
        writeln!(out, "  - {}", terminal_text::replace(request))?;
    }
    defaults.trust()?;
    match requests.len() {
        0 => writeln!(out, "the project asks for nothing beyond what you allow")?,
        _ => writeln!(out, "you have confirmed this content of {}", project.files_in_use().join(" and "))?,
    }
    if project.has_unused_policy() {
        let named = terminal_text::replace(&defaults.policy_name);
        writeln!(
            out,
            "runs do not use {PROJECT_POLICY}: {PROJECT_CONFIG} names the policy {named:?} instead"
        )?;
        writeln!(out, "to use it, remove the line `policy = …` from {PROJECT_CONFIG}, and commit the file")?;
    }
    Ok(Exit::Success)
}

/// A programming language that `guard init` recognises by files in the project.
struct Language {
    name: &'static str,
    files: &'static [&'static str],
    preset: Option<&'static str>,
}

const LANGUAGES: &[Language] = &[
    Language { name: "Rust", files: &["Cargo.toml"], preset: Some("rust") },
    Language { name: "JavaScript", files: &["package.json"], preset: Some("node") },
    Language {
        name: "Python",
        files: &["pyproject.toml", "requirements.txt", "setup.py", "setup.cfg", "Pipfile"],
        preset: Some("python"),
    },
    Language { name: "Go", files: &["go.mod"], preset: None },
    Language { name: "Java", files: &["pom.xml", "build.gradle", "build.gradle.kts"], preset: None },
];

const HOOKS: &[&str] = &[".pre-commit-config.yaml", ".husky", "lefthook.yml", ".githooks"];

pub(in crate::cli) fn init(args: &Init, out: &mut dyn Write) -> Result<Exit, Failure> {
    let Some(checkout) = Checkout::here()? else {
        return Err(Failure::usage(
            "the current directory is not in a git repository",
            "`git init` creates one; runs outside of repositories use ~/.config/guard/config.toml",
        ));
    };
    let root = checkout.root();
    let path = root.join(PROJECT_CONFIG);
    let text = proposed(root);
    if args.dry_run {
        out.write_all(text.as_bytes())?;
        return Ok(Exit::Success);
    }
    let cannot_write = |error: &io::Error| {
        Failure::usage(
            format!("cannot write {}: {error}", path.display()),
            "check the owner and mode of the directory",
        )
    };
    let (directory, name) =
        split(Path::new(PROJECT_CONFIG)).ok_or_else(|| cannot_write(&io::ErrorKind::InvalidInput.into()))?;
    let directory = checkout.top().below(&directory, true).map_err(|error| unusable(&path, &error))?;
    directory.create(name, text.as_bytes()).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::usage(
            format!("{} already exists", path.display()),
            "`guard init --dry-run` prints what a new file would contain; `guard config show --origin` prints the settings in force",
        ),
        _ => cannot_write(&error),
    })?;
    out.write_all(text.as_bytes())?;
    writeln!(out, "\nwrote {}", path.display())?;
    writeln!(out, "next:")?;
    writeln!(out, "  git add {PROJECT_CONFIG} && git commit -m 'Set up guard'")?;
    writeln!(
        out,
        "  guard config trust        # confirm what the file asks for, if that is more than the defaults"
    )?;
    let command = installed_agents()
        .first()
        .map_or_else(|| test_command(root).to_string(), |agent| format!("{agent} -p 'run the tests'"));
    writeln!(out, "  guard run -- {command}")?;
    Ok(Exit::Success)
}

/// Returns the command that runs the tests of a project, detected from the files in its root. Returns the placeholder
/// `COMMAND` if guard recognises none of them.
fn test_command(root: &Path) -> &'static str {
    let commands = [
        ("Makefile", "make test"),
        ("Cargo.toml", "cargo test"),
        ("package.json", "npm test"),
        ("go.mod", "go test ./..."),
        ("pyproject.toml", "python3 -m pytest"),
        ("pom.xml", "mvn test"),
    ];
    let found = commands.iter().find(|(file, _)| root.join(file).exists());
    found.map_or("COMMAND", |(_, command)| command)
}

/// Returns the names of the agents that guard knows and for which a directory on PATH has a file of the same name.
fn installed_agents() -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed =
        |name: &&str| std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
    crate::agents::adapter::AGENTS.iter().map(|(name, _)| *name).filter(is_installed).collect()
}

/// Returns the text of the `.guard/config.toml` that guard proposes for a project, with an explanation of each choice.
fn proposed(root: &Path) -> String {
    let exists = |name: &&str| root.join(name).exists();
    let found: Vec<(&Language, &str)> = LANGUAGES
        .iter()
        .filter_map(|language| Some((language, *language.files.iter().find(|file| exists(file))?)))
        .collect();
    let mut text = String::from(
        "# Defaults of `guard run` in this repository. guard reads this file from the commit that a run starts at, so an\n\
         # agent cannot change it for itself. `guard config show --origin` shows what is in force.\n\n[run]\n",
    );
    text.push_str(
        "# For agents that work unattended: git commands that only add to the run's branch, no commands that act outside the run.\n\
         # This is guard's default. If you set a policy here, runs ignore .guard/policy.toml, which `guard allow` writes.\n\
         # policy = \"strict\"\n",
    );
    let presets: Vec<&str> = found.iter().filter_map(|(language, _)| language.preset).collect();
    if presets.is_empty() {
        text.push_str("\n# No package registries: none of the languages found here needs one that guard knows.\npresets = []\n");
    } else {
        let why: Vec<String> =
            found.iter().map(|(language, file)| format!("{} ({file})", language.name)).collect();
        let quoted: Vec<String> = presets.iter().map(|preset| format!("\"{preset}\"")).collect();
        let _ = write!(
            text,
            "\n# Found: {}. These presets open the package registries of those languages, for reading.\npresets = [{}]\n",
            why.join(", "),
            quoted.join(", ")
        );
    }
    text.push_str("\n# Runs can use node_modules, virtual environments, vendor and target of your checkout, but not change them there.\ndeps = true\n");
    text.push_str(
        "\n# Each run works on a branch of its own below this prefix.\nbranch_prefix = \"task/\"\n",
    );
    text.push_str("\n# Ends a run that does nothing for five minutes, and any run after half an hour. These limits do not apply at a terminal.\ntimeout = \"5m\"\nmax_duration = \"30m\"\n");
    if let Some(hooks) = HOOKS.iter().find(|name| exists(name)) {
        let _ = write!(
            text,
            "\n# The hooks of {hooks} run for the agent's commits too; the policy refuses to skip them.\n"
        );
    }
    let agents = installed_agents();
    if agents.is_empty() {
        text.push_str(
            "\n# None of the agents that guard knows is on your PATH; any other program runs as it is.\n",
        );
    } else {
        let _ =
            write!(text, "\n# Agents on your PATH that guard knows and prepares: {}.\n", agents.join(", "));
    }
    text
}

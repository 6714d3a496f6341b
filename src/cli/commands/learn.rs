//! `guard learn`: runs a command inside the sandbox without command rules, or reads the transcripts of runs, and
//! writes the smallest policy that allows what the command or the runs did.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use crate::cli::args::{Learn, LearnNetwork, RunOutput};
use crate::cli::commands::{allow, run};
use crate::cli::output::exit_code::Exit;
use crate::cli::{Failure, note};
use crate::judge::decide;
use crate::judge::decide::{Learned, Seen, SeenCommand, learn};
use crate::judge::policy::{Action, Policy, PolicyDirs, Source};
use crate::run::settings::RunSettings;
use crate::run::transcript::{Event, EventType, Step};
use crate::session::allow_rules::context;
use crate::session::checkout::{Checkout, split};
use crate::session::{policy_files, policy_here, run_reference};
use crate::sys::directory::{Directory, DirectoryError, Identity};
use crate::sys::fs::{Durability, replace_file};
use crate::text::terminal_text;

/// The maximum number of different program starts that guard learns from. guard ignores further ones.
const MAX_COMMANDS: usize = 100_000;

pub(in crate::cli) fn run(args: &Learn, out: &mut dyn Write) -> Result<Exit, Failure> {
    let base = extendable(&policy_here(args.policy.as_deref())?)?;
    let output = OutputFile::open(&args.out)?;
    if output.before.is_some() && !args.force {
        return Err(Failure::usage(
            format!("{} already exists", args.out.display()),
            "use --force to replace the file, or --out to choose another one",
        ));
    }
    let mut seen = Seen::default();
    let mut exit = Exit::Success;
    let mut folder = None;
    for run in &args.from {
        folder = Some(observe(run, &mut seen)?);
    }
    if !args.command.is_empty() {
        let (ended, run_id) = watch(args)?;
        exit = ended;
        let Some(run_id) = run_id else { return Ok(exit) };
        folder = Some(observe(&run_id, &mut seen)?);
    }
    let Learned { text, left_out } = learn(&base, &policy_name(&args.out), &seen, &context());
    let source = Source { name: args.out.display().to_string(), text: text.clone().into(), built_in: false };
    decide::load_text(source, &PolicyDirs::from_environment())?;
    for problem in &left_out {
        note(&format!("guard: left out of the policy: {}", terminal_text::replace(problem)));
    }
    output.write(&text).map_err(|problem| {
        let kept = folder.map(|folder| folder.join("learned.toml"));
        let saved = |path: &PathBuf| replace_file(path, text.as_bytes(), 0o600, Durability::Synced).is_ok();
        let hint = match kept.filter(saved) {
            Some(path) => format!(
                "the policy is in {}; review it, and copy it to the place that you want",
                path.display()
            ),
            None => "choose another file with --out FILE".to_string(),
        };
        Failure::usage(format!("cannot write {}: {problem}", args.out.display()), hint)
    })?;
    policy_files::remember_written(&args.out, &text)?;
    let programs = text.lines().filter(|line| line.starts_with("    \"")).count();
    writeln!(
        out,
        "wrote {}: {}, {} from {}",
        args.out.display(),
        count(programs, "program"),
        count(seen.hosts.len(), "host"),
        count(seen.commands.len(), "program start")
    )?;
    let policy = reference(&args.out);
    writeln!(
        out,
        "next: review the policy with `guard policy diff {} {policy}`, then use it: guard run --policy {policy} -- COMMAND",
        base.name
    )?;
    Ok(exit)
}

/// The file for the policy, as it is before the command runs. In a directory outside a repository, the command itself can
/// write there: it may put a link to a file of the user in the place of the policy, whose text contains names that the
/// command chooses.
struct OutputFile {
    directory: Directory,
    name: OsString,
    before: Option<Identity>,
}

impl OutputFile {
    /// Opens the directory of the file `path`. Follows no link below the top of the checkout around the current directory,
    /// because an earlier run may have made it.
    fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error: &DirectoryError| {
            let problem = format!("cannot write {}: {error}", path.display());
            let hint = match error {
                DirectoryError::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    "change the mode or the owner of the directory, or choose another file with --out FILE"
                }
                _ => "choose a file in an existing directory with --out FILE",
            };
            Failure::usage(problem, hint)
        };
        let parts = split(path).ok_or_else(|| io::Error::other("the path names a directory, not a file"));
        let (folder, name) = parts.map_err(|error| failed(&error.into()))?;
        let absolute = std::path::absolute(&folder).unwrap_or_else(|_| folder.clone());
        let checkout = Checkout::here()?;
        let below = checkout.as_ref().and_then(|checkout| absolute.strip_prefix(checkout.root()).ok());
        let is_plain = |below: &&Path| below.components().all(|part| matches!(part, Component::Normal(_)));
        let below = below.filter(is_plain);
        let directory = match (&checkout, below) {
            (Some(checkout), Some(below)) => checkout.top().below(below, false),
            _ => Directory::open_named(&absolute).map_err(DirectoryError::from),
        };
        let directory = directory.map_err(|error| failed(&error))?;
        let before = directory.identity(name).map_err(|error| failed(&error.into()))?;
        Ok(Self { directory, name: name.to_os_string(), before })
    }

    /// Writes the file. Fails if another process has created, changed or removed it since [`Self::open`], or has put
    /// another directory in the place of its directory.
    fn write(&self, text: &str) -> Result<(), String> {
        if !self.directory.is_at_its_path() {
            return Err("its directory was moved or replaced meanwhile".to_string());
        }
        let now = self.directory.identity(&self.name).map_err(|error| error.to_string())?;
        if now != self.before {
            let how = if self.before.is_none() { "created" } else { "changed" };
            return Err(format!("the file was {how} meanwhile, perhaps by the command"));
        }
        match self.before {
            // This fails if the file exists now, also if it is a link.
            None => self.directory.create(&self.name, text.as_bytes()),
            Some(_) => self.directory.replace(&self.name, text.as_bytes(), Durability::Synced),
        }
        .map_err(|error| error.to_string())
    }
}

/// Returns the policy that the learned policy extends: the one that guard finds by the name of `policy` or, if there is
/// none, the first of the policies in its `extends` that guard finds. Prints a note if the returned policy is not
/// `policy` itself. Fails if guard finds none of them.
fn extendable(policy: &Policy) -> Result<Policy, Failure> {
    let name = allow::extendable_name(&policy.name, policy.extends.iter().map(String::as_str))?;
    let base = decide::load(&name, &PolicyDirs::from_environment(), false)?;
    if base.sources != policy.sources {
        let file = terminal_text::replace(&policy.sources[policy.own_source()].name);
        let is_inherited = |id: &str| base.rules.iter().any(|rule| rule.id == id);
        let lost: Vec<String> = policy
            .rules
            .iter()
            .filter(|rule| rule.action != Action::Allow && !is_inherited(&rule.id))
            .map(|rule| terminal_text::replace(&rule.id))
            .collect();
        let lost = if lost.is_empty() {
            String::new()
        } else {
            format!(", and lacks these rules of the file: {}", lost.join(", "))
        };
        note(&format!(
            "guard: a policy cannot extend {file} by its name, so the learned policy extends `{name}`{lost}"
        ));
    }
    Ok(base)
}

fn count(number: usize, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// Returns the path of a policy file as an argument for the command line. It contains a slash, so that guard takes it
/// for a path and not for a policy's name.
fn reference(path: &Path) -> String {
    let shown = path.to_string_lossy();
    let shown = if shown.contains('/') { shown.into_owned() } else { format!("./{shown}") };
    shell_words::quote(&shown).into_owned()
}

/// Runs the command under the policy without its command rules. Returns the exit code, and the run's id if the run has
/// ended with a result.
fn watch(args: &Learn) -> Result<(Exit, Option<String>), Failure> {
    let settings = RunSettings {
        command: args.command.clone(),
        policy: args.policy.clone(),
        presets: args.preset.clone(),
        hosts: if args.network == LearnNetwork::Allow { vec!["*:*".to_string()] } else { Vec::new() },
        ..RunSettings::default()
    };
    run::run_with(settings, RunOutput::default(), without_command_rules, &mut io::sink())
}

/// Returns the policy without its rules about commands. The settings of the sandbox stay the same.
fn without_command_rules(mut policy: Policy) -> Policy {
    policy.rules.clear();
    for default in [&mut policy.default_action, &mut policy.git_default_action, &mut policy.git_other_action]
    {
        default.action = Action::Allow;
    }
    policy
}

/// Reads a run's transcript, and adds the run's program starts, hosts and ports to `seen`. Ignores damaged lines. Returns
/// the directory in which guard records the run.
fn observe(run: &str, seen: &mut Seen) -> Result<PathBuf, Failure> {
    let run = run_reference::find(Some(run))?;
    let mut reader = run_reference::open_transcript(&run)?;
    loop {
        match reader.step().map_err(|error| run_reference::unreadable(&run, &error))? {
            Step::Event(event) => see(&event, seen),
            Step::Bad(_) => {}
            Step::End { .. } => return Ok(run.folder),
        }
    }
}

fn see(event: &Event, seen: &mut Seen) {
    let text = |key: &str| event.data.get(key).and_then(serde_json::Value::as_str);
    match event.event_type.parse() {
        Ok(EventType::Exec | EventType::ExecAllowed | EventType::DenyExec) => {
            let argv = event.data.get("argv").and_then(serde_json::Value::as_array);
            let argv = argv.map(|words| {
                words.iter().filter_map(|word| word.as_str()).map(|word| word.as_bytes().to_vec())
            });
            let command = SeenCommand {
                argv: argv.map(Iterator::collect).unwrap_or_default(),
                program: text("path").unwrap_or_default().as_bytes().to_vec(),
                cwd: event.directory().unwrap_or("/").as_bytes().to_vec(),
            };
            // The policy must also allow the interpreter that the first line of a script names.
            let interpreter = text("interpreter").map(|path| SeenCommand {
                argv: vec![path.as_bytes().to_vec()],
                program: path.as_bytes().to_vec(),
                cwd: command.cwd.clone(),
            });
            for command in [Some(command), interpreter].into_iter().flatten() {
                let is_new = !command.argv.is_empty() && !seen.commands.contains(&command);
                if is_new && seen.commands.len() < MAX_COMMANDS {
                    seen.commands.push(command);
                }
            }
        }
        Ok(EventType::NetworkOpen | EventType::NetworkRequest | EventType::DenyNetwork) => {
            let port = event.data.get("port").and_then(serde_json::Value::as_u64);
            let is_closed = text("rule") == Some("network.deny");
            if let (Some(host), Some(port), false) = (text("host"), port, is_closed) {
                let is_gateway = text("rule").is_some_and(|rule| rule.starts_with("gateway."));
                if let (Ok(port), false) = (u16::try_from(port), is_gateway) {
                    seen.hosts.insert((host.to_string(), port));
                }
            }
        }
        Ok(EventType::Bind | EventType::DenyBind) => {
            let address = text("to").or_else(|| text("what")).unwrap_or_default();
            let port =
                address.split([',', ' ']).find_map(|word| word.rsplit_once(':')?.1.parse::<u16>().ok());
            seen.ports.extend(port.filter(|port| *port > 0));
        }
        _ => {}
    }
}

/// Returns the name of the learned policy, derived from the name of its file: lower case, with `-` for all characters
/// except ASCII letters and digits. Returns `learned` if no other character is left.
fn policy_name(out: &Path) -> String {
    let stem = out.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let name: String =
        stem.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
    let name = name.trim_matches('-').to_string();
    if name.is_empty() { "learned".to_string() } else { name }
}

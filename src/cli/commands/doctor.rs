//! `guard doctor`: prints what this machine supports and what each policy needs.

use std::io::{self, Write};

use serde_json::json;

use crate::cli::Failure;
use crate::cli::commands::machine_checks;
use crate::cli::commands::machine_checks::{CheckState, MachineCheck};
use crate::cli::output::exit_code::Exit;
use crate::judge::policy::{PolicyDirs, load};
use crate::run::launch::why_no_shims;
use crate::run::transcript::runs_dir;
use crate::sandbox::{HeldBoundary, Kernel, held_boundaries, probe};

/// Prints the report. Returns `Exit::Success` only if guard can enforce all built-in policies and all policies of the
/// user on this machine, and nothing else keeps runs from working.
pub(in crate::cli) fn run(as_json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let kernel = probe();
    let (policies, invalid) = policies(&kernel);
    let mut checks = machine_checks::all();
    checks.extend(invalid);
    let all = policies.iter().all(|(_, missing)| missing.is_empty())
        && checks.iter().all(|check| check.state != CheckState::Problem);
    if as_json {
        let report = json!({
            "kernel": kernel,
            "abilities": kernel.abilities(),
            "boundaries": boundaries(&kernel),
            "policies": policies
                .iter()
                .map(|(name, missing)| json!({ "name": name, "enforceable": missing.is_empty(), "missing": missing }))
                .collect::<Vec<_>>(),
            "no_shims": no_shims(),
            "checks": checks,
        });
        crate::cli::output::json::to_writer_pretty(&mut *out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        write_text(&kernel, &policies, out)?;
        write_checks(&checks, out)?;
    }
    Ok(if all { Exit::Success } else { Exit::Problem })
}

type Missing = Vec<crate::sandbox::Need>;

/// Returns what this machine lacks for each policy, and a failed check for each policy that guard cannot load.
fn policies(kernel: &Kernel) -> (Vec<(String, Missing)>, Vec<MachineCheck>) {
    let dirs = PolicyDirs::from_environment();
    let (mut found, mut invalid) = (Vec::new(), Vec::new());
    for (name, _) in dirs.names() {
        match load(&name, &dirs) {
            Ok(policy) => {
                let missing = kernel.missing_for(&policy, policy.sandbox.namespaces);
                found.push((name, missing));
            }
            Err(_) => invalid.push(machine_checks::invalid_policy(&name)),
        }
    }
    (found, invalid)
}

/// Returns the boundaries of a run, each with the mechanisms that enforce it on this machine; a boundary may have none.
fn boundaries(kernel: &Kernel) -> Vec<HeldBoundary> {
    held_boundaries(kernel.landlock, kernel.namespaces.is_ok())
}

/// Returns the reason if runs on this machine get no shims; `None` if they get them, or if guard cannot determine the
/// state directory.
fn no_shims() -> Option<String> {
    why_no_shims(&runs_dir().ok()?)
}

fn write_text(kernel: &Kernel, policies: &[(String, Missing)], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Linux {}", kernel.release)?;
    for ability in kernel.abilities() {
        let mark = if ability.present { "yes" } else { "no " };
        writeln!(out, "  {mark}  {:<22} {}: {}", ability.name, ability.found, ability.purpose)?;
        if let Some(fix) = ability.fix {
            writeln!(out, "       fix: {fix}")?;
        }
    }
    match no_shims() {
        None => writeln!(out, "  yes  {:<22} part of guard", "shims")?,
        Some(problem) => writeln!(
            out,
            "  no   {:<22} {problem}\n       fix: set XDG_STATE_HOME to a directory on another file system",
            "shims"
        )?,
    }
    writeln!(out, "\nboundaries of a run, and what enforces them")?;
    for boundary in boundaries(kernel) {
        let (mark, layers) = match boundary.held_by.as_slice() {
            [] => ("no ", "nothing".to_string()),
            layers => ("yes", layers.join(", ")),
        };
        writeln!(out, "  {mark}  {:<22} {layers}", boundary.name)?;
    }
    writeln!(out, "\npolicies")?;
    for (name, missing) in policies {
        if missing.is_empty() {
            writeln!(out, "  yes  {name}")?;
        }
        for need in missing {
            writeln!(out, "  no   {name}: needs {}\n       fix: {}", need.missing, need.fix)?;
        }
    }
    Ok(())
}

fn write_checks(checks: &[MachineCheck], out: &mut dyn Write) -> io::Result<()> {
    let mut area = "";
    for check in checks {
        if check.area != area {
            area = check.area;
            writeln!(out, "\n{}", heading(area))?;
        }
        let mark = match check.state {
            CheckState::Ok => "yes",
            CheckState::Absent => " - ",
            CheckState::Warning => "?  ",
            CheckState::Problem => "no ",
        };
        writeln!(out, "  {mark}  {:<22} {}", check.name, check.found)?;
        if let Some(fix) = &check.fix {
            writeln!(out, "       fix: {fix}")?;
        }
    }
    Ok(())
}

fn heading(area: &str) -> &str {
    match area {
        "agent" => "agents",
        "key" => "keys (guard contacts no host to check them)",
        "path" => "PATH",
        "state" => "state directory",
        "config" => "configuration",
        other => other,
    }
}

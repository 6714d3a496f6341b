//! `guard run --dry-run`: prints what a run would do, without starting it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use crate::cli::Failure;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::run_report::Form;
use crate::judge::policy::Budget;
use crate::run::launch::LaunchPlan;

pub(in crate::cli) fn show_plan(plan: &LaunchPlan, form: Form, out: &mut dyn Write) -> Result<Exit, Failure> {
    if form != Form::PassThrough {
        crate::cli::output::json::to_writer_pretty(&mut *out, plan).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    let words: Vec<_> = plan.argv.iter().map(|word| word.to_string_lossy()).collect();
    writeln!(out, "command      {}", words.join(" "))?;
    writeln!(out, "program      {}", plan.program.display())?;
    writeln!(out, "directory    {}", plan.folder.display())?;
    if let Some(checkout) = &plan.checkout {
        let base = checkout.base.get(..12).unwrap_or(&checkout.base);
        writeln!(out, "worktree     {}", checkout.worktree.display())?;
        writeln!(out, "branch       {} from {base}", checkout.branch)?;
    }
    writeln!(out, "policy       {}", plan.policy)?;
    if let Some(login) = &plan.home_state.login {
        writeln!(out, "login        a copy of {}, which the agent can read", login.source.display())?;
    }
    writeln!(out, "namespaces   {}", plan.namespaces.name())?;
    writeln!(out, "verify exec  {}", if plan.verify_exec { "yes" } else { "no" })?;
    writeln!(out, "\nfiles (access to all others is denied)")?;
    for grant in &plan.grants {
        writeln!(out, "  {}  {}  ({})", grant.rights.letters(), grant.path.display(), grant.why)?;
    }
    for grant in &plan.settings_above {
        let covered = "unless namespaces hide them";
        writeln!(out, "  {}  {}  ({}, {covered})", grant.rights.letters(), grant.path.display(), grant.why)?;
    }
    writeln!(out, "\nmounts, if the run has namespaces")?;
    for at in plan.view.own() {
        writeln!(out, "  private    {}", at.display())?;
    }
    for hidden in &plan.view.hidden {
        writeln!(out, "  hidden     {}", hidden.display())?;
    }
    for layer in &plan.view.layers {
        writeln!(out, "  layered    {} over {}", layer.at.display(), layer.lower.display())?;
    }
    for repository in &plan.protected_repositories {
        writeln!(out, "  read-only  {}", repository.display())?;
    }
    writeln!(out, "  read-only  all paths without `w` above, including their metadata")?;
    writeln!(out, "\nnetwork")?;
    writeln!(
        out,
        "  loopback   {}",
        if plan.network.loopback { "servers the run itself starts" } else { "no" }
    )?;
    for port in &plan.network.listen {
        writeln!(out, "  listen     127.0.0.1:{port}, also for 0.0.0.0 and ::")?;
    }
    if plan.network.allow.is_empty() {
        writeln!(out, "  hosts      none; the proxy denies all requests")?;
    }
    for host in &plan.network.allow {
        writeln!(out, "  host       {}  ({})", host.entry, host.why)?;
    }
    for host in &plan.network.deny {
        writeln!(out, "  denied     {host}")?;
    }
    for gateway in &plan.network.gateways {
        let key = gateway.key.as_ref();
        let key = key.map(|key| format!(", key {key}, added outside the sandbox")).unwrap_or_default();
        writeln!(out, "  gateway    {} to {}{key}", gateway.name, gateway.upstream)?;
    }
    let budget = &plan.network.budget;
    let bound = |value: Option<u64>| value.map_or("none".to_string(), |value| value.to_string());
    if *budget != Budget::default() {
        let cost =
            budget.max_cost_micros.map_or("none".to_string(), |micros| format!("{}", micros as f64 / 1e6));
        let (tokens, requests) = (bound(budget.max_tokens), bound(budget.max_requests));
        writeln!(out, "  budget     tokens {tokens}, requests {requests}, cost {cost}")?;
    }
    writeln!(out, "\nvariables")?;
    let hidden = |name: &OsString| {
        plan.redact.iter().any(|text| {
            crate::judge::policy::Pattern::new(text).is_ok_and(|pattern| pattern.matches(name.as_bytes()))
        })
    };
    for (name, value) in &plan.environment {
        let value = if hidden(name) { "[redacted]".into() } else { value.to_string_lossy() };
        writeln!(out, "  {}={value}", name.to_string_lossy())?;
    }
    writeln!(out, "\nlimits")?;
    let limits = serde_json::to_value(&plan.limits).unwrap_or_default();
    for (name, value) in limits.as_object().into_iter().flatten() {
        writeln!(
            out,
            "  {name:<14} {}",
            if value.is_null() { "none".to_string() } else { value.to_string() }
        )?;
    }
    for text in &plan.notes {
        writeln!(out, "\nnote: {text}")?;
    }
    if let Some(reason) = &plan.needs_view {
        writeln!(out, "\nnote: this run needs namespaces: {reason}")?;
    }
    Ok(Exit::Success)
}

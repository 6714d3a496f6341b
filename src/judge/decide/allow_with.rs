//! Finds what would allow a denied command: an option of `guard run` for one run, and a rule for the policy.
//!
//! The option `--allow` quotes the smallest command that the policy denies for the same reason. [`rules_to_allow`]
//! turns such a command into rules that lift the denials of this command and no others. This code does no I/O.

use std::fmt::Write as _;

use super::verdict::By;
use super::{analyze, matching, rule_on};
use crate::judge::command::{Analysis, Arg, Context, Intent, Request, is_known_verb};
use crate::judge::policy::{Action, Conditions, PathAccess, PathPattern, Pattern, Place, Policy, Rule};
use crate::text::terminal_text;

/// The maximum number of times that guard judges one program start while it builds a rule for it. Each time that the
/// program start is still denied, guard makes the rule lift one more denial.
const MOST_LIFTED: usize = 8;
/// The maximum length of a rule's id, without a number that makes it unique. A policy allows 64 characters.
const LONGEST_ID: usize = 56;
/// The maximum length of the part of a rule's id that names the program or git verb.
const LONGEST_SLUG: usize = 40;
/// The first part of the ids of rules that apply to one run (`--allow`), that `guard why` suggests, or that a learned
/// policy contains. Rules that guard adds to a policy file of the user or the project have another first part.
pub const ALLOW_IDS: &str = "allow";
/// The maximum length of a command that guard quotes in an option.
const LONGEST_OPTION: usize = 400;

/// Why no rule can allow a command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CannotAllow {
    #[error("the policy `{1}` already allows `{0}`")]
    Already(String, String),
    /// guard cannot analyse the command; the second field says why.
    #[error("guard cannot analyse the command `{0}`: {1}")]
    NotUnderstood(String, String),
    /// The command writes to a path that the run may not write.
    #[error("`{0}` writes outside the directories that the run may write; allow it with --write PATH")]
    Outside(String),
    /// guard can write no rule that allows the command; the second field names the rule that would still deny it.
    #[error("guard can write no rule that allows `{0}`: the rule `{1}` would still deny it")]
    Fixed(String, String),
}

/// A rule that, added to a policy, allows a command that the policy denies.
#[derive(Debug, Clone)]
pub struct AllowRule {
    rule: Rule,
    /// The second part of the rule's id, after a part that says where the rule is.
    slug: String,
    /// The command to allow, as the user gave it.
    command: String,
}

impl AllowRule {
    /// Creates a rule that matches the program, or the git verb, of the intent. The rule lifts only the denial by the
    /// policy's default. `None` if guard does not know the verb, or if no pattern can match the program's name.
    fn new(intent: &Intent, command: &str) -> Option<Self> {
        let mut when = Conditions::default();
        let name = match &intent.git {
            Some(git) if !is_known_verb(&String::from_utf8_lossy(&git.verb)) => return None,
            Some(git) => {
                let verb = git.name();
                when.verbs.push(literal(verb.as_bytes())?);
                format!("git {verb}")
            }
            None => {
                when.programs.push(literal(&intent.program.name)?);
                String::from_utf8(intent.program.name.clone()).ok()?
            }
        };
        let slug = slug(&name);
        let rule = Rule {
            id: format!("{ALLOW_IDS}.{slug}"),
            action: Action::Allow,
            reason: format!("Allowed on request: {name}."),
            instead: String::new(),
            when,
            place: Place { source: 0, span: 0..0 },
            lifts_default: true,
            is_override: true,
            lifts: Vec::new(),
            examples: Vec::new(),
        };
        Some(Self { rule, slug, command: command.to_string() })
    }

    /// Makes this rule also lift the denials by the rule `denying`. Limits this rule to commands with the subcommand,
    /// arguments, paths and variables of the intent that `denying` matches. `None` if guard can write no pattern for
    /// one of them.
    fn lift(&mut self, denying: &Rule, intent: &Intent) -> Option<()> {
        let when = &mut self.rule.when;
        if !denying.when.subcommands.is_empty() && intent.git.is_none() {
            let word = intent
                .args
                .iter()
                .map(Arg::known)
                .find(|word| word.is_none_or(|word| word.first() != Some(&b'-')))??;
            when.subcommands = vec![literal(word)?];
        }
        if !denying.when.paths.is_empty() {
            let access = denying.when.access;
            for used in matching::matched_paths(&denying.when, intent) {
                when.paths.push(path_literal(&used.path)?);
            }
            when.access = access;
        }
        if !denying.when.args.is_empty() {
            for word in intent.args.iter().filter_map(Arg::known) {
                if denying.when.args.iter().any(|pattern| pattern.matches(word)) {
                    when.args.push(literal(word)?);
                }
            }
        }
        for name in &intent.variables {
            if denying.when.variables.iter().any(|pattern| pattern.matches(name)) {
                when.variables.push(literal(name)?);
            }
        }
        self.rule.lifts.push(denying.id.clone());
        Some(())
    }

    /// Extends this rule so that it also allows the commands that git starts for the verb of the intent. Does nothing
    /// if the rule has conditions other than the verb, because the commands that git starts do not fulfil them. Leaves
    /// out commands that a rule of the user or the project refuses: if the user's policy denies `git merge` and the
    /// user allows `git pull`, `git merge` stays denied.
    fn allow_helpers(&mut self, policy: &Policy, intent: &Intent, context: &Context) {
        let Some(git) = intent.git.as_ref().filter(|_| self.depends_on_verb_only()) else { return };
        for helper in helpers(&git.name()) {
            let argv = format!("git {helper}").split(' ').map(|word| word.as_bytes().to_vec()).collect();
            let analysis = analyze(&Request::Argv(argv), context);
            let [intent] = analysis.intents.as_slice() else { continue };
            if rule_on(policy, None, intent).action == Action::Allow {
                continue;
            }
            let Ok(other) = rule_for(policy, intent, helper) else { continue };
            let known = self.rule.lifts.clone();
            let may_lift = |id: &String| known.contains(id) || is_built_in(policy, id);
            if other.depends_on_verb_only() && other.rule.lifts.iter().all(may_lift) {
                self.rule.when.verbs.extend(other.rule.when.verbs);
                self.rule.lifts.extend(other.rule.lifts.into_iter().filter(|id| !known.contains(id)));
            }
        }
        if git.name() == "pull" {
            // `git pull` runs `git merge`, but never with these options, which abandon a merge in progress.
            self.rule.when.unless_flags = ["--abort", "--quit"].map(str::to_string).to_vec();
        }
    }

    fn depends_on_verb_only(&self) -> bool {
        let when = &self.rule.when;
        !when.verbs.is_empty()
            && when.args.is_empty()
            && when.variables.is_empty()
            && when.paths.is_empty()
            && when.subcommands.is_empty()
    }

    /// Extends this rule so that it also matches the commands and lifts the denials of `other`, which is a rule for the
    /// same program or git verb.
    pub(super) fn absorb(&mut self, other: &Self) {
        for id in &other.rule.lifts {
            if !self.rule.lifts.contains(id) {
                self.rule.lifts.push(id.clone());
            }
        }
        // Drop a condition that only one of the rules has: it would prevent the combined rule from matching the other
        // rule's command.
        fn union<T: Clone>(own: &mut Vec<T>, other: &[T], text: impl Fn(&T) -> &str) {
            if own.is_empty() || other.is_empty() {
                own.clear();
                return;
            }
            let new: Vec<T> = other
                .iter()
                .filter(|item| !own.iter().any(|known| text(known) == text(item)))
                .cloned()
                .collect();
            own.extend(new);
        }
        let (own, theirs) = (&mut self.rule.when, &other.rule.when);
        union(&mut own.subcommands, &theirs.subcommands, Pattern::as_str);
        union(&mut own.args, &theirs.args, Pattern::as_str);
        union(&mut own.variables, &theirs.variables, Pattern::as_str);
        union(&mut own.paths, &theirs.paths, PathPattern::as_str);
        if own.paths.is_empty() || own.access != theirs.access {
            own.access = PathAccess::Any;
        }
    }

    /// Returns an id that is the same for all rules about the same program or git verb.
    pub(super) fn id(&self) -> &str {
        &self.rule.id
    }

    /// Returns the rule as TOML text for a policy file. The rule's id begins with `ids`. If one policy file extends
    /// another, the caller must pass a different `ids` for each: the files may be edited independently, but must not
    /// contain rules with the same id. `is_taken` returns true for an id that the policy already uses; the rule's id
    /// then gets a number at its end.
    pub fn to_toml(&self, ids: &str, reason: &str, is_taken: impl Fn(&str) -> bool) -> String {
        let Rule { when, lifts, .. } = &self.rule;
        let ids: String = ids.chars().take(LONGEST_ID - LONGEST_SLUG - 1).collect();
        let id = format!("{ids}.{}", self.slug);
        let numbered = (2..).map(|number| format!("{id}-{number}"));
        let id = std::iter::once(id.clone()).chain(numbered).find(|id| !is_taken(id)).unwrap_or_default();
        let mut text = format!("[[command]]\nid = {}\n", quoted(&id));
        let mut list = |key: &str, items: Vec<&str>| {
            let items: Vec<String> = items.into_iter().map(quoted).collect();
            match items.as_slice() {
                [] => {}
                [one] => drop(writeln!(text, "{key} = {one}")),
                more => drop(writeln!(text, "{key} = [{}]", more.join(", "))),
            }
        };
        list("program", when.programs.iter().map(Pattern::as_str).collect());
        list("verb", when.verbs.iter().map(Pattern::as_str).collect());
        list("unless_flags", when.unless_flags.iter().map(String::as_str).collect());
        list("subcommand", when.subcommands.iter().map(Pattern::as_str).collect());
        list("args", when.args.iter().map(Pattern::as_str).collect());
        list("variables", when.variables.iter().map(Pattern::as_str).collect());
        list("paths", when.paths.iter().map(PathPattern::as_str).collect());
        match when.access {
            PathAccess::Any => {}
            PathAccess::Read => list("access", vec!["read"]),
            PathAccess::Write => list("access", vec!["write"]),
        }
        list("action", vec!["allow"]);
        if lifts.is_empty() {
            text.push_str("override = true\n");
        } else {
            let lifts: Vec<String> = lifts.iter().map(|id| quoted(id)).collect();
            let _ = writeln!(text, "lifts = [{}]", lifts.join(", "));
        }
        let _ = writeln!(text, "reason = {}", quoted(reason));
        // The verdict on an example with paths would depend on the working directory, so add none.
        if when.paths.is_empty() {
            let _ = writeln!(text, "examples.allow = [{}]", quoted(&self.command));
        }
        text
    }
}

fn is_built_in(policy: &Policy, id: &str) -> bool {
    policy.rules.iter().any(|rule| rule.id == id && policy.sources[rule.place.source].built_in)
}

/// Returns the commands that git itself starts for a verb and without which the verb fails. The supervisor judges each
/// of them when it starts, so a rule that allows the verb must allow them too. The list must not contain a command that
/// runs programs which its caller chooses, such as `git remote-ext`, or that connects by other means than the proxy.
/// An agent can also start the listed commands directly: a rule for `git ls-remote`, for example, also allows
/// `git remote-https`, which can download objects from every host that the policy allows.
fn helpers(verb: &str) -> &'static [&'static str] {
    match verb {
        "push" => &[
            "remote-https",
            "remote-http",
            "send-pack",
            "receive-pack",
            "pack-objects",
            "unpack-objects",
            "index-pack --stdin",
        ],
        "fetch" | "clone" => &[
            "remote-https",
            "remote-http",
            "fetch-pack",
            "upload-pack",
            "pack-objects",
            "unpack-objects",
            "index-pack --stdin",
        ],
        // `git merge` saves the state of the worktree with `git stash create`, in a commit that no ref names.
        "merge" => &["stash create"],
        "pull" => &[
            "fetch",
            "merge",
            "stash create",
            "remote-https",
            "remote-http",
            "fetch-pack",
            "upload-pack",
            "pack-objects",
            "unpack-objects",
            "index-pack --stdin",
        ],
        "ls-remote" => &["remote-https", "remote-http", "upload-pack"],
        "gc" => {
            &["pack-refs", "reflog expire", "repack", "pack-objects", "prune", "worktree prune", "rerere gc"]
        }
        "repack" => &["pack-objects"],
        _ => &[],
    }
}

/// Returns the rules that allow the command `command`, which is shell text, under a policy that denies it or asks about
/// it. Fails if the policy already allows the command, or if no rules can allow it.
pub fn rules_to_allow(
    policy: &Policy,
    command: &str,
    context: &Context,
) -> Result<Vec<AllowRule>, CannotAllow> {
    let request = Request::Shell(command.as_bytes().to_vec());
    let context = Context { limits: policy.command_limits(), ..context.clone() };
    let analysis = analyze(&request, &context);
    if let Some(refusal) = &analysis.refusal {
        return Err(CannotAllow::NotUnderstood(command.to_string(), refusal.to_string()));
    }
    let mut rules: Vec<AllowRule> = Vec::new();
    for intent in &analysis.intents {
        if rule_on(policy, None, intent).action == Action::Allow {
            continue;
        }
        let mut rule = rule_for(policy, intent, command)?;
        rule.allow_helpers(policy, intent, &context);
        if !rules.iter().any(|known| known.rule.id == rule.rule.id) {
            rules.push(rule);
        }
    }
    if rules.is_empty() {
        return Err(CannotAllow::Already(command.to_string(), policy.name.clone()));
    }
    Ok(rules)
}

/// Returns the rule that allows one intent (one program start) of a command. Fails if no rule can, or if the rule would
/// have to lift `MOST_LIFTED` denials or more.
pub(super) fn rule_for(policy: &Policy, intent: &Intent, command: &str) -> Result<AllowRule, CannotAllow> {
    let fixed = |by: &str| CannotAllow::Fixed(command.to_string(), by.to_string());
    let mut rule = AllowRule::new(intent, command).ok_or_else(|| fixed("git.default"))?;
    let mut last = String::new();
    for _ in 0..MOST_LIFTED {
        let current = rule.rule.clone();
        let ruling = rule_on(policy, Some(&current), intent);
        if ruling.action == Action::Allow {
            return Ok(rule);
        }
        let By::Rule(denying) = ruling.by else { return Err(fixed("git.other")) };
        if denying.id == last {
            break;
        }
        if denying.when.paths.iter().any(PathPattern::means_outside) {
            return Err(CannotAllow::Outside(command.to_string()));
        }
        last.clone_from(&denying.id);
        rule.lift(denying, intent).ok_or_else(|| fixed(&denying.id))?;
    }
    Err(fixed(&last))
}

/// Returns the options of `guard run` that allow a denied intent, as a user would type them; `None` if no option can.
pub(super) fn option(
    policy: &Policy,
    analysis: &Analysis,
    index: usize,
    context: &Context,
) -> Option<String> {
    let intent = analysis.intents.get(index)?;
    if let By::Rule(denying) = rule_on(policy, None, intent).by
        && denying.when.paths.iter().any(PathPattern::means_outside)
    {
        let used = matching::matched_paths(&denying.when, intent).map(|used| plain_text(&used.path));
        let paths: Option<Vec<String>> = used
            .map(|path| path.filter(|path| path != "/").map(|path| format!("--write {}", quote(&path))))
            .collect();
        return paths.filter(|paths| !paths.is_empty()).map(|paths| paths.join(" "));
    }
    let is_enough = |command: &String| {
        let Ok(rules) = rules_to_allow(policy, command, context) else { return false };
        rules.iter().any(|rule| rule_on(policy, Some(&rule.rule), intent).action == Action::Allow)
    };
    let command = candidates(intent).into_iter().find(is_enough)?;
    Some(format!("--allow {}", quote(&command)))
}

/// Returns commands that the policy may deny for the same reason as the intent, the smallest first.
fn candidates(intent: &Intent) -> Vec<String> {
    let mut found = Vec::new();
    let mut push = |words: Vec<String>| {
        let command = words.join(" ");
        if command.len() <= LONGEST_OPTION {
            found.push(command);
        }
    };
    let variables = intent.variables.iter().map(|name| Some(format!("{}=1", plain_text(name)?)));
    let variables: Vec<String> = variables.collect::<Option<_>>().unwrap_or_default();
    let known: Option<Vec<String>> =
        intent.args.iter().map(|arg| plain_text(arg.known()?).map(|word| quote(&word))).collect();
    match &intent.git {
        Some(git) => {
            let name: Vec<String> =
                [vec!["git".to_string()], git.name().split(' ').map(quote).collect()].concat();
            push(name.clone());
            let flags = git.flags.iter().map(|flag| quote(flag));
            for flag in flags {
                push([name.clone(), vec![flag]].concat());
            }
            push([variables.clone(), name].concat());
            if let Some(args) = known {
                push([variables, vec!["git".to_string()], args].concat());
            }
        }
        None => {
            let Some(program) = plain_text(&intent.program.name) else { return found };
            let program = vec![quote(&program)];
            push(program.clone());
            if let Some(args) = known {
                if let Some(first) = args.iter().find(|word| !word.starts_with('-')) {
                    push([program.clone(), vec![first.clone()]].concat());
                }
                push([variables, program, args].concat());
            }
        }
    }
    found
}

/// Converts bytes to text that guard can show and a user can type unchanged. Returns `None` if the bytes are not UTF-8,
/// or if the text is empty or has control characters or other invisible characters.
fn plain_text(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.is_empty() && terminal_text::replace(text) == text).then(|| text.to_string())
}

fn quote(word: &str) -> String {
    shell_words::quote(word).into_owned()
}

/// Returns a pattern that matches exactly this text; `None` if a user could not type the text unchanged.
fn literal(bytes: &[u8]) -> Option<Pattern> {
    Pattern::new(&escaped(&plain_text(bytes)?)).ok()
}

fn path_literal(bytes: &[u8]) -> Option<PathPattern> {
    PathPattern::new(&escaped(&plain_text(bytes)?)).ok()
}

pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '*' | '?' | '[' | ']' | '{' | '}' | '\\' => drop(write!(escaped, "[{character}]")),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Converts the name of a command to the second part of a rule id, with at most 40 characters.
fn slug(name: &str) -> String {
    let fits = |character: char| {
        if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' }
    };
    let slug: String = name.chars().take(LONGEST_SLUG).map(fits).collect();
    slug.trim_matches('-').to_string()
}

/// Formats a text as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_string()).to_string()
}

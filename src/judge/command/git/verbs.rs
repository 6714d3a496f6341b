//! Determines the effects of each git verb from its options and operands. A verb that is not listed has the effect
//! `git.unknown`.

use super::super::arg::Arg;
use super::super::intent::Access;
use super::NamedPath;
use super::option_parser::Parsed;
use super::options::table;
use crate::judge::command::effects::Effects;

/// The effects of a git verb with given arguments, and the refs, files and programs that it uses.
#[derive(Debug, Default)]
pub(super) struct Meaning {
    pub(super) effects: Effects,
    pub(super) subcommand: Option<Vec<u8>>,
    /// The given options by their full names, with dashes.
    pub(super) flags: Vec<String>,
    pub(super) refs: Vec<Vec<u8>>,
    /// See [`GitIntent::has_unnamed_refs`](super::GitIntent::has_unnamed_refs).
    pub(super) has_unnamed_refs: bool,
    pub(super) paths: Vec<NamedPath>,
    /// Shell texts that the verb would run.
    pub(super) programs: Vec<Arg>,
    /// The arguments of another git command that the verb would run.
    pub(super) nested_git: Vec<Arg>,
    /// Whether the verb creates a repository. If it does, the inner value is the path of the repository relative to
    /// git's working directory, or `None` if the path is unknown.
    pub(super) makes: Option<Option<Vec<u8>>>,
}

/// Returns true if guard knows a verb as a part of git itself. Only newer git versions allow an alias to replace such a
/// verb.
pub(super) fn is_known(verb: &[u8]) -> bool {
    std::str::from_utf8(verb).is_ok_and(|verb| table().contains(verb))
}

/// Verbs whose first operand may name a subcommand.
const WITH_SUBCOMMANDS: [&str; 18] = [
    "bisect",
    "bundle",
    "commit-graph",
    "config",
    "hook",
    "maintenance",
    "multi-pack-index",
    "notes",
    "reflog",
    "refs",
    "remote",
    "rerere",
    "sparse-checkout",
    "stash",
    "submodule",
    "submodule--helper",
    "worktree",
    "credential",
];

const READS: Effects = Effects::GIT_READS;
const INDEX: Effects = Effects::GIT_INDEX;
const WORKTREE: Effects = Effects::GIT_WORKTREE;
const COMMITS: Effects = Effects::GIT_COMMITS;
const REWRITES: Effects = Effects::GIT_REWRITES;
const SWITCHES: Effects = Effects::GIT_SWITCHES;
const REFS: Effects = Effects::GIT_REFS;
const STASH: Effects = Effects::GIT_STASH;
const CONFIG: Effects = Effects::GIT_CONFIG;
const REMOTE: Effects = Effects::GIT_REMOTE;
const OBJECTS: Effects = Effects::GIT_OBJECTS;
const REPOSITORY: Effects = Effects::GIT_REPOSITORY;
const RUNS: Effects = Effects::GIT_RUNS_PROGRAM;

/// Determines the effects of a verb with these arguments. The effect of a verb that guard does not know is
/// `git.unknown`.
pub(super) fn meaning(verb: &[u8], args: &[Arg]) -> Meaning {
    let Ok(verb) = std::str::from_utf8(verb) else { return unknown() };
    if !table().contains(verb) {
        return unknown();
    }
    let mut meaning = Meaning::default();
    let (parsed, own) = take_subcommand(verb, args, &mut meaning);
    meaning.flags = parsed.options.iter().map(|(name, _)| name.flag()).collect();
    let subcommand = meaning.subcommand.clone();
    meaning.effects = match subcommand.as_deref() {
        Some(name) => subcommand_effects(verb, name, &parsed),
        None => verb_effects(verb, &parsed),
    };
    if parsed.has("no-verify") {
        meaning.effects.add(Effects::GIT_SKIPS_HOOKS);
    }
    note_refs(verb, &parsed, &mut meaning);
    note_programs(verb, &parsed, own, &mut meaning);
    note_paths(verb, &parsed, &mut meaning);
    meaning.makes = made_repository(verb, &parsed);
    meaning
}

/// Returns the path at which a verb creates a repository: `None` if the verb creates none, `Some(None)` if the path is
/// unknown.
fn made_repository(verb: &str, parsed: &Parsed) -> Option<Option<Vec<u8>>> {
    let operand = |at: usize| parsed.operands.get(at).map(|operand| operand.known().map(<[u8]>::to_vec));
    match verb {
        // With this option the repository's files are outside of its directory, so guard does not treat it as a new
        // repository.
        "init" | "init-db" | "clone" if parsed.has_any(&["separate-git-dir"]) => None,
        "init" | "init-db" => Some(operand(0).unwrap_or_else(|| Some(b".".to_vec()))),
        "clone" => Some(match operand(1) {
            Some(target) => target,
            // Without a second operand, git names the directory after the source of the clone.
            None => operand(0).flatten().map(|source| {
                let source = source.strip_suffix(b"/").unwrap_or(&source);
                let source = source.strip_suffix(b"/.git").unwrap_or(source);
                let name = source.rsplit(|byte| matches!(byte, b'/' | b':')).next().unwrap_or(source);
                name.strip_suffix(b".git").unwrap_or(name).to_vec()
            }),
        }),
        _ => None,
    }
}

fn unknown() -> Meaning {
    Meaning { effects: Effects::GIT_UNKNOWN, ..Meaning::default() }
}

/// Separates the subcommand of a verb from its arguments. Returns the arguments of the subcommand, or of the verb if
/// it has no subcommand, parsed and unparsed.
fn take_subcommand<'a>(verb: &str, args: &'a [Arg], meaning: &mut Meaning) -> (Parsed, &'a [Arg]) {
    if WITH_SUBCOMMANDS.contains(&verb) {
        // Options may precede the subcommand (`git stash -q push`, `git notes --ref=x add`).
        let outer = Parsed::new(verb, args);
        let first = outer.operands.first().and_then(Arg::known);
        let before_dashes = args.iter().take_while(|arg| arg.known() != Some(b"--")).count();
        let at = args[..before_dashes].iter().position(|arg| first.is_some() && arg.known() == first);
        if let (Some(name), Some(at)) = (first, at) {
            let full = format!("{verb} {}", String::from_utf8_lossy(name));
            let is_subcommand = table().contains(&full) || verb == "bisect" || verb == "maintenance";
            if is_subcommand {
                meaning.subcommand = Some(name.to_vec());
                let own = &args[at + 1..];
                let mut parsed = Parsed::new(&full, own);
                parsed.options.extend(Parsed::new(verb, &args[..at]).options);
                return (parsed, own);
            }
        }
        let implied: Option<&[u8]> = match verb {
            "submodule" if outer.operands.is_empty() => Some(b"status"),
            "stash" => Some(b"push"),
            _ => None,
        };
        meaning.subcommand = implied.map(<[u8]>::to_vec);
        return (outer, args);
    }
    (Parsed::new(verb, args), args)
}

fn verb_effects(verb: &str, parsed: &Parsed) -> Effects {
    let operands = parsed.operands.len();
    match verb {
        // The subcommand is unknown: it exists in a newer git, or is a typing error.
        "notes" | "worktree" | "submodule" | "bundle" | "refs" | "sparse-checkout" | "remote"
            if operands > 0 =>
        {
            REFS.with(CONFIG).with(OBJECTS).with(REPOSITORY)
        }
        "reflog"
            if parsed.operands.iter().any(|operand| matches!(operand.known(), Some(b"drop" | b"write"))) =>
        {
            REFS.with(OBJECTS)
        }
        "archive" if parsed.has("remote") => REMOTE,
        "status" | "diff" | "log" | "show" | "blame" | "annotate" | "grep" | "ls-files" | "ls-tree"
        | "rev-parse" | "rev-list" | "cat-file" | "describe" | "shortlog" | "name-rev" | "merge-base"
        | "for-each-ref" | "show-branch" | "diff-tree" | "diff-index" | "diff-files" | "whatchanged"
        | "range-diff" | "cherry" | "check-ignore" | "check-attr" | "check-mailmap" | "check-ref-format"
        | "var" | "version" | "help" | "count-objects" | "verify-commit" | "verify-tag" | "verify-pack"
        | "get-tar-commit-id" | "stripspace" | "column" | "patch-id" | "fmt-merge-msg" | "show-index"
        | "fast-export" | "archive" | "interpret-trailers" | "format-patch" | "show-ref" | "bugreport"
        | "diagnose" | "notes" | "remote" | "worktree" | "submodule" | "reflog" | "bundle" | "mailinfo"
        | "mailsplit" | "merge-file" | "unpack-file" | "sh-i18n" | "sh-i18n--envsubst" | "sh-setup"
        | "refs" | "sparse-checkout" => READS,
        "fsck" | "fsck-objects" if parsed.has("lost-found") => READS.with(OBJECTS),
        "fsck" | "fsck-objects" => READS,
        "index-pack" if parsed.has_any(&["verify", "verify-stat", "verify-stat-only"]) => READS,
        "hash-object" if parsed.has("w") => OBJECTS,
        "hash-object" => READS,
        "merge-tree" => READS.with(OBJECTS),
        "add" | "stage" | "update-index" | "read-tree" => match verb {
            "read-tree" if parsed.has_any(&["u", "reset", "m"]) => INDEX.with(WORKTREE),
            _ => INDEX,
        },
        "rm" | "mv" | "rerere" | "merge-index" | "merge-one-file" => INDEX.with(WORKTREE),
        "restore" if parsed.surely_has("staged") && !parsed.has("worktree") => INDEX,
        "restore" if parsed.has("staged") => INDEX.with(WORKTREE),
        "restore" | "checkout-index" | "clean" => WORKTREE,
        "apply"
            if parsed.surely_has_any(&["stat", "numstat", "summary", "check"]) && !parsed.has("apply") =>
        {
            READS
        }
        "apply" if parsed.has("cached") => INDEX,
        "apply" if parsed.has("index") => INDEX.with(WORKTREE),
        "apply" => WORKTREE,
        "commit" if parsed.surely_has("dry-run") => READS,
        "commit" if parsed.has("amend") => COMMITS.with(INDEX).with(Effects::GIT_AMENDS),
        "commit" => COMMITS.with(INDEX),
        "checkout" | "switch" => {
            let creates = parsed.has_any(&["b", "B", "create", "force-create", "orphan", "track"]);
            let moved = SWITCHES.with(WORKTREE).with(INDEX);
            if creates { moved.with(REFS) } else { moved }
        }
        "reset" => REWRITES.with(INDEX).with(if parsed.has("hard") { WORKTREE } else { INDEX }),
        "rebase" | "pull" => {
            let moved = REWRITES.with(COMMITS).with(WORKTREE).with(INDEX);
            if verb == "pull" { moved.with(REMOTE).with(REFS) } else { moved }
        }
        "filter-branch" => REWRITES.with(REFS).with(RUNS),
        "merge" | "cherry-pick" | "revert" | "am" | "quiltimport" => {
            let made = COMMITS.with(WORKTREE).with(INDEX);
            if parsed.has_any(&["abort", "quit", "skip"]) { made.with(REWRITES) } else { made }
        }
        "replay" | "update-ref" | "subtree" => REFS.with(OBJECTS),
        "branch" => branch(parsed),
        "tag" => tag(parsed),
        "symbolic-ref" if parsed.has("delete") || operands > 1 => REFS.with(SWITCHES),
        "symbolic-ref" => READS,
        "replace"
            if parsed.surely_has("list")
                || (operands == 0 && !parsed.has_any(&["delete", "edit", "graft", "convert-graft-file"])) =>
        {
            READS
        }
        "replace" => REFS,
        "stash" => STASH.with(WORKTREE).with(INDEX),
        "config" => config(parsed),
        "init" | "init-db" => REPOSITORY,
        "clone" => REPOSITORY.with(REMOTE),
        "push" | "fetch" | "send-pack" | "fetch-pack" => REMOTE.with(REFS).with(OBJECTS),
        "gc" | "prune" | "repack" | "prune-packed" | "pack-refs" | "pack-objects" | "unpack-objects"
        | "index-pack" | "mktag" | "mktree" | "write-tree" | "commit-tree" | "commit-graph"
        | "multi-pack-index" | "maintenance" | "pack-redundant" | "update-server-info" | "backfill" => {
            OBJECTS
        }
        "fast-import" => REFS.with(OBJECTS).with(COMMITS),
        "bisect" => SWITCHES.with(REFS).with(WORKTREE),
        "difftool" | "mergetool" | "gui" | "citool" | "instaweb" | "web--browse" | "hook"
        | "fsmonitor--daemon" | "for-each-repo" => RUNS,
        "ls-remote" | "request-pull" | "send-email" | "imap-send" | "svn" | "p4" | "daemon"
        | "upload-pack" | "upload-archive" | "receive-pack" | "shell" | "http-backend" | "http-fetch"
        | "http-push" | "archimport" | "cvsimport" | "cvsexportcommit" | "cvsserver" => REMOTE,
        _ if verb.starts_with("credential") || verb.starts_with("remote-") => REMOTE,
        _ if verb.starts_with("merge-") => COMMITS.with(WORKTREE).with(INDEX),
        // `options.txt` lists this verb, but no case above does, so its effects are unknown.
        _ => Effects::GIT_UNKNOWN,
    }
}

fn subcommand_effects(verb: &str, name: &[u8], parsed: &Parsed) -> Effects {
    match (verb, name) {
        ("bisect", b"log" | b"view" | b"visualize" | b"help" | b"terms") => READS,
        ("bisect", b"run") => SWITCHES.with(REFS).with(WORKTREE).with(RUNS),
        ("bisect", _) => SWITCHES.with(REFS).with(WORKTREE),
        ("bundle", b"verify" | b"list-heads" | b"create") => READS,
        ("bundle", _) => OBJECTS,
        ("config", b"get" | b"list") => READS,
        ("config", _) => CONFIG,
        ("hook", _) => RUNS,
        ("notes", b"list" | b"show" | b"get-ref") => READS,
        ("notes", _) => REFS.with(OBJECTS),
        ("reflog", b"show" | b"list" | b"exists") => READS,
        ("reflog", _) => REFS.with(OBJECTS),
        ("refs", b"list" | b"verify" | b"exists") => READS,
        ("refs", _) => REFS,
        ("remote", b"show")
            if parsed.operands.iter().any(|name| name.prefix().iter().any(|byte| b":/".contains(byte))) =>
        {
            REMOTE
        }
        ("remote", b"show" | b"get-url") => READS,
        ("remote", b"update" | b"prune") => REMOTE.with(REFS),
        ("remote", _) => CONFIG.with(REFS),
        ("rerere", b"status" | b"diff" | b"remaining") => READS,
        ("rerere", _) => INDEX.with(WORKTREE),
        ("sparse-checkout", b"list" | b"check-rules") => READS,
        ("sparse-checkout", _) => CONFIG.with(WORKTREE).with(INDEX),
        ("stash", b"list" | b"show") => READS,
        ("stash", b"branch") => STASH.with(SWITCHES).with(REFS).with(WORKTREE),
        ("stash", b"drop" | b"clear" | b"store") => STASH,
        ("stash", b"create") => OBJECTS,
        ("stash", _) => STASH.with(WORKTREE).with(INDEX),
        ("submodule" | "submodule--helper", b"status" | b"summary") => READS,
        ("submodule" | "submodule--helper", b"foreach") => RUNS,
        ("submodule" | "submodule--helper", _) => REPOSITORY.with(REMOTE).with(CONFIG).with(WORKTREE),
        // These commands only check files. `git fsck` runs them.
        ("commit-graph" | "multi-pack-index", b"verify") => READS,
        ("worktree", b"list") => READS,
        ("worktree", b"add") => REPOSITORY.with(REFS).with(SWITCHES),
        ("worktree", _) => REPOSITORY,
        ("credential", _) => REMOTE,
        ("maintenance", b"start" | b"stop" | b"register" | b"unregister") => OBJECTS.with(CONFIG).with(RUNS),
        _ => verb_effects(verb, parsed),
    }
}

/// Options with which `git branch` and `git tag` only list refs, whatever the operands are.
const LISTING: [&str; 8] =
    ["list", "contains", "no-contains", "with", "without", "merged", "no-merged", "points-at"];

/// Returns the effects of `git branch`. The command only lists branches if it has no operands or has an option for
/// listing.
fn branch(parsed: &Parsed) -> Effects {
    let changes = [
        "delete",
        "D",
        "move",
        "M",
        "copy",
        "C",
        "edit-description",
        "set-upstream-to",
        "set-upstream",
        "unset-upstream",
    ];
    if parsed.has_any(&changes) {
        return REFS;
    }
    let lists = parsed.surely_has_any(&LISTING) || parsed.surely_has("show-current");
    if parsed.operands.is_empty() || lists { READS } else { REFS }
}

fn tag(parsed: &Parsed) -> Effects {
    if parsed.has("delete") {
        return REFS;
    }
    // git takes a negative number of lines for an option that is not given.
    let shows_lines =
        parsed.surely_has("n") && !parsed.values("n").any(|lines| lines.prefix().starts_with(b"-"));
    let lists = parsed.surely_has_any(&LISTING) || parsed.surely_has("verify") || shows_lines;
    if parsed.operands.is_empty() || lists { READS } else { REFS }
}

/// Returns the effects of `git config` in its older form without a subcommand. With one key it reads, and with a key
/// and a value it writes.
fn config(parsed: &Parsed) -> Effects {
    let reads = ["get", "get-all", "get-regexp", "get-urlmatch", "get-color", "get-colorbool", "list"];
    let writes = ["add", "replace-all", "unset", "unset-all", "rename-section", "remove-section", "edit"];
    if parsed.has_any(&writes) {
        CONFIG
    } else if parsed.surely_has_any(&reads) || parsed.operands.len() < 2 {
        READS
    } else {
        CONFIG
    }
}

/// Records the full names of the refs that the verb may change, as far as the options and the operands name them, and
/// whether it may change others.
fn note_refs(verb: &str, parsed: &Parsed, meaning: &mut Meaning) {
    if !meaning.effects.intersects(REFS.with(SWITCHES)) {
        return;
    }
    let created: Vec<&Arg> = ["b", "B", "create", "force-create", "orphan"]
        .into_iter()
        .flat_map(|name| parsed.values(name))
        .collect();
    let operands = || parsed.operands.iter().filter_map(Arg::known);
    meaning.has_unnamed_refs =
        parsed.operands.iter().chain(created.iter().copied()).any(|arg| arg.known().is_none())
            || match verb {
                "fast-import" | "filter-branch" | "send-pack" | "fetch-pack" => true,
                // Without a refspec, the configuration chooses the refs of the remote repository.
                "push" if operands().count() < 2 => true,
                "push" | "fetch" | "pull" | "update-ref" => {
                    parsed.has_any(&["stdin", "mirror", "all", "branches", "tags", "prune", "follow-tags"])
                }
                _ => false,
            };
    // Without these options, the second operand is the commit at which the new branch or tag begins.
    let changes_all = parsed.has_any(&["d", "D", "delete", "m", "M", "move", "c", "C", "copy"]);
    let changed = if changes_all { usize::MAX } else { 1 };
    match verb {
        "branch" => meaning.refs.extend(operands().take(changed).map(|name| full(b"refs/heads/", name))),
        "checkout" | "switch" if created.is_empty() => {
            meaning.refs.extend(operands().map(|name| full(b"refs/heads/", name)));
        }
        "checkout" | "switch" | "worktree" => {
            let names = created.into_iter().filter_map(Arg::known);
            meaning.refs.extend(names.map(|name| full(b"refs/heads/", name)));
        }
        "tag" => meaning.refs.extend(operands().take(changed).map(|name| full(b"refs/tags/", name))),
        "update-ref" | "symbolic-ref" => meaning.refs.extend(operands().take(1).map(<[u8]>::to_vec)),
        "replace" => meaning.refs.extend(operands().take(1).map(|name| full(b"refs/replace/", name))),
        "notes" => meaning.refs.push(b"refs/notes/commits".to_vec()),
        // The first operand is the remote. The right side of a refspec is the ref that changes, here or on the
        // remote.
        "push" | "fetch" | "pull" => {
            for spec in operands().skip(1) {
                let spec = spec.strip_prefix(b"+").unwrap_or(spec);
                let target = match spec.iter().position(|&byte| byte == b':') {
                    Some(colon) => &spec[colon + 1..],
                    None if verb == "push" => spec,
                    None => continue,
                };
                meaning.refs.push(full(b"refs/heads/", target));
            }
        }
        _ => {}
    }
}

fn full(prefix: &[u8], name: &[u8]) -> Vec<u8> {
    if name.starts_with(b"refs/") || name == b"HEAD" { name.to_vec() } else { [prefix, name].concat() }
}

/// Records the programs that the options and operands make git run.
fn note_programs(verb: &str, parsed: &Parsed, own: &[Arg], meaning: &mut Meaning) {
    let options: &[&str] = match verb {
        "grep" => &["open-files-in-pager"],
        "difftool" => &["extcmd"],
        "rebase" => &["exec"],
        "fetch" | "pull" | "ls-remote" | "clone" | "fetch-pack" => &["upload-pack", "exec"],
        "push" | "send-pack" => &["receive-pack", "exec"],
        "archive" => &["exec"],
        "filter-branch" => &[
            "setup",
            "env-filter",
            "tree-filter",
            "index-filter",
            "parent-filter",
            "msg-filter",
            "commit-filter",
            "tag-name-filter",
        ],
        "send-email" => &["sendmail-cmd", "to-cmd", "cc-cmd", "header-cmd"],
        "instaweb" => &["httpd", "browser"],
        _ => &[],
    };
    for option in options {
        meaning.programs.extend(parsed.values(option).cloned());
    }
    match (verb, meaning.subcommand.as_deref()) {
        // The remaining arguments are the command that `git bisect run` runs, unchanged.
        ("bisect", Some(b"run")) => meaning.programs.push(quoted(own)),
        ("submodule" | "submodule--helper", Some(b"foreach")) => {
            let skip = own.iter().take_while(|arg| arg.prefix().starts_with(b"-")).count();
            match &own[skip..] {
                // One argument is shell text; several arguments are a command.
                [text] => meaning.programs.push(text.clone()),
                words => meaning.programs.push(quoted(words)),
            }
        }
        ("for-each-repo", _) => {
            let skip = own.iter().take_while(|arg| arg.prefix().starts_with(b"-")).count();
            meaning.nested_git = own[skip..].to_vec();
        }
        ("shell", _) => meaning.programs.extend(own.iter().skip(1).cloned()),
        _ => {}
    }
    if meaning.effects.intersects(REMOTE.with(CONFIG)) || verb == "archive" {
        // `ext::command` is a git transport that runs the command.
        for operand in parsed.operands.iter().chain(parsed.values("remote")) {
            if operand.prefix().starts_with(b"ext::") {
                meaning.programs.push(operand.skip(5));
            }
        }
    }
    if !meaning.programs.is_empty() {
        meaning.effects.add(RUNS);
    }
}

/// Quotes arguments, so that a shell runs them as the same command. The result is known only up to the first argument
/// that is not fully known.
fn quoted(words: &[Arg]) -> Arg {
    let mut text = String::new();
    for word in words {
        let Some(known) = word.known() else {
            return Arg::partial(text.into_bytes(), "…".as_bytes(), true);
        };
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&shell_words::quote(&String::from_utf8_lossy(known)));
    }
    Arg::exact(text.into_bytes())
}

/// Records the files that the options and operands make git read or write.
fn note_paths(verb: &str, parsed: &Parsed, meaning: &mut Meaning) {
    let writes: &[&str] = match verb {
        "apply" => &["directory", "build-fake-ancestor"],
        "fast-export" => &["export-marks"],
        "config" => &["file"],
        "mailsplit" => &["o"],
        "index-pack" => &["o"],
        "checkout-index" => &["prefix"],
        _ => &[],
    };
    // Every verb that prints a diff has the option `--output`.
    for option in ["output", "output-directory"] {
        meaning.paths.extend(parsed.values(option).map(|path| (path.clone(), Access::Write)));
    }
    let is_read = verb == "config" && !meaning.effects.intersects(CONFIG);
    for option in writes {
        let access = if is_read { Access::Read } else { Access::Write };
        meaning.paths.extend(parsed.values(option).map(|path| (path.clone(), access)));
    }
    let reads: &[&str] = match verb {
        "commit" | "tag" | "merge" | "notes" => &["file", "template"],
        "grep" => &["f"],
        "archive" => &["add-file"],
        "blame" | "annotate" => &["contents"],
        "format-patch" => &["signature-file"],
        _ => &[],
    };
    for option in reads {
        meaning.paths.extend(parsed.values(option).map(|path| (path.clone(), Access::Read)));
    }
    let write_operands = match (verb, meaning.subcommand.as_deref()) {
        ("bundle", Some(b"create")) | ("mailinfo", _) => {
            usize::from(verb == "bundle").max(2 * usize::from(verb == "mailinfo"))
        }
        ("merge-file", _) if !parsed.has("stdout") => 1,
        ("interpret-trailers", _) if parsed.has("in-place") => usize::MAX,
        ("clone", _) => 0,
        _ => 0,
    };
    meaning
        .paths
        .extend(parsed.operands.iter().take(write_operands).map(|path| (path.clone(), Access::Write)));
    let outside = parsed
        .operands
        .iter()
        .any(|operand| operand.prefix().starts_with(b"/") || operand.prefix().starts_with(b"~"));
    let reads_operands = match verb {
        "diff" => parsed.has("no-index") || outside,
        "grep" => parsed.has("no-index"),
        "hash-object" | "interpret-trailers" => true,
        _ => false,
    };
    if verb == "mv" {
        meaning.paths.extend(parsed.operands.iter().map(|path| (path.clone(), Access::Write)));
    }
    if reads_operands {
        meaning.paths.extend(parsed.operands.iter().map(|path| (path.clone(), Access::Read)));
    }
    if verb == "format-patch" && !parsed.has("stdout") {
        meaning.effects.add(Effects::FS_WRITES);
    }
}

//! guard suggests an option that would allow a denied command. The option must allow that command and no other.

use std::path::Path;

use guard::judge::command::{Analysis, Context, Cwd, Intent, Request};
use guard::judge::decide::{self, judge, judge_and_explain, rules_to_allow};
use guard::judge::policy::{self, Action, Policy, PolicyDirs, Source};

fn strict() -> Policy {
    decide::load("strict", &PolicyDirs::default(), false).unwrap()
}

fn context() -> Context {
    Context { cwd: Cwd::Known(b"/work".to_vec()), home: Some(b"/home/u".to_vec()), ..Context::default() }
}

fn request(command: &str) -> Request {
    Request::Shell(command.as_bytes().to_vec())
}

fn action(policy: &Policy, command: &str) -> Action {
    judge(policy, &request(command), &context()).0.action()
}

/// Extends a policy by the rules that allow a command, as guard would write them to a file.
fn allowing(policy: &Policy, command: &str) -> Policy {
    let rules = rules_to_allow(policy, command, &context()).unwrap();
    let rules: Vec<String> = rules.iter().map(|rule| rule.to_toml("team", "Because.", |_| false)).collect();
    let text = policy::add_rule(&policy::new_file("more", "strict", "More."), &rules.join("\n"));
    let source = Source { name: "more.toml".to_string(), text: text.clone().into(), built_in: false };
    decide::load_text(source, &PolicyDirs::default()).unwrap_or_else(|error| panic!("{error:?}\n{text}"))
}

#[test]
fn smallest_sufficient_allow_option_is_suggested() {
    let strict = strict();
    for (command, expected) in [
        ("git rebase -i main", "--allow 'git rebase'"),
        ("git -C . -c alias.x=reset x --hard HEAD~3", "--allow 'git reset'"),
        ("git commit --amend --no-edit -m 'a b'", "--allow 'git commit --amend'"),
        ("git commit --no-verify -m x", "--allow 'git commit --no-verify'"),
        ("HUSKY=0 git commit -m x", "--allow 'HUSKY=1 git commit'"),
        ("git stash pop", "--allow 'git stash pop'"),
        ("git push origin HEAD", "--allow 'git push'"),
        ("make && bash -c 'git push'", "--allow 'git push'"),
        ("echo x > /srv/out.log", "--write /srv/out.log"),
    ] {
        let (verdict, _) = judge_and_explain(&strict, &request(command), &context());
        assert_eq!(verdict.allow_with.as_deref(), Some(expected), "{command}");
    }
    let (verdict, _) = judge_and_explain(&strict, &request("git status"), &context());
    assert_eq!(verdict.allow_with, None);
    let (verdict, _) = judge_and_explain(&strict, &request("echo 'unclosed"), &context());
    assert_eq!(verdict.allow_with, None);
}

/// guard adds one rule that allows a denied git verb. The policy must then allow the verb, and its other rules must
/// still apply to the verb.
#[test]
fn allowing_rule_lifts_only_one_denial() {
    let policy = allowing(&strict(), "git rebase");
    assert_eq!(action(&policy, "git rebase main"), Action::Allow);
    assert_eq!(action(&policy, "git reset --hard"), Action::Deny);
    assert_eq!(action(&policy, "git rebase --no-verify main"), Action::Deny);
    assert_eq!(action(&policy, "git --git-dir=/srv/x/.git rebase main"), Action::Deny);
    assert_eq!(action(&policy, "git rebase -x 'git push' main"), Action::Deny);
}

/// The id of a saved rule consists of the names of a policy and of a program. Together they can be longer than an id
/// may be, and another rule may have the same id. guard must then shorten the id, and add a number to it.
#[test]
fn id_of_a_saved_rule_is_short_and_unused() {
    let policy = strict();
    let command = format!("{}/sudo x", "/usr".repeat(20));
    let rules = rules_to_allow(&policy, &command, &context()).unwrap();
    let id = |ids: &str, taken: &str| {
        let text = rules[0].to_toml(ids, "Because.", |id| id == taken);
        let line = text.lines().find_map(|line| line.strip_prefix("id = ")).unwrap();
        line.trim_matches('"').to_string()
    };
    assert_eq!(id("project", ""), "project.sudo");
    assert_eq!(id("project", "project.sudo"), "project.sudo-2");
    let long = id(&format!("user.{}", "n".repeat(64)), "");
    assert!(long.len() < 64, "{long}");
    assert_eq!(id(&format!("user.{}", "n".repeat(64)), &long), format!("{long}-2"));
}

#[test]
fn rule_with_an_unknown_lifted_rule_is_an_error() {
    let load = |rules: &str| {
        let text = policy::add_rule(&policy::new_file("more", "strict", "More."), rules);
        decide::load_text(
            Source { name: "more.toml".to_string(), text: text.into(), built_in: false },
            &PolicyDirs::default(),
        )
    };
    let rule = |lifts: &str, action: &str| {
        format!(
            "[[command]]\nid = \"a\"\nverb = \"rebase\"\naction = \"{action}\"\nlifts = [\"{lifts}\"]\nreason = \"x\"\n"
        )
    };
    assert!(load(&rule("git.rewrite", "allow")).is_ok());
    let problems = |result: Result<Policy, policy::PolicyError>| match result {
        Err(policy::PolicyError::Invalid(problems)) => {
            problems.iter().map(|problem| problem.message.clone()).collect::<Vec<_>>().join("; ")
        }
        other => panic!("{other:?}"),
    };
    assert!(problems(load(&rule("git.rewritten", "allow"))).contains("no rule `git.rewritten`"));
    assert!(problems(load(&rule("git.rewrite", "deny"))).contains("cannot lift"));
}

/// For each denied command of the corpus for which guard suggests an option, the rule of that option must allow it. Of
/// the other denied commands it may allow only those with the same program and subcommand.
// slow
#[test]
fn suggested_option_allows_only_commands_of_the_same_subcommand() {
    let strict = strict();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/commands");
    // The command, the option that allows it, and the program or git verb that is denied.
    let mut denied: Vec<(Analysis, String, String)> = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let Some((_, line)) = line.split_once('\t') else { continue };
            let (verdict, analysis) = judge_and_explain(&strict, &request(line), &context());
            if let (Some(option), Some(index)) = (verdict.allow_with, verdict.intent) {
                let name = denied_name(&analysis.intents[index]);
                denied.push((analysis, option, name));
            }
        }
    }
    assert!(denied.len() > 1000, "{}", denied.len());
    let mut options: Vec<&String> = denied.iter().map(|(_, option, _)| option).collect();
    options.sort();
    options.dedup();
    // Loading a policy takes long in a debug build, so the test takes about a hundred options, evenly spread.
    let step = options.len() / 100 + 1;
    for option in options.into_iter().step_by(step) {
        let words = shell_words::split(option).unwrap();
        let [name, command] = words.as_slice() else { continue };
        if name != "--allow" {
            continue;
        }
        let policy = allowing(&strict, command);
        assert_eq!(action(&policy, command), Action::Allow, "{option}");
        let analysis = judge(&strict, &request(command), &context()).1;
        let mut names: Vec<String> = analysis.intents.iter().map(denied_name).collect();
        names.extend(started_by_git(&names).into_iter().map(|verb| format!("git {verb}")));
        for (analysis, of_line, name) in &denied {
            let is_allowed = decide::decide(&policy, analysis).action() == Action::Allow;
            assert!(
                !is_allowed || names.contains(name),
                "{option} also allows {:?}, which needs {of_line}",
                analysis.intents[0].line()
            );
        }
    }
}

/// Returns the verbs that git itself starts for one of these commands.
fn started_by_git(names: &[String]) -> Vec<&'static str> {
    let packs = ["pack-objects", "unpack-objects", "index-pack"];
    let receives = ["remote-https", "remote-http", "fetch-pack", "upload-pack"];
    let verbs = |name: &String| match name.as_str() {
        "git push" => {
            [&["remote-https", "remote-http", "send-pack", "receive-pack"][..], &packs[..]].concat()
        }
        "git fetch" | "git clone" => [&receives[..], &packs[..]].concat(),
        "git merge" => vec!["stash"],
        "git pull" => [&["fetch", "merge", "stash"][..], &receives[..], &packs[..]].concat(),
        "git ls-remote" => vec!["remote-https", "remote-http", "upload-pack"],
        "git gc" => vec!["pack-refs", "reflog", "repack", "pack-objects", "prune", "worktree", "rerere"],
        "git repack" => vec!["pack-objects"],
        _ => Vec::new(),
    };
    names.iter().flat_map(verbs).collect()
}

/// git starts other git commands for some verbs. A rule that allows such a verb must also allow these commands, and no
/// others.
#[test]
fn allowed_verb_allows_the_commands_git_starts_for_it() {
    let strict = strict();
    let fetches = [
        "git-remote-https origin https://example.org/x.git",
        "git fetch-pack --stateless-rpc --stdin --lock-pack https://example.org/x.git",
        "git-upload-pack /tmp/x.git",
        "git index-pack --stdin --fix-thin --keep --pack_header=2,3",
        "git unpack-objects --pack_header=2,3",
    ];
    let pushes = [
        "git-remote-https origin https://example.org/x.git",
        "git send-pack --stateless-rpc --helper-status --thin https://example.org/x.git",
        "git pack-objects --all-progress-implied --revs --stdout --thin --delta-base-offset -q",
        "git-receive-pack /tmp/x.git",
    ];
    let collects = [
        "git pack-refs --all --prune",
        "git reflog expire --all",
        "git repack -d -l --cruft",
        "git pack-objects --local --delta-base-offset .git/objects/pack/.tmp-1-pack",
        "git prune --expire 2.weeks.ago --no-progress",
        "git worktree prune --expire 3.months.ago",
        "git rerere gc",
    ];
    let others = [
        "git-remote-ext ext::sh",
        "git remote-fd 3",
        "git reset --hard",
        "git merge --abort",
        "git stash",
        "git branch x",
        "git reflog delete HEAD@{1}",
        "git worktree add ../x",
        "git rebase main",
        "git maintenance run",
        "git credential fill",
        "git config user.name x",
        "ssh host git-upload-pack x",
    ];
    for (verb, allowed) in [
        ("git fetch", &fetches[..]),
        ("git clone https://example.org/x.git", &fetches),
        (
            "git pull",
            &[&fetches[..], &["git fetch --update-head-ok", "git merge FETCH_HEAD", "git stash create"]]
                .concat(),
        ),
        ("git push", &pushes),
        ("git gc", &collects),
    ] {
        let policy = allowing(&strict, verb);
        for command in allowed {
            assert_eq!(action(&strict, command), Action::Deny, "{command}");
            assert_eq!(action(&policy, command), Action::Allow, "{verb}: {command}");
        }
        for command in others {
            assert_eq!(action(&policy, command), Action::Deny, "{verb}: {command}");
        }
    }
    assert_eq!(action(&allowing(&strict, "git fetch"), "git push"), Action::Deny);
    assert_eq!(action(&allowing(&strict, "git fetch"), "git send-pack x"), Action::Deny);
    assert_eq!(action(&allowing(&strict, "git push"), "git fetch"), Action::Deny);
    assert_eq!(action(&allowing(&strict, "git ls-remote"), "git fetch-pack x"), Action::Deny);
}

/// A rule that allows a verb must not lift the user's own refusals of other verbs, even if git starts these for it.
#[test]
fn allowed_verb_does_not_lift_refusals_of_the_user() {
    let rules = r#"
[[command]]
id = "team.no-merge"
verb = "merge"
action = "deny"
reason = "Merges are for people."
examples.deny = ["git merge main"]
[[command]]
id = "team.fetch"
verb = "fetch"
action = "ask"
lifts = ["git.remote"]
reason = "Ask first."
"#;
    let load = |text: &str| {
        let source = Source { name: "team.toml".to_string(), text: text.into(), built_in: false };
        decide::load_text(source, &PolicyDirs::default()).unwrap_or_else(|error| panic!("{error:?}\n{text}"))
    };
    let text = policy::add_rule(&policy::new_file("team", "strict", "A team."), rules);
    let team = load(&text);
    let pull = rules_to_allow(&team, "git pull", &context()).unwrap();
    let policy = load(&policy::add_rule(&text, &pull[0].to_toml("team", "Because.", |_| false)));
    assert_eq!(action(&policy, "git pull"), Action::Allow);
    assert_eq!(action(&policy, "git merge main"), Action::Deny);
    assert_eq!(action(&team, "git fetch"), Action::Ask);
    assert_eq!(action(&policy, "git fetch"), Action::Ask);
    assert_eq!(action(&policy, "git stash create"), Action::Allow);
}

fn denied_name(intent: &Intent) -> String {
    match &intent.git {
        Some(git) => format!("git {}", String::from_utf8_lossy(&git.verb)),
        None => String::from_utf8_lossy(&intent.program.name).into_owned(),
    }
}

#[test]
fn rule_without_effect_is_reported() {
    let warnings = |rule: &str| {
        let text = policy::add_rule(&policy::new_file("more", "strict", "More."), rule);
        let source = Source { name: "more.toml".to_string(), text: text.into(), built_in: false };
        let policy = decide::load_text(source, &PolicyDirs::default()).unwrap();
        let messages = policy.remarks.iter().map(|remark| remark.message.clone());
        messages.collect::<Vec<_>>().join("; ")
    };
    let rule = |more: &str| {
        format!("[[command]]\nid = \"a\"\nverb = \"rebase\"\naction = \"allow\"\nreason = \"x\"\n{more}\n")
    };
    let still = "`git.rewrite` still denies `git rebase`";
    assert!(warnings(&rule("override = true")).contains(still));
    assert!(!warnings(&rule("lifts = [\"git.rewrite\"]")).contains(still));
}

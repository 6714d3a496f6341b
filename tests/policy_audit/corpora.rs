//! Every command of the project's corpora must get its expected verdict under `strict`. A snapshot records the
//! decision of every policy for every command.

use std::path::PathBuf;

use guard::judge::audit;
use guard::judge::audit::Corpus;

use crate::support::{built_in, policy};

pub(crate) fn corpora() -> Vec<Corpus> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/commands");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            Corpus::parse(&name, &std::fs::read_to_string(path).unwrap()).unwrap()
        })
        .collect()
}

#[test]
fn labels_hold_under_strict() {
    let corpora = corpora();
    let labelled: usize =
        corpora.iter().flat_map(|corpus| &corpus.cases).filter(|case| case.label.is_some()).count();
    assert!(labelled >= 800, "only {labelled} labelled commands");
    let audit = audit::run(&[policy("strict")], &corpora);
    let wrong: Vec<String> = audit
        .rows
        .iter()
        .filter_map(|row| row.contradiction().map(|(_, label, answer)| (row, label, answer)))
        .map(|(row, label, answer)| {
            format!(
                "{}:{}: expected {}, got {} ({}): {}",
                row.corpus,
                row.line,
                label.name(),
                answer.action.name(),
                answer.rule,
                row.text
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn verdicts_of_every_policy_match_the_snapshots() {
    let policies: Vec<_> = built_in().into_iter().map(policy).collect();
    for corpus in corpora() {
        let name = corpus.name.trim_end_matches(".txt").to_string();
        let audit = audit::run(&policies, &[corpus]);
        insta::assert_snapshot!(name, audit::text(&audit));
    }
}

/// A policy that extends another one without `override` must not allow more of the corpora's commands.
#[test]
fn policies_are_not_looser_than_what_they_extend() {
    let corpora = corpora();
    for (child, parent) in
        [("readonly", "strict"), ("developer", "strict"), ("auditor", "strict"), ("architect", "strict")]
    {
        let audit = audit::run(&[policy(parent), policy(child)], &corpora);
        for row in &audit.rows {
            assert!(
                row.verdicts[1].action >= row.verdicts[0].action,
                "{child} is looser than {parent} on {}",
                row.text
            );
        }
    }
}

/// Every built-in policy must deny these commands, which switch or rewrite branches, change refs other than the run's
/// branch, or change the repository's configuration.
#[test]
fn no_policy_lets_other_refs_change() {
    let commands = [
        "git checkout main",
        "git switch main",
        "git reset --hard",
        "git rebase main",
        "git branch -D main",
        "git tag v1",
        "git push",
        "git update-ref refs/heads/main HEAD",
        "git symbolic-ref HEAD refs/heads/main",
        "git worktree add ../x",
        "git stash branch x",
        "git fetch",
        "git pull",
        "git filter-branch",
        "git replace a b",
        "git notes add -m x",
        "git reflog expire --all",
        "git gc --prune=now",
        "git remote add a b",
        "git config core.hooksPath x",
    ];
    for name in built_in() {
        let policy = policy(name);
        for command in commands {
            let verdict = crate::support::shell(&policy, command);
            assert_eq!(verdict.action().name(), "deny", "{name}: {command}");
        }
    }
}

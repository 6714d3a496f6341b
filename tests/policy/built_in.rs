//! Tests the policies that are part of the program.

use guard::judge::decide;
use guard::judge::policy::{PolicyDirs, Severity};

use crate::support::built_in;

#[test]
fn every_built_in_policy_loads_with_its_examples() {
    for name in built_in() {
        let policy = decide::load(name, &PolicyDirs::default(), true)
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(policy.name, name);
        assert!(!policy.description.is_empty(), "{name}");
        assert!(
            policy.remarks.iter().all(|remark| remark.severity == Severity::Note),
            "{name}: {:?}",
            policy.remarks
        );
    }
}

#[test]
fn every_built_in_rule_has_a_reason_and_an_alternative() {
    for name in built_in() {
        for rule in crate::support::policy(name).rules {
            assert!(rule.reason.ends_with('.'), "{name} {}: {}", rule.id, rule.reason);
            let denies = rule.action != guard::judge::policy::Action::Allow;
            assert!(
                !denies || !rule.instead.is_empty(),
                "{name} {} does not say what to do instead",
                rule.id
            );
            assert!(!rule.examples.is_empty(), "{name} {} has no examples", rule.id);
        }
    }
}

#[test]
fn example_that_contradicts_its_rule_is_an_error() {
    let (_, strict) = guard::judge::policy::BUILT_IN[0];
    let broken = strict.replacen("\"git checkout main\",", "\"git status\",", 1);
    assert_ne!(broken, strict);
    assert!(decide::load_text(crate::support::source(&broken), &PolicyDirs::default()).is_err());
}

//! Parses any text as a policy. The parser must return a policy with a name, or problems that can be shown to the user;
//! it must not panic.
#![no_main]

use guard::judge::decide::load_text;
use guard::judge::policy::{PolicyDirs, PolicyError, Source};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let source = Source { name: "fuzz.toml".to_string(), text: text.into(), built_in: false };
    match load_text(source, &PolicyDirs::default()) {
        Ok(policy) => assert!(!policy.name.is_empty()),
        Err(PolicyError::Invalid(problems)) => {
            assert!(!problems.is_empty());
            for problem in &problems {
                assert!(!problem.render(false).is_empty());
            }
        }
        Err(_) => {}
    }
});

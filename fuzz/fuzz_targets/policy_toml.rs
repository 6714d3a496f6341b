//! Any text as a policy: a policy or problems with places inside the text, never a panic.
#![no_main]

use guard::decide::load_text;
use guard::policy::{PolicyDirs, PolicyError, Source};
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

//! Judges any bytes as shell text. The judgement must be a verdict, without a panic or a hang.
#![no_main]

use std::sync::LazyLock;

use guard::judge::command::{Context, Cwd, Request};
use guard::judge::decide::judge;
use guard::judge::policy::{Policy, PolicyDirs, load};
use libfuzzer_sys::fuzz_target;

static POLICY: LazyLock<Policy> =
    LazyLock::new(|| load("strict", &PolicyDirs::default()).expect("the built-in policy loads"));

fuzz_target!(|text: &[u8]| {
    let context = Context { cwd: Cwd::Known(b"/work".to_vec()), ..Context::default() };
    let (verdict, analysis) = judge(&POLICY, &Request::Shell(text.to_vec()), &context);
    let _ = verdict.refusal_line();
    for intent in &analysis.intents {
        assert!(intent.parent.is_none_or(|parent| parent < analysis.intents.len()));
    }
});

//! Analyses `ld-linux-x86-64.so.2 PROGRAM …`: the dynamic loader can run any program file that it can read.

use super::super::analyze::{Analyzer, Start};
use super::super::arg::Arg;
use super::options::{Valued, leading};
use crate::judge::command::effects::Effects;

pub(super) fn is_loader(name: &[u8]) -> bool {
    let named = name.starts_with(b"ld-linux") || name.starts_with(b"ld-musl") || name.starts_with(b"ld64");
    let versioned = name.starts_with(b"ld-") && name.ends_with(b".so");
    named || versioned || matches!(name, b"ld.so" | b"ld.so.1" | b"ld.so.2" | b"ld-uClibc.so.0")
}

const VALUED: Valued = Valued {
    short: b"",
    long: &[
        "library-path",
        "inhibit-rpath",
        "preload",
        "audit",
        "argv0",
        "glibc-hwcaps-prepend",
        "glibc-hwcaps-mask",
    ],
    joined: b"",
};

pub(super) fn analyze(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: &Start) {
    let mut name = None;
    let inner = 1 + leading(&args[1..], &VALUED, &mut |met| {
        if met.long == b"argv0" {
            name = met.value.clone();
        }
    });
    super::wrap_as(analyzer, args, inner, name, Effects::RUN_LOADER, start);
}

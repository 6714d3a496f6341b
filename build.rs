//! Compiles what guard embeds in its binary: the shim program, and the seccomp filters of `policies/syscalls.toml`.

#[allow(dead_code, unreachable_pub)]
#[path = "src/sandbox/deny_filter.rs"]
mod deny_filter;
#[allow(unreachable_pub)]
#[path = "src/sandbox/notify_filter.rs"]
mod notify_filter;
#[allow(dead_code, unreachable_pub)]
#[path = "src/sys/syscall_numbers.rs"]
mod syscall_numbers;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// Where the files of `src/` above expect each other.
mod sys {
    pub(crate) use crate::syscall_numbers;
}

#[derive(Debug)]
pub(crate) enum SandboxError {
    Filter(String),
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    embed_filters()
        .unwrap_or_else(|SandboxError::Filter(problem)| panic!("policies/syscalls.toml: {problem}"));
    build_shim();
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"))
}

/// Writes the filters for `sandbox/filters.rs` to include. The numbers of system calls above are those of the
/// architecture of this build script, so guard compiles the filters itself if it is built for another one.
fn embed_filters() -> Result<(), SandboxError> {
    use deny_filter::{LIST, compile, compile_helper, parse_list};
    let mut text = "static EMBEDDED: Option<Embedded> = None;".to_string();
    if variable("CARGO_CFG_TARGET_ARCH") == env::consts::ARCH {
        let list = parse_list(LIST)?;
        let array = |filter: Vec<libc::sock_filter>| {
            let step = |step: &libc::sock_filter| {
                format!("step({}, {}, {}, {})", step.code, step.jt, step.jf, step.k)
            };
            format!("&[{}]", filter.iter().map(step).collect::<Vec<_>>().join(", "))
        };
        let deny = |shared| compile(&list, shared, false).map(|filters| array(filters.deny));
        let notify = |shared, forks| compile(&list, shared, forks).map(|filters| array(filters.notify));
        let helper = |no_children| compile_helper(&list, no_children).map(array);
        text = format!(
            "static EMBEDDED: Option<Embedded> = Some(Embedded {{\ndeny: [{}, {}],\nnotify: [[{}, {}], [{}, {}]],\n\
             helper: [{}, {}],\n}});",
            deny(false)?,
            deny(true)?,
            notify(false, false)?,
            notify(false, true)?,
            notify(true, false)?,
            notify(true, true)?,
            helper(false)?,
            helper(true)?
        );
    }
    std::fs::write(PathBuf::from(variable("OUT_DIR")).join("filters.rs"), text).expect("OUT_DIR is writable");
    Ok(())
}

/// Compiles the shim for `run/launch/plan/shims.rs` to include. Links it statically if a static C library is installed,
/// because a static program starts faster.
fn build_shim() {
    for source in ["shims/main.rs", "src/run/supervisor/shim/protocol.rs"] {
        println!("cargo:rerun-if-changed={source}");
    }
    let shim = PathBuf::from(variable("OUT_DIR")).join("guard-shim");
    let compile = |more: &[&str]| {
        let mut rustc = Command::new(variable("RUSTC"));
        rustc.args([
            "--edition=2024",
            "--crate-name=guard_shim",
            "-Copt-level=2",
            "-Cpanic=abort",
            "-Cstrip=symbols",
        ]);
        rustc.arg("--target").arg(variable("TARGET")).arg("-o").arg(&shim).args(more);
        if let Ok(linker) = env::var("RUSTC_LINKER") {
            rustc.arg(format!("-Clinker={linker}"));
        }
        rustc.arg("shims/main.rs").output().expect("rustc starts")
    };
    if !compile(&["-Ctarget-feature=+crt-static"]).status.success() {
        let compiled = compile(&[]);
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "the shim cannot be compiled: {said}");
    }
    let bytes = std::fs::read(&shim).expect("the shim was compiled");
    // An FNV-1a hash, which identifies a version of the shim. It is not a security check.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    println!("cargo:rustc-env=GUARD_SHIM_HASH={hash:016x}");
}

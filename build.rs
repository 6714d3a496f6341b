//! Compiles the shim program, which guard embeds in its binary.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    build_shim();
}

/// Compiles the shim for `run/launch/plan/shims.rs` to include. Links it statically if a static C library is installed,
/// because a static program starts faster.
fn build_shim() {
    for source in ["shims/main.rs", "src/run/supervisor/shim/protocol.rs"] {
        println!("cargo:rerun-if-changed={source}");
    }
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
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

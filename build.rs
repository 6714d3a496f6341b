//! Compiles the shim, and says how guard is linked: it is started often and lives shortly, so what happens before `main`
//! counts.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    build_shim();
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if !(is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu")) {
        return;
    }
    // A tenth of the bytes to be read before every pointer in the program's data is right. Linkers that do not know this
    // ignore it; a C library that does not know it would refuse the program.
    if c_library().is_some_and(|version| version >= (2, 36)) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // The unwinder inside the program, instead of a library that has to be found, mapped and set up.
    if let Some(folder) = unwinder_inside() {
        println!("cargo:rustc-link-arg-bins=-L{}", folder.display());
    }
}

/// Compiles the shim for `launch/shims.rs` to include. Statically, where the C library can be had so: that start is faster.
fn build_shim() {
    for source in ["shims/main.rs", "src/intercept/wire.rs"] {
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
    // FNV-1a: a name, no protection.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    println!("cargo:rustc-env=GUARD_SHIM_HASH={hash:016x}");
}

/// The version of this machine's C library, which is the one the programs are made for.
fn c_library() -> Option<(u32, u32)> {
    let asked = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let says = String::from_utf8(asked.stdout).ok()?;
    let (major, minor) = says.trim().strip_prefix("glibc ")?.split_once('.')?;
    // Some add more behind a second dot.
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A folder where the linker, asked for the shared library, is sent to the static one; where there is such a one.
fn unwinder_inside() -> Option<PathBuf> {
    // A compiler for another machine would name its own library.
    if env::var("HOST").ok()? != env::var("TARGET").ok()? {
        return None;
    }
    let asked = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let library = String::from_utf8(asked.stdout).ok()?;
    if !Path::new(library.trim()).is_absolute() {
        return None;
    }
    let folder = PathBuf::from(env::var_os("OUT_DIR")?).join("unwinder");
    std::fs::create_dir_all(&folder).ok()?;
    std::fs::write(folder.join("libgcc_s.so"), "INPUT ( -lgcc_eh -lgcc )\n").ok()?;
    Some(folder)
}

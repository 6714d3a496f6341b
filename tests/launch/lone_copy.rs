//! guard is one file: it brings its shims for git and the shells along, wherever it lies and whatever it is called.

use std::path::PathBuf;

use super::world::{Ran, World, in_two_worlds, one_world, program};

/// A copy of guard, alone in its directory.
fn lone_copy(world: &World) -> PathBuf {
    world.outside(&format!("mkdir alone && cp '{}' alone/tool", program().display()));
    world.folder.with_file_name("alone").join("tool")
}

/// Looks for git, runs what is allowed, and what is not; the code is that of the last. A file: as text it would be refused whole.
const SCRIPT: &str =
    "readlink -f \"$(command -v git)\"; git --version | cut -c1-11; git checkout -q -b x 2>&1";

fn lines(ran: &Ran) -> Vec<String> {
    ran.printed().lines().map(str::to_string).collect()
}

#[test]
fn a_lone_copy_has_its_shims() {
    in_two_worlds(|world| {
        let copy = lone_copy(world);
        std::fs::write(world.folder.join("script"), SCRIPT).unwrap();
        let mut guard = world.command(&copy);
        guard.args(world.arguments(&["--json"], &["bash", "script"]));
        let ran = world.finish(guard, b"");
        let in_directory = std::fs::read_dir(copy.parent().unwrap()).unwrap().count();
        assert_eq!(in_directory, 1, "nothing is written beside guard");
        let lines = lines(&ran);
        let context = format!("{}: {:#}\n{}", world.name(), ran.result, ran.error);
        assert_eq!(lines.len(), 3, "{context}");
        assert_eq!(
            (lines[0].ends_with("/guard-shim"), lines[1].as_str()),
            (true, "git version"),
            "{context}"
        );
        // The reason comes from the shim, once; the shell itself was not refused anything.
        assert!(lines[2].starts_with("guard: Permission denied: git checkout"), "{context}");
        assert_eq!((ran.code, &ran.result["enforcement"]["shims"]), (126, &true.into()), "{context}");
        assert_eq!(ran.result["usage"]["refusals"], 1, "{context}");
    });
}

/// What a crash left of an earlier run's shims is made good.
#[test]
fn damaged_shims_are_made_anew() {
    let world = one_world();
    assert_eq!(world.works("true"), "");
    let shims = world.runs().with_file_name("shims");
    let directory = std::fs::read_dir(&shims).unwrap().next().unwrap().unwrap().path();
    world.outside(&format!(
        "cd '{}' && : > guard-shim && rm git && ln -sf /bin/false sh",
        directory.display()
    ));
    assert_eq!(world.works("git --version | cut -c1-11; sh -c 'echo reached'"), "git version\nreached\n");
    let left: Vec<_> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("new-")), "{left:?}");
}

#[test]
fn missing_shims_are_told_and_refusals_stay() {
    let world = one_world();
    std::fs::write(world.folder.join("script"), SCRIPT).unwrap();
    let without = |ran: &Ran| {
        assert_eq!((ran.code, &ran.result["enforcement"]["shims"]), (126, &false.into()), "{:#}", ran.result);
        assert!(lines(ran)[0].ends_with("/git"), "{:#}", ran.result);
    };
    without(&world.run(&["--no-shims"], &["bash", "script"]));
    // People are told too.
    let told = world.finish(world.guard(&["--no-shims"], &["true"]), b"").error;
    assert!(
        told.lines().any(|line| line.starts_with("guard: ") && line.ends_with(", without shims")),
        "{told}"
    );
    // They cannot be written: files may not be larger than 256 KiB, and the shim is.
    let mut guard = world.command("bash");
    guard.args(["-c", "rm -rf \"$XDG_STATE_HOME\"; ulimit -f 256; exec \"$@\"", "bash"]).arg(program());
    guard.args(world.arguments(&["--json"], &["bash", "script"]));
    without(&world.finish(guard, b""));
    // The state directory is on a file system that no program can be started from.
    let script = "mount -t tmpfs -o noexec tmpfs \"$XDG_STATE_HOME\" && exec \"$@\"";
    let mut guard = world.command("unshare");
    guard.args(["-rm", "bash", "-c", script, "bash"]).arg(program());
    guard.args(world.arguments(&["--json"], &["bash", "script"]));
    std::fs::create_dir_all(world.runs().ancestors().nth(2).unwrap()).unwrap();
    let ran = world.finish(guard, b"");
    if ran.error.contains("unshare") || ran.error.contains("mount:") {
        eprintln!("SKIP: a state directory that is mounted noexec: {}", ran.error);
        return;
    }
    without(&ran);
}

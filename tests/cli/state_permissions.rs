//! What guard creates for itself belongs to the user alone, whatever the umask is.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::{UserShell, is_root, one_environment, skip};

/// Returns the entries below a directory whose mode has one of these bits. Does not descend into what a run leaves: git
/// repositories, which belong to the agent.
fn open_entries(place: &Path, bits: u32) -> Vec<PathBuf> {
    let mut open = Vec::new();
    let mut next = vec![place.to_path_buf()];
    while let Some(at) = next.pop() {
        let Ok(found) = at.symlink_metadata() else { continue };
        if !found.is_symlink() && found.permissions().mode() & bits != 0 {
            open.push(at.clone());
        }
        if found.is_dir() && at.file_name().is_none_or(|name| name != "git") {
            next.extend(std::fs::read_dir(&at).unwrap().flatten().map(|entry| entry.path()));
        }
    }
    open
}

#[test]
fn open_umask_makes_no_state_file_accessible_to_others() {
    let commands = [
        "guard policy list",
        "guard policy lint strict",
        "guard config show",
        "guard doctor",
        "guard config trust",
        "echo '[{\"task_id\": \"1\", \"type\": \"echo\", \"parameters\": {}}]' | guard batch submit --no-worker -",
        "guard worker --until-idle",
        "timeout 2 guard serve --listen 127.0.0.1:0 --root .; true",
        "timeout 2 guard serve --socket ~/socket --root .; true",
        "timeout 5 guard mcp < /dev/null; true",
        "guard chat --once 'hello' --agent generic -- cat",
        "guard research 'query' < /dev/null; true",
        "guard run -q -- git tag v1; test $? = 126",
        "guard run -q -- bash -c 'echo x > new && git add new && git commit -qm new'",
        "guard allow @ --user --yes || guard allow \"$(guard runs --json | grep -o '[0-9a-f-]\\{36\\}' | tail -1)\" --user --yes",
        "guard run -q -- git tag v2",
        "guard apply @ --yes",
    ];
    let check = |user: &UserShell, umask: &str, command: &str| {
        let (printed, _) = user.ends(&format!("umask {umask}\n{command}"));
        for (place, bits) in [(".local/state/guard", 0o077), (".config/guard", 0o022), (".cache", 0o077)] {
            let open = open_entries(&user.home().join(place), bits);
            assert!(open.is_empty(), "umask {umask}: {command}: {open:?}\n{printed}");
        }
    };
    // Each command is the first one of a new user.
    for command in commands {
        check(&UserShell::new("open-umask"), "000", command);
    }
    let user = UserShell::new("open-umask-all");
    user.types("mkdir .guard && printf '[run]\npresets = [\"node\"]\n' > .guard/config.toml && git add . && git commit -qm config");
    for command in commands {
        check(&user, "002", command);
    }
}

#[test]
fn directories_writable_by_others_are_repaired_or_refused() {
    let user = UserShell::new("open-repaired");
    user.types(
        "guard run -q -- true && mkdir -p ~/.config/guard/policies && touch ~/.config/guard/config.toml",
    );
    user.types("chmod -R a+rwX ~/.local/state/guard ~/.config/guard");
    user.sees_with_code("guard policy list", 0, &["other users could write to ", "has restricted it to you"]);
    for (place, bits) in [(".local/state/guard", 0o077), (".config/guard", 0o022)] {
        let place = user.home().join(place);
        let directories: Vec<_> =
            std::fs::read_dir(&place).unwrap().flatten().map(|entry| entry.path()).collect();
        for path in directories.iter().chain([&place]) {
            assert_eq!(path.metadata().unwrap().permissions().mode() & bits, 0, "{}", path.display());
        }
    }
    let (printed, _) = user.ends("guard policy list");
    assert!(!printed.contains("other users"), "{printed}");
    // Only the state must not be readable for others.
    user.types("chmod 755 ~/.config/guard ~/.local/state/guard && guard policy list > /dev/null");
    user.types("test \"$(stat -c %a ~/.config/guard ~/.local/state/guard | tr '\\n' ' ')\" = '755 700 '");
    if !is_root() {
        skip("a file of another user", "only root can make one");
        return;
    }
    user.types("chmod 777 ~/.config/guard && echo > ~/.config/guard/policies/strict.toml && chown 12345 ~/.config/guard/policies/strict.toml");
    user.sees_with_code("guard run -- true", 2, &["strict.toml belongs to the user 12345", "hint: "]);
    user.types("chown 0 ~/.config/guard/policies/strict.toml && rm ~/.config/guard/policies/strict.toml && guard run -q -- true");
}

#[test]
fn kept_files_of_a_run_are_readable_only_by_the_user() {
    let environment = one_environment();
    let commit = "echo work > work; git add work; git commit -qm work";
    let options = ["--policy", "strict", "--name", "private", "--keep", "--no-toolchains"];
    let outcome = environment.run(&options, &["bash", "-c", commit]);
    let directory = environment.runs_directory().join(outcome.result["run_id"].as_str().unwrap());
    let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{}: {mode:o}", directory.display());
}

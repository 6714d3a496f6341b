// slow
//! guard starts some programs outside the sandbox. It must not start one from a directory that an agent could have
//! written.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::{TestEnvironment, in_every_environment, is_root, make_program};

/// Directories in PATH, before the system's directories, that an agent could have written. They contain fake
/// programs.
struct Planted {
    root: PathBuf,
    marker: PathBuf,
    path: String,
}

impl Planted {
    /// Creates the directories, and in each fakes of the programs that guard or its git looks up in these tests. A
    /// fake writes its path to the file `marker`.
    fn new(environment: &TestEnvironment) -> Self {
        let root = environment.directory.parent().unwrap().to_path_buf();
        let marker = root.join("marker");
        let mut directories: Vec<PathBuf> = ["repository/node_modules/.bin", "repository/.venv/bin", "open"]
            .iter()
            .map(|name| root.join(name))
            .collect();
        if is_root() {
            directories.push(root.join("others"));
        }
        // This directory is untrusted only because it is inside the working directory of a run.
        directories.push(root.join("plain/bin"));
        for directory in &directories {
            for name in ["git", "gh", "npm", "sh", "tr", "printkey"] {
                let text = format!("#!/bin/sh\necho \"$0\" >> {}\nexit 1\n", marker.display());
                make_program(&directory.join(name), text);
            }
            environment.give_to_user(directory);
        }
        std::fs::set_permissions(root.join("open"), std::fs::Permissions::from_mode(0o777)).unwrap();
        if is_root() {
            std::os::unix::fs::chown(root.join("others"), Some(64_019), Some(64_019)).unwrap();
        }
        let planted: Vec<&str> = directories.iter().map(|path| path.to_str().unwrap()).collect();
        let path = format!("bin::{}:{}", planted.join(":"), environment.user.path);
        Self { root, marker, path }
    }

    fn outcome(&self) -> String {
        std::fs::read_to_string(&self.marker).unwrap_or_default()
    }

    fn guard(
        &self,
        environment: &TestEnvironment,
        directory: &Path,
        words: &[&str],
    ) -> crate::support::RunOutcome {
        let mut command = environment.command(crate::support::guard_program());
        let plain = format!("{}:", self.root.join("plain/bin").display());
        let path =
            if directory.ends_with("plain") { self.path.clone() } else { self.path.replace(&plain, "") };
        command.args(words).env("PATH", path).current_dir(directory);
        command.env("GEMINI_API_KEY", "").env("XDG_CONFIG_HOME", self.root.join("config"));
        command.env("XDG_CACHE_HOME", self.root.join("cache"));
        environment.run_to_end(command, b"")
    }
}

#[test]
fn helper_programs_writable_by_agents_are_not_started() {
    in_every_environment(|environment| {
        let planted = Planted::new(environment);
        // The user's git configuration defines a filter, which git starts by its name.
        environment.run_outside(
            "mkdir -p config/git config/guard && printf '[filter \"up\"]\\n\\tsmudge = tr a-z A-Z\\n\\tclean = tr A-Z a-z\\n' \
             > config/git/config && cd repository && printf 'text filter=up\\n' > .gitattributes && echo hello > text \
             && git add . && git -c user.name=n -c user.email=e commit -qm more && mkdir -p ../plain",
        );
        let namespaces = if environment.namespaces { "require" } else { "off" };
        let repository = planted.root.join("repository");
        let run = ["run", "--json", "--namespaces", namespaces, "--name", "t", "--keep", "--", "cat", "text"];
        let outcome = planted.guard(environment, &repository, &run);
        let problem = || {
            format!(
                "{}: {:#}\n{}\nran: {}",
                environment.name(),
                outcome.result,
                outcome.error,
                planted.outcome()
            )
        };
        assert_eq!(planted.outcome(), "", "{}", problem());
        assert_eq!((outcome.code, outcome.printed().as_str()), (0, "HELLO\n"), "{}", problem());
        let outcome = planted.guard(environment, &repository, &["worktree", "list"]);
        assert_eq!((outcome.code, planted.outcome().as_str()), (0, ""), "{outcome}");
        // guard asks the package manager for its registry.
        let plain = planted.root.join("plain");
        let node =
            ["run", "--json", "--namespaces", namespaces, "--in-place", "--preset", "node", "--", "true"];
        let outcome = planted.guard(environment, &plain, &node);
        assert_eq!(planted.outcome(), "", "{outcome}");
        // The user's configuration sets a program that prints the API key. guard must look it up like all other
        // programs.
        let config = planted.root.join("config/guard/config.toml");
        std::fs::write(&config, "[gateway.gemini]\nkey_command = [\"printkey\"]\n").unwrap();
        let keyed =
            ["run", "--json", "--namespaces", namespaces, "--in-place", "--preset", "gemini", "--", "true"];
        let outcome = planted.guard(environment, &plain, &keyed);
        assert_eq!(planted.outcome(), "", "{outcome}");
        let words = format!("{}{}", outcome.result, outcome.error);
        assert!(words.contains("no `printkey` in PATH that it can trust"), "{}: {words}", environment.name());
        assert!(words.contains("inside the git working tree"), "{}: {words}", environment.name());
    });
}

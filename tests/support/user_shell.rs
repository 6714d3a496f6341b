//! A new user's home with a repository, and a shell in which the user types commands. Nothing else is prepared.

use std::path::PathBuf;
use std::process::Command;

use super::Scratch;

/// A home directory with the repository `project`, and methods that run shell commands in that repository.
pub(crate) struct UserShell {
    scratch: Scratch,
    pub(crate) project: PathBuf,
}

impl UserShell {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_readme(name, "hello\n")
    }

    /// Creates a home directory and a repository whose only commit contains this README.md.
    pub(crate) fn with_readme(name: &str, readme: &str) -> Self {
        let scratch = Scratch::new(name);
        let project = scratch.0.join("home/project");
        std::fs::create_dir_all(&project).unwrap();
        std::fs::write(project.join("README.md"), readme).unwrap();
        let user = Self { scratch, project };
        user.types(
            "git init -q -b main && git config user.name U && git config user.email u@example.org &&
             git add . && git commit -qm first",
        );
        user
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.scratch.0.join("home")
    }

    /// Returns a command in the project with only the user's environment.
    pub(crate) fn command(&self, program: &str) -> Command {
        let guard = PathBuf::from(env!("CARGO_BIN_EXE_guard"));
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", guard.parent().unwrap().display());
        let mut command = Command::new(program);
        command.env_clear().env("PATH", path).env("HOME", self.home()).current_dir(&self.project);
        command
    }

    /// Runs commands in a shell in the project, for at most ten minutes. Returns the output and the exit code.
    pub(crate) fn ends(&self, script: &str) -> (String, i32) {
        let script = format!("exec 2>&1 < /dev/null\n{script}");
        let output = self.command("timeout").args(["600", "bash", "-c", &script]).output().unwrap();
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap_or(-1))
    }

    /// Runs commands, which must succeed. Returns their output.
    pub(crate) fn types(&self, script: &str) -> String {
        let (printed, code) = self.ends(script);
        assert_eq!(code, 0, "{script}\n{printed}");
        printed
    }

    /// Runs commands, which must print these texts. Their exit code does not matter.
    pub(crate) fn sees(&self, script: &str, wanted: &[&str]) {
        let (printed, _) = self.ends(script);
        expect_texts(script, &printed, wanted);
    }

    /// Runs commands, which must print these texts and end with this exit code.
    pub(crate) fn sees_with_code(&self, script: &str, code: i32, wanted: &[&str]) -> String {
        let (printed, ended) = self.ends(script);
        expect_texts(script, &printed, wanted);
        assert_eq!(ended, code, "{script}\n{printed}");
        printed
    }

    /// Returns the directories of the runs that guard has kept for this user.
    pub(crate) fn kept_runs(&self) -> Vec<PathBuf> {
        let runs = self.home().join(".local/state/guard/runs");
        let entries = std::fs::read_dir(runs).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}

fn expect_texts(script: &str, printed: &str, wanted: &[&str]) {
    for text in wanted {
        assert!(printed.contains(text), "{script}\ndoes not print {text:?}:\n{printed}");
    }
}

//! Users keep their configuration in a directory of dotfiles, to which links in the home directory lead. A run that can
//! write such a directory must not decide what guard and git do outside the sandbox afterwards.

use std::path::PathBuf;

use super::review::said;
use crate::support::{RunOutcome, TestEnvironment, guard_program, in_every_environment};

/// A user with a home directory, a directory of dotfiles in it, and a repository.
struct Person<'e>(&'e TestEnvironment);

impl Person<'_> {
    fn at(&self, path: &str) -> PathBuf {
        self.0.directory.with_file_name(path)
    }

    /// Runs a script outside the sandbox, in the directory that contains the home directory and the repository.
    fn types(&self, script: &str) {
        self.0.run_outside(&format!("export HOME=$PWD/home && mkdir -p home/dotfiles && {script}"));
    }

    fn runs(&self, directory: &str, options: &[&str], script: &str) -> RunOutcome {
        let directory = self.at(directory).display().to_string();
        let options = [&["--json", "--dir", &directory], options].concat();
        let mut command = self.0.guard_run(&options, &["bash", "-c", script]);
        command.env("HOME", self.at("home"));
        self.0.run_to_end(command, b"")
    }

    fn applies(&self) -> RunOutcome {
        let mut command = self.0.command(guard_program());
        command.arg("apply").env("HOME", self.at("home")).current_dir(self.at("repository"));
        self.0.run_to_end(command, b"")
    }
}

fn in_every_home(test: impl Fn(&Person<'_>)) {
    in_every_environment(|environment| {
        let person = Person(environment);
        person.types("git config --global user.name n && git config --global user.email e");
        test(&person);
    });
}

#[test]
fn a_run_cannot_write_what_the_links_to_guards_configuration_lead_to() {
    in_every_home(|person| {
        let links: [(&str, &str); 6] = [
            ("mkdir -p dotfiles/guard .config && ln -s $PWD/dotfiles/guard .config/guard", "the directory"),
            (
                "mkdir -p .config/guard && touch dotfiles/x && ln -s $PWD/dotfiles/x .config/guard/config.toml",
                "the file",
            ),
            (
                "mkdir -p .config/guard dotfiles/policies && ln -s $PWD/dotfiles/policies .config/guard/policies",
                "the policies",
            ),
            (
                "mkdir -p .config/guard/policies && touch dotfiles/p.toml && \
                 ln -s $PWD/dotfiles/p.toml .config/guard/policies/p.toml",
                "one policy",
            ),
            (
                "mkdir -p .config/guard safe && touch safe/c && ln -s $PWD/safe/c dotfiles/link && \
                 ln -s $PWD/dotfiles/link .config/guard/config.toml",
                "a link on the way to the file",
            ),
            (
                "mkdir -p .config/guard safe dotfiles/sub && touch safe/c && \
                 ln -s $PWD/dotfiles/sub/../../safe/c .config/guard/config.toml",
                "a directory that the link leaves by `..`",
            ),
        ];
        for (link, name) in links {
            person.types(&format!("cd home && rm -rf .config dotfiles && mkdir dotfiles && {link}"));
            let refused = person.runs("home/dotfiles", &[], "true");
            assert_eq!(refused.code, 125, "{name}: {refused}");
            assert!(refused.to_string().contains("no run may write"), "{name}: {refused}");
        }
        person.types("rm -rf home/.config");
        person.runs("home/dotfiles", &[], "true").expect_code(0);
    });
}

#[test]
fn a_filter_that_a_run_put_into_the_users_git_configuration_is_not_started() {
    in_every_home(|person| {
        person.types(
            "cd repository && echo '*.bin filter=lfs' > .gitattributes && echo x > x.bin && git add -A && git commit -qm bin",
        );
        person.types(
            "cd home && touch dotfiles/git && mv .gitconfig dotfiles/git && ln -s dotfiles/git .gitconfig",
        );
        person.runs("home/dotfiles", &[], "true").expect_code(125);
        // The run may write a file that the configuration includes.
        person.types(
            "cd home && rm .gitconfig && mv dotfiles/git .gitconfig && git config --global include.path dotfiles/more",
        );
        let mark = person.at("executed");
        let filter =
            format!("printf '[filter \"lfs\"]\n\tsmudge = touch {} && cat\n' > more", mark.display());
        person.runs("home/dotfiles", &[], &filter).expect_code(0);
        let refused = person.runs("repository", &["--auto"], "true");
        refused.expect_code(125);
        assert!(refused.to_string().contains("filter.lfs.smudge"), "{refused}");
        assert!(!mark.exists(), "{refused}");
        // The attack works if the user trusts the settings.
        let trusted = person.runs("repository", &["--auto", "--trust-repository"], "true");
        assert!(mark.exists(), "{trusted}");
    });
}

fn expect_finding(applied: &RunOutcome, text: &str) {
    applied.expect_code(1);
    assert!(said(applied).contains(text), "{applied}");
}

#[test]
fn an_encoding_that_changes_what_git_writes_is_a_finding() {
    in_every_home(|person| {
        let script = "echo 'package.json working-tree-encoding=ASCII//TRANSLIT' > .gitattributes && echo '{}' > package.json && \
                      git add -A && git commit -qm one";
        person.runs("repository", &["--name", "x"], script).expect_code(0);
        expect_finding(&person.applies(), "working-tree-encoding");
    });
}

#[test]
fn files_to_which_the_users_hooks_lead_are_findings() {
    let of_file =
        "mkdir scripts && touch scripts/check.sh && ln -s ../../scripts/check.sh .git/hooks/pre-commit";
    let of_directory =
        "mkdir scripts && touch scripts/check.sh && ln -s scripts hooks && git config core.hooksPath hooks";
    let absolute =
        "mkdir scripts && touch scripts/check.sh && git config --global core.hooksPath $PWD/scripts";
    for hooks in [of_file, of_directory, absolute] {
        in_every_home(|person| {
            person.types(&format!(
                "cd repository && {hooks} && git add -A && git commit -qm scripts --no-verify"
            ));
            let script = "echo touch executed > scripts/check.sh && git commit -qam two --no-verify";
            let outcome =
                person.runs("repository", &["--name", "x", "--allow", "git commit --no-verify"], script);
            outcome.expect_code(0);
            expect_finding(&person.applies(), "scripts/check.sh");
        });
    }
}

#[test]
fn a_file_makes_no_dependency_of_a_directory_of_secrets() {
    in_every_home(|person| {
        person.types("cd repository && echo secrets/ > .gitignore && git add -A && git commit -qm ignore && mkdir secrets");
        person
            .runs("repository", &["--allow-unprotected-repositories"], "echo > secrets/pyvenv.cfg")
            .expect_code(0);
        person.types("echo key > repository/secrets/prod.key");
        let outcome = person.runs("repository", &["--name", "x"], "cat secrets/prod.key");
        assert_ne!(outcome.code, 0, "{outcome}");
        assert!(!said(&outcome).contains("key\n"), "{outcome}");
    });
}

//! Tests where guard finds the user's GitHub token, and that no agent, file or other service receives it.

use guard::judge::policy::Pattern;
use guard::work::forge::{Remote, Token};

use super::{SECRET, environment, is_silent};
use crate::support::{Scratch, built_in, guard, make_program, policy, text};

fn remote() -> Remote {
    let url = "git@github.com:acme/widget.git";
    Remote::parse("origin", url, url, |_| None).unwrap()
}

fn found(pairs: &[(&str, &str)]) -> Option<String> {
    let token = Token::with(&remote(), environment(pairs)).unwrap();
    is_silent(&token);
    token.map(|token| token.source().to_string())
}

#[test]
fn token_variables_are_read_in_the_order_of_gh() {
    let other = "ghp_other";
    assert_eq!(found(&[("GITHUB_TOKEN", SECRET), ("GH_TOKEN", other)]).as_deref(), Some("GH_TOKEN"));
    assert_eq!(found(&[("GITHUB_TOKEN", SECRET), ("GH_TOKEN", "")]).as_deref(), Some("GITHUB_TOKEN"));
    assert_eq!(found(&[("GITHUB_TOKEN", &format!(" {SECRET}\n"))]).as_deref(), Some("GITHUB_TOKEN"));
    assert_eq!(found(&[]), None);
    // guard must refuse a token that is not one word of ASCII characters: it could add a header to the request.
    for bad in
        [format!("{SECRET}\r\nX-Evil: 1"), format!("{SECRET} two"), " \n".to_string(), "SECRETé".to_string()]
    {
        let error = Token::with(&remote(), environment(&[("GH_TOKEN", &bad)])).unwrap_err();
        is_silent(&error);
        assert!(
            error.to_string().starts_with("GH_TOKEN does not contain a valid token")
                && error.hint().is_some(),
            "{error}"
        );
    }
    // For a host other than GitHub, guard must not use the token.
    let url = "https://gitlab.example/a/b";
    let gitlab = Remote::parse("origin", url, url, |_| None).unwrap();
    assert!(Token::with(&gitlab, environment(&[("GH_TOKEN", SECRET)])).unwrap().is_none());
}

#[test]
fn gh_is_asked_for_the_token_of_the_right_host() {
    let scratch = Scratch::new("gh");
    let gh = |script: &str| {
        make_program(&scratch.0.join("bin/gh"), format!("#!/bin/sh\n{script}\n"));
    };
    let bin = scratch.0.join("bin");
    let (bin, log) = (bin.to_str().unwrap(), scratch.0.join("log"));
    let path = format!("relative:/nonexistent:{bin}");
    gh(&format!("echo \"$* in $PWD\" > {}; echo {SECRET}", log.display()));
    assert_eq!(found(&[("PATH", &path)]).as_deref(), Some("gh auth token"));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "auth token --hostname github.com in /\n");
    // guard must not run a `gh` that a project brings along.
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir_all(scratch.0.join("project/.git")).unwrap();
    let planted = scratch.0.join("project/node_modules/.bin/gh");
    make_program(&planted, format!("#!/bin/sh\necho planted > {}; echo {SECRET}\n", log.display()));
    let first = format!("{}:{path}", planted.parent().unwrap().display());
    assert_eq!(found(&[("PATH", &first)]).as_deref(), Some("gh auth token"));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "auth token --hostname github.com in /\n");
    // If a variable has the token, guard must not start `gh`.
    std::fs::remove_file(&log).unwrap();
    assert_eq!(found(&[("PATH", &path), ("GH_TOKEN", SECRET)]).as_deref(), Some("GH_TOKEN"));
    assert!(!log.exists());
    // The user is not logged in, or `gh` prints something that is not a token.
    for script in ["echo nothing >&2; exit 1", "exit 0", "echo two words", "yes | head -c 100000"] {
        gh(script);
        assert_eq!(found(&[("PATH", &path)]), None, "{script}");
    }
}

#[test]
fn no_built_in_policy_passes_a_token_to_an_agent() {
    for name in built_in() {
        let environment = policy(name).environment;
        for variable in ["GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_API_URL"] {
            let passes = environment
                .pass
                .iter()
                .find(|entry| Pattern::new(entry).is_ok_and(|pattern| pattern.matches(variable.as_bytes())));
            assert_eq!(passes, None, "{name} passes {variable}");
            assert!(environment.set.iter().all(|(set, _)| set != variable), "{name} sets {variable}");
        }
    }
}

/// The agent's environment, read from the kernel's `/proc/self/environ`, must not contain the token under any built-in
/// policy.
#[test]
fn token_is_not_in_the_environment_of_an_agent() {
    for name in built_in() {
        let scratch = Scratch::new("agent-token");
        let folder = scratch.0.join("folder");
        std::fs::create_dir(&folder).unwrap();
        let output = guard()
            .args(["run", "--policy", name, "--in-place", "--", "cat", "/proc/self/environ"])
            .current_dir(&folder)
            .env("XDG_STATE_HOME", scratch.0.join("state"))
            .env("GH_TOKEN", SECRET)
            .env("GITHUB_TOKEN", SECRET)
            .env("GH_ENTERPRISE_TOKEN", SECRET)
            .env("TERM", "dumb")
            .output()
            .unwrap();
        let printed = text(&output);
        assert!(
            printed.contains("TERM=dumb"),
            "{name}: {printed} {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(!printed.contains("SECRET"), "{name}: {printed}");
        // No file of the test's directory may contain the token either.
        let found =
            std::process::Command::new("grep").args(["-rl", SECRET]).arg(&scratch.0).output().unwrap();
        assert!(found.stdout.is_empty(), "{name}: {}", String::from_utf8_lossy(&found.stdout));
    }
}

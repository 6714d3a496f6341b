// slow
//! Users keep tokens in git's settings. No token may reach the run or its transcript.

use std::path::Path;

use crate::support::in_every_environment;

/// Returns the files below a directory that contain this text.
fn holding(directory: &Path, text: &str) -> String {
    let output = std::process::Command::new("grep").args(["-rlaF", text]).arg(directory).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn tokens_in_git_settings_do_not_reach_the_run() {
    // The tokens are in a key, in an scp-like address, in a second address of one value, in a parameter, and in a
    // header.
    let settings = "
git config 'lfs.https://me:Secret-a1@host.example/x.git/info/lfs.access' basic
git config 'lfs.customtransfer.x.args' '--token Secret-b2'
git config 'url.https://Secret-c3-Secret-c3@host.example/.insteadOf' short:
git config remote.origin.url 'https://me:Secret-d4@host.example/x'
git config --add remote.origin.url 'user:Secret-e5@host.example:path'
git config --add remote.origin.url 'https://host.example/x https://me:Secret-f6@other.example/'
git config branch.main.remote 'https://me:Secret-g7@host.example/x'
git config 'remote.https://me:Secret-h8@host.example/.url' 'https://host.example/?private_token=Secret-i9-Secret-i9'
git config 'http.https://host.example/.extraHeader' 'Authorization: basic Secret-j0'";
    in_every_environment(|environment| {
        environment.run_outside(&format!("cd repository\n{settings}"));
        let root = environment.directory.parent().unwrap();
        let kept = environment.run_outside("cat repository/.git/config");
        assert_eq!(kept.matches("Secret-").count(), 12, "{kept}");
        // The run prints everything that it can see, and two tokens that its script contains.
        let script = "env; git config --list --show-origin; cat \"$(git rev-parse --git-dir)/config\"; \
                      printf 'https://me:%s@host.example/x %s\\n' Secret-d4 Secret-j0";
        let namespaces = if environment.namespaces { "require" } else { "off" };
        let mut command = environment.command(crate::support::guard_program());
        command.args(["run", "--json", "--namespaces", namespaces, "--name", "t", "--keep", "--"]);
        command.args(["sh", "-c", script]).current_dir(root.join("repository"));
        let outcome = environment.run_to_end(command, b"");
        let printed = outcome.printed();
        let problem = || format!("{}: {:#}\n{}", environment.name(), outcome.result, outcome.error);
        assert_eq!(outcome.code, 0, "{}", problem());
        assert!(printed.contains("lfs.https://host.example/x.git/info/lfs.access=basic"), "{}", problem());
        assert!(printed.contains("user@host.example:path"), "{}", problem());
        let own = "https://me:Secret-d4@host.example/x Secret-j0\n";
        assert_eq!(
            printed.strip_suffix(own).map(|rest| rest.contains("Secret-")),
            Some(false),
            "{}",
            problem()
        );
        assert_eq!(holding(&root.join("state"), "Secret-"), "", "{}", problem());
    });
}

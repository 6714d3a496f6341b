// slow
//! The reason for a refused connection must reach the standard error of real clients that do not show the proxy's
//! answer, once, and must not reach a stream that carries data.

use std::time::Duration;

use serde_json::Value;

use super::clients::usable_program;
use super::run_options::{Options, events};
use crate::support::http_server::{Response, Server};
use crate::support::{TestEnvironment, guard_program, in_every_environment, in_two_environments, skip};

/// Allows the clients that `strict` refuses.
const CLIENTS: &str = r#"
[[command]]
id = "remote-shell"
override = true
program = ["ssh"]
action = "allow"
reason = "These tests try it."

[[command]]
id = "git.remote"
override = true
verb = ["clone", "ls-remote", "remote-https", "remote-http", "upload-pack"]
action = "allow"
reason = "These tests clone."
"#;

/// Runs each client with pipes as its output, and prints what came out of each.
const PROGRAM: &str = r#"
import json, os, shutil, subprocess, sys
python = sys.argv[1]
found = {}
def client(name, *words, **options):
    if not shutil.which(words[0]):
        return
    ran = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100, **options)
    found[name] = [ran.returncode, ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace")]

client("curl", "curl", "-sS", "https://curl.test/")
client("curl with another name", "curl", "-s", "-A", "Mozilla/5.0", "https://agent.test/")
client("curl, plain", "curl", "-sS", "-o", "body", "http://plain.test/")
client("curl, retries", "curl", "-sS", "--retry", "2", "--retry-delay", "0", "--retry-all-errors", "https://retry.test/", "https://retry.test/2")
client("curl, no proxy", "curl", "-sS", "--noproxy", "*", "https://lookup.test/")
client("curl, address", "curl", "-sS", "--noproxy", "*", "https://192.0.2.1/")
client("wget", "wget", "-q", "-O", "-", "https://wget.test/")
client("git, https", "git", "clone", "-q", "https://git.test/x.git", "cloned")
client("git, ssh", "git", "clone", "-q", "git@ssh.test:x.git", "cloned")
client("ssh", "ssh", "-o", "BatchMode=yes", "shell.test", "true")
client("shell", "sh", "-c", "curl -sS https://inner.test/ 2>&1 | cat")
client("pip", python, "-m", "pip", "download", "--retries", "1", "--disable-pip-version-check", "--index-url", "https://pip.test/simple", "nothing-at-all")
client("python", python, "-c", "import urllib.request as u; u.urlopen('https://python.test/')")
client("npm", "npm", "install", "--no-audit", "--no-fund", "--fetch-retries=0", "--registry", "https://npm.test/", "nothing-at-all")
print(json.dumps(found))
"#;

fn notices(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("guard: Permission denied: ")).collect()
}

#[test]
fn refused_clients_get_one_notice_on_standard_error() {
    in_every_environment(|environment| {
        let options = Options::policy(environment, &[], &[], CLIENTS);
        let Some(python) = usable_program(environment, "python3") else {
            return skip("pip", "there is no python3 with the modules pip and ssl");
        };
        let outcome = environment.run(&options.words(), &["python3", "-c", PROGRAM, &python]);
        let problem = || format!("{}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
        let found: Value =
            serde_json::from_str(&outcome.printed()).unwrap_or_else(|_| panic!("{}", problem()));
        let of = |name: &str| {
            let of = found.get(name)?.as_array()?;
            Some((of[0].as_i64()?, of[1].as_str()?.to_string(), of[2].as_str()?.to_string()))
        };
        for (name, host) in [
            ("curl", "connect to curl.test:443"),
            ("curl with another name", "connect to agent.test:443"),
            ("curl, plain", "GET to plain.test:80"),
            ("curl, retries", "connect to retry.test:443"),
            ("curl, no proxy", "look up lookup.test"),
            ("curl, address", "connect to 192.0.2.1:443"),
            ("wget", "connect to wget.test:443"),
            ("git, https", "connect to git.test:443"),
            ("git, ssh", "look up ssh.test"),
            ("ssh", "look up shell.test"),
        ] {
            let Some((code, out, error)) = of(name) else {
                skip(name, "it is not installed; scripts/setup installs it");
                continue;
            };
            let told = notices(&error);
            assert_eq!(told.len(), 1, "{name}: {error}\n{}", problem());
            assert!(
                told[0].starts_with(&format!("guard: Permission denied: {host} (rule ")),
                "{name}: {told:?}"
            );
            assert!(told[0].contains(" Instead: "), "{name}: {told:?}");
            let is_fine = name == "curl, plain";
            assert_eq!(code == 0, is_fine, "{name}: {code}\n{}", problem());
            assert_eq!(out, "", "{name}: the output carries data");
        }
        let (_, piped, error) = of("shell").unwrap();
        assert_eq!(notices(&piped).len(), 1, "{piped}{error}");
        // These clients show the proxy's answer themselves.
        for (name, host) in [("pip", "pip.test"), ("python", "python.test"), ("npm", "npm.test")] {
            let Some((code, out, error)) = of(name) else {
                skip(name, "it is not installed; scripts/setup installs it");
                continue;
            };
            assert_eq!(notices(&format!("{out}\n{error}")), [""; 0], "{name}: {out}{error}");
            let reason = format!("guard: Permission denied: connect to {host}:443");
            assert!(code != 0 && format!("{out}{error}").contains(&reason), "{name}: {code} {out}{error}");
        }
        assert!(notices(&outcome.error).is_empty(), "{}", problem());
    });
}

/// A process whose standard error nobody reads must get its answer from the proxy all the same, and so must others.
#[test]
fn full_standard_error_pipe_delays_no_connection() {
    in_two_environments(|environment| {
        let script = r#"
import fcntl, os, subprocess, time
def full():
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETFL, os.O_NONBLOCK)
    try:
        while os.write(write, b"x" * 4096):
            pass
    except BlockingIOError:
        pass
    fcntl.fcntl(write, fcntl.F_SETFL, 0)
    return read, write
began, held = time.monotonic(), []
for number in range(40):
    held.append(full())
    words = ["curl", "-s", f"https://host-{number}.test/"]
    code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=held[-1][1], timeout=60).returncode
    assert code not in (0, 28), code
code = subprocess.run(["sh", "-c", "curl -s https://closed.test/ 2>&-"], stdout=subprocess.PIPE).returncode
print("closed:", code != 0, "seconds:", round(time.monotonic() - began))
"#;
        let outcome = environment.run(&[], &["python3", "-c", script]);
        let problem = || format!("{}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
        assert!(outcome.printed().starts_with("closed: True"), "{}{}", outcome.printed(), problem());
        assert_eq!(events(&outcome, "deny.network").len(), 41, "{}", problem());
        // guard must not wait for the writers when the run has ended.
        assert!(outcome.took < Duration::from_secs(100), "{:?}", outcome.took);
    });
}

/// Returns what `guard why` or `guard check` names as options that would allow a connection.
fn advice(environment: &TestEnvironment, options: &[&str], words: &[&str]) -> Vec<Vec<String>> {
    let mut command = environment.command(guard_program());
    let output = command.args(words).args(options).arg("--json").output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)));
    let all = told.as_array().cloned().unwrap_or_else(|| vec![told.clone()]);
    let options =
        all.iter().map(|one| one["allow_with"].as_str().unwrap_or_else(|| panic!("{words:?}: {told:#}")));
    options.map(|options| shell_words::split(options).unwrap()).collect()
}

/// A user who follows the advice literally must get the connection. `guard why` used to say that nothing can allow a
/// connection to a private address.
#[test]
fn advice_about_a_private_address_makes_the_connection_work() {
    in_every_environment(|environment| {
        let server = Server::plain(|_| Response::text("private-says"));
        let port = server.port();
        let by_proxy = "curl -sS --noproxy none.invalid --fail";
        let direct = "curl -sS --noproxy '*' --fail";
        for (allow, client, host) in [
            (&[][..], direct, "127.0.0.1"),
            (&[], by_proxy, "127.0.0.1"),
            (&["*:*"], direct, "127.0.0.1"),
            (&["*:*"], by_proxy, "127.0.0.1"),
            (&[], by_proxy, "localhost"),
            (&["localhost:*"], by_proxy, "localhost"),
            (&["*:*"], by_proxy, "localhost"),
        ] {
            let options = Options::policy(environment, allow, &[], "");
            let fetch = format!("{client} http://{host}:{port}/");
            let refused = environment.run(&options.words(), &["bash", "-c", &fetch]);
            let case = format!("{}: {allow:?} {fetch}\n{}", environment.name(), refused.error);
            assert!(!refused.printed().contains("private-says"), "{case}");
            let target = format!("{host}:{port}");
            let asked = [
                advice(environment, &[], &["why"]),
                advice(environment, &options.words(), &["why", "--host", &target]),
                advice(environment, &options.words(), &["check", "--connect", &target]),
            ];
            for told in asked {
                assert_eq!(told.len(), 1, "{told:?}\n{case}");
                let words: Vec<&str> = told[0].iter().map(String::as_str).collect();
                let outcome = environment.run(&options.clone().and(&words).words(), &["bash", "-c", &fetch]);
                assert_eq!(outcome.printed(), "private-says", "{words:?}\n{case}\n{}", outcome.error);
            }
        }
        // The same by a rule for a network.
        let network = format!("127.0.0.0/8:{port}");
        let options = Options::hosts(environment, &[&network], &[]);
        let fetch = format!("{direct} http://127.0.0.1:{port}/");
        assert_eq!(environment.run(&options.words(), &["bash", "-c", &fetch]).printed(), "private-says");
        // No option overrides a denied host, and `guard why` must say what does.
        let options = Options::policy(
            environment,
            &[],
            &[],
            "[[command]]\nid = \"x\"\nprogram = [\"x\"]\naction = \"deny\"\nreason = \"x\"\n",
        );
        let policy = environment.temporary_directory().join("policy.toml");
        let text = std::fs::read_to_string(&policy).unwrap();
        std::fs::write(&policy, text.replace("allow = []", "allow = []\ndeny = [\"127.0.0.0/8:*\"]"))
            .unwrap();
        for client in [direct, by_proxy] {
            let outcome = environment
                .run(&options.words(), &["bash", "-c", &format!("{client} http://127.0.0.1:{port}/")]);
            assert!(!outcome.printed().contains("private-says"), "{outcome}");
            let why = environment.command(guard_program()).arg("why").output().unwrap();
            let why = String::from_utf8_lossy(&why.stdout).into_owned();
            assert!(
                why.contains("network.deny") && why.contains("remove the entry from `[network] deny`"),
                "{why}"
            );
            assert!(!why.contains("--allow-host"), "{why}");
        }
    });
}

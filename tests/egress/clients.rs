// slow
//! Runs real network clients in the sandbox with only the configuration that `guard run` gives them. Allowed hosts must
//! work, and a refused host must give an error that the client understands.

use std::path::Path;
use std::process::Command;

use super::registries::{NAME, SAYS, VERSION, cargo, git, npm, pip};
use super::run_options::{Options, events, row};
use crate::support::http_server::{Authority, Request, Response, Server};
use crate::support::{TestEnvironment, in_two_environments, skip_unsupported};

const ALLOWED: &str = "packages.test";
const REFUSED: &str = "elsewhere.test";

/// A policy rule that allows `git clone`, which `strict` refuses: these tests clone from a server.
const REMOTES: &str = r#"
[[command]]
id = "git.remote"
override = true
verb = ["clone"]
action = "allow"
reason = "These tests clone."
"#;

/// One client: its program, and a script that prints [`SAYS`] if it could fetch from `$1` and fails otherwise. `$2` is
/// a unique word for the names of the files it creates.
struct Client {
    name: &'static str,
    program: &'static str,
    script: String,
}

fn clients() -> Vec<Client> {
    let module = NAME.replace('-', "_");
    let client = |name, program, script: String| Client { name, program, script };
    vec![
        client("curl", "curl", "curl -sS --fail-with-body $1/plain".to_string()),
        client("wget", "wget", "wget -q -O - --ca-certificate=$SSL_CERT_FILE $1/plain".to_string()),
        client(
            "requests",
            "python3",
            "PYTHONPATH=modules python3 -c 'import requests, sys; print(requests.get(sys.argv[1]).text)' $1/plain"
                .to_string(),
        ),
        client(
            "urllib",
            "python3",
            "python3 -c 'import urllib.request as u, sys; print(u.urlopen(sys.argv[1]).read())' $1/plain".to_string(),
        ),
        client(
            "node",
            "node",
            "node -e 'fetch(process.argv[1]).then(async (answer) => console.log(await answer.text()))' $1/plain"
                .to_string(),
        ),
        client(
            "npm",
            "npm",
            format!(
                "mkdir -p npm-$2 && cd npm-$2 && echo '{{}}' > package.json
                 npm install --silent --no-audit --no-fund --fetch-retries=0 --registry $1/ {NAME}@{VERSION} >&2 &&
                 node -p 'require(\"{NAME}\")()'"
            ),
        ),
        // pip under pyenv exits with an error if pyenv cannot write its list of programs. So the script checks the
        // installed module instead of the exit code.
        client(
            "pip",
            "python3",
            format!(
                "python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir --retries 0 --target pip-$2 \
                 --index-url $1/simple/ {NAME}=={VERSION}; PYTHONPATH=pip-$2 python3 -c 'import {module}; print({module}.says())'"
            ),
        ),
        client(
            "cargo",
            "cargo",
            "export CARGO_REGISTRIES_TINY_INDEX=sparse+$1/index/ CARGO_NET_RETRY=0; cp -R user cargo-$2 && cd cargo-$2 && cargo run --quiet"
                .to_string(),
        ),
        client("git", "git", "git clone -q $1/git/tiny.git git-$2 && cat git-$2/README".to_string()),
    ]
}

fn routes(folder: &Path) -> impl Fn(&Request) -> Response + Send + Sync + 'static {
    let (pip, npm) = (pip(folder), npm(folder, "https"));
    let (cargo, git) = (cargo(folder, "https"), git(folder));
    move |request| match request.path().split('/').nth(1).unwrap_or_default() {
        "plain" => Response::text(SAYS),
        "simple" | "files" => pip(request),
        "index" | "dl" => cargo(request),
        "git" => git(request),
        _ => npm(request),
    }
}

/// Writes the files that the clients need into the working directory.
fn furnish(environment: &TestEnvironment) {
    let user = environment.directory.join("user/src");
    std::fs::create_dir_all(&user).unwrap();
    let manifest = format!(
        "[package]\nname = \"user\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\n{NAME} = {{ version = \"{VERSION}\", registry = \"tiny\" }}\n[workspace]\n"
    );
    std::fs::write(environment.directory.join("user/Cargo.toml"), manifest).unwrap();
    let program = format!("fn main() {{ println!(\"{{}}\", {}::says()) }}\n", NAME.replace('-', "_"));
    std::fs::write(user.join("main.rs"), program).unwrap();
    for wheel in wheels() {
        let mut unpack = Command::new("python3");
        unpack.args(["-m", "zipfile", "-e"]).arg(wheel).arg(environment.directory.join("modules"));
        assert!(unpack.status().unwrap().success());
    }
}

/// Returns the client's program, or `None` if it is not installed. A python that was copied from elsewhere may lack the
/// `ssl` module; then the system's python is the client.
pub(super) fn usable_program(environment: &TestEnvironment, program: &str) -> Option<String> {
    let find = match program {
        "python3" => {
            "for python in python3 /usr/bin/python3; do
                 if $python -c 'import ssl, pip' 2>/dev/null; then echo $python; break; fi
             done"
        }
        _ => &format!("if command -v {program} >/dev/null; then echo {program}; fi"),
    };
    let found = environment.run_outside(find).trim().to_string();
    (!found.is_empty()).then_some(found)
}

/// Returns the wheels of `requests` and its dependencies, which `scripts/setup` downloads.
fn wheels() -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/wheels");
    let wanted = ["requests-", "urllib3-", "certifi-", "idna-", "charset_normalizer-"];
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_wanted = |name: &str| wanted.iter().any(|start| name.starts_with(start));
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_wanted))
        .map(|entry| entry.path())
        .collect()
}

#[test]
fn real_clients_reach_allowed_hosts_and_report_refusals() {
    in_two_environments(|environment| {
        let authority = Authority::new();
        let server = Server::tls(
            &authority,
            &[ALLOWED, REFUSED],
            routes(&environment.temporary_directory().join("served")),
        );
        furnish(environment);
        let allowed = format!("{ALLOWED}:{}", server.port());
        let options = Options::policy(environment, &[&allowed], &[ALLOWED, REFUSED], REMOTES);
        let options = options.believing(environment, &authority);
        let has_requests = !wheels().is_empty();
        for Client { name, program, script } in clients() {
            let program = usable_program(environment, program);
            if program.is_none() || name == "requests" && !has_requests {
                skip_unsupported(
                    &format!("{name}, {}", environment.name()),
                    "it is not installed, or knows no TLS",
                );
                continue;
            }
            let script = script.replace("python3", program.as_deref().unwrap_or_default());
            let whole = format!(
                "try() {{ ( {script} ); }}\ntry {} allowed; echo \"allowed: $?\"; try {} refused; echo \"refused: $?\"",
                server.url_as(ALLOWED, ""),
                server.url_as(REFUSED, ""),
            );
            let outcome = environment.run(&options.words(), &["bash", "-c", &whole]);
            let printed = outcome.printed();
            let problem =
                || format!("{name}: {}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
            assert!(printed.contains(SAYS) && printed.contains("allowed: 0\n"), "{}", problem());
            assert_eq!(printed.matches(SAYS).count(), 1, "{}", problem());
            assert!(printed.contains("refused: ") && !printed.contains("refused: 0\n"), "{}", problem());
            let refusals = events(&outcome, "deny.network");
            assert!(!refusals.is_empty(), "{}", problem());
            for refusal in &refusals {
                assert_eq!(refusal["data"]["host"], REFUSED, "{}", problem());
                assert_eq!(refusal["data"]["rule"], "network.default", "{}", problem());
            }
            assert_eq!(row(&outcome, REFUSED)["refused"], refusals.len(), "{}", problem());
            assert_eq!(row(&outcome, REFUSED)["connections"], 0, "{}", problem());
            assert!(row(&outcome, ALLOWED)["connections"].as_u64() > Some(0), "{}", problem());
            assert!(row(&outcome, ALLOWED)["bytes_down"].as_u64() > Some(0), "{}", problem());
        }
        let names = server.requests().into_iter().map(|request| request.server_name);
        assert!(names.into_iter().all(|name| name.as_deref() == Some(ALLOWED)));
    });
}

/// `fetch` of an older node must use guard's proxy: over plain HTTP, with bodies, and with several requests on one
/// connection. Newer versions of node do so by themselves.
#[test]
fn fetch_of_older_node_versions_uses_the_proxy() {
    in_two_environments(|environment| {
        let server =
            Server::plain(|request| Response::text(format!("{} {}", request.method, request.body.len())));
        let own = Server::plain(|_| Response::text("not to be reached"));
        let options =
            Options::hosts(environment, &[&format!("plain.test:{}", server.port())], &["plain.test"]);
        let script = "
            const [allowed, other, direct] = process.argv.slice(1);
            const ask = async (url, options) => {
                try {
                    const answer = await fetch(url, options);
                    console.log(answer.status, await answer.text());
                } catch (error) {
                    console.log('failed', error.cause.message, error.cause.code);
                }
            };
            (async () => {
                await ask(allowed);
                await ask(new Request(allowed, { method: 'POST', body: 'x'.repeat(100000) }));
                await ask(other);
                await ask(direct);
                await ask('https://elsewhere.test/');
                console.log(fetch.name, typeof fetch, Object.keys(globalThis).includes('fetch'));
            })();";
        let (allowed, other) = (server.url_as("plain.test", "/"), server.url_as("elsewhere.test", "/"));
        let outcome =
            environment.run(&options.words(), &["node", "-e", script, &allowed, &other, &own.url("/")]);
        let printed = outcome.printed();
        let lines: Vec<&str> = printed.lines().collect();
        let problem = || format!("{}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
        assert_eq!(&lines[..2], ["200 GET 0", "200 POST 100000"], "{}", problem());
        assert!(lines[2].starts_with("403 guard: Permission denied"), "{}", problem());
        // node connects directly to hosts in `no_proxy`, and the supervisor must refuse that as usual.
        assert!(printed.contains("EACCES"), "{}", problem());
        assert!(
            printed.contains("failed guard: Permission denied: connect to elsewhere.test:443"),
            "{}",
            problem()
        );
        assert!(printed.contains("fetch function true"), "{}", problem());
        assert_eq!(own.connections(), 0);
        assert!(server.requests().iter().all(|request| request.target == "/"), "{:?}", server.requests());
    });
}

/// If a run may reach no host, guard must not change how node starts.
#[test]
fn node_options_are_unchanged_if_no_host_is_allowed() {
    in_two_environments(|environment| {
        let printed = environment.expect_success(
            "node -p '`${process.env.NODE_OPTIONS} ${String(fetch).includes(\"install\")}`'; ls -A ~",
        );
        assert!(printed.contains("undefined false") && !printed.contains(".guard"), "{printed}");
    });
}

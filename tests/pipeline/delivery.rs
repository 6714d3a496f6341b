//! Protection and pull requests, with a stand-in of GitHub's API on loopback and a real repository to push to.

use serde_json::json;

use super::{Yard, said, shown};
use crate::egress::server::{Request, Response, Server};

/// A GitHub that knows one repository: whether its base is protected, and its pull requests.
fn github(is_protected: bool) -> Server {
    let pulls = std::sync::Mutex::new(Vec::new());
    Server::plain(move |request: &Request| match (request.method.as_str(), request.path()) {
        ("GET", "/repos/acme/widget/rules/branches/main") => {
            let rules = if is_protected {
                json!([{ "type": "pull_request" }, { "type": "non_fast_forward" }])
            } else {
                json!([])
            };
            Response::json(200, &if request.query().contains("page=1") { rules } else { json!([]) })
        }
        ("GET", "/repos/acme/widget/branches/main/protection") => {
            Response::json(404, &json!({ "message": "Branch not protected" }))
        }
        ("GET", "/repos/acme/widget/pulls") => Response::json(200, &json!(*pulls.lock().unwrap())),
        ("POST", "/repos/acme/widget/pulls") => {
            let body = request.json();
            let made = json!({
                "number": 7, "html_url": "https://github.com/acme/widget/pull/7", "state": "open",
                "head": { "ref": body["head"], "label": format!("acme:{}", body["head"].as_str().unwrap()), "repo": { "full_name": "acme/widget", "name": "widget", "owner": { "login": "acme" } }, "user": { "login": "acme" } },
                "base": { "ref": body["base"], "repo": { "full_name": "acme/widget" } }, "title": body["title"],
            });
            pulls.lock().unwrap().push(made.clone());
            Response::json(201, &made)
        }
        _ => Response::json(404, &json!({ "message": "Not Found" })),
    })
}

fn yard() -> Yard {
    let yard = Yard::new();
    yard.world.outside(
        "git init -q --bare hub.git && cd repository && git remote add origin https://github.com/acme/widget.git \
         && git remote set-url --push origin ../hub.git && git config remote.origin.pushurl \"$(cd .. && pwd)/hub.git\"",
    );
    yard
}

fn task(yard: &Yard, server: &Server, arguments: &[&str]) -> crate::launch::world::Ran {
    let mut command = yard.command(arguments);
    command
        .arg("--stream-json")
        .env("GITHUB_API_URL", server.url(""))
        .env("GITHUB_SERVER_URL", "https://github.com");
    if !arguments.contains(&"resume") {
        command.arg("--trust-repository").arg("--agent-command").arg(yard.agent());
    }
    command.env("GH_TOKEN", "ghp_secretsecretsecretsecretsecretsecret12");
    yard.world.finish(command, b"")
}

#[test]
fn the_branch_becomes_a_pull_request() {
    let (yard, server) = (yard(), github(true));
    let ran = task(&yard, &server, &["--name", "x", "--require-protection", "Add a toggle."]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    let lines = said(&ran).join("\n");
    assert!(lines.contains("'main' is protected... OK."), "{lines}");
    assert!(lines.contains("Pull request opened: https://github.com/acme/widget/pull/7"), "{lines}");
    assert_eq!(ran.result["delivered"], "https://github.com/acme/widget/pull/7");
    // Whoever merges it is told where the developer's report is.
    let requests = server.requests();
    let proposal = requests.iter().find(|request| request.method == "POST").unwrap().json();
    let body = proposal["body"].as_str().unwrap();
    let report = "docs/dev_docs/archived/reviews/verification_report_x_v1.md";
    assert!(body.contains(report), "{body}");
    assert!(yard.git(&format!("show task/x:{report}")).contains("- [x] box"));
    // The one branch is there, and nothing else.
    assert_eq!(
        yard.world.outside("git -C hub.git for-each-ref --format='%(refname)'").trim(),
        "refs/heads/task/x"
    );
    assert_eq!(yard.world.outside("git -C hub.git rev-parse task/x").trim(), yard.git("rev-parse task/x"));
    let everything = String::from_utf8_lossy(&ran.output).into_owned() + &ran.error;
    assert!(!everything.contains("ghp_secret"), "the token is told");
}

/// Killed at every write while it is delivered: one pull request, found again.
#[test]
fn a_crash_while_it_is_delivered() {
    let (yard, server) = (yard(), github(true));
    // At a gate just before; then there is only merging, archiving and delivering left.
    let ran = task(&yard, &server, &["--name", "x", "--gate", "code=human", "Add a toggle."]);
    assert_eq!(ran.code, 3, "{}", shown(&ran));
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(yard.about(&["approve", &id]).code, 0);
    let mut deaths = 0;
    loop {
        let ran = task(&yard, &server, &["resume", &id, "--die-at", "2"]);
        assert_eq!(ran.code, 137, "{}", shown(&ran));
        deaths += 1;
        assert!(deaths < 60, "it does not get on");
        let list = yard.about(&["list", "--json"]);
        if list.result[0]["status"] == "succeeded" {
            assert_eq!(list.result[0]["delivered"], "https://github.com/acme/widget/pull/7");
            break;
        }
    }
    let made = server.requests().iter().filter(|request| request.method == "POST").count();
    assert_eq!(made, 1, "pull requests");
}

#[test]
fn a_base_that_is_not_protected() {
    let (yard, server) = (yard(), github(false));
    let ran = task(&yard, &server, &["--name", "x", "--require-protection", "Add a toggle."]);
    assert_eq!(ran.code, 2, "{}", shown(&ran));
    assert!(ran.error.contains("is not protected"), "{}", ran.error);
    assert_eq!(yard.git("for-each-ref refs/heads/task/"), "");
    // Without the option it is a warning; a GitHub that does not answer is one too, and no reason to stop.
    let ran = task(&yard, &server, &["--name", "y", "--gate", "plan=human", "Add a toggle."]);
    assert!(
        said(&ran).iter().any(
            |line| line.contains("Warning: 'main' of") && line.contains("pull requests are not required")
        ),
        "{}",
        shown(&ran)
    );
    drop(server);
    let silent = Server::plain(|_: &Request| Response::json(500, &json!({ "message": "no" })));
    let ran = task(&yard, &silent, &["--name", "z", "--gate", "plan=human", "Add a toggle."]);
    assert_eq!(ran.code, 3, "{}", shown(&ran));
    assert!(
        said(&ran).iter().any(|line| line.contains("cannot tell whether 'main' is protected")),
        "{}",
        shown(&ran)
    );
}

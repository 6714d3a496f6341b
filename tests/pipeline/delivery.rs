// slow
//! Tests branch protection and pull requests with an imitation of GitHub's API on loopback and a real repository.

use serde_json::json;

use crate::support::http_server::{Request, Response, Server};
use crate::support::{TaskFixture, describe_task, task_messages};

/// Starts an imitation of GitHub with one repository, its branch protection and its pull requests.
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

fn fixture() -> TaskFixture {
    let fixture = TaskFixture::new();
    fixture.environment.run_outside(
        "git init -q --bare hub.git && cd repository && git remote add origin https://github.com/acme/widget.git \
         && git remote set-url --push origin ../hub.git && git config remote.origin.pushurl \"$(cd .. && pwd)/hub.git\"",
    );
    fixture
}

fn task(fixture: &TaskFixture, server: &Server, arguments: &[&str]) -> crate::support::RunOutcome {
    let mut command = fixture.command(arguments);
    command
        .arg("--stream-json")
        .env("GITHUB_API_URL", server.url(""))
        .env("GITHUB_SERVER_URL", "https://github.com");
    if !arguments.contains(&"resume") {
        command.arg("--trust-repository").arg("--agent-command").arg(fixture.agent());
    }
    command.env("GH_TOKEN", "ghp_secretsecretsecretsecretsecretsecret12");
    fixture.environment.run_to_end(command, b"")
}

#[test]
fn finished_task_becomes_a_pull_request() {
    let (fixture, server) = (fixture(), github(true));
    let outcome = task(&fixture, &server, &["--name", "x", "--require-protection", "Add a toggle."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let lines = task_messages(&outcome).join("\n");
    assert!(lines.contains("'main' is protected... OK."), "{lines}");
    assert!(lines.contains("Pull request opened: https://github.com/acme/widget/pull/7"), "{lines}");
    assert_eq!(outcome.result["delivered"], "https://github.com/acme/widget/pull/7");
    // The text of the pull request must name the developer's report.
    let requests = server.requests();
    let proposal = requests.iter().find(|request| request.method == "POST").unwrap().json();
    let body = proposal["body"].as_str().unwrap();
    let report = "docs/dev_docs/archived/reviews/verification_report_x_v1.md";
    assert!(body.contains(report), "{body}");
    assert!(fixture.git(&format!("show task/x:{report}")).contains("- [x] box"));
    // The remote must have exactly one branch.
    assert_eq!(
        fixture.environment.run_outside("git -C hub.git for-each-ref --format='%(refname)'").trim(),
        "refs/heads/task/x"
    );
    assert_eq!(
        fixture.environment.run_outside("git -C hub.git rev-parse task/x").trim(),
        fixture.git("rev-parse task/x")
    );
    let everything = String::from_utf8_lossy(&outcome.output).into_owned() + &outcome.error;
    assert!(!everything.contains("ghp_secret"), "the token is told");
}

/// guard is killed at every write while it delivers the task. In the end there must be exactly one pull request.
#[test]
fn crash_during_delivery_creates_one_pull_request() {
    let (fixture, server) = (fixture(), github(true));
    // The task stops at a gate first, so that guard is killed only during the merge, the archive and the delivery.
    let outcome = task(&fixture, &server, &["--name", "x", "--gate", "code=human", "Add a toggle."]);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    let mut deaths = 0;
    loop {
        let outcome = task(&fixture, &server, &["resume", &id, "--die-at", "2"]);
        assert_eq!(outcome.code, 137, "{}", describe_task(&outcome));
        deaths += 1;
        assert!(deaths < 60, "it does not get on");
        let list = fixture.about(&["list", "--json"]);
        if list.result[0]["status"] == "succeeded" {
            assert_eq!(list.result[0]["delivered"], "https://github.com/acme/widget/pull/7");
            break;
        }
    }
    let made = server.requests().iter().filter(|request| request.method == "POST").count();
    assert_eq!(made, 1, "pull requests");
}

#[test]
fn unprotected_base_branch_prevents_delivery_if_required() {
    let (fixture, server) = (fixture(), github(false));
    let outcome = task(&fixture, &server, &["--name", "x", "--require-protection", "Add a toggle."]);
    assert_eq!(outcome.code, 2, "{}", describe_task(&outcome));
    assert!(outcome.error.contains("is not protected"), "{outcome}");
    assert_eq!(fixture.git("for-each-ref refs/heads/task/"), "");
    // Without the option, guard must only warn. It must also only warn if GitHub responds with an error.
    let outcome = task(&fixture, &server, &["--name", "y", "--gate", "plan=human", "Add a toggle."]);
    assert!(
        task_messages(&outcome).iter().any(
            |line| line.contains("Warning: 'main' of") && line.contains("pull requests are not required")
        ),
        "{}",
        describe_task(&outcome)
    );
    drop(server);
    let silent = Server::plain(|_: &Request| Response::json(500, &json!({ "message": "no" })));
    let outcome = task(&fixture, &silent, &["--name", "z", "--gate", "plan=human", "Add a toggle."]);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    assert!(
        task_messages(&outcome).iter().any(|line| line.contains("cannot tell whether 'main' is protected")),
        "{}",
        describe_task(&outcome)
    );
}

//! guard must create a pull request exactly once, and find it again after any failure.

use std::sync::{Arc, Mutex};

use guard::work::forge::{ForgeError, Proposal, PullRequest, Remote, pull_request};
use serde_json::{Value, json};

use super::{SECRET, environment, impatient, is_silent, remote, token};
use crate::support::http_server::{Request, Response, Server, Step};

/// The pull requests of a repository, as GitHub stores them.
#[derive(Default)]
struct Pulls {
    all: Vec<Value>,
    /// The number of list requests that do not show the newest pull request yet, as if another guard were just creating
    /// it.
    hidden: usize,
    /// The responses to the next requests that create a pull request, each with a flag: true if the server creates
    /// the pull request although the response is an error.
    troubles: Vec<(Response, bool)>,
}

fn pull(number: usize, owner: &str, head: &str, base: &str, state: &str) -> Value {
    json!({
        "number": number, "state": state, "title": "x",
        "html_url": format!("https://github.com/acme/widget/pull/{number}"),
        "url": format!("https://api.github.com/repos/acme/widget/pulls/{number}"),
        "head": { "ref": head, "label": format!("{owner}:{head}"), "repo": { "owner": { "login": owner } } },
        "base": { "ref": base, "label": format!("acme:{base}") },
    })
}

impl Pulls {
    fn list(&mut self, request: &Request) -> Response {
        if self.hidden > 0 {
            self.hidden -= 1;
            return Response::json(200, &json!([]));
        }
        let wanted = |name: &str| {
            let found = request.query().split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
            found.unwrap_or_default().replace("%2F", "/").replace("%3A", ":")
        };
        let (head, base, state) = (wanted("head"), wanted("base"), wanted("state"));
        let fits = |pull: &&Value| {
            pull["head"]["label"] == head.as_str()
                && pull["base"]["ref"] == base.as_str()
                && pull["state"] == state.as_str()
        };
        Response::json(200, &self.all.iter().filter(fits).cloned().collect())
    }

    fn make(&mut self, request: &Request) -> Response {
        let body = request.json();
        let trouble = (!self.troubles.is_empty()).then(|| self.troubles.remove(0));
        if let Some((response, false)) = trouble {
            return response;
        }
        let head = body["head"].as_str().unwrap();
        let (owner, head) = head.split_once(':').unwrap_or(("acme", head));
        let base = body["base"].as_str().unwrap();
        let same = |pull: &&Value| {
            pull["head"]["label"] == format!("{owner}:{head}").as_str()
                && pull["base"]["ref"] == base
                && pull["state"] == "open"
        };
        if self.all.iter().any(|pull| same(&pull)) {
            let error = json!({
                "resource": "PullRequest", "code": "custom",
                "message": format!("A pull request already exists for {owner}:{head}."),
            });
            return Response::json(422, &json!({ "message": "Validation Failed", "errors": [error] }));
        }
        let made = pull(self.all.len() + 7, owner, head, base, "open");
        self.all.push(made.clone());
        trouble.map_or_else(|| Response::json(201, &made), |(response, _)| response)
    }
}

fn hub(pulls: Pulls) -> (Server, Arc<Mutex<Pulls>>) {
    let pulls = Arc::new(Mutex::new(pulls));
    let shared = Arc::clone(&pulls);
    let server = Server::plain(move |request: &Request| {
        let mut pulls = shared.lock().unwrap();
        match (request.method.as_str(), request.path()) {
            ("GET", "/repos/acme/widget/pulls") => pulls.list(request),
            ("POST", "/repos/acme/widget/pulls") => pulls.make(request),
            _ => Response::not_found(),
        }
    });
    (server, pulls)
}

const PROPOSAL: Proposal<'_> =
    Proposal { head: "refs/heads/task/x", base: "main", title: "Add x", body: "It adds `x`.\n" };

fn propose(remote: &Remote) -> Result<PullRequest, ForgeError> {
    let made = pull_request(remote, &token(remote), &PROPOSAL);
    is_silent(&made);
    if let Err(error) = &made {
        is_silent(&error.to_string());
    }
    made
}

fn posts(server: &Server) -> Vec<Request> {
    server.requests().into_iter().filter(|request| request.method == "POST").collect()
}

#[test]
fn pull_request_is_created_once_and_then_found() {
    let (server, pulls) = hub(Pulls::default());
    let remote = remote(&server);
    let made = propose(&remote).unwrap();
    let url = "https://github.com/acme/widget/pull/7".to_string();
    assert_eq!(made, PullRequest { number: 7, url, existed: false });
    let asked = posts(&server);
    assert_eq!(
        asked[0].json(),
        json!({ "title": "Add x", "head": "task/x", "base": "main", "body": "It adds `x`.\n" })
    );
    assert_eq!(asked[0].header("authorization"), Some(format!("Bearer {SECRET}").as_str()));
    assert_eq!(asked[0].header("content-type"), Some("application/json"));
    // guard asks again, as after a crash before it recorded the response. It must find the pull request that it made.
    assert_eq!(propose(&remote).unwrap(), PullRequest { existed: true, ..made.clone() });
    assert_eq!((posts(&server).len(), pulls.lock().unwrap().all.len()), (1, 1));
    // guard must ignore a closed pull request, and create another one.
    pulls.lock().unwrap().all[0]["state"] = json!("closed");
    assert_eq!(propose(&remote).unwrap().number, 8);
}

#[test]
fn pull_request_created_concurrently_is_found() {
    let (server, _) =
        hub(Pulls { all: vec![pull(3, "acme", "task/x", "main", "open")], hidden: 1, ..Pulls::default() });
    let found = propose(&remote(&server)).unwrap();
    assert_eq!((found.number, found.existed), (3, true));
    assert_eq!(posts(&server).len(), 1);
    // If guard still cannot find the other pull request, the error must say so.
    let (server, _) =
        hub(Pulls { all: vec![pull(3, "acme", "task/x", "main", "open")], hidden: 9, ..Pulls::default() });
    let error = propose(&remote(&server)).unwrap_err().to_string();
    assert!(
        error.contains("already exists for acme:task/x") && error.contains("cannot find that pull request"),
        "{error}"
    );
}

#[test]
fn lost_answer_creates_no_second_pull_request() {
    let bad_gateway = || Response::new(502, "text/html", "<h1>Bad Gateway</h1>");
    // GitHub created the pull request, but the response was lost. guard must find it.
    let (server, pulls) = hub(Pulls { troubles: vec![(bad_gateway(), true)], ..Pulls::default() });
    let found = propose(&remote(&server)).unwrap();
    assert_eq!((found.number, found.existed), (7, true));
    assert_eq!(pulls.lock().unwrap().all.len(), 1);
    // GitHub did not create the pull request. guard must create it with a second request.
    let (server, pulls) = hub(Pulls { troubles: vec![(bad_gateway(), false)], ..Pulls::default() });
    assert!(!propose(&remote(&server)).unwrap().existed);
    assert_eq!((posts(&server).len(), pulls.lock().unwrap().all.len()), (2, 1));
    // The response never arrives, so guard must report an error. A later call must find the pull request.
    let silence = Response::steps("application/json", vec![Step::Silence]);
    let (server, pulls) = hub(Pulls { troubles: vec![(silence, true)], ..Pulls::default() });
    let error = propose(&impatient(&server)).unwrap_err().to_string();
    assert!(error.contains("did not respond"), "{error}");
    assert!(propose(&remote(&server)).unwrap().existed);
    assert_eq!(pulls.lock().unwrap().all.len(), 1);
}

#[test]
fn pull_requests_of_other_branches_are_not_mistaken_for_it() {
    // A server that ignores the filter of the request lists all pull requests.
    let all = json!([
        pull(1, "acme", "task/y", "main", "open"),
        pull(2, "mallory", "task/x", "main", "open"),
        pull(3, "acme", "task/x", "release", "open"),
        pull(4, "acme", "task/x", "main", "closed"),
        { "number": 5, "state": "open", "head": { "ref": "task/x", "repo": null }, "base": { "ref": "main" } },
        "not even one",
    ]);
    let server = Server::plain(move |request: &Request| match request.method.as_str() {
        "GET" => Response::json(200, &all),
        _ => Response::json(201, &pull(9, "acme", "task/x", "main", "open")),
    });
    assert_eq!(propose(&remote(&server)).unwrap().number, 9);
}

#[test]
fn head_of_a_fork_is_named_with_its_owner() {
    let (server, _) = hub(Pulls::default());
    let variables =
        environment(&[("GITHUB_API_URL", &server.url("")), ("GITHUB_SERVER_URL", "https://github.com")]);
    let fetch = "https://github.com/acme/widget";
    let remote = Remote::parse("origin", fetch, "git@github.com:me/widget.git", variables).unwrap();
    assert!(!propose(&remote).unwrap().existed);
    assert_eq!(posts(&server)[0].json()["head"], "me:task/x");
    assert!(propose(&remote).unwrap().existed);
}

#[test]
fn too_long_title_and_body_are_cut() {
    let (server, _) = hub(Pulls::default());
    let remote = remote(&server);
    let (title, body) = (format!("a\nb\u{1b}[31m{}", "ü".repeat(400)), "ß".repeat(70_000));
    let proposal = Proposal { head: "task/x", base: "refs/heads/main", title: &title, body: &body };
    pull_request(&remote, &token(&remote), &proposal).unwrap();
    let sent = posts(&server)[0].json();
    let (title, body) = (sent["title"].as_str().unwrap(), sent["body"].as_str().unwrap());
    assert_eq!((title.chars().count(), body.chars().count()), (256, 65_536));
    assert!(title.starts_with("a b [31m") && body.contains("cut here"), "{title}");
    assert_eq!(sent["base"], "main");
}

#[test]
fn refused_pull_request_reports_why_without_the_token() {
    let cases = [
        (
            422,
            json!({ "message": "Validation Failed", "errors": [{ "message": "No commits between main and task/x" }] }),
            "No commits between",
        ),
        (
            403,
            json!({ "message": "Resource not accessible by personal access token" }),
            "write permission for pull requests",
        ),
        (404, json!({ "message": "Not Found" }), "404"),
        (401, json!({ "message": format!("Bad credentials: Bearer {SECRET}") }), "the token from GH_TOKEN"),
        (500, json!({ "message": format!("at {SECRET}\u{1b}[2J\n") }), "500"),
        (201, json!({ "number": 1 }), "unexpected JSON"),
        (201, json!({ "number": 1, "html_url": "https://evil.example/acme/widget/pull/1\n" }), "unexpected"),
        (201, json!({ "number": 1, "html_url": "javascript:alert(1)//acme/widget/pull/1" }), "unexpected"),
        (201, json!({ "number": -1, "html_url": "https://github.com/acme/widget/pull/1" }), "unexpected"),
        (307, json!({}), "does not follow"),
    ];
    for (status, body, words) in cases {
        let server = Server::plain(move |request: &Request| match request.method.as_str() {
            "GET" => Response::json(200, &json!([])),
            _ => Response::json(status, &body)
                .with("location", format!("https://x:{SECRET}@evil.example/{SECRET}")),
        });
        let error = propose(&remote(&server)).unwrap_err().to_string();
        assert!(error.contains(words), "{status}: {error}");
        assert!(!error.contains('\u{1b}') && !error.contains('\n'), "{error:?}");
        assert!(
            error.starts_with("cannot open a pull request from task/x to main in acme/widget: "),
            "{error}"
        );
    }
    // If guard cannot list the existing pull requests, it must not create one.
    let server = Server::plain(|_: &Request| Response::text("garbage"));
    assert!(propose(&remote(&server)).unwrap_err().to_string().contains("not JSON"));
    assert!(posts(&server).is_empty());
    // guard must refuse a pull request from a branch to itself, and one on a service other than GitHub.
    let (server, _) = hub(Pulls::default());
    let here = remote(&server);
    let same = Proposal { head: "main", base: "refs/heads/main", ..PROPOSAL };
    assert!(pull_request(&here, &token(&here), &same).is_err());
    let url = "https://gitlab.example/acme/widget";
    let other = Remote::parse("origin", url, url, |_| None).unwrap();
    let error = pull_request(&other, &token(&here), &PROPOSAL).unwrap_err();
    assert!(error.to_string().contains("is not on GitHub") && error.hint().is_some(), "{error}");
    assert!(server.requests().is_empty());
}

//! Tests how guard decides whether a branch is protected: for every response of GitHub, and for malformed ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use guard::work::forge::{Protection, protection};
use serde_json::{Value, json};

use super::{SECRET, impatient, is_silent, remote, remote_at, token};
use crate::support::http_server::{Authority, Request, Response, Server, Step};

const RULES: &str = "/repos/acme/widget/rules/branches/main";
const CLASSIC: &str = "/repos/acme/widget/branches/main/protection";

/// Returns a rule in the format of the API.
fn rule(kind: &str) -> Value {
    json!({
        "type": kind, "ruleset_source_type": "Repository", "ruleset_source": "acme/widget", "ruleset_id": 42,
        "parameters": { "required_approving_review_count": 1 },
    })
}

/// Returns a branch protection in the format of the API.
fn classic(pull_request: bool, force: bool) -> Value {
    let mut body = json!({
        "url": "https://api.github.com/repos/acme/widget/branches/main/protection",
        "enforce_admins": { "enabled": true },
        "allow_force_pushes": { "enabled": force },
        "allow_deletions": { "enabled": false },
    });
    if pull_request {
        body["required_pull_request_reviews"] = json!({ "required_approving_review_count": 1 });
    }
    body
}

fn not_protected() -> Response {
    Response::json(404, &json!({ "message": "Branch not protected", "status": "404" }))
}

fn said(status: u16, message: &str) -> Response {
    Response::json(
        status,
        &json!({ "message": message, "documentation_url": "https://docs.github.com/rest" }),
    )
}

fn hub(rules: Response, classic: Response) -> Server {
    Server::plain(move |request: &Request| match request.path() {
        RULES => rules.clone(),
        CLASSIC => classic.clone(),
        _ => Response::not_found(),
    })
}

fn ask(server: &Server) -> Protection {
    let remote = remote(server);
    let token = token(&remote);
    let found = protection(&remote, Some(&token), "main");
    is_silent(&found);
    found
}

fn missing(found: &Protection) -> Vec<&str> {
    match found {
        Protection::Unprotected { missing } => missing.iter().map(String::as_str).collect(),
        other => panic!("{other:?}"),
    }
}

fn why(found: &Protection) -> &str {
    match found {
        Protection::Unknown { why } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn rulesets_and_classic_protection_are_combined() {
    let list = |kinds: &[&str]| Response::json(200, &kinds.iter().map(|kind| rule(kind)).collect());
    let old = |pull_request, force| Response::json(200, &classic(pull_request, force));
    for (rules, classic) in [
        (list(&["deletion", "pull_request", "non_fast_forward"]), not_protected()),
        (list(&[]), old(true, false)),
        (list(&["pull_request"]), old(false, false)),
        (list(&["non_fast_forward"]), old(true, true)),
        // The rules that one endpoint reports must count, even if the token may not read the other endpoint.
        (list(&["pull_request", "non_fast_forward"]), said(403, "Resource not accessible by integration")),
        (said(404, "Not Found"), old(true, false)),
    ] {
        assert_eq!(ask(&hub(rules.clone(), classic.clone())), Protection::Protected, "{rules:?} {classic:?}");
    }
    let (request, force) = ("pull requests are not required", "force pushes are not blocked");
    for (rules, classic, wanted) in [
        (list(&[]), not_protected(), vec![request, force]),
        (list(&["pull_request"]), not_protected(), vec![force]),
        (list(&["non_fast_forward", "update"]), not_protected(), vec![request]),
        (list(&["pull_request"]), old(true, true), vec![force]),
        (list(&[]), old(false, false), vec![request]),
        // A protection that the response does not mention is not in force.
        (list(&[]), Response::json(200, &json!({ "required_pull_request_reviews": {} })), vec![force]),
        (
            list(&[]),
            Response::json(200, &json!({ "allow_force_pushes": { "enabled": false } })),
            vec![request],
        ),
        (list(&["Pull_Request", "non_fast_forwards"]), not_protected(), vec![request, force]),
    ] {
        assert_eq!(missing(&ask(&hub(rules.clone(), classic.clone()))), wanted, "{rules:?} {classic:?}");
    }
}

#[test]
fn unreadable_protection_never_counts_as_protected() {
    let some = || Response::json(200, &json!([rule("pull_request")]));
    for (rules, classic, words) in [
        // One endpoint answers, and the other one cannot be read.
        (some(), said(403, "Resource not accessible by personal access token"), "personal access token"),
        (some(), said(404, "Not Found"), "404"),
        (some(), said(404, "Branch not found"), "Branch not found"),
        (some(), said(404, "This is not \"Branch not protected\" at all"), "404"),
        (some(), said(401, "Bad credentials"), "does not accept the token from GH_TOKEN"),
        (said(403, "Upgrade to GitHub Pro or make this repository public"), not_protected(), "Upgrade to"),
        (said(404, "Not Found"), not_protected(), "its rulesets cannot be read"),
        (said(401, "Bad credentials"), said(401, "Bad credentials"), "401"),
        // The response is not an answer to the request.
        (Response::text("<html>pull_request non_fast_forward</html>"), not_protected(), "not JSON"),
        (Response::json(200, &json!({ "type": "pull_request" })), not_protected(), "unexpected JSON"),
        (Response::json(200, &json!(["pull_request", "non_fast_forward"])), not_protected(), "unexpected"),
        (
            Response::json(201, &json!([rule("pull_request"), rule("non_fast_forward")])),
            not_protected(),
            "201",
        ),
        (some(), Response::json(200, &json!([classic(true, false)])), "unexpected JSON"),
        (some(), Response::text(""), "not JSON"),
        (some(), Response::json(203, &classic(true, false)), "203"),
        // GitHub's primary rate limit ends only within the hour, so guard must not wait for it.
        (
            said(403, "API rate limit exceeded for user ID 1.").with("x-ratelimit-remaining", "0"),
            not_protected(),
            "rate limit is exceeded",
        ),
    ] {
        let server = hub(rules, classic);
        let found = ask(&server);
        assert!(why(&found).contains(words), "{words}: {found:?}");
        assert!(server.requests().len() <= 2, "asked again: {words}");
    }
}

#[test]
fn requests_have_the_form_that_github_documents() {
    let server = hub(Response::json(200, &json!([])), not_protected());
    assert_eq!(missing(&ask(&server)).len(), 2);
    let asked = server.requests();
    assert_eq!(
        asked.iter().map(|request| (request.method.as_str(), request.path())).collect::<Vec<_>>(),
        [("GET", RULES), ("GET", CLASSIC)]
    );
    for request in &asked {
        assert_eq!(request.header("authorization"), Some(format!("Bearer {SECRET}").as_str()));
        assert_eq!(request.header("accept"), Some("application/vnd.github+json"));
        assert_eq!(request.header("x-github-api-version"), Some("2022-11-28"));
        assert!(request.header("user-agent").is_some_and(|agent| agent.starts_with("guard/")));
        assert!(!request.target.contains(SECRET));
    }
    // The branch name contains a slash, or characters that would change the request.
    for (branch, part) in [
        ("release/1.x", "release%2F1.x"),
        ("refs/heads/main", "main"),
        ("a?b#c%20&d", "a%3Fb%23c%2520%26d"),
        ("größe", "gr%C3%B6%C3%9Fe"),
    ] {
        let server = Server::plain(|_: &Request| Response::not_found());
        let remote = remote(&server);
        let found = protection(&remote, Some(&token(&remote)), branch);
        assert!(matches!(found, Protection::Unknown { .. }), "{found:?}");
        let paths: Vec<String> = server.requests().iter().map(|request| request.path().to_string()).collect();
        let wanted = [
            format!("/repos/acme/widget/rules/branches/{part}"),
            format!("/repos/acme/widget/branches/{part}/protection"),
        ];
        assert_eq!(paths, wanted, "{branch}");
    }
}

#[test]
fn branch_rules_are_read_to_the_last_page() {
    let pages = |last: usize| {
        Server::plain(move |request: &Request| {
            if request.path() != RULES {
                return not_protected();
            }
            let page: usize = request.query().split("page=").last().unwrap().parse().unwrap();
            let kind = if page == last { "non_fast_forward" } else { "pull_request" };
            let response = Response::json(200, &json!([rule(kind)]));
            // guard must not follow the address in this header. It must only use the fact that there is a next page.
            let next = "<http://192.0.2.1/steal?page=2>; rel=\"next\", <http://192.0.2.1/>; rel=\"last\"";
            if page < last { response.with("link", next) } else { response }
        })
    };
    let server = pages(3);
    assert_eq!(ask(&server), Protection::Protected);
    assert_eq!(server.requests().len(), 4);
    // guard must stop after 10 pages, and report that it does not know whether the branch is protected.
    let server = pages(1_000_000);
    let found = ask(&server);
    assert!(why(&found).contains("more than 10 pages"), "{found:?}");
    assert_eq!(server.requests().len(), 11);
}

#[test]
fn protection_without_a_token_uses_only_public_endpoints() {
    let all = Response::json(200, &json!([rule("pull_request"), rule("non_fast_forward")]));
    let server = hub(all, Response::json(200, &classic(true, false)));
    assert_eq!(protection(&remote(&server), None, "main"), Protection::Protected);
    let server = hub(Response::json(200, &json!([])), Response::json(200, &classic(true, false)));
    let found = protection(&remote(&server), None, "main");
    assert!(why(&found).contains("needs a token"), "{found:?}");
    assert!(server.requests().iter().all(|request| request.header("authorization").is_none()));
    assert!(server.requests().iter().all(|request| request.path() == RULES));
}

#[test]
fn failing_service_is_retried_a_limited_number_of_times() {
    // The service fails twice and then answers. guard must retry.
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let server = Server::plain(move |request: &Request| match request.path() {
        RULES => match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Response::new(502, "text/html", "<h1>Bad Gateway</h1>"),
            1 => said(403, "You have exceeded a secondary rate limit. Please wait.").with("retry-after", "1"),
            _ => Response::json(200, &json!([rule("pull_request"), rule("non_fast_forward")])),
        },
        _ => not_protected(),
    });
    let began = Instant::now();
    assert_eq!(ask(&server), Protection::Protected);
    assert!(began.elapsed() >= Duration::from_millis(1500), "the pauses were left out");
    assert_eq!(count.load(Ordering::SeqCst), 3);
    // The service fails every time. guard must stop after four attempts.
    let server = hub(Response::new(503, "text/plain", "no"), not_protected());
    let found = ask(&server);
    assert!(why(&found).contains("503"), "{found:?}");
    assert_eq!(server.requests().iter().filter(|request| request.path() == RULES).count(), 4);
    // The service asks for a pause of a minute. guard must not retry.
    let limited = said(429, "You have exceeded a secondary rate limit.").with("retry-after", "60");
    let server = hub(limited, not_protected());
    let found = ask(&server);
    assert!(why(&found).contains("rate limit is exceeded"), "{found:?}");
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn slow_huge_and_broken_answers_are_errors() {
    let cases = [
        ("silent", vec![Step::Bytes(b"[".to_vec()), Step::Silence], "did not respond within"),
        ("cut", vec![Step::Bytes(b"[{\"type\": \"pull_request\"}".to_vec()), Step::Cut], "the request to"),
    ];
    for (name, steps, words) in cases {
        let server = Server::plain(move |request: &Request| match request.path() {
            RULES => Response::steps("application/json", steps.clone()),
            _ => not_protected(),
        });
        let remote = impatient(&server);
        let began = Instant::now();
        let found = protection(&remote, Some(&token(&remote)), "main");
        assert!(why(&found).contains(words), "{name}: {found:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{name}: {:?}", began.elapsed());
    }
    // The server sends one space at a time, without end. guard must stop at its time limit.
    let drip: Vec<Step> =
        (0..1000).flat_map(|_| [Step::Bytes(b" ".to_vec()), Step::Wait(Duration::from_millis(20))]).collect();
    let server = Server::plain(move |request: &Request| match request.path() {
        RULES => Response::steps("application/json", drip.clone()),
        _ => not_protected(),
    });
    let remote_of_drip = impatient(&server);
    let found = protection(&remote_of_drip, Some(&token(&remote_of_drip)), "main");
    assert!(why(&found).contains("did not respond within 0.3 seconds"), "{found:?}");
    // The response has five MiB, with or without a length, and begins with valid rules. guard must refuse it.
    let mut huge = br#"[{"type":"pull_request"},{"type":"non_fast_forward"}"#.to_vec();
    huge.resize(5 << 20, b' ');
    huge.push(b']');
    for response in [
        Response::new(200, "application/json", huge.clone()),
        Response::steps("application/json", vec![Step::Bytes(huge)]),
    ] {
        let found = ask(&hub(response, not_protected()));
        assert!(why(&found).contains("larger than 4194304 bytes"), "{found:?}");
    }
    // The response is nested too deeply.
    let found = ask(&hub(Response::new(200, "application/json", "[".repeat(100_000)), not_protected()));
    assert!(why(&found).contains("not JSON"), "{found:?}");
    // No server listens at this address.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let remote = remote_at(&format!("http://{gone}"));
    let found = protection(&remote, Some(&token(&remote)), "main");
    assert!(why(&found).contains("cannot be reached"), "{found:?}");
}

#[test]
fn redirects_of_the_api_are_not_followed() {
    let thief = Server::plain(|_: &Request| Response::json(200, &json!([rule("pull_request")])));
    for status in [301, 302, 303, 307, 308] {
        let to = thief.url("/repos/acme/widget/rules/branches/main");
        let server = hub(said(status, "Moved Permanently").with("location", to), not_protected());
        let found = ask(&server);
        assert!(why(&found).contains("does not follow") && why(&found).contains("set-url"), "{found:?}");
        assert_eq!(server.requests().len(), 2);
    }
    assert_eq!(thief.connections(), 0, "the token was carried to somebody else");
}

#[test]
fn token_is_not_sent_to_an_untrusted_certificate() {
    let server = Server::tls(&Authority::new(), &["127.0.0.1"], |_: &Request| not_protected());
    let found = ask(&server);
    assert!(why(&found).contains("cannot be reached"), "{found:?}");
    assert!(server.requests().is_empty(), "a stranger was asked");
}

/// guard must trust a certificate that the machine trusts. The trusted certificates come from the environment, so the
/// test runs itself again as another process.
#[test]
fn certificate_trusted_by_the_machine_is_accepted() {
    const AGAIN: &str = "GUARD_TEST_FORGE_TLS";
    if std::env::var_os(AGAIN).is_some() {
        let variable = |name: &str| std::env::var(name).ok();
        let url = "git@ghe.example.test:acme/widget";
        let remote = guard::work::forge::Remote::parse("origin", url, url, |name| match name {
            "GITHUB_SERVER_URL" => Some("https://ghe.example.test".to_string()),
            name => variable(name),
        });
        let remote = remote.unwrap();
        let token = guard::work::forge::Token::find(&remote).unwrap().unwrap();
        assert_eq!(protection(&remote, Some(&token), "main"), Protection::Protected);
        return;
    }
    let authority = Authority::new();
    let server = Server::tls(&authority, &["127.0.0.1"], |request: &Request| match request.path() {
        "/api/v3/repos/acme/widget/branches/main/protection" => Response::json(200, &classic(true, false)),
        _ => Response::not_found(),
    });
    let scratch = crate::support::Scratch::new("forge-tls");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "forge::branch_protection::certificate_trusted_by_the_machine_is_accepted"])
        .env(AGAIN, "1")
        .env("SSL_CERT_FILE", scratch.write("ca.pem", authority.pem()))
        .env("GITHUB_API_URL", server.url("/api/v3"))
        .env_remove("GH_TOKEN")
        .env("GITHUB_TOKEN", SECRET)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let asked = server.requests();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(asked[1].header("authorization"), Some(format!("Bearer {SECRET}").as_str()));
}

/// guard connects through the corporate proxy, which must see only the host name and not the token.
#[test]
fn upstream_proxy_does_not_see_the_token() {
    let proxy = Server::plain(|_: &Request| Response::new(403, "text/plain", "not here"));
    let api = "https://ghe.example.test/api/v3";
    let url = "https://ghe.example.test/acme/widget";
    let variables =
        super::environment(&[("GITHUB_API_URL", api), ("https_proxy", &proxy.url("")), ("GH_TOKEN", SECRET)]);
    let remote = guard::work::forge::Remote::parse("origin", url, url, variables).unwrap();
    let found = protection(&remote, Some(&token(&remote)), "main");
    assert!(why(&found).contains("the upstream proxy") && why(&found).contains("403"), "{found:?}");
    let asked = proxy.requests();
    assert!(!asked.is_empty());
    for request in asked {
        assert_eq!((request.method.as_str(), request.target.as_str()), ("CONNECT", "ghe.example.test:443"));
        is_silent(&request);
    }
}

/// A caller inside an async runtime must be able to query the API, although a runtime cannot be entered twice.
#[test]
fn protection_can_be_queried_inside_an_async_runtime() {
    let server = hub(Response::json(200, &json!([])), not_protected());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let found = runtime.block_on(async { ask(&server) });
    assert_eq!(missing(&found).len(), 2);
}

#[test]
fn other_forges_are_not_queried() {
    let url = "https://gitlab.example/acme/widget.git";
    let remote = guard::work::forge::Remote::parse("origin", url, url, |_| None).unwrap();
    let found = protection(&remote, None, "main");
    assert_eq!(why(&found), "https://gitlab.example/acme/widget.git is not on GitHub");
}

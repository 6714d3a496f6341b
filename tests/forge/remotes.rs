//! guard must read the addresses of remotes as git does.

use guard::work::forge::{Kind, Remote};
use proptest::prelude::*;

use super::environment;
use crate::support::TestRepository;

fn understand(url: &str) -> Remote {
    Remote::parse("origin", url, url, |_| None).unwrap()
}

fn names(remote: &Remote) -> Option<(&str, &str)> {
    remote.github().map(|github| (github.owner.as_str(), github.repo.as_str()))
}

#[test]
fn github_addresses_are_recognised() {
    for url in [
        "https://github.com/acme/widget.git",
        "https://github.com/acme/widget",
        "https://github.com/acme/widget/",
        "https://GitHub.com/acme/widget.git",
        "https://github.com:443/acme/widget.git",
        "https://me@github.com/acme/widget.git",
        "https://me:p%40ss@github.com/acme/widget.git",
        "https://github.com:x@github.com/acme/widget.git",
        "http://www.github.com/acme/widget.git",
        "ssh://git@github.com/acme/widget.git",
        "ssh://git@github.com:22/acme/widget",
        "ssh://git@ssh.github.com:443/acme/widget.git",
        "git+ssh://git@github.com/acme/widget.git",
        "git://github.com/acme/widget.git",
        "git@github.com:acme/widget.git",
        "git@github.com:/acme/widget.git",
        "github.com:acme/widget",
        "[git@github.com:22]:acme/widget.git",
        "git@[github.com]:acme/widget.git",
    ] {
        let remote = understand(url);
        assert_eq!(names(&remote), Some(("acme", "widget")), "{url}");
        assert_eq!(remote.github().unwrap().api.to_string(), "https://api.github.com", "{url}");
        assert_eq!(remote.host.as_deref(), Some("github.com"), "{url}");
        assert!(!remote.shown.contains('@'), "{}", remote.shown);
    }
}

#[test]
fn other_addresses_are_not_github() {
    for (url, host, shown) in [
        ("/srv/git/widget.git", None, "/srv/git/widget.git"),
        ("../widget.git", None, "../widget.git"),
        ("./a:b", None, "./a:b"),
        ("widget", None, "widget"),
        ("file:///srv/widget.git", None, "file:///srv/widget.git"),
        (
            "https://gitlab.example/acme/widget.git",
            Some("gitlab.example"),
            "https://gitlab.example/acme/widget.git",
        ),
        (
            "https://u:secret@gitlab.example:8443/a/b",
            Some("gitlab.example"),
            "https://gitlab.example:8443/a/b",
        ),
        ("git@github-work:acme/widget.git", Some("github-work"), "ssh://github-work/acme/widget.git"),
        (
            "https://github.com.evil.example/acme/widget",
            Some("github.com.evil.example"),
            "https://github.com.evil.example/acme/widget",
        ),
        (
            "https://github.com@evil.example/acme/widget",
            Some("evil.example"),
            "https://evil.example/acme/widget",
        ),
        ("https://notgithub.com/acme/widget", Some("notgithub.com"), "https://notgithub.com/acme/widget"),
        ("https://github.com/acme", Some("github.com"), "https://github.com/acme"),
        ("https://github.com/acme/widget/more", Some("github.com"), "https://github.com/acme/widget/more"),
        ("https://github.com/../widget", Some("github.com"), "https://github.com/../widget"),
        ("https://github.com/acme/..", Some("github.com"), "https://github.com/acme/.."),
        ("https://github.com/acme/%2e%2e", Some("github.com"), "https://github.com/acme/%2e%2e"),
        ("https://github.com/acme/.git", Some("github.com"), "https://github.com/acme/.git"),
        // guard must not show an address that may contain a credential, and must not interpret one that two parsers
        // could read differently.
        ("https://evil.example?@github.com/acme/widget", None, "https://…"),
        ("https://github.com/acme/widget?token=secret", None, "https://…"),
        ("https://github.com\\@evil.example/acme/widget", None, "an address with control characters"),
        ("https://u:se/cret@github.com/acme/widget", None, "https://…"),
        ("https://github.com/acme/wid\nget", None, "an address with control characters"),
        ("ext::sh -c secret", None, "ext::…"),
        ("codecommit::eu-west-1://secret", None, "codecommit::…"),
        ("s3://key:secret@bucket/x", None, "s3://…"),
        ("", None, ""),
    ] {
        let remote = understand(url);
        assert_eq!(remote.kind, Kind::Other, "{url}");
        assert_eq!((remote.host.as_deref(), remote.shown.as_str()), (host, shown), "{url}");
    }
}

#[test]
fn github_enterprise_host_comes_only_from_the_environment() {
    let at = |url: &str, pairs: &[(&str, &str)]| Remote::parse("origin", url, url, environment(pairs));
    let api = ("GITHUB_API_URL", "https://ghe.example.org/api/v3");
    let found = at("git@ghe.example.org:acme/widget.git", &[api]).unwrap();
    assert_eq!(found.github().unwrap().api.to_string(), "https://ghe.example.org/api/v3");
    // `GITHUB_API_URL` names one enterprise host. It must not change how guard treats github.com and other hosts.
    let found = at("git@github.com:acme/widget.git", &[api]).unwrap();
    assert_eq!(found.github().unwrap().api.to_string(), "https://api.github.com");
    assert_eq!(at("git@other.example.org:acme/widget.git", &[api]).unwrap().kind, Kind::Other);
    let found = at("git@acme.ghe.com:acme/widget", &[("GITHUB_API_URL", "https://api.acme.ghe.com")]);
    assert!(found.unwrap().github().is_some());
    // guard must refuse an API address to which no token may be sent.
    for bad in [
        "http://ghe.example.org/api/v3",
        "ghe.example.org",
        "https://me:hidden@ghe.example.org/",
        "ftp://x",
        "https://ghe.example.org/../x",
    ] {
        let error = at("git@ghe.example.org:acme/widget.git", &[("GITHUB_API_URL", bad)]).unwrap_err();
        assert!(error.to_string().contains("GITHUB_API_URL") && error.hint().is_some(), "{error}");
        assert!(!format!("{error:?} {error}").contains("hidden"), "{error}");
    }
    let error = at("git@github.com:a/b", &[("all_proxy", "socks5://me:hidden@p:1")]).unwrap_err();
    assert!(error.to_string().contains("all_proxy") && !error.to_string().contains("hidden"), "{error}");
}

/// guard must apply the user's `insteadOf` abbreviations from the configuration that git would use.
#[test]
fn remote_abbreviations_are_resolved_as_in_git() {
    let fixture = TestRepository::new();
    let of = |name: &str| Remote::with(&fixture.find(), name, |_| None).unwrap();
    assert_eq!(of("origin"), None);
    fixture.git(&["config", "url.https://me:secret@github.com/.insteadOf", "gh:"]);
    fixture.git(&["remote", "add", "origin", "gh:acme/widget"]);
    fixture.git(&["remote", "add", "up-stream", "https://github.com/acme/widget"]);
    fixture.git(&["remote", "set-url", "--push", "up-stream", "gh:me/widget"]);
    let origin = of("origin").unwrap();
    assert_eq!(
        (names(&origin), origin.shown.as_str()),
        (Some(("acme", "widget")), "https://github.com/acme/widget")
    );
    let up = of("up-stream").unwrap();
    assert_eq!((names(&up), up.github().unwrap().pushes_to.as_str()), (Some(("acme", "widget")), "me"));
    for odd in ["--all", "-h", "", "https://github.com/acme/widget", "no such"] {
        assert_eq!(of(odd), None, "{odd:?}");
    }
    // In a linked worktree guard must read the same remote.
    fixture.git(&["worktree", "add", "--quiet", "../linked", "-b", "other"]);
    let linked = guard::git::Repository::find(&fixture.scratch.0.join("linked")).unwrap().unwrap();
    assert_eq!(Remote::with(&linked, "origin", |_| None).unwrap(), Some(origin));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn remotes_never_show_credentials(
        scheme in prop::sample::select(vec!["https", "http", "ssh", "git", "HTTPS", "ftp", "s3"]),
        user in "[a-zA-Z0-9]{0,8}",
        padding in "[!-~]{0,12}",
        host in prop::sample::select(vec!["github.com", "gitlab.example", "[::1]", "10.0.0.1", "x..y", ""]),
        port in prop::option::of(0u32..70_000),
        path in "[!-~]{0,30}",
    ) {
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let url = format!("{scheme}://{user}:{padding}hunter2{padding}@{host}{port}/{path}");
        let remote = Remote::parse("origin", &url, &url, |_| None).unwrap();
        prop_assert!(!format!("{remote:?}").contains("hunter2"), "{url}: {remote:?}");
    }

    #[test]
    fn every_spelling_of_a_github_address_is_the_same_repository(
        owner in "[a-zA-Z0-9][a-zA-Z0-9-]{0,20}",
        repo in "[a-zA-Z0-9_][a-zA-Z0-9._-]{0,20}[a-zA-Z0-9_]",
        user in "[a-z]{1,8}",
    ) {
        prop_assume!(!repo.ends_with(".git"));
        for url in [
            format!("https://github.com/{owner}/{repo}"),
            format!("https://github.com/{owner}/{repo}.git"),
            format!("https://{user}:x@github.com/{owner}/{repo}.git/"),
            format!("ssh://{user}@github.com:22/{owner}/{repo}.git"),
            format!("{user}@github.com:{owner}/{repo}.git"),
            format!("{user}@github.com:{owner}/{repo}"),
        ] {
            let remote = understand(&url);
            prop_assert_eq!(names(&remote), Some((owner.as_str(), repo.as_str())), "{}", url);
        }
    }

    #[test]
    fn any_text_parses_as_a_remote(text in "\\PC{0,60}|[a-z@:/\\[\\]?#.]{0,40}") {
        let remote = Remote::parse("origin", &text, &text, |_| None).unwrap();
        // An address that guard takes for GitHub must contain an owner and a repository with valid names.
        if let Some((owner, repo)) = names(&remote) {
            let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            prop_assert!(is_name(owner) && is_name(repo) && ![".", ".."].contains(&owner) && ![".", ".."].contains(&repo));
            prop_assert_eq!(remote.host.as_deref(), Some("github.com"));
        }
    }
}

//! Judges hostile and broken input. Every input must get a verdict with a reason, in bounded time and memory, and never
//! cause a panic.

use std::time::Duration;

use guard::judge::command::{Context, Cwd, Request};
use guard::judge::decide::{Verdict, judge};
use guard::judge::policy::Policy;

use crate::support::{argv, policy, shell};

/// The limit on the CPU time of one judgement: far above what any of these inputs takes without optimization, and far
/// below what a user would call a hang.
const CPU_LIMIT: Duration = Duration::from_secs(5);

/// Judges an input and fails if that takes too long. Counts the CPU time of this thread, because other tests run at
/// the same time.
fn quick(name: &str, judge: impl FnOnce() -> Verdict) -> Verdict {
    let start = thread_cpu_time();
    let verdict = judge();
    let took = thread_cpu_time() - start;
    assert!(took < CPU_LIMIT, "{name} took {took:?} of CPU time");
    verdict
}

fn thread_cpu_time() -> Duration {
    Duration::from(nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap())
}

fn denied_by(rule: &str, verdict: &Verdict) {
    assert_eq!(
        (verdict.action().name(), verdict.cause.rule.as_str()),
        ("deny", rule),
        "{}",
        verdict.cause.reason
    );
}

#[test]
fn empty_commands_and_nul_bytes_are_denied() {
    let strict = policy("strict");
    denied_by("input.empty", &argv::<&str>(&strict, &[]));
    denied_by("input.empty", &argv(&strict, &[""]));
    denied_by("input.empty", &shell(&strict, ""));
    denied_by("input.empty", &shell(&strict, " \n\t"));
    denied_by("input.nul", &argv(&strict, &["ls", "a\0b"]));
    denied_by("input.syntax", &shell(&strict, "ls a\0b"));
    denied_by("input.syntax", &shell(&strict, "echo 'a\0b'"));
}

#[test]
fn bytes_that_are_not_utf8_are_judged_unchanged() {
    let strict = policy("strict");
    denied_by("git.switch", &argv(&strict, &[b"git".as_slice(), b"checkout", b"\xff\xfe"]));
    denied_by("git.switch", &shell(&strict, b"echo \xff; git switch \xc3\x41"));
    assert_eq!(shell(&strict, b"echo \xff\xfe > \xff.txt").action().name(), "allow");
    assert_eq!(argv(&strict, &[b"\xff\xfe".as_slice(), b"x"]).action().name(), "allow");
}

#[test]
fn large_commands_are_judged_quickly_or_denied_by_size() {
    let strict = policy("strict");
    let big = "x".repeat(2 << 20);
    assert_eq!(
        quick("2 MiB message", || argv(&strict, &["git", "commit", "-m", &big])).action().name(),
        "allow"
    );
    denied_by("git.switch", &quick("2 MiB operand", || argv(&strict, &["git", "checkout", &big])));
    let many: Vec<String> =
        ["git", "add"].into_iter().map(str::to_string).chain((0..100_000).map(|n| format!("f{n}"))).collect();
    assert_eq!(quick("100,000 arguments", || argv(&strict, &many)).action().name(), "allow");
    denied_by("input.size", &quick("5 MiB", || shell(&strict, "y".repeat(5 << 20))));
    denied_by("input.count", &quick("many commands", || shell(&strict, "a;".repeat(100_000))));
}

/// Short texts whose brace expansion would need gigabytes. guard must not expand them.
#[test]
fn brace_expansions_are_bounded() {
    let strict = policy("strict");
    let long = "a".repeat(30_000);
    for word in [
        format!("{long}{{{}}}", ",".repeat(30_000)),
        format!("{{1..1000}}{long}"),
        format!("{{{}1..1024}}", "0".repeat(30_000)),
        "{0,1}".repeat(100),
        format!("{{1..1000}}{}", "$x".repeat(500)),
    ] {
        let text = format!("x={}; echo {word}", "b".repeat(1000));
        let verdict = quick(&word[..20], || shell(&strict, text));
        assert!(!verdict.cause.reason.is_empty(), "{}", &word[..20]);
    }
}

#[test]
fn deep_nesting_is_denied_or_judged_quickly() {
    let strict = policy("strict");
    for (open, close) in [
        ("(", ")"),
        ("{ ", "; }"),
        ("$(", ")"),
        ("\"$(", ")\""),
        ("${a:-", "}"),
        ("$((", "))"),
        ("((", "))"),
        ("[[ ( ", " ) ]]"),
        ("if true; then ", "; fi"),
        ("while ", "; do :; done"),
        ("for i in a; do ", "; done"),
        ("case a in a) ", ";; esac"),
        ("f() { ", "; }"),
        ("<(", ")"),
        ("a=(", ")"),
        ("`", "`"),
        ("! ", ""),
        ("a[", "]=1"),
        ("@(", ")"),
        ("{", ",b}"),
        ("$[", "]"),
    ] {
        let text = format!("{}echo{}", open.repeat(10_000), close.repeat(10_000));
        let verdict = quick(open, || shell(&strict, &text));
        assert!(!verdict.cause.reason.is_empty(), "{open}");
        // Brackets that are never closed, and brackets that are closed without being opened.
        let _ = quick(open, || shell(&strict, open.repeat(10_000)));
        let _ = quick(close, || shell(&strict, close.repeat(10_000)));
        let _ = quick("mixed", || shell(&strict, format!("{open}{close}").repeat(10_000)));
    }
    let verdict = shell(&strict, format!("{}ls{}", "( ".repeat(10_000), " )".repeat(10_000)));
    denied_by("input.depth", &verdict);
    assert!(verdict.cause.reason.contains("deeper than 64 levels"), "{}", verdict.cause.reason);
    denied_by("input.depth", &argv(&strict, &vec!["env"; 1000]));
    assert_eq!(shell(&strict, format!("{}ls{}", "( ".repeat(20), " )".repeat(20))).action().name(), "allow");
}

#[test]
fn unterminated_shell_constructs_are_denied() {
    let strict = policy("strict");
    for text in [
        "echo 'a",
        "echo \"a",
        "echo $(a",
        "echo `a",
        "echo ${a",
        "echo $((1",
        "(a",
        "{ a",
        "if a; then b",
        "case a in",
        "for i in a; do b",
        "while a; do b",
        "[[ a",
        "a=(b",
        "echo $'a",
        "f() {",
        "a && ",
        "a |",
        "| a",
        "&& a",
        ";; a",
        "echo )",
        "fi",
        "a & & b",
    ] {
        denied_by("input.syntax", &shell(&strict, text));
    }
}

#[test]
fn exponentially_growing_definitions_stay_bounded() {
    let strict = policy("strict");
    // Each of these definitions would double with every step if the analysis followed it without a limit.
    let mut variables = String::from("a=xxxxxxxx;");
    variables.push_str(&"a=$a$a;".repeat(10_000));
    let _ = quick("variables", || shell(&strict, &variables));
    let aliases: String = (0..200).map(|n| format!("alias a{n}='a{} ; a{}';", n + 1, n + 1)).collect();
    let _ = quick("aliases", || shell(&strict, format!("{aliases} a0")));
    let functions: String = (0..200).map(|n| format!("f{n}() {{ f{}; f{}; }};", n + 1, n + 1)).collect();
    let _ = quick("functions", || shell(&strict, format!("{functions} f0")));
    let _ = quick("fork bomb", || shell(&strict, ":(){ :|:& };:"));
    let _ = quick("braces", || shell(&strict, format!("echo {}", "{a,b}".repeat(2000))));
    let _ = quick("sequence", || shell(&strict, "echo {1..2147483647}"));
    let mut nested = "git checkout main".to_string();
    for _ in 0..6 {
        nested = format!("eval {}", shell_words::quote(&nested));
    }
    denied_by("git.switch", &quick("eval of eval", || shell(&strict, &nested)));
    let subscripts = "a[".repeat(300_000);
    let _ = quick("subscripts", || shell(&strict, &subscripts));
    let unset: String = (0..5000).map(|n| format!("GIT_X{n}=1;(ls);")).collect();
    let _ = quick("variables and subshells", || shell(&strict, &unset));
    // git starts programs that its configuration names, and these inherit the configuration, so the analysis could
    // recurse for ever.
    let inherited = "GIT_CONFIG_PARAMETERS=\"'core.pager=git log'\" GIT_EDITOR='git commit' bash -c 'git commit; git log'";
    let _ = quick("inherited configuration", || shell(&strict, inherited));
    let _ = quick("quotes", || shell(&strict, "''\"\"".repeat(200_000)));
    let _ = quick("heredocs on one line", || {
        shell(&strict, format!("cat {}\n{}", "<<A ".repeat(20_000), "A\n".repeat(20_000)))
    });
}

#[test]
fn recursive_git_aliases_are_denied() {
    let strict = policy("strict");
    let loops = [
        "git -c alias.a=b -c alias.b=a a",
        "git -c alias.a=a a",
        "git -c alias.a='!git a' a",
        "git -c 'alias.a=-c alias.b=c b' a",
    ];
    for text in loops {
        let verdict = quick(text, || shell(&strict, text));
        assert_eq!(verdict.action().name(), "deny", "{text}");
    }
    let chain: String = (0..30).map(|n| format!("-c alias.a{n}=a{} ", n + 1)).collect();
    let verdict = quick("chain", || shell(&strict, format!("git {chain} -c alias.a30=reset a0 --hard")));
    assert_eq!(verdict.action().name(), "deny");
    let settings: String = (0..10_000).map(|n| format!("-c a.b{n}=c ")).collect();
    assert_eq!(
        quick("10,000 settings", || shell(&strict, format!("git {settings} status"))).action().name(),
        "allow"
    );
}

#[test]
fn size_and_depth_limits_of_a_policy_are_enforced() {
    let text = "version = 1\nname = \"small\"\n[limits]\ncommand_bytes = 1024\ncommand_depth = 4\n";
    let small: Policy =
        guard::judge::decide::load_text(crate::support::source(text), &Default::default()).unwrap();
    denied_by("input.size", &shell(&small, "x".repeat(2000)));
    denied_by("input.depth", &shell(&small, "( ( ( ( ( ( a ) ) ) ) ) )"));
    let context = Context { cwd: Cwd::Unknown, ..Context::default() };
    assert_eq!(judge(&small, &Request::Shell(b"ls".to_vec()), &context).0.action().name(), "allow");
}

/// Every git command reads the caller's environment. Many commands and many variables together must not take long.
#[test]
fn many_git_commands_with_many_variables_are_judged_quickly() {
    let policy = policy("strict");
    let number = |name: &str, count: usize| {
        (0..count).map(|index| (format!("{name}{index}").into_bytes(), b"x.y".to_vec())).collect::<Vec<_>>()
    };
    let mut environment = number("GIT_", 3000);
    environment.extend([number("GIT_CONFIG_KEY_", 512), number("GIT_CONFIG_VALUE_", 512)].concat());
    environment.push((b"GIT_CONFIG_COUNT".to_vec(), b"512".to_vec()));
    let context = Context { environment, ..Context::default() };
    let request = Request::Shell("git log;".repeat(5000).into());
    let verdict = quick("git commands", || judge(&policy, &request, &context).0);
    assert_eq!(verdict.action().name(), "deny", "{}", verdict.cause.reason);
}

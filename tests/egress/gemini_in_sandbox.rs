//! Runs the real Gemini CLI in the sandbox behind guard's gateway. The CLI must work, and must never see the API key.

use serde_json::Value;

use super::gemini::{Gemini, Session};
use crate::support::scripted_api::{Api, Turn, USED};
use crate::support::{RunOutcome, TestEnvironment, in_two_environments, one_environment};

/// The API key in two halves, so that the search program does not contain the key itself.
const HALVES: [&str; 2] = ["AIzaTheRealKeyNobody", "MaySee-31415926535897"];

fn key() -> String {
    HALVES.concat()
}

/// A program that searches everything readable in the run for the key, and reports how much it searched.
const SEARCH: &str = r#"
import os, sys
key = (sys.argv[1] + sys.argv[2]).encode()
found, looked = [], {"environ": 0, "cmdline": 0, "files": 0, "memory": 0}
own = os.getpid()

def look(kind, path, data):
    looked[kind] += 1
    if key in data:
        found.append(path)

if key in b"\0".join(k + b"=" + v for k, v in os.environb.items()):
    found.append("own environment")
for pid in os.listdir("/proc"):
    if not pid.isdigit():
        continue
    for kind in ("environ", "cmdline"):
        try:
            look(kind, f"/proc/{pid}/{kind}", open(f"/proc/{pid}/{kind}", "rb").read())
        except OSError:
            pass
    if int(pid) == own:
        continue
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                span, rights = line.split()[:2]
                begin, end = (int(part, 16) for part in span.split("-"))
                if "r" not in rights or end - begin > 1 << 28 or "[vvar" in line or "[vsyscall" in line:
                    continue
                try:
                    memory.seek(begin)
                    look("memory", f"/proc/{pid}/mem {span}", memory.read(end - begin))
                except (OSError, OverflowError, ValueError):
                    pass
    except OSError:
        pass
for root in (os.environ["HOME"], os.environ["TMPDIR"], os.getcwd(), "/tmp", "/etc", "/run", "/var/tmp", "/dev/shm"):
    for folder, folders, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 24:
                    look("files", path, open(path, "rb").read())
            except OSError:
                pass
print("key found in:", found or "nothing")
print("looked at:", looked)
"#;

/// Runs the CLI in the sandbox, with the address of the API in the user's variables.
fn ask(
    environment: &TestEnvironment,
    gemini: &Gemini,
    url: &str,
    options: &[&str],
    prompt: &str,
) -> (RunOutcome, Session) {
    let settings = environment.temporary_directory().join("gemini-settings.json");
    std::fs::write(&settings, Gemini::settings().to_string()).unwrap();
    let place = settings.to_str().unwrap();
    let mut all = vec!["--json", "--policy", "strict", "--read", place];
    let given: Vec<String> =
        Gemini::environment().iter().map(|(name, value)| format!("{name}={value}")).collect();
    for pair in &given {
        all.extend(["--env", pair]);
    }
    all.extend(options);
    let arguments = Gemini::arguments(prompt);
    let furnish = "mkdir -p ~/.gemini && cp \"$1\" ~/.gemini/settings.json && shift && exec \"$@\"";
    let program = gemini.program().to_str().unwrap();
    let folder = Gemini::folder();
    all.extend(["--read", folder.to_str().unwrap()]);
    let mut command = vec!["sh", "-c", furnish, "sh", place, program];
    command.extend(arguments.iter().map(String::as_str));
    let mut guard = environment.guard_run(&all, &command);
    guard.env("GEMINI_API_KEY", key()).env("GOOGLE_GEMINI_BASE_URL", url);
    let outcome = environment.run_to_end(guard, b"");
    let session =
        Session::new(outcome.code, outcome.printed().as_bytes(), outcome.error.clone(), outcome.took);
    (outcome, session)
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

// slow
#[test]
fn gemini_works_and_its_key_is_nowhere_in_the_sandbox() {
    let Some(gemini) = Gemini::installed() else { return };
    in_two_environments(|environment| {
        std::fs::write(environment.directory.join("search.py"), SEARCH).unwrap();
        let [first, second] = HALVES;
        let api = Api::plain(vec![
            Turn::shell("echo made > made && env | sort"),
            Turn::shell(&format!("python3 search.py {first} {second}")),
            Turn::shell(
                "cat /proc/$PPID/environ | tr '\\0' '\\n' | grep -a KEY; curl -sS https://elsewhere.example/",
            ),
            Turn::text("All done."),
        ]);
        let (outcome, session) = ask(environment, &gemini, &api.server.url(""), &[], "do it");
        let problem = || format!("{}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
        assert_eq!((outcome.code, session.status()), (0, "success"), "{}", problem());
        assert!(session.said().contains("All done."), "{}", problem());
        assert_eq!(
            std::fs::read_to_string(environment.directory.join("made")).unwrap(),
            "made\n",
            "{}",
            problem()
        );

        // Every request to the API must have the key, and the last one contains the output of the tools.
        let questions = api.questions();
        assert_eq!(questions.len(), 4, "{}", problem());
        for request in api.server.requests() {
            assert_eq!(request.header("x-goog-api-key"), Some(key().as_str()), "{}", problem());
            assert!(!request.query().contains("key="), "{}", request.query());
        }
        let tools = api.tool_results();
        let told = |index: usize| tools[index].1.to_string();
        assert!(told(0).contains("GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:"), "{}", told(0));
        assert!(told(1).contains("key found in: nothing"), "{}: {}", environment.name(), told(1));
        assert!(!told(1).contains("'environ': 0") && !told(1).contains("'files': 0"), "{}", told(1));
        assert!(
            told(2).contains("GEMINI_API_KEY=guard-keeps-the-key") && !told(2).contains(first),
            "{}",
            told(2)
        );

        // The key must not be in the output or in any file of the run's directory either.
        assert!(!contains(&outcome.output, &key()), "{}", problem());
        let folder = outcome.transcript().parent().unwrap().to_path_buf();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                assert!(!contains(&std::fs::read(&path).unwrap(), &key()), "{}", path.display());
            }
        }
        let model = &outcome.result["usage"]["model"];
        let [input, output, thoughts, _] = USED;
        assert_eq!(model["requests"], 4, "{}", problem());
        assert_eq!(model["input_tokens"], 4 * input, "{}", problem());
        assert_eq!(model["output_tokens"], 4 * (output + thoughts), "{}", problem());
    });
}

/// Proves that the search for the key works: it must find a key that the user passes to the run on purpose. The key
/// differs from that of the test above, whose search could otherwise read it in the arguments of this test's guard.
#[test]
fn key_search_finds_a_key_passed_on_purpose() {
    let environment = one_environment();
    std::fs::write(environment.directory.join("search.py"), SEARCH).unwrap();
    let [first, second] = ["AIzaTheKeyThatIsHanded", "OverOnPurpose-2718281828"];
    let handed = format!("GEMINI_API_KEY={first}{second}");
    let outcome = environment.run(&["--env", &handed], &["python3", "search.py", first, second]);
    assert!(outcome.printed().contains("own environment"), "{outcome}");
    assert!(outcome.printed().contains("/environ'"), "{outcome}");
}

// slow
#[test]
fn token_and_time_budgets_end_a_gemini_run() {
    let Some(gemini) = Gemini::installed() else { return };
    in_two_environments(|environment| {
        let turns = || (0..10).map(|turn| Turn::shell(&format!("echo {turn} >> turns"))).collect();
        let each: u64 = USED[..3].iter().sum();
        let limits = [("--max-tokens", 2 * each), ("--max-requests", 2)];
        // The gateway counts outside of the sandbox, so one of the limits is enough without namespaces.
        for (option, value) in &limits[..if environment.namespaces { 2 } else { 1 }] {
            let api = Api::plain(turns());
            let (outcome, _) =
                ask(environment, &gemini, &api.server.url(""), &[option, &value.to_string()], "go on");
            let problem =
                || format!("{} {option}\n{:#}\n{}", environment.name(), outcome.result, outcome.error);
            assert_eq!((outcome.code, outcome.kind()), (124, "budget_exhausted"), "{}", problem());
            assert_eq!(outcome.result["success"], false);
            assert_eq!(api.questions().len(), 2, "{}", problem());
            assert_eq!(outcome.result["usage"]["model"]["requests"], 2, "{}", problem());
            assert!(outcome.result["usage"]["model"]["refused"].as_u64() >= Some(1), "{}", problem());
            let denied: Vec<&Value> = outcome.result["denials"].as_array().unwrap().iter().collect();
            assert!(denied.iter().any(|denial| denial["rule"] == "gateway.budget"), "{}", problem());
        }
    });
}

// slow
//! A user asks questions with `guard research`. The agent is a shell script.

use serde_json::Value;

use super::{PLAN, Researcher, events, types};
use crate::support::ProgramLinks;

/// The part of the scripted agent for sub-queries: it answers with the sub-query, and fails for `markets`.
const ANSWERS: &str =
    r#"case "$question" in markets) fail 'no market data' ;; *) say "\"All about $question.\"" ;; esac"#;

#[test]
fn research_prints_every_step_and_the_answer() {
    let researcher = Researcher::new("research-lines", PLAN, ANSWERS, r#"say '"Qubits improve."'"#);
    let (printed, code) =
        researcher.ends("guard research 'State of quantum computing?' --max-retries 0 -o report.md; code=$?; cat report.md; exit $code");
    assert_eq!(code, 0, "{printed}");
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("guard: the id of this research run is "), "{printed}");
    let lines = &lines[1..];
    assert_eq!(
        lines[..3],
        ["[•] Decomposing query...", "[✓] Decomposed into 5 sub-queries", "Executing parallel research:"]
    );
    let mut ended = lines[3..8].to_vec();
    ended.sort_unstable();
    assert_eq!(ended[0], "  [1/5] hardware ✓ Complete (0 tokens)");
    assert_eq!(ended[4], "  [5/5] markets ✗ Failed: gemini exited with code 1: no market data");
    assert_eq!(lines[8..10], ["[•] Synthesizing results...", "[✓] Synthesis complete"]);
    let rule = "═".repeat(60);
    assert_eq!(lines[10..13], [rule.as_str(), "ANSWER:", "Qubits improve."], "{printed}");
    let stats = lines.iter().position(|line| line.starts_with("Stats: ")).unwrap();
    assert!(lines[stats].starts_with("Stats: 4/5 sub-queries succeeded | 0 total tokens | "), "{printed}");
    assert_eq!((lines[stats - 1], lines[stats + 1]), ("─".repeat(60).as_str(), rule.as_str()));
    for expected in [
        "- sub-query 5 (markets) has no answer: gemini exited with code 1: no market data",
        "# State of quantum computing?\n\nQubits improve.\n",
        "5. markets (failed: gemini exited with code 1: no market data)\n",
    ] {
        assert!(printed.contains(expected), "{expected:?} is missing:\n{printed}");
    }
}

#[test]
fn json_options_print_one_object_or_an_event_stream() {
    let researcher = Researcher::new("research-json", PLAN, ANSWERS, r#"say '"Qubits improve."'"#);
    let (printed, code) = researcher.ends("guard research q --json --max-retries 0 2> /dev/null");
    assert_eq!(code, 0, "{printed}");
    let result: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(result["answer"], "Qubits improve.");
    assert_eq!(result["sub_queries"][4]["status"], "failed");
    assert_eq!(result["sub_queries"][0]["result"], "All about hardware.");
    assert_eq!(result["metadata"]["sub_queries_succeeded"], 4);
    let schema = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/research.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(schema).unwrap()).unwrap();
    assert!(jsonschema::validator_for(&schema).unwrap().is_valid(&result), "{result:#}");
    let (printed, code) = researcher.ends("guard research q --stream-json --max-retries 0 2> /dev/null");
    assert_eq!(code, 0, "{printed}");
    let events = events(&printed);
    let types = types(&events);
    assert_eq!(types[..2], ["decomposition_started", "decomposition_complete"]);
    assert_eq!(types[2..7], ["sub_query_started"; 5]);
    assert_eq!(types.iter().filter(|kind| **kind == "sub_query_completed").count(), 4);
    assert_eq!(types[types.len() - 2..], ["synthesis_started", "final_result"]);
    // `--resume` of a finished run must print its answer again, without an agent.
    let id = result["research_id"].as_str().unwrap();
    let (again, code) =
        researcher.ends(&format!("PATH=${{PATH#*:}} guard research --resume {id} --json 2> /dev/null"));
    assert_eq!(
        (serde_json::from_str::<Value>(&again).unwrap()["answer"].clone(), code),
        (result["answer"].clone(), 0)
    );
}

#[test]
fn exit_code_tells_which_part_of_research_failed() {
    let all = Researcher::new("research-fail", PLAN, "fail 'API_KEY_INVALID'", "fail x");
    let (printed, code) = all.ends("guard research q --stream-json");
    assert_eq!(code, 1, "{printed}");
    let events = events(&printed);
    assert_eq!(events.last().unwrap()["data"]["error_kind"], "auth_error", "{printed}");
    assert!(printed.contains("guard: all sub-queries (5) failed; the first error: "), "{printed}");
    assert!(printed.contains("  hint: set the API key"), "{printed}");
    assert!(printed.contains("  continue: guard research --resume "), "{printed}");
    let programs = ProgramLinks::new(&["bash", "env", "git", "sh"]);
    for (script, expected) in [
        ("guard research", 2),
        ("guard research ''", 2),
        ("guard research --resume 0123456789", 2),
        ("guard research q -o /no/such/directory/report.md", 2),
        ("guard research q --allow-host 'not a host'", 2),
        // Neither the scripted agent nor one of this machine is on PATH.
        (&format!("guard=$(command -v guard); PATH={} $guard research q", programs.path()), 127),
    ] {
        let (printed, code) = all.ends(script);
        assert_eq!(code, expected, "{script}\n{printed}");
    }
}

#[test]
fn unreadable_sub_query_list_is_repaired_once_or_fails() {
    let repaired = Researcher::new(
        "research-repair",
        r#"case "$prompt" in *'cannot be read: the answer contains no JSON array'*) say '"[\"one\"]"' ;; *) say '"one and two"' ;; esac"#,
        ANSWERS,
        r#"say '"Done."'"#,
    );
    let (printed, code) = repaired.ends("guard research q --json 2> /dev/null");
    assert_eq!(code, 0, "{printed}");
    let result: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(result["sub_queries"][0]["query"], "one");
    let never = Researcher::new("research-no-list", r#"say '"never"'"#, ANSWERS, "fail x");
    let (printed, code) = never.ends("guard research q");
    assert_eq!(code, 1, "{printed}");
    assert!(
        printed.contains("cannot parse the model's list of sub-queries: the answer contains no JSON array"),
        "{printed}"
    );
}

#[test]
fn hanging_sub_query_times_out_and_the_others_are_used() {
    let hang = r#"case "$question" in vendors) sleep 1000 ;; *) say "\"All about $question.\"" ;; esac"#;
    let researcher = Researcher::new("research-hang", PLAN, hang, r#"say '"Done."'"#);
    let (printed, code) =
        researcher.ends("guard research q --timeout 15 --max-retries 0; code=$?; guard ps; exit $code");
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("  [4/5] vendors ✗ Failed: timeout: no answer within 15 s"), "{printed}");
    assert!(printed.contains("Stats: 4/5 sub-queries succeeded"), "{printed}");
    assert!(printed.contains("no runs"), "{printed}");
}

/// The agent prints a tool result of 100 MB. guard must not store it, and must not fail.
#[test]
fn tool_result_of_100_mb_is_not_stored() {
    let huge = r#"case "$question" in
      vendors) printf '{"type":"tool_result","tool_id":"1","status":"success","output":"'; head -c 100000000 /dev/zero | tr '\0' x; printf '"}\n'
               say '"A lot of text."' ;;
      *) say "\"All about $question.\"" ;; esac"#;
    let researcher = Researcher::new("research-huge", PLAN, huge, r#"say '"Done."'"#);
    let (printed, code) = researcher.ends("/usr/bin/env bash -c 'guard research q --json 2> /dev/null & pid=$!; peak=0; while kill -0 $pid 2> /dev/null; do now=$(awk \"/VmHWM/ {print \\$2}\" /proc/$pid/status 2> /dev/null); peak=${now:-$peak}; sleep 0.05; done; wait $pid; code=$?; echo; echo peak $peak; exit $code'");
    assert_eq!(code, 0, "{printed}");
    let peak: u64 = printed.lines().last().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    println!("peak memory of guard research with a source of 100 MB: {peak} KiB");
    assert!(peak < 128 << 10, "{peak} KiB");
    assert!(printed.contains("A lot of text."), "{printed}");
}

/// The reader of the events closes the pipe. guard must end the runs, and a resume must use the finished sub-queries.
#[test]
fn closed_output_ends_research_and_it_can_be_resumed() {
    let slow = r#"sleep 1; say "\"All about $question.\"""#;
    let researcher = Researcher::new("research-pipe", PLAN, slow, r#"say '"Done."'"#);
    let (printed, _) = researcher.ends("guard research q --stream-json 2> /dev/null | head -n 2; sleep 1; echo \"code ${PIPESTATUS[0]}\"; guard ps");
    assert_eq!(events(&printed).len(), 2, "{printed}");
    assert!(printed.contains("no runs"), "{printed}");
    // The journal contains the finished sub-queries, so a resume must succeed.
    let id = researcher.ids().pop().unwrap();
    let (printed, code) = researcher.ends(&format!("guard research --resume {id}"));
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("Stats: 5/5"), "{printed}");
}

/// A user makes a mistake in an option. guard must report the mistake before the research begins, and leave no research
/// run.
#[test]
fn wrong_options_leave_no_research_run() {
    let researcher = Researcher::new("research-options", PLAN, ANSWERS, r#"say '"Done."'"#);
    for (options, expected) in [
        ("--agent nosuch", "unknown agent \"nosuch\""),
        ("--policy nosuch", "no policy named `nosuch`"),
        ("--timeout 0", "expected a time from 1s to 7d"),
        ("--timeout 99999999999", "expected a time from 1s to 7d"),
        ("--allow-host http://x.org/", "x.org"),
    ] {
        let (printed, code) = researcher.ends(&format!("guard research q {options}"));
        assert_eq!(code, 2, "{options}: {printed}");
        assert!(printed.contains(expected) && !printed.contains("--resume"), "{options}: {printed}");
    }
    assert_eq!(researcher.ids(), Vec::<String>::new());
}

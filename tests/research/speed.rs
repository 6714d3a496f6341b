// slow
//! Measures how fast sub-queries run at the same time, how soon the first event arrives, and what events and
//! sub-queries cost.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use guard::work::research::{AgentUpdate, next_update, update_stream};

use super::{Researcher, events};

/// Runs sixteen sub-queries of six seconds each at once. Together they must take little longer than one, and guard
/// may use little time and memory for each.
#[test]
fn sixteen_sub_queries_take_as_long_as_the_slowest() {
    let names: Vec<String> = (0..16).map(|number| format!("\\\"topic{number}\\\"")).collect();
    let plan = format!("say '\"[{}]\"'", names.join(", "));
    let researcher = Researcher::new(
        "research-speed",
        &plan,
        r#"sleep 6; say "\"About $question.\"""#,
        r#"say '"Done."'"#,
    );
    let guard = env!("CARGO_BIN_EXE_guard");
    let mut child = researcher
        .user
        .command(guard)
        .args(["research", "q", "--stream-json", "--max-queries", "16"])
        .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", researcher.user.home().join("bin").display()))
        .env("GEMINI_API_KEY", "key")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let first_after = began.elapsed();
    let mut printed = vec![first];
    let (mut started, mut ended, mut memory) = (None, None, 0);
    for line in lines.map(Result::unwrap) {
        let now = Instant::now();
        if line.contains("\"sub_query_started\"") {
            started.get_or_insert(now);
        }
        if line.contains("\"sub_query_completed\"") {
            if ended.is_none() {
                memory = private_memory(child.id());
            }
            ended = Some(now);
        }
        printed.push(line);
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(
        events(&printed.join("\n"))
            .iter()
            .filter(|event| event["event_type"] == "sub_query_completed")
            .count(),
        16
    );
    let took = ended.unwrap() - started.unwrap();
    println!(
        "16 sub-queries of 6 s: {took:?}; first event after {first_after:?}; {} KiB of guard per sub-query",
        memory / 16
    );
    // An unoptimized guard needs ten times as long to start a run, and other tests use the same CPUs, so the limits for
    // a debug build are higher. One after the other, the sub-queries would take 96 s.
    let (first_most, most) = if cfg!(debug_assertions) { (10_000, 8.0) } else { (100, 1.15) };
    assert!(first_after < Duration::from_millis(first_most), "{first_after:?}");
    assert!(took < Duration::from_secs(6).mul_f64(most), "{took:?}");
    assert!(memory / 16 <= 8 << 10, "{} KiB", memory / 16);
}

/// Returns the private memory of a guard process and of all guard processes below it, in KiB.
fn private_memory(pid: u32) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let of = |name: &str| -> u64 {
        let line = smaps.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1))
            .and_then(|number| number.parse().ok())
            .unwrap_or(0)
    };
    let own = of("Private_Clean:") + of("Private_Dirty:");
    let mut all = own;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()) {
            let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            if name.trim() == "guard" {
                all += private_memory(child);
            }
        }
    }
    all
}

/// An event may take at most 50 µs from the agent to its reader. The test takes the best of 200 short rounds, because
/// other tests run at the same time.
#[test]
fn event_reaches_its_reader_within_50_microseconds() {
    const COUNT: u32 = 100;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let round = || {
        runtime.block_on(async {
            let mut stream = update_stream(|updates| async move {
                for number in 0..COUNT {
                    updates
                        .send(AgentUpdate::sub_query_completed(number as usize, "an answer", number))
                        .await;
                }
                Ok(())
            });
            let began = Instant::now();
            let mut read = 0;
            while let Some(update) = next_update(&mut stream).await {
                // Serializes the update, as guard does for a reader of JSON lines.
                read += serde_json::to_vec(&update.unwrap()).unwrap().len();
            }
            assert!(read > 0);
            began.elapsed() / COUNT
        })
    };
    let each = (0..200).map(|_| round()).min().unwrap();
    println!("an event costs {each:?}");
    assert!(each < Duration::from_micros(50), "{each:?}");
}

use std::fs::OpenOptions;
use std::io::Write;

use super::*;
use serde_json::json;

/// A temporary directory that is removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("guard-control-{name}-{}", uuid::Uuid::now_v7().simple())))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn command(command_type: &str, id: &str) -> AgentCommand {
    AgentCommand { command_type: command_type.to_string(), command_id: id.to_string(), data: Value::Null }
}

fn ok<T>(result: Result<T, ControlError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_worker_acts_once_on_each_id_even_after_a_crash() {
    let directory = Directory::new("once");
    let channel = ControlChannel::new(&directory.0);
    let mut reader = ok(CommandReader::open(&directory.0));
    assert!(ok(reader.next_command()).is_none());
    ok(channel.send(&command("cancel", "c1")));
    ok(channel.send(&command("cancel", "c1")));
    ok(channel.send(&command("pause", "c2")));
    let first = ok(reader.next_command()).unwrap_or_else(|| panic!("no command"));
    assert_eq!((first.command_type.as_str(), first.command_id.as_str()), ("cancel", "c1"));
    assert_eq!(ok(channel.acknowledgement("c1")).map(|ack| ack.status), Some(AckStatus::Accepted));
    // A worker that is killed before it reports completion must not cause the next worker to execute c1 again.
    drop(reader);
    let mut reader = ok(CommandReader::open(&directory.0));
    let second = ok(reader.next_command()).unwrap_or_else(|| panic!("no command"));
    assert_eq!(second.command_id, "c2");
    ok(reader.complete(&second, json!({ "paused": true })));
    ok(channel.send(&command("pause", "c2")));
    assert!(ok(reader.next_command()).is_none());
    let ack = ok(channel.wait_for("c2", Duration::from_secs(5))).unwrap_or_else(|| panic!("no answer"));
    assert_eq!((ack.status, &ack.data["paused"]), (AckStatus::Completed, &json!(true)));
}

#[test]
fn a_rejected_command_says_why() {
    let directory = Directory::new("rejected");
    let channel = ControlChannel::new(&directory.0);
    ok(channel.send(&command("fly", "c1")));
    let mut reader = ok(CommandReader::open(&directory.0));
    let given = ok(reader.next_command()).unwrap_or_else(|| panic!("no command"));
    ok(reader.reject(&given, &Rejection::UnknownType("fly".to_string())));
    let ack = ok(channel.wait_for("c1", Duration::from_secs(5))).unwrap_or_else(|| panic!("no answer"));
    assert_eq!(
        (ack.status, &ack.data["reason"]),
        (
            AckStatus::Rejected,
            &json!("unknown command type `fly`; expected cancel, pause, resume or adjust_config")
        )
    );
}

#[test]
fn damaged_lines_are_skipped_and_a_torn_line_waits_for_its_end() {
    let directory = Directory::new("damaged");
    let channel = ControlChannel::new(&directory.0);
    ok(channel.send(&command("pause", "c1")));
    let mut file = OpenOptions::new()
        .append(true)
        .open(directory.0.join(COMMANDS))
        .unwrap_or_else(|error| panic!("{error}"));
    let written =
        file.write_all(b"not JSON\n{\"command_type\": 5}\n\xff\xfe\n{\"command_type\": \"resume\", ");
    written.unwrap_or_else(|error| panic!("{error}"));
    let mut reader = ok(CommandReader::open(&directory.0));
    assert_eq!(ok(reader.next_command()).map(|command| command.command_id), Some("c1".to_string()));
    assert!(ok(reader.next_command()).is_none());
    file.write_all(b"\"command_id\": \"c2\"}\n").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ok(reader.next_command()).map(|command| command.command_id), Some("c2".to_string()));
}

#[test]
fn bad_ids_and_long_commands_are_refused() {
    let directory = Directory::new("refused");
    let channel = ControlChannel::new(&directory.0);
    for id in ["", "a b", "../x", "é", &"x".repeat(129)] {
        assert!(matches!(channel.send(&command("cancel", id)), Err(ControlError::BadId(_))), "{id}");
    }
    let long = AgentCommand { data: json!("x".repeat(LARGEST_COMMAND)), ..command("adjust_config", "c1") };
    assert!(matches!(channel.send(&long), Err(ControlError::TooLong)));
    assert!(ok(ok(CommandReader::open(&directory.0)).next_command()).is_none());
}

#[test]
fn nobody_can_fill_the_disk_with_commands() {
    let directory = Directory::new("full");
    let channel = ControlChannel::new(&directory.0);
    let long = |n: usize| AgentCommand {
        data: json!("x".repeat(LARGEST_COMMAND - 200)),
        ..command("adjust_config", &format!("c{n}"))
    };
    let refused = (0..200).find(|n| matches!(channel.send(&long(*n)), Err(ControlError::Full(_))));
    assert!(refused.is_some_and(|n| n >= 50), "{refused:?}");
}

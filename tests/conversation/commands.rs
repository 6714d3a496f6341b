//! Tests the commands of `guard history`, and the names by which a user can refer to a conversation.

use super::Talk;

/// The user finds, shows, exports and forks a conversation, clears it and deletes it. Each command must change only
/// that conversation.
#[test]
fn conversation_is_found_shown_forked_cleared_and_deleted() {
    let talk = Talk::new("conversation-life");
    let first = talk.turn("echo one", &["--title", "my work"]);
    let id = first["SESSION_ID"].as_str().unwrap().to_string();
    let short = &id[id.len() - 8..];
    assert_eq!(talk.turn("echo two", &["--session", short])["turn"]["number"], 2);
    let list = talk.history(&["list"]);
    assert_eq!((&list[0]["title"], &list[0]["turns"]), (&"my work".into(), &2.into()), "{list:#}");
    let (table, _, _) = talk.guard(&["history", "list"]);
    assert!(table.contains(short) && table.contains("my work"), "{table}");
    let (shown, _, code) = talk.guard(&["history", "show", short]);
    assert!(code == 0 && shown.contains("> echo two\n\ntwo\n"), "{shown}");
    let hits = talk.history(&["search", "ECHO TWO"]);
    assert_eq!((&hits[0]["turn"], &hits[0]["role"]), (&2.into(), &"user".into()), "{hits:#}");
    let (printed, error, code) = talk.guard(&["history", "search", "no such words"]);
    assert_eq!((printed.as_str(), code), ("", 1));
    assert_eq!(error, "guard: no message of any conversation contains \"no such words\"\n");
    let (document, _, _) = talk.guard(&["history", "export", short]);
    assert!(document.starts_with("# my work\n") && document.contains("```text\necho two\n```"), "{document}");
    let fork = talk.history(&["fork", short, "--at", "1"]);
    assert_eq!(fork["turns"], 1, "{fork:#}");
    let forked = talk.turn("cat prompt", &["--session", fork["SESSION_ID"].as_str().unwrap()]);
    let told = forked["result"].as_str().unwrap();
    assert!(told.contains("User: echo one") && !told.contains("echo two"), "{told}");
    assert_ne!(forked["worktree"]["path"], first["worktree"]["path"]);
    // The fork must not have changed the original conversation.
    assert_eq!(talk.history(&["show", short])["turns"].as_array().map(Vec::len), Some(2));
    assert_eq!(talk.guard(&["history", "clear", short]).2, 0);
    let cleared = talk.turn("cat prompt", &["--session", short]);
    assert_eq!(cleared["result"], "cat prompt", "the agent knows nothing of earlier turns");
    assert_eq!(talk.history(&["show", short])["turns"].as_array().map(Vec::len), Some(1));
    assert_eq!(talk.history(&["show", short, "--all"])["turns"].as_array().map(Vec::len), Some(3));
    assert_eq!(talk.guard(&["history", "delete", short]).2, 0);
    let (_, error, code) = talk.guard(&["history", "show", short]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("there is no conversation") && error.contains("guard history list"), "{error}");
}

/// The user gives a wrong name or wrong options. guard must say what to do instead.
#[test]
fn wrong_history_commands_explain_what_to_do() {
    let talk = Talk::new("conversation-mistakes");
    for (arguments, expected) in [
        (vec!["history", "show"], "there are no conversations yet"),
        (vec!["chat", "--once", "x", "--session", "@"], "there are no conversations yet"),
        (vec!["chat", "--once", "x", "--agent", "nobody"], "unknown agent"),
        (vec!["chat", "--once", "x", "--agent", "generic"], "needs a command"),
        (
            vec!["chat", "--once", "x", "--agent", "generic", "--mode", "native", "--", "true"],
            "has no sessions",
        ),
        (vec!["chat", "--once", "x", "--cd", "/no/such/directory"], "No such file"),
        (vec!["history", "search", " "], "is empty"),
        (vec!["chat", "--once", "x", "--timeout", "0"], "`timeout` is 0 seconds; it must be from 1 to"),
        (vec!["chat", "--once", "x", "--max-duration", "2w"], "`max_duration` is 1209600 seconds"),
        (vec!["chat", "--once", "x", "--max-retries", "11"], "`max_retries` is 11"),
        (vec!["chat", "--once", "x", "-m", ""], "`model`: \"\" is not a valid model name"),
    ] {
        let (_, error, code) = talk.guard(&arguments);
        assert_eq!(code, 2, "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
        assert!(talk.conversations().is_empty(), "{arguments:?} left a conversation");
    }
    talk.says("echo hi");
    for (arguments, expected) in [
        (vec!["history", "show", "zzzzzzzz"], "there is no conversation"),
        (vec!["history", "show", "zzzzzzzz"], "the last 4 or more characters of an id are enough"),
        (vec!["chat", "--once", "x", "--session", "@", "-m", ""], "is not a valid model name"),
        (vec!["history", "show", "../.."], "there is no conversation"),
        (vec!["history", "fork", "@", "--at", "7"], "has no turn 7"),
        (vec!["history", "compact", "@"], "nothing to summarise"),
        (vec!["chat", "--once", "x", "--session", "@", "--agent", "claude"], "cannot be used with"),
    ] {
        let (_, error, code) = talk.guard(&arguments);
        assert_eq!(code, 2, "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

/// While one client is in a turn, guard must refuse a turn of another client. Afterwards the other client must be
/// able to continue.
#[test]
fn second_client_is_refused_during_a_turn() {
    let talk = Talk::new("conversation-two-clients");
    talk.says("echo hi");
    let gate = talk.worktree().join("gate");
    let script = "touch started; until [ -e gate ]; do sleep 0.05; done; echo done";
    let mut first = talk.turn_command(script, &["--session", "@"]);
    let first = first.stdout(std::process::Stdio::piped()).spawn().unwrap();
    crate::support::wait_for_file(&talk.worktree().join("started"));
    let (_, error, code) = talk.guard(&["chat", "--once", "echo second", "--session", "@"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("another client is using the conversation"), "{error}");
    assert_eq!(talk.history(&["list"])[0]["state"], "running");
    assert_eq!(talk.guard(&["history", "clear", "@"]).2, 2);
    assert_eq!(talk.guard(&["history", "delete", "@"]).2, 2);
    std::fs::write(gate, "").unwrap();
    let result = super::printed_json(&first.wait_with_output().unwrap());
    assert_eq!(result["result"], "done", "{result:#}");
    assert_eq!(talk.says("echo second"), "second");
}

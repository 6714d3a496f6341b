//! An agent that does what its prompt says, word for word: a shell script that speaks like the Gemini CLI.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Answered, exec};
use crate::support::{TestEnvironment, make_program};

/// Prints the session it was given, runs its prompt, says what that printed, and succeeds.
const SCRIPT: &str = r#"#!/bin/bash
for word in "$@"; do
  case "$before" in --session-id | --resume) session=$word ;; esac
  case "$word" in --prompt=*) prompt=${word#--prompt=} ;; esac
  before=$word
done
printf '{"type":"init","session_id":"%s"}\n' "$session"
said=$(eval "$prompt" 2>&1 < /dev/null)
said=${said//\\/}
said=${said//\"/}
printf '{"type":"message","role":"assistant","content":"%s"}\n' "${said//$'\n'/ }"
printf '{"type":"result","status":"success","stats":{}}\n'
"#;

/// Installs a script under the name of the CLI, where the user of this environment can start it.
pub(crate) fn agent(environment: &TestEnvironment, folder: &str, script: &str) -> PathBuf {
    let folder = environment.directory.with_file_name(folder);
    let program = folder.join("gemini");
    make_program(&program, script);
    program
}

/// A policy with or without namespaces, as this environment has them.
pub(crate) fn policy(environment: &TestEnvironment) -> PathBuf {
    let namespaces = if environment.namespaces { "require" } else { "off" };
    let path = environment.directory.with_file_name("policy.toml");
    let text = format!(
        "version = 1\nname = \"scripted\"\nextends = \"strict\"\n[sandbox]\noverride = true\nnamespaces = \"{namespaces}\"\n[toolchains]\ndetect = []\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// A request for the agent that does what it is told.
pub(crate) fn request(environment: &TestEnvironment, prompt: &str, more: &Value) -> Value {
    let mut request = json!({
        "agent": "gemini", "command": [agent(environment, "scripted", SCRIPT)], "prompt": prompt, "cd": environment.directory,
        "policy": policy(environment), "max_retries": 0,
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        request[name] = value.clone();
    }
    request
}

/// Tells the agent to do something.
pub(crate) fn tell(environment: &TestEnvironment, prompt: &str, more: &Value) -> Answered {
    exec(environment, "http://127.0.0.1:1", &request(environment, prompt, more))
}

//! A scripted agent: a shell script that runs its prompt as a command and prints what the Gemini CLI would print.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Answered, exec};
use crate::support::{TestEnvironment, make_program};

/// A script that prints the session id it got, runs its prompt, reports the output as the answer, and succeeds.
pub(crate) const SCRIPT: &str = r#"#!/bin/bash
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

/// Writes a policy that requires namespaces or switches them off, as the environment says.
pub(crate) fn policy(environment: &TestEnvironment) -> PathBuf {
    let namespaces = if environment.namespaces { "require" } else { "off" };
    let path = environment.directory.with_file_name("policy.toml");
    let text = format!(
        "version = 1\nname = \"scripted\"\nextends = \"strict\"\n[sandbox]\noverride = true\nnamespaces = \"{namespaces}\"\n[toolchains]\ndetect = []\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// Returns a request for the scripted agent.
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

/// Runs the scripted agent with this command as its prompt.
pub(crate) fn tell(environment: &TestEnvironment, prompt: &str, more: &Value) -> Answered {
    exec(environment, "http://127.0.0.1:1", &request(environment, prompt, more))
}

// slow
//! Runs the example batch with the real Gemini CLI and a scripted API.

use serde_json::{Value, json};

use super::command_line::{EXAMPLE, result};
use crate::egress::gemini::Gemini;
use crate::support::UserShell;
use crate::support::scripted_api::{Api, Turn};

#[test]
fn gemini_proposes_a_test_for_the_example_batch() {
    if Gemini::installed().is_none() {
        return;
    }
    let user = UserShell::new("batch-gemini");
    user.types("mkdir -p lib && echo 'int x;' > lib/parser.cpp && git add . && git commit -qm code");
    let report = "SF:lib/parser.cpp\nDA:1,4\nDA:120,0\nDA:121,0\nend_of_record\n";
    std::fs::write(user.project.join("lcov.info"), report).unwrap();
    std::fs::write(user.home().join("tasks.json"), EXAMPLE).unwrap();
    let answer = json!({"test_name": "parses_variables", "test_code": "TEST(Parser, Variables) {}", "explanation": "covers 120"});
    let api = Api::plain(vec![Turn::text(&format!("Here is the test.\n```json\n{answer}\n```"))]);
    let script = format!(
        "export PATH={}/node_modules/.bin:$PATH GEMINI_API_KEY=key GOOGLE_GEMINI_BASE_URL={}
         id=$(guard batch submit --no-worker ~/tasks.json | jq -r .response_id)
         guard worker --until-idle 2> /dev/null
         guard batch poll $id",
        Gemini::folder().display(),
        api.server.url("")
    );
    let printed = user.types(&script);
    let response: Value = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    assert_eq!(response["counts"]["completed"], 4, "{response}");
    assert_eq!(result(&response, "task_124")["output"], answer);
    // The prompt must contain the lines, the context and what the coverage report says about the file.
    let text = String::from_utf8_lossy(&api.questions()[0].body).into_owned();
    for expected in ["lib/parser.cpp", "100-150", "parsing of MiniZinc variables", "120-121"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

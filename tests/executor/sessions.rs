//! Conversations.

use serde_json::json;

use super::{exec, request};
use crate::egress::api::{Api, Turn};
use crate::egress::gemini::Gemini;
use crate::launch::world::{in_two_worlds, one_world};

#[test]
fn the_second_turn_carries_the_first() {
    let Some(gemini) = Gemini::installed() else { return };
    in_two_worlds(|world| {
        let repository = world.folder.with_file_name("repository");
        for sandbox in ["read-only", "workspace-write"] {
            let api = Api::plain(vec![Turn::text("The word is plum."), Turn::text("It was plum.")]);
            let mut first = request(&gemini, world, "say a word", &json!({ "sandbox": sandbox }));
            first["cd"] = json!(repository);
            let one = exec(world, &api.server.url(""), &first);
            assert_eq!(one.result["success"], true, "{}", one.shown());
            let session = one.result["SESSION_ID"].as_str().unwrap().to_string();
            first["prompt"] = json!("which word?");
            first["SESSION_ID"] = json!(session);
            let two = exec(world, &api.server.url(""), &first);
            assert_eq!(two.result["success"], true, "{sandbox}: {}", two.shown());
            assert_eq!(two.result["SESSION_ID"], json!(session), "{}", two.shown());
            let last = api.questions().pop().unwrap();
            let body = last.json().to_string();
            assert!(body.contains("say a word") && body.contains("The word is plum."), "{body}");
        }
    });
}

#[test]
fn a_session_that_is_not_there_is_said_to_be_lost() {
    let Some(gemini) = Gemini::installed() else { return };
    let world = one_world();
    let api = Api::plain(Vec::new());
    for id in ["0197f0a0-0000-7000-8000-000000000000", "../../etc", ""] {
        let asked = request(&gemini, &world, "go on", &json!({ "SESSION_ID": id }));
        let answered = exec(&world, &api.server.url(""), &asked);
        assert_eq!((answered.code, answered.kind()), (2, "session_lost"), "{}", answered.shown());
    }
    assert!(api.server.requests().is_empty());
}

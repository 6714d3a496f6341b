//! Decodes any bytes as a frame of the shim protocol. A question or an answer that the decoder returns must be the same
//! after it is encoded and decoded again.
#![no_main]

use guard::run::supervisor::shim::protocol::{Answer, Question};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(question) = Question::read(&mut &bytes[..]) {
        let mut again = Vec::new();
        question.write(&mut again).expect("it came from a frame that fits");
        assert_eq!(Question::read(&mut again.as_slice()).expect("just written"), question);
    }
    if let Ok(answer) = Answer::read(&mut &bytes[..]) {
        let mut again = Vec::new();
        // The decoder replaces bytes that are not UTF-8 by longer ones, so the answer may no longer fit into a frame.
        if answer.write(&mut again).is_ok() {
            assert_eq!(Answer::read(&mut again.as_slice()).expect("just written"), answer);
        }
    }
});

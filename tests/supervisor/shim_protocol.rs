//! A message of the shim protocol must arrive unchanged. The reader must refuse invalid frames quickly, without
//! allocating much memory.

use guard::run::supervisor::shim::protocol::{Answer, LARGEST_BODY, Question, VERSION};
use proptest::prelude::*;

proptest! {
    #[test]
    fn messages_are_read_as_they_were_sent(
        argv in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        directory in prop::collection::vec(any::<u8>(), 0..40),
        environment in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..9), prop::collection::vec(any::<u8>(), 0..9)), 0..5),
        message in ".{0,80}",
    ) {
        let question = Question { argv, directory, environment };
        let mut bytes = Vec::new();
        question.write(&mut bytes).unwrap();
        prop_assert_eq!(Question::read(&mut bytes.as_slice()).unwrap(), question);
        // A frame that is cut off anywhere must be an error, and never another question.
        for end in 0..bytes.len() {
            prop_assert!(Question::read(&mut &bytes[..end]).is_err());
        }
        for answer in [Answer::Allow, Answer::Deny(message)] {
            let mut bytes = Vec::new();
            answer.write(&mut bytes).unwrap();
            prop_assert_eq!(Answer::read(&mut bytes.as_slice()).unwrap(), answer);
        }
    }

    #[test]
    fn garbage_messages_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Question::read(&mut bytes.as_slice());
        let framed = [b"GRD".as_slice(), &[VERSION], &(bytes.len() as u32).to_le_bytes(), &bytes].concat();
        let _ = Question::read(&mut framed.as_slice());
        prop_assert!(!matches!(Answer::read(&mut framed.as_slice()), Ok(Answer::Allow)) || bytes == [0]);
    }
}

#[test]
fn message_sizes_are_checked_before_allocation() {
    let head = |length: u32| [b"GRD".as_slice(), &[VERSION], &length.to_le_bytes()].concat();
    assert!(Question::read(&mut head(u32::MAX).as_slice()).is_err());
    assert!(Question::read(&mut head(LARGEST_BODY as u32).as_slice()).is_err());
    let many = [head(8), u32::MAX.to_le_bytes().to_vec(), vec![0; 4]].concat();
    assert!(Question::read(&mut many.as_slice()).is_err());
    let huge = Question { argv: vec![vec![0; LARGEST_BODY + 1]], ..Question::default() };
    assert!(huge.write(&mut Vec::new()).is_err());
    assert!(
        Answer::read(&mut [b"GRD".as_slice(), &[VERSION + 1], &[1, 0, 0, 0, 0]].concat().as_slice()).is_err()
    );
}

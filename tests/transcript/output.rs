//! Recorded output must be read back byte for byte, and must be stored as text if it is text.

use guard::run::transcript::Stream;
use proptest::prelude::*;

use super::{events, start};
use crate::support::Scratch;

fn recorded(pieces: &[(Stream, Vec<u8>)]) -> Vec<guard::run::transcript::Event> {
    let scratch = Scratch::new("output");
    let (recorder, writer) = start(&scratch);
    for (stream, bytes) in pieces {
        recorder.output(*stream, bytes);
    }
    drop(writer);
    events(&scratch)
}

fn of(stream: Stream, events: &[guard::run::transcript::Event]) -> Vec<u8> {
    let outputs = events.iter().filter_map(|event| event.output());
    outputs.filter(|(from, _)| *from == stream).flat_map(|(_, bytes)| bytes).collect()
}

#[test]
fn character_split_across_pieces_stays_text() {
    let text = "naïve 漢字 🦀\n".as_bytes();
    for split in 1..text.len() {
        let pieces = [(Stream::Stdout, text[..split].to_vec()), (Stream::Stdout, text[split..].to_vec())];
        let events = recorded(&pieces);
        assert!(events.iter().all(|event| event.data["text"].is_string()), "split at {split}: {events:?}");
        assert_eq!(of(Stream::Stdout, &events), text);
    }
}

#[test]
fn output_that_is_not_text_is_base64() {
    let events =
        recorded(&[(Stream::Stderr, b"a\xff\x00z".to_vec()), (Stream::Stderr, b"end \xe6\xbc".to_vec())]);
    assert_eq!(events[0].data["base64"], "Yf8Aeg==");
    assert_eq!(events[0].data["stream"], "stderr");
    assert_eq!(of(Stream::Stderr, &events), b"a\xff\x00zend \xe6\xbc");
}

#[test]
fn large_output_is_split_into_several_events() {
    let bytes: Vec<u8> = b"0123456789abcdef\n".iter().copied().cycle().take(1_000_000).collect();
    let events = recorded(&[(Stream::Terminal, bytes.clone())]);
    assert!(events.len() >= 16);
    assert_eq!(of(Stream::Terminal, &events), bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn output_streams_are_recorded_separately_and_unchanged(
        pieces in proptest::collection::vec((0usize..3, proptest::collection::vec(any::<u8>(), 0..40)), 0..12),
    ) {
        let streams = [Stream::Stdout, Stream::Stderr, Stream::Terminal];
        let pieces: Vec<(Stream, Vec<u8>)> =
            pieces.into_iter().map(|(stream, bytes)| (streams[stream], bytes)).collect();
        let events = recorded(&pieces);
        for stream in streams {
            let sent = pieces.iter().filter(|(from, _)| *from == stream);
            let sent: Vec<u8> = sent.flat_map(|(_, bytes)| bytes.clone()).collect();
            prop_assert_eq!(of(stream, &events), sent);
        }
    }
}

//! The reader must handle files that are still growing, that a later version wrote, or that somebody made by hand.

use std::io::{Read, Write};

use memchr::memmem::Finder;

use guard::run::transcript::{Event, LONGEST_LINE, Reader, Step};

use crate::support::Scratch;

#[test]
fn unknown_and_missing_event_fields_are_accepted() {
    let text = "{\"event_type\":\"from.the.future\",\"seq\":7,\"extra\":[1],\"data\":3}\n{}\n";
    let mut reader = Reader::new(text.as_bytes());
    let Step::Event(event) = reader.step().unwrap() else { panic!("an event") };
    assert_eq!((event.event_type.as_str(), event.seq, event.output()), ("from.the.future", 7, None));
    assert_eq!(reader.step().unwrap(), Step::Event(Box::default()));
    assert_eq!(reader.step().unwrap(), Step::End { partial: 0 });
}

#[test]
fn reader_continues_after_an_invalid_line() {
    let mut reader = Reader::new(b"{\"seq\":1}\n\xff\n[]\n\n{\"seq\":2}\n".as_slice());
    let steps: Vec<Step> = (0..6).map(|_| reader.step().unwrap()).collect();
    assert!(matches!(&steps[0], Step::Event(event) if event.seq == 1));
    assert!(steps[1..4].iter().all(|step| matches!(step, Step::Bad(_))), "{steps:?}");
    assert!(matches!(&steps[4], Step::Event(event) if event.seq == 2));
    assert_eq!(steps[5], Step::End { partial: 0 });
}

#[test]
fn lines_without_a_text_are_skipped_unparsed() {
    let long = std::io::repeat(b'x').take(3 * LONGEST_LINE as u64);
    let lines = b"{\"event_type\":\"exec\",\"seq\":1}\nnot JSON\n{\"event_type\":\"deny.exec\",\"seq\":2}\n"
        .as_slice();
    let last = b"\n\"deny.\n{\"message\":\"deny.\"}\n{\"event_type\":\"deny.new\",\"seq\":3}\n{\"event_type\":\"deny.".as_slice();
    let mut reader = Reader::new(lines.chain(long).chain(last));
    let text = Finder::new("\"deny.");
    let mut step = || reader.step_to(&text).unwrap();
    assert!(matches!(step(), Step::Event(event) if event.seq == 2));
    assert!(matches!(step(), Step::Bad(why) if why.contains("longer than")));
    assert_eq!(step(), Step::Bad("the line is not a JSON object".to_string()));
    assert!(matches!(step(), Step::Event(event) if event.message == "deny."));
    assert!(matches!(step(), Step::Event(event) if event.seq == 3));
    assert_eq!(step(), Step::End { partial: 20 });
}

#[test]
fn endless_line_is_not_read_into_memory() {
    let long = std::io::repeat(b'x').take(3 * LONGEST_LINE as u64).chain(b"\n{\"seq\":9}\n".as_slice());
    let mut reader = Reader::new(long);
    assert_eq!(reader.step().unwrap(), Step::Bad("the line is longer than 16 MiB".to_string()));
    assert!(reader.line().len() <= LONGEST_LINE + 1);
    assert!(matches!(reader.step().unwrap(), Step::Event(event) if event.seq == 9));
}

#[test]
fn reader_continues_from_a_half_line_of_a_growing_file() {
    let scratch = Scratch::new("grow");
    let path = scratch.write("transcript.jsonl", "{\"seq\":1}\n{\"se");
    let mut reader = Reader::open(&path).unwrap();
    assert!(matches!(reader.step().unwrap(), Step::Event(event) if event.seq == 1));
    assert_eq!(reader.step().unwrap(), Step::End { partial: 4 });
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"q\":").unwrap();
    assert_eq!(reader.step().unwrap(), Step::End { partial: 7 });
    file.write_all(b"2}\n").unwrap();
    assert_eq!(reader.step().unwrap(), Step::Event(Box::new(Event { seq: 2, ..Event::default() })));
    assert_eq!(reader.line(), b"{\"seq\":2}");
}

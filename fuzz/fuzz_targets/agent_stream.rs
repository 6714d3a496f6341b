//! Parses any bytes as the output of an agent's CLI. The result must be the same whether the parser reads the bytes
//! whole or in pieces, and must not be a success if the CLI failed or reported an error.
#![no_main]

use std::sync::LazyLock;

use guard::agents::adapter::{AGENTS, Adapter, Ending, OutputFormat, OutputParser, named};
use libfuzzer_sys::fuzz_target;

static ADAPTERS: LazyLock<Vec<Adapter>> =
    LazyLock::new(|| AGENTS.iter().filter_map(|(name, _)| named(name)).collect());

const FORMATS: [OutputFormat; 3] = [OutputFormat::StreamJson, OutputFormat::Json, OutputFormat::Text];

// The first byte selects the CLI, the output format and the exit status. The second byte sets the length of the
// pieces, and how much of the remaining bytes the CLI printed on its other stream.
fuzz_target!(|bytes: &[u8]| {
    let [how, pieces, rest @ ..] = bytes else { return };
    let adapter = &ADAPTERS[usize::from(how & 3) % ADAPTERS.len()];
    let format = FORMATS[usize::from(how >> 2 & 3) % FORMATS.len()];
    let ending = match how >> 4 {
        0..=7 => Ending::Code(0),
        8..=11 => Ending::Code(i32::from(*pieces)),
        12..=13 => Ending::Signal(9),
        _ => Ending::EndedByGuard,
    };
    let (out, elsewhere) = rest.split_at(rest.len() - rest.len() * usize::from(pieces & 3) / 4);
    let elsewhere = String::from_utf8_lossy(elsewhere);
    let read = |length: usize| {
        let (mut reading, mut events) = (OutputParser::new(adapter.clone(), format), Vec::new());
        for piece in out.chunks(length.max(1)) {
            reading.feed(piece, |event| events.push(event));
        }
        reading.finish(|event| events.push(event));
        (events, reading.conclude(ending, None, &elsewhere))
    };
    let (events, end) = read(out.len());
    assert_eq!(read(1 + usize::from(pieces >> 2)), (events, end.clone()));
    assert!(!end.success || (ending == Ending::Code(0) && end.error.is_none()));
    assert_eq!(end.error.is_none(), end.success || ending == Ending::EndedByGuard);
});

//! Reads the token usage from a response that consists of any bytes. The usage must be the same whether the bytes are
//! read whole or in pieces.
#![no_main]

use std::sync::LazyLock;

use guard::run::egress::token_usage::{Places, Scanner};
use libfuzzer_sys::fuzz_target;

static PLACES: LazyLock<Places> = LazyLock::new(|| {
    let all = |paths: &[&str]| paths.iter().map(|path| (*path).to_string()).collect();
    Places {
        input: all(&["usageMetadata.promptTokenCount", "usage.prompt_tokens|message.usage.input_tokens|n"]),
        output: all(&[
            "usageMetadata.candidatesTokenCount",
            "usage.completion_tokens|usage.output_tokens|a.b",
        ]),
        cached: all(&[
            "usageMetadata.cachedContentTokenCount|response.usage.input_tokens_details.cached_tokens",
        ]),
        sources: all(&["candidates.groundingMetadata.groundingChunks.web.uri", "s"]),
    }
});

// The lowest bit of the first byte says whether the response is an event stream, and the other bits set the length of
// the pieces.
fuzz_target!(|bytes: &[u8]| {
    let Some((&how, body)) = bytes.split_first() else { return };
    let mut whole = Scanner::new(&PLACES, how & 1 == 1);
    whole.feed(body);
    let mut pieces = Scanner::new(&PLACES, how & 1 == 1);
    for piece in body.chunks(1 + usize::from(how >> 1)) {
        pieces.feed(piece);
    }
    assert_eq!(pieces.tokens(), whole.tokens());
    assert_eq!(pieces.finish_with_sources(), whole.finish_with_sources());
});

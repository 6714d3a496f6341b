//! Reads the arguments of a program start from memory with any content. The reader must return an error or a bounded
//! list of strings, and each string must be in that memory.
#![no_main]

use guard::run::supervisor::fuzzing::{arguments, started_with};
use libfuzzer_sys::fuzz_target;

/// The size of the memory region with the strings, in bytes.
const TEXT: usize = 8192;
const LIMIT: usize = 4096;

// The first byte sets the number of pointers, and the second one where the environment array begins. Each following
// pair of bytes is a pointer: null, an address in the text, an invalid address, or the last byte of the text. The
// remaining bytes are the text.
fuzz_target!(|bytes: &[u8]| {
    let [count, split, rest @ ..] = bytes else { return };
    let count = usize::from(*count).min(rest.len() / 2);
    let (entries, text) = rest.split_at(count * 2);
    let mut memory = vec![0u8; TEXT];
    let length = text.len().min(TEXT);
    memory[..length].copy_from_slice(&text[..length]);
    let base = memory.as_ptr() as u64;
    let mut pointers: Vec<u64> = vec![u64::from(*split)];
    pointers.extend(entries.chunks_exact(2).map(|pair| match (pair[0], pair[1]) {
        (0xff, 0) => 0,
        (0xff, 1) => u64::MAX,
        (0xff, 2) => base + TEXT as u64 - 1,
        (0xff, odd) => u64::from(odd),
        (high, low) => base + u64::from(u16::from_be_bytes([high, low])) % TEXT as u64,
    }));
    pointers.extend([0, 0]);
    let at = |index: usize| pointers.as_ptr() as u64 + 8 * index as u64;
    let environment = usize::from(*split) % pointers.len();
    let own = std::process::id() as i32;
    if let Ok((argv, variables)) = arguments(own, at(1), at(environment.max(1)), LIMIT) {
        assert!(argv.iter().map(|word| word.len() + 1).sum::<usize>() <= LIMIT + argv.len() + 1);
        assert!(argv.len() <= count && variables.len() <= count + 2);
        for (word, pointer) in argv.iter().zip(&pointers[1..]) {
            assert!(!word.contains(&0));
            if (base..base + TEXT as u64).contains(pointer) {
                let from = (pointer - base) as usize;
                let end = (from + word.len()).min(TEXT);
                assert_eq!(&memory[from..end], &word[..end - from]);
            }
        }
    }
    let _ = started_with(own, at(0));
});

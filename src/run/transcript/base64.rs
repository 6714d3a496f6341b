//! Base64 with padding, for output that is not valid UTF-8.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends `bytes`, encoded as base64, to `out`.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * index)) as usize & 63];
            out.push(if index > group.len() { b'=' } else { letter });
        }
    }
}

/// Returns `bytes` encoded as base64.
pub fn base64(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    encode(bytes, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// Decodes base64, with or without padding at the end; `None` if `text` is not valid base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    for group in text.chunks(4) {
        let mut bits = 0u32;
        for (index, letter) in group.iter().enumerate() {
            bits |= value(*letter)? << (18 - 6 * index);
        }
        match group.len() {
            4 => out.extend_from_slice(&bits.to_be_bytes()[1..]),
            3 => out.extend_from_slice(&bits.to_be_bytes()[1..3]),
            2 => out.push(bits.to_be_bytes()[1]),
            _ => return None,
        }
    }
    Some(out)
}

fn value(letter: u8) -> Option<u32> {
    Some(u32::from(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_vectors_there_and_back() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            let mut out = Vec::new();
            encode(plain.as_bytes(), &mut out);
            assert_eq!(out, coded.as_bytes());
            assert_eq!(decode(coded), Some(plain.as_bytes().to_vec()));
        }
        assert_eq!(decode("Zm9*"), None);
        assert_eq!(decode("Z"), None);
    }
}

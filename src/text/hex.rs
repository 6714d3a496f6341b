//! Encodes bytes, such as hashes and object ids, as hexadecimal text.

/// Encodes each byte as two lower-case hexadecimal digits.
pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.as_ref().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_two_digits() {
        assert_eq!(encode([0x00, 0x0f, 0xa0, 0xff]), "000fa0ff");
        assert_eq!(encode([]), "");
    }
}

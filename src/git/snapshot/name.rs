//! Names of paths, refs and settings as bytes, with a lossless text form that is safe to print on a terminal.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::text::terminal_text;

/// The name of a path, a ref or a setting, which may contain any bytes.
///
/// The text form keeps printable characters unchanged. It shows a backslash as `\\`, an ASCII control character or a
/// byte that is not UTF-8 as `\xNN`, and any other character that is invisible or changes the text direction as
/// `\u{NNNN}`. `Name::parse` restores the bytes, so JSON files lose nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Name(Vec<u8>);

impl Name {
    /// Creates a name from these bytes without copying them.
    pub fn own(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn path(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        PathBuf::from(std::ffi::OsStr::from_bytes(&self.0))
    }

    /// Parses the text form of a name; `None` if the text contains an invalid escape sequence.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('\\') {
            bytes.extend_from_slice(&rest.as_bytes()[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('\\') {
                bytes.push(b'\\');
                rest = after;
            } else if let Some(after) = rest.strip_prefix('x') {
                bytes.push(u8::from_str_radix(after.get(..2)?, 16).ok()?);
                rest = &after[2..];
            } else {
                let (number, after) = rest.strip_prefix("u{")?.split_once('}')?;
                let character = char::from_u32(u32::from_str_radix(number, 16).ok()?)?;
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                rest = after;
            }
        }
        bytes.extend_from_slice(rest.as_bytes());
        Some(Self(bytes))
    }

    fn is_plain(&self) -> bool {
        self.0.iter().all(|byte| matches!(byte, b' '..=b'~') && *byte != b'\\')
    }
}

/// True for characters that are invisible or change the order in which other characters appear, and for the control
/// characters U+0080 to U+009F.
pub(crate) fn is_deceptive(character: char) -> bool {
    // Allow U+FE0F, because it follows many emoji.
    matches!(character, '\u{80}'..='\u{9f}')
        || terminal_text::is_invisible(character) && character != '\u{fe0f}'
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\\' => f.write_str("\\\\")?,
                    '\0'..='\x1f' | '\x7f' => write!(f, "\\x{:02x}", u32::from(character))?,
                    _ if is_deceptive(character) => write!(f, "\\u{{{:x}}}", u32::from(character))?,
                    _ => f.write_char(character)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

impl<T: AsRef<[u8]>> From<T> for Name {
    fn from(bytes: T) -> Self {
        Self(bytes.as_ref().to_vec())
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) if self.is_plain() => serializer.serialize_str(text),
            _ => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("invalid escape sequence in a name"))
    }
}

//! Serialises a path as text. A path that is not UTF-8 becomes `hex:` and its bytes in hexadecimal.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn text(path: &Path) -> String {
    match path.to_str() {
        Some(text) if !text.starts_with("hex:") => text.to_string(),
        _ => format!("hex:{}", crate::text::hex::encode(path.as_os_str().as_bytes())),
    }
}

pub(crate) fn parse(text: &str) -> Option<PathBuf> {
    let Some(hex) = text.strip_prefix("hex:") else { return Some(PathBuf::from(text)) };
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Vec<u8> = digits.map(byte).collect::<Option<_>>()?;
    Some(PathBuf::from(OsStr::from_bytes(&bytes)))
}

pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&text(path))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| serde::de::Error::custom("invalid hexadecimal digits in a path"))
}

pub(crate) mod list {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| super::text(path)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let parsed: Option<Vec<PathBuf>> = texts.iter().map(|text| super::parse(text)).collect();
        parsed.ok_or_else(|| serde::de::Error::custom("invalid hexadecimal digits in a path"))
    }
}

//! Text that every module may use: safe output of untrusted text, templates, hexadecimal numbers, enums with fixed
//! strings.

pub(crate) mod hex;
pub(crate) mod string_enum;
pub(crate) mod template;
pub(crate) mod terminal_text;

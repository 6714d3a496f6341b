//! Text that every module may use: safe output of untrusted text, templates, checks by JSON Schemas, hexadecimal numbers,
//! enums with fixed strings.

pub(crate) mod hex;
pub(crate) mod json_schema;
pub(crate) mod string_enum;
pub(crate) mod template;
pub(crate) mod terminal_text;

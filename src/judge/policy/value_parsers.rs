//! Parses single values of a policy file, checks their types, and reports their problems.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use super::diagnostic::{Diagnostic, Severity};
use super::keys::{Field, Kind, nearest};
use super::model::Action;
use super::parse::{Located, Reader, Table};

/// A Rust type for the value of a key. The key's kind in the format table determines the type; `read` returns `None`
/// for a kind that does not fit the type.
pub(super) trait KeyValue: Sized {
    fn read(reader: &mut Reader<'_>, kind: &Kind, value: &Spanned<DeValue<'_>>) -> Option<Self>;

    /// Returns the strings of the value if it is a list of strings; otherwise an empty slice.
    fn items(&self) -> &[Located<String>] {
        &[]
    }
}

impl KeyValue for Located<Vec<Located<String>>> {
    fn read(reader: &mut Reader<'_>, kind: &Kind, value: &Spanned<DeValue<'_>>) -> Option<Self> {
        let items = match kind {
            Kind::List => reader.list(value)?,
            Kind::Ports => reader.ports(value)?,
            Kind::Choices(words, what) => reader.choices(value, words, what)?,
            _ => return None,
        };
        Some(Located { value: items, span: value.span() })
    }

    fn items(&self) -> &[Located<String>] {
        &self.value
    }
}

impl KeyValue for Located<String> {
    fn read(reader: &mut Reader<'_>, kind: &Kind, value: &Spanned<DeValue<'_>>) -> Option<Self> {
        match kind {
            Kind::Text => reader.text(value),
            Kind::Choice(words) => reader.choice(value, words),
            _ => None,
        }
    }
}

impl KeyValue for Located<bool> {
    fn read(reader: &mut Reader<'_>, _: &Kind, value: &Spanned<DeValue<'_>>) -> Option<Self> {
        reader.flag(value)
    }
}

impl KeyValue for Located<i64> {
    fn read(reader: &mut Reader<'_>, kind: &Kind, value: &Spanned<DeValue<'_>>) -> Option<Self> {
        match kind {
            Kind::Number(least, most) => reader.number(value, *least, *most),
            Kind::Amount => reader.amount(value),
            _ => None,
        }
    }
}

impl KeyValue for Located<Action> {
    fn read(reader: &mut Reader<'_>, _: &Kind, value: &Spanned<DeValue<'_>>) -> Option<Self> {
        reader.action(value)
    }
}

impl KeyValue for Vec<(Located<String>, String)> {
    fn read(reader: &mut Reader<'_>, _: &Kind, value: &Spanned<DeValue<'_>>) -> Option<Self> {
        Some(reader.map(value))
    }
}

impl Reader<'_> {
    pub(super) fn error(&mut self, span: Range<usize>, message: String, label: &str, help: Option<String>) {
        self.problems.push(Diagnostic {
            severity: Severity::Error,
            message,
            source: self.source.clone(),
            span,
            label: label.to_string(),
            help,
        });
    }

    /// Reports unknown keys and suggests the nearest known one.
    pub(super) fn check_keys(&mut self, table: &Table<'_>, fields: &'static [Field], place: &str) {
        for key in table.keys() {
            let name: &str = key.get_ref();
            if !fields.iter().any(|field| field.name == name) {
                let known = || fields.iter().map(|field| field.name);
                let help = match nearest(name, known()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("known keys: {}", known().collect::<Vec<_>>().join(", ")),
                };
                self.error(
                    key.span(),
                    format!("unknown key `{name}` in {place}"),
                    "not a key of this format",
                    Some(help),
                );
            }
        }
    }

    pub(super) fn unknown_word<'w>(
        &mut self,
        span: Range<usize>,
        what: &str,
        written: &str,
        known: impl Iterator<Item = &'w str> + Clone,
    ) {
        let help = match nearest(written, known.clone()) {
            Some(near) => Some(format!("did you mean `{near}`?")),
            None if known.clone().count() < 40 => {
                Some(format!("known: {}", known.collect::<Vec<_>>().join(", ")))
            }
            None => None,
        };
        self.error(span, format!("unknown {what} `{written}`"), &format!("no such {what}"), help);
    }

    pub(super) fn wrong_type(&mut self, value: &Spanned<DeValue<'_>>, wanted: &str) {
        let found = value.get_ref().type_str();
        let article = if found.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        self.error(value.span(), format!("expected {wanted}"), &format!("this is {article} {found}"), None);
    }

    pub(super) fn text(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Located<String>> {
        match value.get_ref() {
            DeValue::String(text) => Some(Located { value: text.to_string(), span: value.span() }),
            _ => {
                self.wrong_type(value, "a string");
                None
            }
        }
    }

    pub(super) fn flag(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Located<bool>> {
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(Located { value: *flag, span: value.span() }),
            _ => {
                self.wrong_type(value, "true or false");
                None
            }
        }
    }

    pub(super) fn number(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        least: i64,
        most: i64,
    ) -> Option<Located<i64>> {
        let DeValue::Integer(number) = value.get_ref() else {
            self.wrong_type(value, "a whole number");
            return None;
        };
        match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) if (least..=most).contains(&number) => {
                Some(Located { value: number, span: value.span() })
            }
            _ => {
                let wanted =
                    if least == most { format!("{least}") } else { format!("between {least} and {most}") };
                self.error(value.span(), format!("the number must be {wanted}"), "out of range", None);
                None
            }
        }
    }

    /// Parses an amount of money, and returns it in millionths, rounded, but never less than one millionth.
    pub(super) fn amount(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Located<i64>> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number as f64)
            }
            DeValue::Float(number) => number.as_str().parse::<f64>().ok(),
            _ => {
                self.wrong_type(value, "an amount, such as 2.5");
                return None;
            }
        };
        match number {
            Some(number) if number > 0.0 && number <= 1e6 => {
                Some(Located { value: ((number * 1e6).round() as i64).max(1), span: value.span() })
            }
            _ => {
                self.error(
                    value.span(),
                    "the amount must be greater than 0 and at most 1000000".to_string(),
                    "out of range",
                    None,
                );
                None
            }
        }
    }

    pub(super) fn action(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Located<Action>> {
        let text = self.text(value)?;
        let action = match text.value.as_str() {
            "allow" => Action::Allow,
            "ask" => Action::Ask,
            "deny" => Action::Deny,
            other => {
                self.unknown_word(text.span.clone(), "action", other, ["allow", "ask", "deny"].into_iter());
                return None;
            }
        };
        Some(Located { value: action, span: text.span })
    }

    /// Parses a string that must be one of the given keywords. Reports any other string and returns `None`.
    pub(super) fn choice(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        words: &'static [&'static str],
    ) -> Option<Located<String>> {
        let text = self.text(value)?;
        if !words.contains(&text.value.as_str()) {
            self.unknown_word(text.span, "value", &text.value, words.iter().copied());
            return None;
        }
        Some(text)
    }

    /// Parses a list of keywords. Reports unknown keywords and leaves them out. `what` is the word for a keyword in
    /// messages.
    pub(super) fn choices(
        &mut self,
        value: &Spanned<DeValue<'_>>,
        words: &'static [&'static str],
        what: &str,
    ) -> Option<Vec<Located<String>>> {
        let mut list = self.list(value)?;
        list.retain(|item| {
            let is_known = words.contains(&item.value.as_str());
            if !is_known {
                self.unknown_word(item.span.clone(), what, &item.value, words.iter().copied());
            }
            is_known
        });
        Some(list)
    }

    pub(super) fn list(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Vec<Located<String>>> {
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(value, "a list of strings");
            return None;
        };
        Some(items.iter().filter_map(|item| self.text(item)).collect())
    }

    /// Parses a list of port numbers. Returns them as text, because the merge handles all lists as text.
    pub(super) fn ports(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Vec<Located<String>>> {
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(value, "a list of port numbers");
            return None;
        };
        let port = |item| {
            let port = self.number(item, 1, i64::from(u16::MAX))?;
            Some(Located { value: port.value.to_string(), span: port.span })
        };
        Some(items.iter().filter_map(port).collect())
    }

    pub(super) fn texts(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Vec<Located<String>>> {
        match value.get_ref() {
            DeValue::Array(_) => self.list(value),
            DeValue::String(_) => self.text(value).map(|text| vec![text]),
            _ => {
                self.wrong_type(value, "a string or a list of strings");
                None
            }
        }
    }

    pub(super) fn map(&mut self, value: &Spanned<DeValue<'_>>) -> Vec<(Located<String>, String)> {
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong_type(value, "a table of strings");
            return Vec::new();
        };
        let mut map = Vec::new();
        for (key, value) in table {
            if let Some(text) = self.text(value) {
                let name = Located { value: key.get_ref().to_string(), span: key.span() };
                if name.value.is_empty() || name.value.contains(['=', '\0']) || text.value.contains('\0') {
                    let label =
                        "a name must not be empty or contain `=` or NUL; a value must not contain NUL";
                    self.error(
                        key.span(),
                        format!("invalid entry `{}`", name.value.escape_debug()),
                        label,
                        None,
                    );
                }
                map.push((name, text.value));
            }
        }
        map
    }
}

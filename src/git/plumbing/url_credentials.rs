//! Finds credentials in the URLs of git settings, in values and in keys. guard removes these credentials from the
//! configuration that an agent gets, and redacts them from transcripts.
//!
//! Recognises `https://user:TOKEN@host/`, `https://TOKEN@host/`, `user:TOKEN@host:path` and
//! `https://host/?access_token=TOKEN`. One setting can contain several URLs.

use super::setting::Setting;

/// The sections in which values and subsections are addresses of repositories, even if they have no URL scheme.
const ADDRESS_SECTIONS: [&str; 4] = ["remote", "branch", "lfs", "url"];
/// Minimum length of a credential that guard redacts from transcripts. Shorter texts are unlikely to be secrets, and
/// redacting them would hide ordinary words.
const MIN_SECRET_LENGTH: usize = 6;
/// Minimum length of a credential at a position where a user name or an ordinary query parameter is also possible.
const MIN_AMBIGUOUS_LENGTH: usize = 16;

pub(crate) fn without_credentials(setting: Setting) -> Setting {
    let has_addresses = has_addresses(&setting.key);
    let key = match split_key(&setting.key) {
        Some((section, name, last)) => {
            let name = remove_credentials(name.as_bytes(), has_addresses, &mut Vec::new());
            format!("{section}.{}.{last}", String::from_utf8_lossy(&name))
        }
        None => setting.key,
    };
    let value = setting.value.map(|value| remove_credentials(&value, has_addresses, &mut Vec::new()));
    Setting { key, value, ..setting }
}

/// Returns the credentials in the URLs of a setting's key and value, and in an `extraHeader` of `http.URL`. Leaves out
/// credentials that are shorter than [`MIN_SECRET_LENGTH`].
pub(crate) fn credentials(setting: &Setting) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let has_addresses = has_addresses(&setting.key);
    if let Some((_, name, last)) = split_key(&setting.key) {
        remove_credentials(name.as_bytes(), has_addresses, &mut found);
        // The value of `http.URL.extraHeader` can be `Authorization: basic TOKEN`.
        let value = setting.value.as_deref().filter(|_| last == "extraheader").unwrap_or_default();
        found.extend(value.rsplit(|byte| *byte == b' ').next().map(<[u8]>::to_vec));
    }
    remove_credentials(setting.value.as_deref().unwrap_or_default(), has_addresses, &mut found);
    found.retain(|secret| secret.len() >= MIN_SECRET_LENGTH);
    found
}

fn has_addresses(key: &str) -> bool {
    key.split('.').next().is_some_and(|section| ADDRESS_SECTIONS.contains(&section))
}

/// Splits `section.SUBSECTION.name` into its three parts; `None` if there is no subsection.
fn split_key(key: &str) -> Option<(&str, &str, &str)> {
    let (first, last) = (key.find('.')?, key.rfind('.')?);
    (first < last).then(|| (&key[..first], &key[first + 1..last], &key[last + 1..]))
}

/// Returns the text without the user names, passwords and query strings of its URLs. Adds the parts of these that may
/// be credentials to `found`. With `has_addresses`, also removes the token from `user:TOKEN@host:path`.
fn remove_credentials(text: &[u8], has_addresses: bool, found: &mut Vec<Vec<u8>>) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    // A password may contain the characters that separate URLs, so take a value that is one URL as a whole.
    let is_one_word = !text.iter().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control());
    if is_one_word && text.windows(3).filter(|window| *window == b"://").count() == 1 {
        clean_url(text, has_addresses, &mut plain, found);
        return plain;
    }
    let mut rest = text;
    while !rest.is_empty() {
        let length = rest.iter().position(|byte| is_separator(*byte)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        clean_url(word, has_addresses, &mut plain, found);
        let between = after.iter().position(|byte| !is_separator(*byte)).unwrap_or(after.len());
        plain.extend_from_slice(&after[..between]);
        rest = &after[between..];
    }
    plain
}

/// True for characters that separate URLs in a text.
fn is_separator(byte: u8) -> bool {
    byte.is_ascii_whitespace() || b"'\"<>`,;|()".contains(&byte)
}

fn clean_url(word: &[u8], has_addresses: bool, plain: &mut Vec<u8>, found: &mut Vec<Vec<u8>>) {
    let scheme = word.windows(3).position(|window| window == b"://");
    let Some(start) = scheme.map(|at| at + 3) else {
        if has_addresses {
            clean_scp(word, plain, found);
        } else {
            plain.extend_from_slice(word);
        }
        return;
    };
    plain.extend_from_slice(&word[..start]);
    let rest = &word[start..];
    let end = rest.iter().position(|byte| b"/?#\\".contains(byte)).unwrap_or(rest.len());
    let authority = &rest[..end];
    let last_sign = |text: &[u8]| text.iter().rposition(|byte| *byte == b'@');
    // Some people do not escape a slash in a password. The part before the slash is then not a valid host and port.
    let port = authority.iter().position(|byte| *byte == b':').map(|at| &authority[at + 1..]);
    let is_broken = port.is_some_and(|port| port.iter().any(|byte| !byte.is_ascii_digit()))
        && !authority.starts_with(b"[");
    let sign = last_sign(authority).or_else(|| last_sign(rest).filter(|_| is_broken));
    let rest = match sign {
        Some(sign) => {
            let user = &rest[..sign];
            match user.iter().position(|byte| *byte == b':') {
                Some(colon) => found.push(user[colon + 1..].to_vec()),
                // A long user name without a password may be a token.
                None if user.len() >= MIN_AMBIGUOUS_LENGTH => found.push(user.to_vec()),
                None => {}
            }
            &rest[sign + 1..]
        }
        None => rest,
    };
    // Tokens can also be query parameters.
    let query = rest.iter().position(|byte| *byte == b'?').unwrap_or(rest.len());
    for parameter in rest[query..].split(|byte| b"?&".contains(byte)) {
        let value = parameter.splitn(2, |byte| *byte == b'=').nth(1);
        found.extend(value.filter(|value| value.len() >= MIN_AMBIGUOUS_LENGTH).map(<[u8]>::to_vec));
    }
    // The same word may contain a second URL.
    let rest = &rest[..query];
    if rest.windows(3).any(|window| window == b"://") {
        clean_url(rest, has_addresses, plain, found);
    } else {
        plain.extend_from_slice(rest);
    }
}

/// Turns `user:TOKEN@host:path` into `user@host:path`, and adds the token to `found`.
fn clean_scp(word: &[u8], plain: &mut Vec<u8>, found: &mut Vec<Vec<u8>>) {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-+%".contains(byte);
    let colon = word.iter().position(|byte| !is_name(byte)).filter(|at| *at > 0 && word[*at] == b':');
    let sign = word.iter().rposition(|byte| *byte == b'@');
    match (colon, sign) {
        (Some(colon), Some(sign)) if colon < sign => {
            found.push(word[colon + 1..sign].to_vec());
            plain.extend_from_slice(&word[..colon]);
            plain.extend_from_slice(&word[sign..]);
        }
        _ => plain.extend_from_slice(word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(text: &str) -> (String, Vec<String>) {
        let mut found = Vec::new();
        let plain = remove_credentials(text.as_bytes(), true, &mut found);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_default();
        (text(plain), found.into_iter().map(text).collect())
    }

    #[test]
    fn credentials_are_cut_out_and_collected() {
        for (text, plain, found) in [
            ("https://me:TOKEN@host/x", "https://host/x", &["TOKEN"][..]),
            ("https://TOKEN-TOKEN-TOKEN@host/x", "https://host/x", &["TOKEN-TOKEN-TOKEN"]),
            ("https://me@host/x", "https://host/x", &[]),
            ("https://me:T@KEN@host/x", "https://host/x", &["T@KEN"]),
            ("https://me:TO/KEN@host/x", "https://host/x", &["TO/KEN"]),
            ("https://me:s3cr3t,Token1@host/x", "https://host/x", &["s3cr3t,Token1"]),
            ("https://me:pass(word)9@host/x", "https://host/x", &["pass(word)9"]),
            ("https://deploy:ab;cdef@host/x", "https://host/x", &["ab;cdef"]),
            ("https://me:it'sSecret@host/x", "https://host/x", &["it'sSecret"]),
            ("https://a:T1@b/ https://c:T2@d/", "https://b/ https://d/", &["T1", "T2"]),
            ("https://a:T1@b/,https://c:T2@d/", "https://b/,https://d/", &["T1", "T2"]),
            ("https://a:T1@b/https://c:T2@d/", "https://b/https://d/", &["T1", "T2"]),
            ("https://host/x?access_token=TOKEN-TOKEN-TOKEN", "https://host/x", &["TOKEN-TOKEN-TOKEN"]),
            ("https://host/x?depth=1", "https://host/x", &[]),
            ("user:TOKEN@host:path", "user@host:path", &["TOKEN"]),
            ("ext::https://me:TOKEN@host/", "ext::https://host/", &["TOKEN"]),
            ("git@host:path", "git@host:path", &[]),
            ("https://host:8080/@scope/x@1", "https://host:8080/@scope/x@1", &[]),
            ("https://[::1]:80/x@y", "https://[::1]:80/x@y", &[]),
            ("+refs/heads/*:refs/remotes/a@b/*", "+refs/heads/*:refs/remotes/a@b/*", &[]),
            ("", "", &[]),
            ("://", "://", &[]),
            ("@", "@", &[]),
        ] {
            let (plain, found): (&str, Vec<String>) =
                (plain, found.iter().map(|one| (*one).to_string()).collect());
            assert_eq!(clean(text), (plain.to_string(), found), "{text}");
        }
    }
}

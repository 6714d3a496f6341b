//! Parses git configuration files that an agent wrote, and reports which settings make git run programs.
//!
//! guard has its own parser, because running git on these files would need one more jail, and because git stops at
//! the first error, while a reviewer must see all settings. Tests compare the parser with `git config --list`.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The name of the section, in lower case.
    pub section: Vec<u8>,
    /// The subsection without its quotes, in its original case; `None` if the section has no subsection.
    pub subsection: Option<Vec<u8>>,
    /// The name of the setting, in lower case.
    pub name: Vec<u8>,
    /// The value; `None` for a name without a value, which means true.
    pub value: Option<Vec<u8>>,
}

impl Setting {
    /// Returns the full key of the setting, as `git config --list` shows it.
    pub fn key(&self) -> Vec<u8> {
        let mut key = self.section.clone();
        if let Some(subsection) = &self.subsection {
            key.push(b'.');
            key.extend_from_slice(subsection);
        }
        // git also accepts settings before the first section.
        if !key.is_empty() {
            key.push(b'.');
        }
        key.extend_from_slice(&self.name);
        key
    }
}

/// Parses a git configuration file. Skips lines that git would reject, and continues after them: reporting more
/// settings than git reads is safe, reporting fewer is not.
pub fn settings(text: &[u8]) -> Vec<Setting> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut reader = Reader { text, at: 0 };
    let mut found = Vec::new();
    let mut section = (Vec::new(), None);
    while let Some(byte) = reader.peek() {
        let start = reader.at;
        let understood = match byte {
            _ if byte.is_ascii_whitespace() || byte == 0x0b => reader.next().is_some(),
            b'[' => {
                reader.at += 1;
                reader.header().map(|header| section = header).is_some()
            }
            _ if byte.is_ascii_alphabetic() => {
                let name = reader.name();
                let (section, subsection) = section.clone();
                reader.value().map(|value| found.push(Setting { section, subsection, name, value })).is_some()
            }
            // Skip a comment, and anything else that git does not accept.
            _ => false,
        };
        if !understood {
            // Go back to the start of the rejected text: the parser may already have read past the end of its line.
            reader.at = start;
            reader.skip_line();
        }
    }
    found
}

/// True for the bytes that git treats as whitespace.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// Returns the next byte without consuming it; `None` at the end of the text. CRLF counts as one newline.
    fn peek(&self) -> Option<u8> {
        match self.text.get(self.at) {
            Some(b'\r') if self.text.get(self.at + 1) == Some(&b'\n') => Some(b'\n'),
            other => other.copied(),
        }
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += if byte == b'\n' && self.text.get(self.at) == Some(&b'\r') { 2 } else { 1 };
        Some(byte)
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|byte| byte != b'\n') {}
    }

    /// Parses a section header, starting after its `[`. Returns the section and the subsection; `None` if git would
    /// reject the header.
    fn header(&mut self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let mut section = Vec::new();
        loop {
            match self.peek()? {
                b']' => {
                    self.at += 1;
                    // In the deprecated syntax `[section.subsection]`, git converts the subsection to lower case.
                    let dot = section.iter().position(|byte| *byte == b'.');
                    let subsection = dot.map(|dot| section.split_off(dot)[1..].to_vec());
                    return Some((section, subsection));
                }
                b'\n' => return None,
                byte if is_space(byte) => break,
                byte if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.') => {
                    section.push(byte.to_ascii_lowercase());
                    self.at += 1;
                }
                _ => return None,
            }
        }
        while self.peek().is_some_and(|byte| is_space(byte) && byte != b'\n') {
            self.at += 1;
        }
        if self.peek()? != b'"' {
            return None;
        }
        self.at += 1;
        let mut subsection = Vec::new();
        loop {
            match self.next()? {
                b'"' => break,
                b'\n' => return None,
                b'\\' => match self.next()? {
                    b'\n' => return None,
                    escaped => subsection.push(escaped),
                },
                byte => subsection.push(byte),
            }
        }
        if self.peek()? != b']' {
            return None;
        }
        self.at += 1;
        Some((section, Some(subsection)))
    }

    fn name(&mut self) -> Vec<u8> {
        let mut name = Vec::new();
        while let Some(byte) = self.peek()
            && (byte.is_ascii_alphanumeric() || byte == b'-')
        {
            name.push(byte.to_ascii_lowercase());
            self.at += 1;
        }
        name
    }

    /// Parses the rest of a setting after its name. Returns `None` if git would reject it, and `Some(None)` for a
    /// setting without a value.
    fn value(&mut self) -> Option<Option<Vec<u8>>> {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        match self.peek() {
            None => return Some(None),
            Some(b'\n') => {
                self.next();
                return Some(None);
            }
            Some(b'=') => self.at += 1,
            Some(_) => return None,
        }
        let mut value = Vec::new();
        let (mut quoted, mut comment) = (false, false);
        // The length of the value without trailing whitespace.
        let mut end = 0;
        while let Some(byte) = self.next() {
            match byte {
                b'\n' if quoted => return None,
                b'\n' => break,
                _ if comment => {}
                b'#' | b';' if !quoted => comment = true,
                b'"' => {
                    quoted = !quoted;
                    end = value.len();
                }
                b'\\' => {
                    match self.next() {
                        // A backslash before the end of a line, or of the file, adds nothing to the value.
                        Some(b'\n') | None => {}
                        Some(b't') => value.push(b'\t'),
                        Some(b'b') => value.push(8),
                        Some(b'n') => value.push(b'\n'),
                        Some(escaped @ (b'\\' | b'"')) => value.push(escaped),
                        _ => return None,
                    }
                    end = value.len();
                }
                _ if is_space(byte) && !quoted => {
                    if !value.is_empty() {
                        value.push(byte);
                    }
                }
                _ => {
                    value.push(byte);
                    end = value.len();
                }
            }
        }
        value.truncate(end);
        Some(Some(value))
    }
}

/// Describes which program git runs, or which further settings it reads, because of this setting; `None` if guard
/// knows no such effect. The text completes the sentence "this setting makes git use …".
pub fn effect(setting: &Setting) -> Option<&'static str> {
    let value = setting.value.as_deref().unwrap_or(b"true");
    let subsection = setting.subsection.as_deref();
    let is_boolean = ["true", "false", "yes", "no", "on", "off", "1", "0", ""]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word.as_bytes()));
    let name = setting.name.as_slice();
    Some(match (setting.section.as_slice(), subsection.is_some(), name) {
        (b"core", false, b"fsmonitor") if is_boolean => return None,
        (b"core", false, b"fsmonitor") => {
            "a program for every `git status`, also in the repository that contains this one"
        }
        (b"core", false, b"hookspath") => "hooks from another directory",
        (b"core", false, b"sshcommand" | b"gitproxy") => "a program for every fetch and push",
        (b"core", false, b"pager") | (b"pager", _, _) if is_boolean => return None,
        (b"core", false, b"pager") | (b"pager", _, _) => "a program that displays all output",
        (b"core", false, b"editor") | (b"sequence", false, b"editor") => "a program that edits messages",
        (b"core", false, b"askpass") | (b"credential", _, b"helper") => "a program that supplies passwords",
        (b"core", false, b"alternaterefscommand") => "a program for every fetch",
        (b"core", false, b"virtualfilesystem") => "a program whenever it reads the index",
        (b"core", false, b"attributesfile") => "attributes from another file, which choose filters",
        (b"core", false, b"worktree") => "another directory as the working tree",
        (b"diff", false, b"external") => "a program for every `git diff`",
        (b"diff", true, b"command" | b"textconv") => {
            "a program for every `git diff` of files whose attributes name this driver"
        }
        (b"filter", true, b"clean" | b"smudge" | b"process") => {
            "a program for every `git status`, `add` or `checkout` of files whose attributes name this filter"
        }
        (b"merge", true, b"driver") => "a program for every merge of files whose attributes name this driver",
        (b"mergetool" | b"difftool", true, b"cmd" | b"path") => "a program for `git mergetool` or `difftool`",
        (b"browser" | b"man" | b"guitool", true, b"cmd" | b"path") => {
            "a program for `git help`, `git web--browse` or `git gui`"
        }
        (b"tar", true, b"command") => "a program for `git archive`",
        (b"trailer", true, b"command" | b"cmd") => "a program whenever it adds trailers to a message",
        (b"interactive", false, b"difffilter") => "a program for `git add -p`",
        (b"alias", _, _) => "an alias, which can run any program",
        (b"include", false, b"path") | (b"includeif", true, b"path") => "settings from another file",
        (b"gpg", _, b"program" | b"defaultkeycommand") => "a program for every signature",
        (b"uploadpack", false, b"packobjectshook") => "a program for every fetch from this repository",
        (b"remote", true, b"uploadpack" | b"receivepack" | b"vcs" | b"proxy") => {
            "a program for every fetch or push"
        }
        (b"remote", true, b"url" | b"pushurl") if runs_transport(value) => "a program to reach a remote",
        (b"url", true, b"insteadof" | b"pushinsteadof") => "other URLs than the configured ones",
        (b"protocol", _, b"allow") => "transport protocols that it refuses by default",
        (b"submodule", true, b"update") if value.starts_with(b"!") => "a program for `git submodule update`",
        (b"submodule", true, b"url") if runs_transport(value) => "a program to reach a submodule",
        (b"hook", true, b"command") => "a program that runs as a hook",
        (b"init", false, b"templatedir") => "hooks that are copied into new repositories",
        (b"sendemail", _, _) if name.ends_with(b"cmd") || name == b"smtpserver" => {
            "a program for `git send-email`"
        }
        (b"lfs", true, b"path" | b"clean" | b"smudge") => "a program for git-lfs",
        (b"receive" | b"uploadarchive", _, b"procreceiverefs") => return None,
        _ => return None,
    })
}

/// True for URLs that can make git run a program: `ext::sh -c …`, `fd::…`, `--upload-pack=…`.
pub(crate) fn runs_transport(url: &[u8]) -> bool {
    let scheme =
        url.iter().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    url.starts_with(b"-") || url[scheme.count()..].starts_with(b"::")
}

//! Selects the git settings of the user that guard copies into the agent's quarantine repository.
//!
//! guard copies the committer's identity, and settings that change the meaning or output of common commands. It
//! copies no credentials, and no settings that name local files or start programs. Filters are an exception: without
//! them git would commit wrong file contents, and they run inside the sandbox.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::outcome::GitError;
use super::repository::{QUERY_TIMEOUT, Repository};
use super::setting::Setting;
use super::url_credentials::{credentials, without_credentials};
use crate::sys::agent_paths::AgentPaths;

/// All settings that apply in the user's repository, in git's order: later values override earlier ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    all: Vec<Setting>,
}

impl Settings {
    /// Builds the git call that lists all settings of a repository. [`Self::parse`] reads its output.
    pub(crate) fn list_call(repository: &Repository) -> Result<super::command::Git, GitError> {
        // Without a timeout, a FIFO in place of a configuration file would block git forever.
        Ok(repository
            .git("config")?
            .args(["--list", "-z", "--show-scope", "--show-origin"])
            .timeout(QUERY_TIMEOUT))
    }

    pub(crate) fn parse(output: &[u8]) -> Self {
        let mut parts = output.split(|byte| *byte == 0);
        let mut all = Vec::new();
        let mut origins = Origins::default();
        while let (Some(scope), Some(origin), Some(entry)) = (parts.next(), parts.next(), parts.next()) {
            // Skip the overrides that guard itself passed to this git call.
            if scope == b"command" {
                continue;
            }
            let mut halves = entry.splitn(2, |byte| *byte == b'\n');
            let Some(key) = halves.next() else { continue };
            // Keep keys that are not UTF-8: git accepts them, and may run their values.
            let key = String::from_utf8_lossy(key).into_owned();
            let is_from_repository = !matches!(scope, b"system" | b"global");
            let is_from_run = !is_from_repository && origins.is_of_run(origin);
            let value = halves.next().map(<[u8]>::to_vec);
            all.push(Setting { key, value, is_from_repository, is_from_run });
        }
        Self { all }
    }

    /// Returns the value that git would use for a key; `None` if the key is not set or has no value.
    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        self.all.iter().rev().find(|setting| setting.key == key)?.value.as_deref()
    }

    /// Returns the settings that come from files of the repository.
    pub(crate) fn repository_settings(&self) -> impl Iterator<Item = &Setting> {
        self.all.iter().filter(|setting| setting.is_from_repository)
    }

    /// Returns the value that a key would have if git read only the repository's configuration files; `None` if they do
    /// not contain the key, or contain it without a value.
    pub(crate) fn repository_value(&self, key: &str) -> Option<&[u8]> {
        self.repository_settings().filter(|setting| setting.key == key).last()?.value.as_deref()
    }

    /// Returns the settings of the user or the system whose file a run may have written.
    pub(crate) fn settings_from_runs(&self) -> impl Iterator<Item = &Setting> {
        self.all.iter().filter(|setting| setting.is_from_run)
    }

    /// True if the user's or the system's configuration contains the same key with the same value, in a file that no run
    /// can have written.
    pub(crate) fn is_also_global(&self, setting: &Setting) -> bool {
        let same = |other: &Setting| other.key == setting.key && other.value == setting.value;
        self.all.iter().any(|other| !other.is_from_repository && !other.is_from_run && same(other))
    }

    /// True if the user's or the system's configuration defines filter programs.
    pub(crate) fn has_global_filters(&self) -> bool {
        let is_program = |key: &str| [".clean", ".smudge", ".process"].iter().any(|end| key.ends_with(end));
        self.all.iter().any(|setting| {
            !setting.is_from_repository && setting.key.starts_with("filter.") && is_program(&setting.key)
        })
    }

    /// Returns the settings that guard copies into the quarantine repository (the run's private git directory), with
    /// credentials removed from their keys and values. Leaves out keys that are not UTF-8.
    pub(crate) fn for_quarantine(&self) -> Vec<Setting> {
        let is_text = |setting: &&Setting| !setting.key.contains(char::REPLACEMENT_CHARACTER);
        let kept = self.all.iter().filter(is_text).filter(|setting| is_kept(&setting.key)).cloned();
        kept.map(without_credentials).collect()
    }

    /// Returns the passwords and tokens in all settings, but at most [`MAX_CREDENTIALS`].
    pub(crate) fn credentials(&self) -> Vec<Vec<u8>> {
        self.all.iter().flat_map(credentials).take(MAX_CREDENTIALS).collect()
    }
}

/// Which files of the user's and the system's git configuration a run may have written.
#[derive(Default)]
struct Origins {
    /// `None` if guard has not read the record yet, or cannot read it.
    agent_paths: Option<AgentPaths>,
    known: HashMap<Vec<u8>, bool>,
}

impl Origins {
    /// Returns true if a run may have written the file that git names as the origin of a setting, `file:PATH`.
    fn is_of_run(&mut self, origin: &[u8]) -> bool {
        if let Some(known) = self.known.get(origin) {
            return *known;
        }
        if self.agent_paths.is_none() {
            self.agent_paths = AgentPaths::from_environment().ok();
        }
        let file = origin.strip_prefix(b"file:").map(|path| Path::new(OsStr::from_bytes(path)));
        let is_of_run = match (file, &self.agent_paths) {
            (Some(file), Some(agent_paths)) => agent_paths.leads_through_run(file).unwrap_or(true),
            (Some(_), None) => true,
            // A setting from a variable, which the user has set.
            (None, _) => false,
        };
        self.known.insert(origin.to_vec(), is_of_run);
        is_of_run
    }
}

/// Maximum number of credentials from git settings that guard removes from texts.
const MAX_CREDENTIALS: usize = 1_000;

/// The sections whose settings guard copies, each with the settings that guard does not copy. An exception matches
/// the first or the last part of the key after the section.
const KEPT_SECTIONS: &[(&str, &[&str])] = &[
    ("user", &["signingkey"]),
    ("author", &[]),
    ("committer", &[]),
    ("color", &["pager"]),
    ("column", &[]),
    ("i18n", &[]),
    ("log", &["showsignature", "mailmap.file"]),
    (
        "diff",
        &["external", "command", "textconv", "orderfile", "cachetextconv", "guitool", "tool", "cmd", "path"],
    ),
    ("merge", &["driver", "tool", "guitool", "recursive"]),
    ("filter", &[]),
    ("apply", &[]),
    ("blame", &["ignorerevsfile"]),
    ("branch", &[]),
    ("commit", &["template", "gpgsign"]),
    ("grep", &[]),
    ("advice", &[]),
    ("init", &["templatedir"]),
    ("notes", &[]),
    ("pull", &[]),
    ("rebase", &[]),
    ("rerere", &[]),
    ("stash", &[]),
    ("status", &[]),
    ("versionsort", &[]),
    ("index", &[]),
    ("lfs", &["storage", "customtransfer", "extension"]),
];

/// Names of the settings in the section `core` that guard copies: they change the meaning or display of files and
/// commits.
const KEPT_CORE: &[&str] = &[
    "abbrev",
    "autocrlf",
    "bigfilethreshold",
    "checkroundtripencoding",
    "checkstat",
    "commentchar",
    "commentstring",
    "compression",
    "eol",
    "filemode",
    "ignorecase",
    "logallrefupdates",
    "loosecompression",
    "maxtreedepth",
    "notesref",
    "precomposeunicode",
    "protecthfs",
    "protectntfs",
    "quotepath",
    "safecrlf",
    "sparsecheckout",
    "sparsecheckoutcone",
    "symlinks",
    "trustctime",
    "whitespace",
];

fn is_kept(key: &str) -> bool {
    let Some((section, rest)) = key.split_once('.') else { return false };
    let name = rest.rsplit('.').next().unwrap_or(rest);
    match section {
        "core" => KEPT_CORE.contains(&rest),
        "remote" => matches!(name, "url" | "fetch") && rest.contains('.'),
        "tag" => name == "sort",
        "push" => name == "default",
        _ => {
            let first = rest.split('.').next().unwrap_or(rest);
            let is_left_out = |without: &&[&str]| without.contains(&name) || without.contains(&first);
            KEPT_SECTIONS.iter().any(|(known, without)| *known == section && !is_left_out(without))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::plumbing::setting::render;

    fn settings(entries: &[(&str, &str, &str)]) -> Settings {
        let text: String = entries
            .iter()
            .map(|(scope, key, value)| format!("{scope}\0command line:\0{key}\n{value}\0"))
            .collect();
        Settings::parse(text.as_bytes())
    }

    #[test]
    fn nothing_that_runs_or_opens_doors_is_kept() {
        let all = settings(&[
            ("global", "user.name", "A B"),
            ("global", "core.fsmonitor", "/bin/evil"),
            ("global", "core.sshcommand", "ssh -i key"),
            ("global", "credential.helper", "store"),
            ("local", "remote.origin.url", "https://me:token@example.org/x.git"),
            ("local", "remote.origin.proxy", "http://p"),
            ("global", "http.extraheader", "AUTHORIZATION: basic x"),
            ("global", "url.https://t@x/.insteadof", "x:"),
            ("global", "include.path", "/etc/other"),
            ("global", "diff.external", "evil"),
            ("global", "diff.x.textconv", "evil"),
            ("global", "diff.algorithm", "histogram"),
            ("global", "alias.x", "!evil"),
            ("local", "filter.lfs.clean", "git-lfs clean -- %f"),
            ("command", "core.autocrlf", "true"),
        ]);
        let keys: Vec<String> = all.for_quarantine().into_iter().map(|setting| setting.key).collect();
        assert_eq!(keys, ["user.name", "remote.origin.url", "diff.algorithm", "filter.lfs.clean"]);
        assert_eq!(all.for_quarantine()[1].value.as_deref(), Some(&b"https://example.org/x.git"[..]));
    }

    #[test]
    fn no_credentials_in_keys_and_values_are_kept() {
        let all = settings(&[
            ("local", "lfs.https://me:TOKEN-1@host/.access", "basic"),
            ("local", "lfs.customtransfer.x.args", "--token TOKEN-2"),
            ("local", "remote.a.url", "me:TOKEN-3@host:path"),
            ("local", "remote.a.url", "https://x/ https://me:TOKEN-4@y/"),
            ("local", "branch.main.remote", "https://me:TOKEN-5@y/"),
            ("global", "url.https://me:TOKEN-6@host/.insteadof", "x:"),
            ("local", "http.https://host/.extraheader", "AUTHORIZATION: basic TOKEN-7"),
        ]);
        let text = String::from_utf8(render(&all.for_quarantine())).unwrap_or_default();
        assert!(!text.contains("TOKEN") && text.contains("[lfs \"https://host/\"]"), "{text}");
        let found = all.credentials();
        for number in [1, 3, 4, 5, 6, 7] {
            let token = format!("TOKEN-{number}").into_bytes();
            assert!(found.contains(&token), "{number}");
        }
    }

    #[test]
    fn values_are_written_so_that_git_reads_them_back() {
        let text = render(&[Setting {
            key: "filter.a \"b\\.c.clean".to_string(),
            value: Some(b"x \"y\" \\ ; # \n\tz ".to_vec()),
            is_from_repository: false,
            is_from_run: false,
        }]);
        assert_eq!(
            String::from_utf8(text).unwrap_or_default(),
            "[filter \"a \\\"b\\\\.c\"]\n\tclean = \"x \\\"y\\\" \\\\ ; # \\n\\tz \"\n"
        );
    }
}

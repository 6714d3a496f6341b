//! Parses git's global options, which come between `git` and the verb.

use super::super::arg::Arg;
use crate::judge::command::cwd;
use crate::judge::command::cwd::Cwd;

/// The parsed global options of one git command.
#[derive(Debug, Default)]
pub(super) struct Global {
    /// The index of the verb in the arguments after `git`; out of bounds if there is no verb.
    pub(super) verb_at: usize,
    /// The directory in which git runs, after `-C` is applied.
    pub(super) cwd: Cwd,
    /// The directory after `-C` is applied, with every `..` kept, as the kernel receives it.
    pub(super) unresolved_cwd: Option<Vec<u8>>,
    /// Settings from `-c key=value`, in order. A key without a value is `true`.
    pub(super) config: Vec<(Vec<u8>, Arg)>,
    /// Settings from `--config-env=key=VARIABLE`, as (key, name of the variable).
    pub(super) config_env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Paths from `--git-dir` and `--work-tree`.
    pub(super) named: Vec<(Part, Arg)>,
    /// Whether `--namespace` or `--bare` is given, or the value of `--git-dir` or `--work-tree` is missing. The
    /// analysis does not determine which repository and refs git then uses.
    pub(super) redirected: bool,
    /// Whether `--exec-path=DIR` is given, so that git runs helper programs from another directory.
    pub(super) foreign_exec_path: bool,
    /// Whether there is a `-c` option whose text is not known.
    pub(super) unknown_config: bool,
}

impl Global {
    pub(super) fn read(args: &[Arg], cwd: &Cwd) -> Self {
        let unresolved_cwd = match cwd {
            Cwd::Known(path) => Some(path.clone()),
            Cwd::Unknown => None,
        };
        let mut global = Self { cwd: cwd.clone(), unresolved_cwd, ..Self::default() };
        let mut at = 0;
        while let Some(arg) = args.get(at) {
            let word = arg.prefix();
            if !word.starts_with(b"-") {
                break;
            }
            at += 1;
            let (name, joined) = match word.iter().position(|&byte| byte == b'=') {
                Some(equals) if word.starts_with(b"--") => (&word[..equals], Some(arg.skip(equals + 1))),
                _ => (word, None),
            };
            let takes_value = matches!(
                name,
                b"-C"
                    | b"-c"
                    | b"--git-dir"
                    | b"--work-tree"
                    | b"--namespace"
                    | b"--config-env"
                    | b"--super-prefix"
                    | b"--attr-source"
                    | b"--shallow-file"
            );
            let value = match joined {
                Some(value) => Some(value),
                None if takes_value => {
                    at += 1;
                    args.get(at - 1).cloned()
                }
                None => None,
            };
            global.take(name, value);
            // These options print something and exit, so the command only reads.
            if matches!(
                name,
                b"--version" | b"-v" | b"--help" | b"-h" | b"--html-path" | b"--man-path" | b"--info-path"
            ) || (name == b"--exec-path" && !global.foreign_exec_path)
                || name == b"--list-cmds"
            {
                at = if matches!(name, b"--help" | b"-h") { usize::MAX } else { args.len() };
                break;
            }
        }
        global.verb_at = at.min(args.len());
        global
    }

    fn take(&mut self, name: &[u8], value: Option<Arg>) {
        match (name, value) {
            (b"-C", Some(path)) => {
                self.unresolved_cwd = match (path.known(), self.unresolved_cwd.take()) {
                    (Some(b""), cwd) => cwd,
                    (Some(path), Some(cwd)) => Some(cwd::join(&cwd, path)),
                    (Some(path @ [b'/', ..]), None) => Some(path.to_vec()),
                    _ => None,
                };
                self.cwd = match path.known() {
                    Some(b"") => std::mem::take(&mut self.cwd),
                    Some(path) => self.cwd.enter(path),
                    None => Cwd::Unknown,
                };
            }
            (b"-c", Some(setting)) => match setting.prefix().iter().position(|&byte| byte == b'=') {
                Some(equals) => {
                    self.config.push((setting.prefix()[..equals].to_vec(), setting.skip(equals + 1)))
                }
                None if setting.is_exact() => {
                    self.config.push((setting.prefix().to_vec(), Arg::from("true")))
                }
                None => self.unknown_config = true,
            },
            (b"--config-env", Some(setting)) => {
                match setting.known().map(|text| (text, text.iter().rposition(|&byte| byte == b'='))) {
                    Some((text, Some(equals))) => {
                        self.config_env.push((text[..equals].to_vec(), text[equals + 1..].to_vec()))
                    }
                    _ => self.unknown_config = true,
                }
            }
            (b"--git-dir", Some(path)) => self.named.push((Part::GitDir, path)),
            (b"--work-tree", Some(path)) => self.named.push((Part::WorkTree, path)),
            (b"--git-dir" | b"--work-tree" | b"--namespace", _) | (b"--bare", None) => self.redirected = true,
            (b"--exec-path", Some(_)) => self.foreign_exec_path = true,
            _ => {}
        }
    }
}

/// A part of a repository whose path a variable or option can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    GitDir,
    WorkTree,
    /// The common directory, which all worktrees of a repository share and which contains the refs. If a command
    /// names this directory, git uses the branches in it, whatever git directory the command also names.
    CommonDir,
    /// A file or directory inside the git directory, such as the index or the objects.
    Inner,
}

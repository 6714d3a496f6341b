//! Finds the files of a program's installation: the program, its interpreters, and the packages or installation
//! prefixes (`PREFIX/bin`, `PREFIX/lib`) that contain them.
//!
//! Takes an absolute path and returns real paths, which guard grants to a run for reading and executing. This module
//! only reads files, skips files that it cannot read, and must never return a protected path (see `protected_paths`), or
//! a path that only a file of an earlier run names.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use super::protected_paths::{ProtectedPaths, outermost};
use crate::sys::agent_paths::{AgentPaths, AgentPlace, Resolved};

/// The maximum number of symbolic links that guard follows in one path. The kernel has the same limit.
const MAX_LINKS: usize = 40;
/// The maximum number of interpreters that guard follows if the interpreter of a script is itself a script. execve(2)
/// documents a limit of four recursions.
const MAX_SCRIPT_DEPTH: usize = 4;
/// How many bytes of a file the kernel reads for its `#!` line.
const SHEBANG_BYTES: usize = 256;
/// How many bytes of a file guard reads: enough for the second line of a script. Python's installers put the path of
/// the interpreter there if it is too long for the `#!` line.
const HEAD_BYTES: u64 = 4096;

#[derive(Debug, Default)]
pub struct Installation {
    /// Real paths of files and directories, without duplicates and without paths inside others. Empty if the program
    /// does not exist.
    pub paths: Vec<PathBuf>,
    /// Notes for users: what guard left out because an agent may have written the link or file that names it.
    pub notes: Vec<String>,
}

/// What decides which files of an installation guard grants.
pub struct Scope<'a> {
    /// The user's home directory. The result never contains the whole home directory.
    pub home: &'a Path,
    /// The PATH in which `env` looks for interpreters.
    pub path: &'a OsStr,
    /// Directories that the run can write. guard leaves out a program or interpreter whose path leads through one of
    /// them, because the agent may have written a symbolic link or a `#!` line that names any file.
    pub writable: &'a [PathBuf],
    /// The places in which earlier runs may have written symbolic links, `#!` lines or `pyvenv.cfg` files. guard
    /// follows these only inside the same place, or to a file that the run may execute anyway.
    pub agent_paths: &'a AgentPaths,
    /// Returns true for a path that the run may execute without the grants for this installation.
    pub is_granted: &'a dyn Fn(&Path) -> bool,
}

pub fn installation(program: &Path, scope: &Scope<'_>) -> Installation {
    let protected = ProtectedPaths::new(scope.home);
    let mut search = Search { protected, scope, found: Vec::new(), notes: Vec::new() };
    search.program(program, 0, None);
    Installation { paths: outermost(search.found), notes: search.notes }
}

struct Search<'a> {
    protected: ProtectedPaths,
    scope: &'a Scope<'a>,
    found: Vec<PathBuf>,
    notes: Vec<String>,
}

impl Search<'_> {
    /// Finds the installation of one program. `named_in` is the place that contains the script that names the program,
    /// if an agent may have written the script.
    fn program(&mut self, program: &Path, depth: usize, mut named_in: Option<AgentPlace>) {
        if leads_through(program, self.scope.writable) {
            return;
        }
        // Look at the file and at every link to it: for example, the `python` of a virtual environment is a link to a
        // file outside the environment.
        let Some(chain) = link_chain(program, self.scope.agent_paths) else { return };
        let Some((file, _)) = chain.last() else { return };
        for (step, left) in &chain {
            if !self.may_use(step, left.as_ref().or(named_in.as_ref())) {
                return;
            }
            self.grant_package(step);
            named_in = self.scope.agent_paths.place_of(step);
        }
        self.grant(file, file);
        if depth >= MAX_SCRIPT_DEPTH {
            return;
        }
        for interpreter in interpreters(file, self.scope.path) {
            self.program(&interpreter, depth + 1, named_in.clone());
        }
    }

    /// Returns true if guard may use a real path that a link or file in the place `named_in` names. Adds a note if it
    /// may not.
    fn may_use(&mut self, real: &Path, named_in: Option<&AgentPlace>) -> bool {
        let Some(place) = named_in else { return true };
        let is_usable = real.starts_with(&place.root) || (self.scope.is_granted)(real);
        if !is_usable {
            let path = real.display();
            self.notes.push(format!(
                "guard grants no access to {path}, because an agent could have written the link or file in {place} that \
                 names it; to grant access: `--read {path}`"
            ));
        }
        is_usable
    }

    /// Grants access to the package, virtual environment or installation prefix that contains a file. Grants nothing if
    /// the file is in none of these.
    fn grant_package(&mut self, file: &Path) {
        if let Some(modules) = node_modules(file) {
            self.grant(&modules, file);
            return;
        }
        if let Some(environment) = virtual_environment(file) {
            self.grant(&environment, file);
            for base in base_prefixes(&environment) {
                self.grant_prefix(&base.join("bin"), file);
            }
            return;
        }
        match file.parent() {
            Some(parent) if parent.file_name() == Some(OsStr::new("bin")) => self.grant_prefix(parent, file),
            _ => {}
        }
        if let Some(package) = linked_package(file) {
            self.grant(&package, file);
        }
    }

    /// Grants access to the installation prefix of a `bin` directory: its parent, if that also contains `lib`. If the
    /// prefix is part of Nix's store or of a Homebrew installation, grants the whole store or installation. If the
    /// directory to grant is a git repository, grants only the prefix's `bin` and `lib`. Skips prefixes of the system,
    /// which a policy grants as `{system}`.
    fn grant_prefix(&mut self, bin: &Path, file: &Path) {
        let Some(prefix) = bin.parent().filter(|prefix| prefix.join("lib").is_dir()) else { return };
        if prefix == Path::new("/") || prefix.starts_with("/usr") {
            return;
        }
        let whole = shared_prefix(prefix).unwrap_or_else(|| prefix.to_path_buf());
        // In a checkout, an agent may have created `lib` beside any `bin`.
        if whole.join(".git").exists() || self.scope.agent_paths.place_of(file).is_some() {
            self.grant(&prefix.join("bin"), file);
            self.grant(&prefix.join("lib"), file);
        } else {
            self.grant(&whole, file);
        }
    }

    /// Grants access to a path, unless it is protected. `file` is the real path of the file or link whose name or
    /// content led guard to this path.
    fn grant(&mut self, path: &Path, file: &Path) {
        let Ok(real) = path.canonicalize() else { return };
        let named_in = self.scope.agent_paths.place_of(file);
        if self.protected.check_grant(&real).is_err() || !self.may_use(&real, named_in.as_ref()) {
            return;
        }
        // A file such as `package.json` makes a directory a package. At the top of a checkout an agent may have created
        // it, and the checkout may contain files that git ignores, such as keys.
        if named_in.is_some_and(|place| place.root.starts_with(&real)) {
            let path = real.display();
            self.notes.push(format!(
                "guard does not grant access to all of {path}, where agents work; if the program needs other files there: \
                 `--read {path}`"
            ));
            return;
        }
        self.found.push(real);
    }
}

/// Returns true if the path, with symbolic links followed one by one, enters one of the directories at any point.
/// Also returns true if there are too many links to follow.
fn leads_through(path: &Path, directories: &[PathBuf]) -> bool {
    let mut ahead: Vec<OsString> =
        path.components().rev().map(|part| part.as_os_str().to_os_string()).collect();
    let mut here = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        match part.as_bytes() {
            b"/" => here = PathBuf::from("/"),
            b"." => {}
            b".." => {
                here.pop();
            }
            _ => {
                let next = here.join(&part);
                match std::fs::read_link(&next) {
                    Ok(target) => {
                        links += 1;
                        ahead.extend(target.components().rev().map(|part| part.as_os_str().to_os_string()));
                    }
                    Err(_) => here = next,
                }
            }
        }
        if links > MAX_LINKS || directories.iter().any(|directory| here.starts_with(directory)) {
            return true;
        }
    }
    false
}

/// Returns the symbolic links that lead to a program, one after the other, and finally the file itself. In each path,
/// the links in the parent directory are resolved; the second value is the place that these links leave, if an agent may
/// have written them. `None` if the path does not lead to a regular file, or if there are too many links.
fn link_chain(program: &Path, agent_paths: &AgentPaths) -> Option<Vec<(PathBuf, Option<AgentPlace>)>> {
    let mut chain = Vec::new();
    let mut path = program.to_path_buf();
    for _ in 0..=MAX_LINKS {
        let Resolved { real: parent, foreign, .. } = agent_paths.resolve(path.parent()?).ok()?;
        path = match path.file_name() {
            Some(name) => parent.join(name),
            None => path.canonicalize().ok()?,
        };
        chain.push((path.clone(), foreign.map(|link| link.place)));
        match std::fs::read_link(&path) {
            Ok(target) => path = parent.join(target),
            Err(_) => return path.is_file().then_some(chain),
        }
    }
    None
}

/// Returns the outermost directory with the name `node_modules` or `.pnpm` (in which pnpm stores packages) above a
/// file. This directory also contains the dependencies of the file's package. `None` if there is no such directory.
fn node_modules(file: &Path) -> Option<PathBuf> {
    let mut folder = PathBuf::new();
    for component in file.parent()?.components() {
        folder.push(component);
        if let Component::Normal(name) = component
            && (name == "node_modules" || name == ".pnpm")
        {
            return Some(folder);
        }
    }
    None
}

/// Returns the package of a JavaScript or TypeScript file outside `node_modules`, for example after `npm link`: the
/// nearest of the four directories above the file that contains a `package.json`.
fn linked_package(file: &Path) -> Option<PathBuf> {
    let folders = file.ancestors().skip(1).take(4);
    let is_script = file
        .extension()
        .is_some_and(|ending| ["js", "mjs", "cjs", "ts"].iter().any(|known| ending == *known));
    folders.filter(|_| is_script).find(|folder| folder.join("package.json").is_file()).map(Path::to_path_buf)
}

/// Returns the Python virtual environment of a file: the nearest of the two directories above it that contains a
/// `pyvenv.cfg`.
fn virtual_environment(file: &Path) -> Option<PathBuf> {
    let folders = file.ancestors().skip(1).take(2);
    folders.into_iter().find(|folder| folder.join("pyvenv.cfg").is_file()).map(Path::to_path_buf)
}

/// Returns the installation prefixes of the interpreter from which a virtual environment was created: the prefix in
/// `pyvenv.cfg`, and the prefix of the interpreter's real path. Empty if `pyvenv.cfg` names no absolute path.
fn base_prefixes(environment: &Path) -> Vec<PathBuf> {
    let Some(text) = head(&environment.join("pyvenv.cfg")) else { return Vec::new() };
    let home = text.split(|&byte| byte == b'\n').find_map(|line| {
        let (key, value) = line.split_at(line.iter().position(|&byte| byte == b'=')?);
        (key.trim_ascii() == b"home").then(|| PathBuf::from(OsStr::from_bytes(value[1..].trim_ascii())))
    });
    let Some(home) = home.filter(|home| home.is_absolute()) else { return Vec::new() };
    let mut interpreters: Vec<PathBuf> = ["python3", "python"].map(|name| home.join(name)).to_vec();
    interpreters.retain(|interpreter| interpreter.exists());
    let real = interpreters.iter().filter_map(|interpreter| interpreter.canonicalize().ok());
    let folders = real.filter_map(|file| file.parent().map(Path::to_path_buf)).chain([home.clone()]);
    folders.filter_map(|folder| folder.parent().map(Path::to_path_buf)).collect()
}

/// Returns the common directory of prefixes whose programs use each other's libraries: Nix's store or a Homebrew
/// installation. `None` for any other prefix.
fn shared_prefix(prefix: &Path) -> Option<PathBuf> {
    if prefix.starts_with("/nix/store") {
        return Some(PathBuf::from("/nix/store"));
    }
    let cellar = prefix.ancestors().find(|folder| folder.file_name() == Some(OsStr::new("Cellar")))?;
    cellar.parent().map(Path::to_path_buf)
}

/// Returns the programs that run a script, as absolute paths: the program in its `#!` line, the program that `env`
/// would start if the line names `env`, and the interpreter in the second line. Empty if the file is not a script.
fn interpreters(file: &Path, path: &OsStr) -> Vec<PathBuf> {
    let Some(head) = head(file).filter(|head| head.starts_with(b"#!")) else { return Vec::new() };
    let mut lines = head.split(|&byte| byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let first = first[2..first.len().min(SHEBANG_BYTES)].trim_ascii();
    let end = first.iter().position(|&byte| matches!(byte, b' ' | b'\t' | 0)).unwrap_or(first.len());
    let interpreter = PathBuf::from(OsStr::from_bytes(&first[..end]));
    let argument = first[end..].trim_ascii();
    let mut found = vec![interpreter];
    if found[0].file_name() == Some(OsStr::new("env")) {
        found.extend(env_program(argument).and_then(|name| find_in_path(&name, path)));
    }
    found.extend(second_line_interpreter(lines.next().unwrap_or_default()));
    found.retain(|program| program.is_absolute());
    found
}

/// Returns the program that `env` runs in a `#!` line; `None` if the line names none. The kernel passes everything
/// after the name of `env` as one argument, so `env` splits it only with an option such as `-S`.
fn env_program(argument: &[u8]) -> Option<OsString> {
    let text = std::str::from_utf8(argument).ok();
    let split = text.and_then(|text| {
        let short = text.strip_prefix("-S").or_else(|| text.strip_prefix("-vS"));
        short
            .or_else(|| text.strip_prefix("--split-string="))
            .or_else(|| text.strip_prefix("--split-string "))
    });
    let Some(split) = split else {
        let is_program = !argument.is_empty() && !argument.starts_with(b"-") && !argument.contains(&b'=');
        return is_program.then(|| OsString::from_vec(argument.to_vec()));
    };
    let words = shell_words::split(split).unwrap_or_default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-u" | "--unset" | "-C" | "--chdir" => drop(words.next()),
            option if option.starts_with('-') => {}
            assignment if assignment.contains('=') => {}
            _ => return Some(word.into()),
        }
    }
    None
}

fn find_in_path(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    directories.map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// Returns the interpreter in the second line of a script, if that is `'''exec' /long/path/python "$0" "$@"`. Python's
/// installers write this if the path is too long for the `#!` line.
fn second_line_interpreter(line: &[u8]) -> Option<PathBuf> {
    let rest = line.strip_prefix(b"'''exec' ")?;
    let end = match rest.first()? {
        b'"' => {
            return rest[1..].split(|&byte| byte == b'"').next().map(|path| OsStr::from_bytes(path).into());
        }
        _ => rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len()),
    };
    Some(OsStr::from_bytes(&rest[..end]).into())
}

/// Returns the first [`HEAD_BYTES`] bytes of a regular file; `None` if it is no regular file or cannot be read. Opening
/// anything else, such as a named pipe, could block.
fn head(file: &Path) -> Option<Vec<u8>> {
    if !std::fs::metadata(file).ok()?.is_file() {
        return None;
    }
    let mut head = Vec::with_capacity(HEAD_BYTES as usize);
    std::fs::File::open(file).ok()?.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    Some(head)
}

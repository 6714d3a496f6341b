//! Who runs `guard`, and where: root and an ordinary user whose compilers live in their home, with and without namespaces.
//!
//! Tests that begin as root (CI does) become both; others are only themselves. The user's home is made once below
//! `target/`, from hard links to the toolchains of this machine.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::copy_program;

/// A run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Somebody who runs guard.
#[derive(Debug, Clone)]
pub(crate) struct Person {
    pub(crate) name: &'static str,
    /// To become, when the tests began as somebody else.
    pub(super) ids: Option<(u32, u32)>,
    pub(crate) home: PathBuf,
    pub(crate) path: String,
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Runs a program of the test's own and insists that it works.
pub(crate) fn must(program: &str, arguments: &[&OsStr]) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What a program of the machine says, if it is there and works.
fn says(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Where the tests' own files go: below `target/`, if everybody may go there and no run's own view hides it.
fn base() -> PathBuf {
    let below_target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let open = |path: &Path| {
        path.metadata().is_ok_and(|found| found.permissions().mode() & 0o001 != 0 || !is_root())
    };
    let hidden = ["/tmp", "/var/tmp", "/dev/shm"].iter().any(|place| below_target.starts_with(place));
    let base = if !hidden && below_target.ancestors().all(open) {
        below_target.to_path_buf()
    } else if is_root() {
        "/var/cache/guard-tests".into()
    } else {
        std::env::home_dir().unwrap_or_default().join(".cache/guard-tests")
    };
    base.join(format!("everyday-{}", nix::unistd::geteuid()))
}

/// `guard` where everybody can start it.
pub(crate) fn program() -> &'static Path {
    static COPY: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = base().join("bin");
        std::fs::create_dir_all(&folder).unwrap();
        // Renamed into place: an older one may be running.
        let copy = folder.join(format!("guard-{}", std::process::id()));
        copy_program(Path::new(env!("CARGO_BIN_EXE_guard")), &copy);
        std::fs::rename(&copy, folder.join("guard")).unwrap();
        folder.join("guard")
    });
    &COPY
}

fn myself() -> Person {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(|| "/nonexistent".into());
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_string());
    Person { name: if is_root() { "root" } else { "user" }, ids: None, home, path }
}

/// Somebody with an entry in the list of users, as programs expect; 1000 if there is none.
fn ordinary_ids() -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
    let ids = |line: &str| {
        let mut fields = line.split(':').skip(2);
        Some((number(fields.next())?, number(fields.next())?))
    };
    let mut known = users.lines().filter_map(ids);
    known.find(|(user, _)| (1000..60_000).contains(user)).unwrap_or((1000, 1000))
}

/// The persons the tests can be.
fn persons() -> &'static [Person] {
    static PERSONS: LazyLock<Vec<Person>> = LazyLock::new(|| {
        if !is_root() {
            eprintln!("SKIP: as root and as another user: the tests did not begin as root");
            return vec![myself()];
        }
        vec![myself(), ordinary_person()]
    });
    &PERSONS
}

fn ordinary_person() -> Person {
    let (user, group) = ordinary_ids();
    let home = base().join("home");
    if !home.exists() {
        let making = base().join(format!("home-{}", std::process::id()));
        furnish(&making);
        chown(&making, Some(user), Some(group)).unwrap();
        // Another process of the tests may have been faster.
        if std::fs::rename(&making, &home).is_err() {
            std::fs::remove_dir_all(&making).unwrap();
        }
    }
    let bins = [".cargo/bin", ".nvm/versions/node/current/bin", ".pyenv/versions/current/bin"];
    let mut path: Vec<PathBuf> = bins.iter().map(|bin| home.join(bin)).filter(|bin| bin.exists()).collect();
    path.extend(["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from));
    let path = std::env::join_paths(path).unwrap().into_string().unwrap();
    Person { name: "user", ids: Some((user, group)), home, path }
}

/// Copies a tree: as links where the file system is the same.
fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    let copy =
        |how: &str| Command::new("cp").arg(how).arg(from).arg(to).stderr(Stdio::null()).status().unwrap();
    if !copy("-al").success() {
        let _ = std::fs::remove_dir_all(to);
        assert!(copy("-a").success(), "cannot copy {}", from.display());
    }
}

/// Makes a home with the compilers and interpreters of this machine in it.
fn furnish(home: &Path) {
    std::fs::create_dir_all(home).unwrap();
    if let Some(toolchain) = says("rustc", &["--print", "sysroot"]) {
        let name = "stable-x86_64-unknown-linux-gnu";
        let rustup = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo/bin"));
        copy_tree(Path::new(&toolchain), &home.join(".rustup/toolchains").join(name));
        let settings = format!(
            "version = \"12\"\ndefault_toolchain = \"{name}\"\nprofile = \"minimal\"\n\n[overrides]\n"
        );
        std::fs::write(home.join(".rustup/settings.toml"), settings).unwrap();
        // rustup makes these when it is installed.
        for name in ["downloads", "tmp", "update-hashes"] {
            std::fs::create_dir(home.join(".rustup").join(name)).unwrap();
        }
        let bin = home.join(".cargo/bin");
        match rustup.filter(|bin| bin.join("rustup").is_file()) {
            Some(real) => {
                copy_program(&real.join("rustup"), &bin.join("rustup"));
                for name in ["cargo", "rustc", "rustdoc"] {
                    symlink("rustup", bin.join(name)).unwrap();
                }
            }
            None => copy_tree(&Path::new(&toolchain).join("bin"), &bin),
        }
        let registry = myself().home.join(".cargo/registry");
        for part in ["cache", "index"].iter().filter(|part| registry.join(part).is_dir()) {
            copy_tree(&registry.join(part), &home.join(".cargo/registry").join(part));
        }
    }
    if let Some(node) = says("node", &["-p", "process.execPath"])
        && let Some(npm) = says("npm", &["root", "-g"]).map(|root| Path::new(&root).join("npm"))
    {
        let at = home.join(".nvm/versions/node/current");
        copy_tree(Path::new(&node), &at.join("bin/node"));
        copy_tree(&npm, &at.join("lib/node_modules/npm"));
        symlink("../lib/node_modules/npm/bin/npm-cli.js", at.join("bin/npm")).unwrap();
    }
    let prefix = says("python3", &["-c", "import sys; print(sys.base_prefix)"]);
    if let Some(prefix) = prefix.filter(|prefix| Path::new(prefix).starts_with(myself().home)) {
        copy_tree(Path::new(&prefix), &home.join(".pyenv/versions/current"));
    }
}

/// One person, with or without namespaces, in a linked worktree of a repository.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) person: Person,
    pub(crate) namespaces: bool,
    /// Everything of this world; removed with it.
    root: PathBuf,
    /// The working directory: a linked worktree.
    pub(crate) folder: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(&self.root).stderr(Stdio::null()).status();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

impl World {
    fn new(person: &Person, namespaces: bool) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = base().join(format!("world-{}-{count}", std::process::id()));
        let folder = root.join("project");
        std::fs::create_dir_all(root.join("tmp")).unwrap();
        let world = Self { person: person.clone(), namespaces, folder, root };
        for path in [world.root.clone(), world.temporary()] {
            if let Some((user, group)) = person.ids {
                chown(path, Some(user), Some(group)).unwrap();
            }
        }
        world.outside(
            "git init -q -b main repository && cd repository && printf 'first\\n' > tracked \
             && git add tracked && git -c user.name=n -c user.email=e commit -qm first \
             && git worktree add -q -b task/work ../project",
        );
        world
    }

    /// For people: `user, without namespaces`.
    pub(crate) fn name(&self) -> String {
        format!("{}, {} namespaces", self.person.name, if self.namespaces { "with" } else { "without" })
    }

    /// What a shell says that works as this person beside the working directory, not in the sandbox.
    pub(crate) fn outside(&self, script: &str) -> String {
        let mut command = self.command("bash");
        let output = command.args(["-euc", script]).current_dir(&self.root).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Puts a copy of a project of `fixtures/projects` into the working directory.
    pub(crate) fn project(&self, name: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/projects").join(name);
        must("cp", &["-R".as_ref(), from.join(".").as_ref(), self.folder.as_ref()]);
        self.give(&self.folder);
    }

    /// Makes a directory and all that is in it this person's.
    pub(crate) fn give(&self, folder: &Path) {
        if let Some((user, group)) = self.person.ids {
            let owner = format!("{user}:{group}");
            must("chown", &["-R".as_ref(), owner.as_ref(), folder.as_ref()]);
        }
    }

    /// Where this world's runs are kept.
    pub(crate) fn runs(&self) -> PathBuf {
        self.root.join("state/guard/runs")
    }

    /// Where temporary files of this world's guard go.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// The person's home.
    pub(crate) fn person_home(&self) -> &Path {
        &self.person.home
    }

    /// A program as this person would start it.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", &self.person.path)
            .env("HOME", &self.person.home)
            .env("XDG_STATE_HOME", self.root.join("state"))
            .env("TMPDIR", self.temporary())
            .env("LANG", "C.UTF-8")
            // Whoever asks agents has one. What has none of it says so.
            .env("GEMINI_API_KEY", "the-key-of-the-tests")
            .stdin(Stdio::null())
            .current_dir(if self.folder.exists() { &self.folder } else { &self.root });
        if let Some((user, group)) = self.person.ids {
            command.gid(group).uid(user);
        }
        command
    }

    /// Guard, ignoring these signals and no others: whoever runs the tests may let them ignore some (`nohup`, or `&` in a
    /// script), which is handed on.
    pub(crate) fn ignoring(&self, signals: &str) -> Command {
        let mut command = self.command("env");
        command.arg("--default-signal=HUP,INT,QUIT");
        command.args((!signals.is_empty()).then(|| format!("--ignore-signal={signals}"))).arg(program());
        command
    }

    /// `guard run` in the working directory, with more options.
    pub(crate) fn guard(&self, options: &[&str], command: &[&str]) -> Command {
        let mut guard = self.command(program());
        guard.args(self.arguments(options, command));
        guard
    }

    /// The arguments of that.
    pub(crate) fn arguments(&self, options: &[&str], command: &[&str]) -> Vec<String> {
        let namespaces = if self.namespaces { "require" } else { "off" };
        let mut own = vec!["run", "--namespaces", namespaces];
        // These directories lie in guard's own repository, which no run of a test is about.
        let in_repository = ["--name", "--base", "--here", "--auto", "--keep", "--discard"];
        if !options.iter().any(|option| in_repository.contains(option)) {
            own.push("--in-place");
        }
        own.iter().chain(options).chain(&["--"]).chain(command).map(|word| (*word).to_string()).collect()
    }

    /// The result of a command in the sandbox.
    pub(crate) fn run(&self, options: &[&str], command: &[&str]) -> Ran {
        let mut all = vec!["--json"];
        all.extend(options);
        self.finish(self.guard(&all, command), b"")
    }

    /// The result of a shell's script in the sandbox.
    pub(crate) fn bash(&self, script: &str) -> Ran {
        self.run(&[], &["bash", "-c", script])
    }

    /// What a script prints that must work, with nothing refused.
    pub(crate) fn works(&self, script: &str) -> String {
        let ran = self.bash(script);
        let result = &ran.result;
        let problem = || format!("{}: {script}\n{result:#}\n{}", self.name(), ran.error);
        assert_eq!(result["success"], true, "{}", problem());
        assert_eq!(result["denials"], serde_json::json!([]), "{}", problem());
        assert_eq!(result["enforcement"]["namespaces"], self.namespaces, "{}", problem());
        assert_eq!((ran.code, &result["exit_code"]), (0, &Value::from(0)), "{}", problem());
        ran.printed()
    }

    /// Sees a command to its end.
    pub(crate) fn finish(&self, mut command: Command, input: &[u8]) -> Ran {
        let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
        let started = Instant::now();
        let child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        collect(child, input, started)
    }
}

/// What became of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Guard's own exit code; 128 and the signal's number when one ended it.
    pub(crate) code: i32,
    pub(crate) output: Vec<u8>,
    pub(crate) error: String,
    /// The last line of the output, if it is JSON.
    pub(crate) result: Value,
    pub(crate) took: Duration,
}

impl Ran {
    /// What the command printed, from the result.
    pub(crate) fn printed(&self) -> String {
        self.result["result"].as_str().unwrap_or_default().to_string()
    }

    /// The kind of failure.
    pub(crate) fn kind(&self) -> &str {
        self.result["error_kind"].as_str().unwrap_or_default()
    }

    /// The run's transcript.
    pub(crate) fn transcript(&self) -> PathBuf {
        PathBuf::from(self.result["transcript"]["path"].as_str().unwrap_or_default())
    }
}

/// Reads a child's output to its end and waits for it, but not for ever.
pub(crate) fn collect(mut child: Child, input: &[u8], started: Instant) -> Ran {
    let all = |from: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut from) = from {
                let _ = from.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let output = all(child.stdout.take().map(|from| Box::new(from) as Box<dyn Read + Send>));
    let error = all(child.stderr.take().map(|from| Box::new(from) as Box<dyn Read + Send>));
    let typed = child.stdin.take().map(|mut to| {
        let input = input.to_vec();
        std::thread::spawn(move || to.write_all(&input))
    });
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("not done after {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = started.elapsed();
    if let Some(typed) = typed {
        let _ = typed.join();
    }
    let output = output.join().unwrap();
    let last = output.strip_suffix(b"\n").unwrap_or(&output).rsplit(|&byte| byte == b'\n').next();
    let result = last.and_then(|line| serde_json::from_slice(line).ok()).unwrap_or_default();
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ran { code, output, error: String::from_utf8_lossy(&error.join().unwrap()).into_owned(), result, took }
}

/// The first child of a process, which may still have to come.
pub(crate) fn first_child(of: i32, started: Instant) -> i32 {
    let children = format!("/proc/{of}/task/{of}/children");
    loop {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        if let Some(first) = text.split_whitespace().next() {
            return first.parse().unwrap();
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{of} has no child");
        std::thread::yield_now();
    }
}

/// Does something in every world there is, one after the other.
pub(crate) fn in_every_world(test: impl Fn(&World)) {
    for person in persons() {
        for namespaces in [true, false] {
            test(&World::new(person, namespaces));
        }
    }
}

/// The same for tests that keep their world with other things.
pub(crate) fn in_every_world_owned(test: impl Fn(World)) {
    for person in persons() {
        for namespaces in [true, false] {
            test(World::new(person, namespaces));
        }
    }
}

/// The same for tests that mostly wait: all at once.
pub(crate) fn in_every_world_at_once(test: impl Fn(&World) + Sync) {
    std::thread::scope(|scope| {
        for person in persons() {
            for namespaces in [true, false] {
                let test = &test;
                scope.spawn(move || test(&World::new(person, namespaces)));
            }
        }
    });
}

/// A world with and one without namespaces, of different persons where there are two.
pub(crate) fn in_two_worlds(test: impl Fn(&World)) {
    let persons = persons();
    test(&World::new(&persons[0], false));
    test(&World::new(&persons[persons.len() - 1], true));
}

/// The first person's world with namespaces, for what does not depend on either.
pub(crate) fn one_world() -> World {
    World::new(&persons()[0], true)
}

/// A word that no other process has.
pub(crate) fn mark() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("GUARD_TEST_MARK=m{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Processes with this mark in their words or variables, with what they are.
pub(crate) fn marked(mark: &str) -> Vec<(i32, String)> {
    let needle = [mark.as_bytes(), b"\0"].concat();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let variables = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let has = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        if has(&words) || has(&variables) {
            found.push((pid, String::from_utf8_lossy(&words).replace('\0', " ")));
        }
    }
    found
}

/// Insists that nothing with this mark is left, within a short time.
pub(crate) fn nothing_left(mark: &str, within: Duration) {
    let deadline = Instant::now() + within;
    loop {
        let left = marked(mark);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left running: {left:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

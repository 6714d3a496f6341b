//! The users that run guard in tests: root and an ordinary user, each with a home made for the tests.
//!
//! If root starts the tests, as in CI, they run as both; otherwise only as the user who started them. The homes are
//! made once below `target/`, from hard links to the toolchains of this machine, so that nothing else in the home of
//! the user who runs the tests makes a difference.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use super::{SYSTEM_PATH, copy_program, skip};

/// A user as whom the tests run guard: root, an ordinary user, or the user who started the tests.
#[derive(Debug, Clone)]
pub(crate) struct TestUser {
    pub(crate) name: &'static str,
    /// The user and the group to change to; `None` if the tests already run as this user.
    pub(crate) ids: Option<(u32, u32)>,
    pub(crate) home: PathBuf,
    /// The PATH of the user: the toolchains of the home, and [`SYSTEM_PATH`].
    pub(crate) path: String,
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Returns the directory for the files of the test kit: below `target/`, if every user can go there and the mount
/// namespace of a run does not hide it, and otherwise a cache directory.
pub(super) fn kit_directory() -> PathBuf {
    let below_target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let open = |path: &Path| {
        path.metadata().is_ok_and(|found| found.permissions().mode() & 0o001 != 0 || !is_root())
    };
    let hidden = ["/tmp", "/var/tmp", "/dev/shm"].iter().any(|place| below_target.starts_with(place));
    let parent = if !hidden && below_target.ancestors().all(open) {
        below_target.to_path_buf()
    } else if is_root() {
        "/var/cache/guard-tests".into()
    } else {
        std::env::home_dir().unwrap_or_default().join(".cache/guard-tests")
    };
    parent.join(format!("everyday-{}", nix::unistd::geteuid()))
}

/// Returns the users that the tests can run as.
pub(super) fn test_users() -> &'static [TestUser] {
    static USERS: LazyLock<Vec<TestUser>> = LazyLock::new(|| {
        if is_root() {
            return vec![test_user("root", None), test_user("user", Some(ordinary_ids()))];
        }
        skip("as root and as another user", "the tests were not started by root");
        vec![test_user("user", None)]
    });
    &USERS
}

/// Returns the user and group IDs of an ordinary user that `/etc/passwd` lists, because some programs need such an
/// entry; 1000 for both if there is no ordinary user.
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

fn test_user(name: &'static str, ids: Option<(u32, u32)>) -> TestUser {
    let home = kit_directory().join(format!("home-of-{name}"));
    if !home.exists() {
        let unfinished = kit_directory().join(format!("home-of-{name}-{}", std::process::id()));
        // The ordinary user always has copies of the interpreters in the home. Root uses the machine's interpreters
        // if there are any.
        fill_home(&unfinished, ids.is_some());
        if let Some((user, group)) = ids {
            chown(&unfinished, Some(user), Some(group)).unwrap();
        }
        // Another test process may have made the home first.
        if std::fs::rename(&unfinished, &home).is_err() {
            std::fs::remove_dir_all(&unfinished).unwrap();
        }
    }
    let bins = [".cargo/bin", ".nvm/versions/node/current/bin", ".pyenv/versions/current/bin"];
    let mut path: Vec<PathBuf> = bins.iter().map(|bin| home.join(bin)).filter(|bin| bin.exists()).collect();
    path.extend(std::env::split_paths(SYSTEM_PATH));
    let path = std::env::join_paths(path).unwrap().into_string().unwrap();
    TestUser { name, ids, home, path }
}

/// Returns what a program of the machine prints, if it is installed and succeeds.
fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Copies a tree, with hard links if both are on the same file system.
fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    let copy =
        |how: &str| Command::new("cp").arg(how).arg(from).arg(to).stderr(Stdio::null()).status().unwrap();
    if !copy("-al").success() {
        let _ = std::fs::remove_dir_all(to);
        assert!(copy("-a").success(), "cannot copy {}", from.display());
    }
}

/// Fills a home directory with the compilers and interpreters of this machine, so that runs can use them.
fn fill_home(home: &Path, copy_interpreters: bool) {
    let own_home = std::env::home_dir().unwrap_or_default();
    std::fs::create_dir_all(home).unwrap();
    if let Some(toolchain) = output_of("rustc", &["--print", "sysroot"]) {
        let name = "stable-x86_64-unknown-linux-gnu";
        let rustup = own_home.join(".cargo/bin");
        copy_tree(Path::new(&toolchain), &home.join(".rustup/toolchains").join(name));
        let settings = format!(
            "version = \"12\"\ndefault_toolchain = \"{name}\"\nprofile = \"minimal\"\n\n[overrides]\n"
        );
        std::fs::write(home.join(".rustup/settings.toml"), settings).unwrap();
        // rustup creates these directories when it is installed.
        for name in ["downloads", "tmp", "update-hashes"] {
            std::fs::create_dir(home.join(".rustup").join(name)).unwrap();
        }
        let bin = home.join(".cargo/bin");
        if rustup.join("rustup").is_file() {
            copy_program(&rustup.join("rustup"), &bin.join("rustup"));
            for name in ["cargo", "rustc", "rustdoc"] {
                symlink("rustup", bin.join(name)).unwrap();
            }
        } else {
            copy_tree(&Path::new(&toolchain).join("bin"), &bin);
        }
        let registry = own_home.join(".cargo/registry");
        for part in ["cache", "index"].iter().filter(|part| registry.join(part).is_dir()) {
            copy_tree(&registry.join(part), &home.join(".cargo/registry").join(part));
        }
    }
    let node = output_of("node", &["-p", "process.execPath"]);
    if let Some(node) = node.filter(|node| copy_interpreters || !node.starts_with("/usr/"))
        && let Some(npm) = output_of("npm", &["root", "-g"]).map(|root| Path::new(&root).join("npm"))
    {
        let at = home.join(".nvm/versions/node/current");
        copy_tree(Path::new(&node), &at.join("bin/node"));
        copy_tree(&npm, &at.join("lib/node_modules/npm"));
        symlink("../lib/node_modules/npm/bin/npm-cli.js", at.join("bin/npm")).unwrap();
    }
    let prefix = output_of("python3", &["-c", "import sys; print(sys.base_prefix)"]);
    let prefix = prefix.filter(|prefix| Path::new(prefix).starts_with(&own_home));
    if let Some(prefix) = prefix.filter(|_| copy_interpreters || !Path::new("/usr/bin/python3").exists()) {
        copy_tree(Path::new(&prefix), &home.join(".pyenv/versions/current"));
    }
}

//! A PostgreSQL server for tests: private, on a Unix socket, in a temporary directory.
//!
//! A watcher process stops the server and deletes its files when the test process ends, even if it is killed.

use std::io::Read;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{is_root, skip};

/// A shell command that stops the server when the test process ends, that is, when its end of the pipe is closed.
const WATCHER: &str =
    r#"cat >/dev/null; "$0" stop --pgdata "$1/data" --mode immediate --silent; rm -rf "$1""#;
const USER: &str = "guard";

/// A running server. Dropping it stops the server and deletes its files.
pub(crate) struct PostgresServer {
    programs: PathBuf,
    directory: PathBuf,
    ids: Option<(u32, u32)>,
    watcher: Option<Child>,
}

/// Returns the server that all tests of this process share; each test has its own database. Returns `None`, and reports
/// a skip, if PostgreSQL is not installed.
pub(crate) fn shared_postgres() -> Option<&'static PostgresServer> {
    static SERVER: LazyLock<Option<PostgresServer>> =
        LazyLock::new(|| PostgresServer::start_with("listen_addresses = ''\n", &[]));
    if SERVER.is_none() {
        skip_postgres();
    }
    SERVER.as_ref()
}

#[track_caller]
fn skip_postgres() {
    skip("the queue in PostgreSQL", "PostgreSQL is not installed");
}

/// Returns the directory with the programs of the newest installed version.
fn find_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).max_by_key(|path| version(path))?;
    let programs = newest.join("bin");
    programs.join("postgres").is_file().then_some(programs)
}

impl PostgresServer {
    /// Starts a server with these settings, and with these files in its data directory. Returns `None` if PostgreSQL is
    /// not installed.
    pub(crate) fn start_with(settings: &str, files: &[(&str, &str)]) -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let programs = find_programs()?;
        // PostgreSQL does not run as root.
        let ids = is_root().then(|| {
            let user =
                ["postgres", "nobody"].iter().find_map(|name| nix::unistd::User::from_name(name).ok()?);
            let user = user.expect("a user that is not root");
            (user.uid.as_raw(), user.gid.as_raw())
        });
        // The path of a Unix socket must be short, so the directory is not below `target`.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = PathBuf::from(format!("/tmp/guard-pg-{}-{count}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&directory).unwrap();
        if let Some((user, group)) = ids {
            chown(&directory, Some(user), Some(group)).unwrap();
        }
        let mut server = Self { programs, directory, ids, watcher: None };
        let mut watcher = server.command(Path::new("/bin/sh"));
        watcher.arg("-c").arg(WATCHER).arg(server.programs.join("pg_ctl")).arg(&server.directory);
        // The watcher is in its own process group, so that Ctrl-C during the tests does not interrupt the cleanup.
        server.watcher = Some(watcher.stdin(Stdio::piped()).process_group(0).spawn().unwrap());
        let data = server.data();
        server
            .run("initdb", &["--pgdata", &data, "--username", USER, "--auth", "trust", "--encoding", "UTF8"]);
        let socket = format!("unix_socket_directories = '{}'\n", server.directory.display());
        server.write("postgresql.auto.conf", &format!("{socket}{settings}"));
        for (name, text) in files {
            server.write(name, text);
        }
        server.control("start", "fast");
        Some(server)
    }

    fn data(&self) -> String {
        format!("{}/data", self.directory.display())
    }

    fn write(&self, name: &str, text: &str) {
        let path = Path::new(&self.data()).join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        if let Some((user, group)) = self.ids {
            chown(&path, Some(user), Some(group)).unwrap();
        }
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C").current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((user, group)) = self.ids {
            command.uid(user).gid(group);
        }
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        // The output goes to a file, because the server would inherit a pipe and keep it open.
        let log = self.directory.join("log");
        let open = || std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let status = self
            .command(&self.programs.join(program))
            .args(arguments)
            .stdout(open())
            .stderr(open())
            .status()
            .unwrap();
        let mut text = String::new();
        let _ = std::fs::File::open(&log).and_then(|mut file| file.read_to_string(&mut text));
        assert!(status.success(), "{program} {arguments:?}: {text}");
    }

    fn control(&self, action: &str, mode: &str) {
        let data = self.data();
        let mut arguments = vec![action, "--pgdata", data.as_str(), "--silent", "--wait", "--timeout", "60"];
        if action != "start" {
            arguments.extend(["--mode", mode]);
        }
        self.run("pg_ctl", &arguments);
    }

    /// Restarts the server as after a crash, without closing connections properly.
    pub(crate) fn crash_and_restart(&self) {
        self.control("restart", "immediate");
    }

    pub(crate) fn stop(&self) {
        self.control("stop", "fast");
    }

    pub(crate) fn start_again(&self) {
        self.control("start", "fast");
    }

    /// Creates a database. Returns its address.
    pub(crate) fn create_database(&self) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("queue_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("create database {name}"));
        self.address(&name)
    }

    /// Returns the address of a database of this server.
    pub(crate) fn address(&self, database: &str) -> String {
        format!("postgres://{USER}@{}/{database}", self.directory.display().to_string().replace('/', "%2F"))
    }

    /// Runs statements in a database.
    pub(crate) fn execute(&self, database: &str, statements: &str) {
        let mut client = postgres::Client::connect(&self.address(database), postgres::NoTls).unwrap();
        client.batch_execute(statements).unwrap();
    }

    /// Runs statements over the Unix socket of a server whose port is not 5432.
    pub(crate) fn execute_on_port(&self, port: u16, statements: &str) {
        let mut config = postgres::Config::new();
        config.host_path(&self.directory).port(port).user(USER).dbname("postgres");
        config.connect(postgres::NoTls).unwrap().batch_execute(statements).unwrap();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Some(mut watcher) = self.watcher.take() {
            drop(watcher.stdin.take());
            let _ = watcher.wait();
        }
    }
}

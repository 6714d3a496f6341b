//! The connection to PostgreSQL: its address, its time limits, the schema, transactions and prepared statements.
//!
//! Nothing here shows the password: an address is shown without it, and no message of the parser is passed on.
//! A connection pooler between guard and the server must give each connection a session of its own: notifications,
//! settings and prepared statements belong to the session.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use postgres::config::{Host, SslMode};
use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::ToSql;
use postgres::{Client, Config, Error, NoTls, Row, Statement};

use super::tls::Tls;
use crate::batch::queue::QueueError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a silent connection may last before the operating system asks whether the server still exists.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent data may stay unacknowledged.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Where libpq looks for the server if an address names no host.
const DEFAULT_SOCKETS: &str = "/var/run/postgresql";
/// Shown instead of an address that cannot be parsed, whose password therefore cannot be found.
const UNKNOWN_ADDRESS: &str = "postgres://…";

/// The version of the schema that this guard reads and writes.
const VERSION: &str = "2";
const SCHEMA: &str = include_str!("schema.sql");
/// The only older version, and what changes a queue of that version into one of this version.
const FIRST_VERSION: &str = "1";
const UPGRADE: &str = include_str!("upgrade.sql");

/// How long the plans of the prepared statements are used. The planner knows nothing about a new queue: what it plans
/// for an empty one would read whole tables later.
const PLANS_LAST: Duration = Duration::from_secs(10);

/// A worker that stops in the middle of a transaction must not hold its locks for long. All statements find few rows by
/// an index, so the other ways to run them are off: without statistics the planner would choose them.
const SETTINGS: &str = "
    set statement_timeout = '60s';
    set idle_in_transaction_session_timeout = '30s';
    set client_min_messages = warning;
    set jit = off;
    set enable_seqscan = off;
    set enable_bitmapscan = off;
    set enable_hashjoin = off;
    set enable_mergejoin = off;
    set enable_material = off;
    set plan_cache_mode = force_generic_plan;
    listen guard_queue;
";

/// What only one transaction may do at a time. PostgreSQL holds the lock until the transaction ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lock {
    /// Creating the schema.
    Schema = 1,
    /// Claiming tasks: the limits and the turns hold exactly.
    Claims = 2,
    /// Finding tasks by their idempotency keys, reviving tasks, and removing batches.
    Keys = 3,
}

impl Lock {
    /// Returns the statement that takes the lock. The first number is guard's own: other programs may use the same
    /// database.
    fn statement(self) -> String {
        format!("select pg_advisory_xact_lock(1735746162, {})", self as i32)
    }
}

/// The address of a database, parsed.
pub(super) struct Address {
    config: Config,
    tls: Option<Tls>,
    /// The address without user and password.
    shown: String,
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self, QueueError> {
        let refused = |message: &str| QueueError::Postgres {
            address: UNKNOWN_ADDRESS.to_string(),
            message: message.to_string(),
        };
        // Such an address would be split in the wrong place, and a part of the password would be taken for something else.
        let (credentials, rest) = text.split_once('@').unwrap_or(("", text));
        if rest.contains('@') || credentials.contains("password=") {
            return Err(refused("the address has an `@` in the wrong place; write it as %40 in a password"));
        }
        // The certificate and the name are always checked, so these modes need no more than `require`.
        let text = text
            .replace("sslmode=verify-full", "sslmode=require")
            .replace("sslmode=verify-ca", "sslmode=require");
        let mut config: Config = text.parse().map_err(|_| {
            refused(
                "the address cannot be parsed; its form is postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=require, \
                 with %40 for `@` and %2F for `/` in the password",
            )
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host_path(DEFAULT_SOCKETS);
        }
        let shown = show(&config);
        let tls = match config.get_ssl_mode() {
            SslMode::Require => Some(Tls::load().map_err(|error| QueueError::Postgres {
                address: shown.clone(),
                message: error.to_string(),
            })?),
            _ => None,
        };
        config
            .application_name("guard")
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(SEND_TIMEOUT)
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES);
        Ok(Self { config, tls, shown })
    }

    /// Opens a session, and creates the queue if it is missing.
    pub(super) fn open(&self) -> Result<Session, QueueError> {
        let mut client = self.connect()?;
        client.batch_execute(SETTINGS).map_err(|error| self.error(&error))?;
        let row = client
            .query_one("select current_setting('server_encoding'), pg_backend_pid()", &[])
            .map_err(|error| self.error(&error))?;
        let encoding: String = row.get(0);
        if encoding != "UTF8" {
            let message = format!("the database has the encoding {encoding}; create one with UTF8");
            return Err(self.refusal(message));
        }
        let mut session = Session {
            client,
            statements: HashMap::new(),
            process: row.get(1),
            planned: Instant::now(),
            is_in_transaction: false,
            has_written: false,
        };
        let version = session.prepare_schema().map_err(|error| self.error(&error))?;
        if version != VERSION {
            let message = format!(
                "the queue has version {version} and this guard needs version {VERSION}; use the same guard on all machines"
            );
            return Err(self.refusal(message));
        }
        Ok(session)
    }

    /// Connects on a separate thread, because a server that accepts the connection and then sends nothing would block
    /// the caller forever.
    fn connect(&self) -> Result<Client, QueueError> {
        let (config, tls) = (self.config.clone(), self.tls.clone());
        let (sender, receiver) = channel();
        let connect = move || {
            let client = match tls {
                Some(tls) => config.connect(tls),
                None => config.connect(NoTls),
            };
            let _ = sender.send(client);
        };
        std::thread::Builder::new()
            .name("connect".to_string())
            .spawn(connect)
            .map_err(|error| self.refusal(format!("cannot start a thread: {error}")))?;
        match receiver.recv_timeout(CONNECT_TIMEOUT) {
            Ok(client) => client.map_err(|error| self.error(&error)),
            Err(_) => {
                Err(self.refusal(format!("the server did not answer within {} s", CONNECT_TIMEOUT.as_secs())))
            }
        }
    }

    /// Turns an error of PostgreSQL or of the connection into one that shows no password.
    pub(super) fn error(&self, error: &Error) -> QueueError {
        let mut message = match error.as_db_error() {
            Some(error) => format!("{} (SQLSTATE {})", error.message(), error.code().code()),
            None => {
                let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
                format!("{error}{cause}")
            }
        };
        if let Some(password) = self.config.get_password().filter(|password| !password.is_empty()) {
            message = message.replace(&*String::from_utf8_lossy(password), "***");
        }
        self.refusal(message)
    }

    fn refusal(&self, message: String) -> QueueError {
        QueueError::Postgres { address: self.shown.clone(), message }
    }
}

/// Returns the host, port and database of an address.
fn show(config: &Config) -> String {
    let mut hosts: Vec<String> = Vec::new();
    for (at, host) in config.get_hosts().iter().enumerate() {
        let port = config.get_ports().get(at).or(config.get_ports().first()).copied().unwrap_or(5432);
        hosts.push(match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => path.display().to_string(),
        });
    }
    if hosts.is_empty() {
        hosts.extend(config.get_hostaddrs().iter().map(ToString::to_string));
    }
    format!("postgres://{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

/// An open connection with its prepared statements.
pub(super) struct Session {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    /// The id of the process that serves this session.
    process: i32,
    /// Since when the statements are planned.
    planned: Instant,
    is_in_transaction: bool,
    /// The transaction has changed something.
    has_written: bool,
}

impl Session {
    /// Creates the queue unless it exists, and upgrades one of an older version. Returns the version of its schema.
    fn prepare_schema(&mut self) -> Result<String, Error> {
        if let Some(version) = self.schema_version()?.filter(|version| version != FIRST_VERSION) {
            return Ok(version);
        }
        self.begin(Some(Lock::Schema))?;
        // Another process may have been faster, so the version is read again under the lock.
        match self.schema_version()?.as_deref() {
            None => {
                // Whoever may not create schemas can be given an empty one.
                let has_schema = self.query("select from pg_namespace where nspname = 'guard'", &[])?;
                if has_schema.is_empty() {
                    self.client.batch_execute("create schema guard")?;
                }
                self.client.batch_execute(SCHEMA)?;
            }
            Some(FIRST_VERSION) => self.client.batch_execute(UPGRADE)?,
            Some(_) => {}
        }
        self.commit(false)?;
        Ok(self.schema_version()?.unwrap_or_default())
    }

    fn schema_version(&mut self) -> Result<Option<String>, Error> {
        let found = self.query(
            "select from pg_class join pg_namespace on pg_namespace.oid = relnamespace
             where nspname = 'guard' and relname = 'meta'",
            &[],
        )?;
        if found.is_empty() {
            return Ok(None);
        }
        let rows = self.query("select value from guard.meta where name = 'version'", &[])?;
        Ok(Some(rows.first().map(|row| row.get(0)).unwrap_or_default()))
    }

    /// Begins a transaction and takes a lock, in one round trip.
    pub(super) fn begin(&mut self, lock: Option<Lock>) -> Result<(), Error> {
        let begin = "start transaction isolation level read committed read write";
        (self.is_in_transaction, self.has_written) = (true, false);
        match lock {
            Some(lock) => self.client.batch_execute(&format!("{begin}; {}", lock.statement())),
            None => self.client.batch_execute(begin),
        }
    }

    /// Commits the transaction. With `notify`, wakes everyone who waits for changes, if there are any.
    pub(super) fn commit(&mut self, notify: bool) -> Result<(), Error> {
        let statements = if self.has_written && notify { "notify guard_queue; commit" } else { "commit" };
        self.client.batch_execute(statements)?;
        self.is_in_transaction = false;
        Ok(())
    }

    pub(super) fn roll_back(&mut self) -> Result<(), Error> {
        self.client.batch_execute("rollback")?;
        self.is_in_transaction = false;
        Ok(())
    }

    /// Runs a statement, which is parsed and planned only the first time.
    pub(super) fn query(
        &mut self,
        text: &'static str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.has_written |= !text.starts_with("select");
        let statement = match self.statements.get(text) {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.client.prepare(text)?;
                self.statements.insert(text, statement.clone());
                statement
            }
        };
        self.client.query(&statement, values)
    }

    /// Lets the server plan all statements again if the plans are old.
    pub(super) fn renew_plans(&mut self) -> Result<(), Error> {
        if self.planned.elapsed() < PLANS_LAST {
            return Ok(());
        }
        self.planned = Instant::now();
        self.client.batch_execute("discard plans")
    }

    /// Waits for a notification of another session. Returns whether one came; with `Duration::ZERO`, whether one came
    /// since the last call.
    pub(super) fn await_notification(&mut self, most: Duration) -> Result<bool, Error> {
        let process = self.process;
        let mut notifications = self.client.notifications();
        let mut is_notified = false;
        if most.is_zero() {
            let mut received = notifications.iter();
            while let Some(notification) = received.next()? {
                is_notified |= notification.process_id() != process;
            }
            return Ok(is_notified);
        }
        let deadline = Instant::now() + most;
        while !is_notified {
            let rest = deadline.saturating_duration_since(Instant::now());
            match notifications.timeout_iter(rest).next()? {
                Some(notification) => is_notified = notification.process_id() != process,
                None => break,
            }
        }
        Ok(is_notified)
    }

    /// False if the connection is closed, or a panic left a transaction open.
    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.is_in_transaction
    }
}

/// True if the transaction failed only because of what other transactions did at the same time.
pub(super) fn is_conflict(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE].contains(code)
    })
}

/// True if the connection is of no use after this error.
pub(super) fn is_connection_lost(error: &Error) -> bool {
    let Some(code) = error.code() else { return true };
    [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    ]
    .contains(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(address: &str) -> String {
        match Address::parse(address) {
            Ok(address) => panic!("accepted: {}", address.shown),
            Err(error) => format!("{error} {error:?}"),
        }
    }

    #[test]
    fn an_address_is_shown_without_user_and_password() {
        for (address, shown) in [
            ("postgres://me:secret@db.example:6000/queue", "postgres://db.example:6000/queue"),
            ("postgresql://me:sec%40ret@db/queue?application_name=x", "postgres://db:5432/queue"),
            ("postgres:///queue?host=/run/db&user=me&password=secret", "postgres:///run/db/queue"),
            ("postgres:///queue", "postgres:///var/run/postgresql/queue"),
            ("postgres://me:secret@one,two:7/queue", "postgres://one:5432,two:7/queue"),
        ] {
            assert_eq!(Address::parse(address).unwrap_or_else(|error| panic!("{error}")).shown, shown);
        }
    }

    #[test]
    fn no_message_contains_the_password() {
        for address in [
            "postgres://me:secret@word@db/queue",
            "postgres://me:word@secret/x@db/queue",
            "postgres://db/queue?password=secret@db",
            "postgres://me:secret@db:port/queue",
            "postgres://me:secret@db/queue?secret",
            "postgres://me:secret@db/queue?secret=secret",
            "postgres://me:secret@db/queue?sslmode=secret",
        ] {
            let message = refused(address);
            assert!(!message.contains("secret"), "{address}: {message}");
        }
    }

    #[test]
    fn a_server_that_cannot_be_reached_is_named_without_the_password() {
        let address = Address::parse("postgres://me:secret@127.0.0.1:1/queue")
            .unwrap_or_else(|error| panic!("{error}"));
        let Err(error) = address.open() else { panic!("a server answers on port 1") };
        let message = format!("{error} {error:?}");
        assert!(message.contains("127.0.0.1:1/queue") && message.contains("refused"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}

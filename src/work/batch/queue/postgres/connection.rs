//! The connection to PostgreSQL: address, time limits, schema, transactions and prepared statements.
//!
//! No message may contain the password: guard shows addresses without it, and does not repeat the messages of the
//! address parser. A connection pooler between guard and the server must give each connection its own session,
//! because notifications, settings and prepared statements are per session.

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
use crate::work::batch::queue::QueueError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be idle before the operating system sends TCP keepalive probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent data may stay unacknowledged before the operating system closes the connection.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// The directory of PostgreSQL's unix socket, for addresses that name no host. libpq has the same default.
const DEFAULT_SOCKETS: &str = "/var/run/postgresql";
/// The text that messages show instead of an address that cannot be parsed. guard cannot find the password in such an
/// address, so it must not show any part of it.
const UNKNOWN_ADDRESS: &str = "postgres://…";

/// The version of the database schema that this version of guard reads and writes.
const VERSION: &str = "2";
const SCHEMA: &str = include_str!("schema.sql");
/// The only older version of the schema. `UPGRADE` changes a queue of that version into the current one.
const FIRST_VERSION: &str = "1";
const UPGRADE: &str = include_str!("upgrade.sql");

/// How long a session uses the plans of its prepared statements. The planner has no statistics about a new queue:
/// plans made for empty tables would later read whole tables.
const PLANS_LAST: Duration = Duration::from_secs(10);

/// The settings of each session. The timeouts limit how long a worker that hangs in the middle of a transaction can
/// hold its locks. All statements find few rows by an index, so all scan and join methods that do not suit this are
/// off: without statistics, the planner would choose them.
const SETTINGS: &str = "
    set statement_timeout = '60s';
    set idle_in_transaction_session_timeout = '5s';
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

/// Operations that only one transaction may carry out at a time. PostgreSQL holds the advisory lock until the
/// transaction ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lock {
    /// Creating or upgrading the schema.
    Schema = 1,
    /// Claiming tasks. With one claim at a time, the limits are exact, and workers take tasks from all lanes (the
    /// queued tasks of one batch, priority and repository) in turn.
    Claims = 2,
    /// Finding batches and tasks by their idempotency keys, carrying out commands to batches, retrying failed tasks,
    /// and removing batches.
    Keys = 3,
}

impl Lock {
    /// Returns the statement that takes the advisory lock. The first number distinguishes guard's locks from those of
    /// other programs that use the same database.
    fn statement(self) -> String {
        format!("select pg_advisory_xact_lock(1735746162, {})", self as i32)
    }
}

/// The parsed address of a database.
pub(super) struct Address {
    config: Config,
    tls: Option<Tls>,
    /// The address as messages show it, without user and password.
    shown: String,
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self, QueueError> {
        let refused = |message: &str| QueueError::Postgres {
            address: UNKNOWN_ADDRESS.to_string(),
            message: message.to_string(),
        };
        // The parser would split an address with two `@` at the first one, and take a part of the password for the
        // host.
        let (credentials, rest) = text.split_once('@').unwrap_or(("", text));
        if rest.contains('@') || credentials.contains("password=") {
            return Err(refused(
                "the address has an `@` in the wrong place; in a password, write `@` as %40",
            ));
        }
        // guard always checks the certificate and the host name, so it treats these modes like `require`.
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

    /// Opens a session, and creates or upgrades the queue's schema if necessary. Fails if the schema is of a newer
    /// version, or if the database does not have the encoding UTF-8.
    pub(super) fn open(&self) -> Result<Session, QueueError> {
        let mut client = self.connect()?;
        client.batch_execute(SETTINGS).map_err(|error| self.error(&error))?;
        let row = client
            .query_one("select current_setting('server_encoding'), pg_backend_pid()", &[])
            .map_err(|error| self.error(&error))?;
        let encoding: String = row.get(0);
        if encoding != "UTF8" {
            let message = format!(
                "the database has the encoding {encoding}, but guard needs UTF8; create another database"
            );
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
                "the queue has version {version} and this guard needs version {VERSION}; use the same version of guard on all machines"
            );
            return Err(self.refusal(message));
        }
        Ok(session)
    }

    /// Connects on a separate thread, and fails if this takes longer than `CONNECT_TIMEOUT`. On the caller's thread, a
    /// server that accepts the connection and then sends nothing would block the caller forever.
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

    /// Converts an error of PostgreSQL or of the connection into one whose message contains no password.
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

/// Returns the host, port and database of an address as text.
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

/// An open connection to PostgreSQL, with its prepared statements.
pub(super) struct Session {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    /// The id of the PostgreSQL server process that serves this session.
    process: i32,
    /// When the server last planned the prepared statements.
    planned: Instant,
    is_in_transaction: bool,
    /// True if the current transaction has run a statement other than `select`.
    has_written: bool,
}

impl Session {
    /// Creates the schema if it is missing, and upgrades an older one. Returns the version of the schema.
    fn prepare_schema(&mut self) -> Result<String, Error> {
        if let Some(version) = self.schema_version()?.filter(|version| version != FIRST_VERSION) {
            return Ok(version);
        }
        self.begin(Some(Lock::Schema))?;
        // Another process may have created or upgraded the schema meanwhile, so guard reads the version again under the
        // lock.
        match self.schema_version()?.as_deref() {
            None => {
                // If guard's database user may not create schemas, an administrator can create an empty schema
                // `guard` for it.
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

    /// Begins a transaction and takes the lock, if any, in one round trip.
    pub(super) fn begin(&mut self, lock: Option<Lock>) -> Result<(), Error> {
        let begin = "start transaction isolation level read committed read write";
        (self.is_in_transaction, self.has_written) = (true, false);
        match lock {
            Some(lock) => self.client.batch_execute(&format!("{begin}; {}", lock.statement())),
            None => self.client.batch_execute(begin),
        }
    }

    /// Commits the transaction. With `notify`, also notifies all sessions if the transaction has changed something.
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

    /// Runs a statement. The server parses it only the first time that this session uses it.
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

    /// Makes the server plan all prepared statements again if the plans are older than `PLANS_LAST`.
    pub(super) fn renew_plans(&mut self) -> Result<(), Error> {
        if self.planned.elapsed() < PLANS_LAST {
            return Ok(());
        }
        self.planned = Instant::now();
        self.client.batch_execute("discard plans")
    }

    /// Waits for a notification from another session, at most for the given time. Returns true if such a notification
    /// came. With `Duration::ZERO`, does not wait, and returns true if one came since the last call.
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

    /// Returns false if the connection is closed, or if a transaction is still open after a failure or a panic.
    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.is_in_transaction
    }
}

/// True if the transaction failed only because of a conflict with concurrent transactions.
pub(super) fn is_conflict(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE].contains(code)
    })
}

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

// slow
//! Tests the PostgreSQL queue while the server restarts, is stopped, or rejects the client.

use std::path::Path;
use std::time::{Duration, Instant};

use guard::work::batch::queue::{ClaimLimits, Queue, QueueError, open_queue};

use super::queue_conformance::{completed, limits, submit, task};
use crate::support::http_server::Authority;
use crate::support::{PostgresServer, Scratch, guard, shared_postgres, skip};

fn open(address: &str) -> Result<Box<dyn Queue>, QueueError> {
    open_queue(Some(address), Path::new("/nonexistent"))
}

fn own_server(settings: &str, files: &[(&str, &str)]) -> Option<PostgresServer> {
    let server = PostgresServer::start_with(settings, files);
    if server.is_none() {
        skip("the queue in PostgreSQL", "PostgreSQL is not installed");
    }
    server
}

/// Another program has a transaction open while a batch runs. All tasks of the batch must be listed as ended once the
/// batch has ended.
#[test]
fn open_transaction_of_another_program_hides_no_ended_task() {
    let Some(server) = shared_postgres() else { return };
    let address = server.create_database();
    let queue = &mut *open(&address).unwrap();
    let mut other = postgres::Client::connect(&address, postgres::NoTls).unwrap();
    let mut transaction = other.transaction().unwrap();
    transaction.query("select pg_current_xact_id()", &[]).unwrap();
    submit(queue, "a", vec![task("x"), task("y")]);
    let claims = queue.claim("worker", limits(2)).unwrap();
    assert_eq!(queue.finish(&[completed(&claims[0])]).unwrap(), [true]);
    assert_eq!(queue.ended_tasks("a", 0, 10).unwrap().len(), 0);
    assert_eq!(queue.finish(&[completed(&claims[1])]).unwrap(), [true]);
    assert_eq!(queue.ended_tasks("a", 0, 10).unwrap().len(), 2);
    transaction.rollback().unwrap();
}

#[test]
fn restart_of_postgres_loses_no_task() {
    let Some(server) = own_server("listen_addresses = ''\n", &[]) else { return };
    let address = server.create_database();
    let queue = &mut *open(&address).unwrap();
    submit(queue, "a", vec![task("x"), task("y")]);
    let lease = Duration::from_millis(300);
    let claims = queue.claim("worker", ClaimLimits { lease, ..limits(1) }).unwrap();
    server.crash_and_restart();
    // The lease expired while the server was down. The queue extends such a lease a little, because the worker could
    // not renew it.
    assert_eq!(queue.tasks("a", -1, 10).unwrap().len(), 2);
    assert_eq!(queue.finish(&[completed(&claims[0])]).unwrap(), [true]);

    server.stop();
    let start = Instant::now();
    for _ in 0..3 {
        let error = queue.claim("worker", limits(1)).unwrap_err().to_string();
        assert!(error.starts_with("cannot use the queue at postgres://"), "{error}");
        assert!(queue.wait(Duration::from_millis(1)).is_err());
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    server.start_again();
    let next = queue.claim("worker", limits(1)).unwrap();
    assert_eq!(next[0].task_id, "y");
    assert!(next[0].lease.token > claims[0].lease.token);
}

#[test]
fn connection_closed_by_the_server_is_reopened() {
    let Some(server) = shared_postgres() else { return };
    let address = server.create_database();
    let database = address.rsplit('/').next().unwrap();
    let queue = &mut *open(&address).unwrap();
    let close = || {
        let others = "datname = current_database() and pid <> pg_backend_pid()";
        server.execute(
            database,
            &format!("select pg_terminate_backend(pid, 60000) from pg_stat_activity where {others}"),
        );
    };
    submit(queue, "a", vec![task("x")]);
    close();
    assert!(queue.has_open_tasks().unwrap());
    close();
    let claims = queue.claim("worker", limits(1)).unwrap();
    close();
    assert_eq!(queue.finish(&[completed(&claims[0])]).unwrap(), [true]);
    close();
    // `wait` may fail once because its connection was closed.
    let _ = queue.wait(Duration::from_millis(10));
    assert!(!queue.has_open_tasks().unwrap());
}

#[test]
fn concurrent_processes_create_the_queue_once() {
    let Some(server) = shared_postgres() else { return };
    let address = server.create_database();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let address = &address;
            scope.spawn(move || submit(&mut *open(address).unwrap(), &number.to_string(), vec![task("x")]));
        }
    });
    assert_eq!(open(&address).unwrap().batches(10).unwrap().len(), 6);
}

#[test]
fn role_without_create_right_uses_a_schema_made_for_it() {
    let Some(server) = shared_postgres() else { return };
    let address = server.create_database();
    let database = address.rsplit('/').next().unwrap();
    server.execute(database, "create role worker_1 login; create schema guard authorization worker_1");
    let address = address.replace("guard@", "worker_1@");
    submit(&mut *open(&address).unwrap(), "a", vec![task("x")]);
    assert!(open(&address).unwrap().has_open_tasks().unwrap());
}

#[test]
fn unusable_database_address_is_reported_without_the_password() {
    let Some(server) = shared_postgres() else { return };
    let expect = |address: &str, expected: &str| {
        let error = open(address).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("secret"), "{error}");
    };
    expect(
        &server.address("missing").replace("guard@", "guard:secret@"),
        "database \"missing\" does not exist",
    );
    expect(&server.address("postgres").replace("guard@", "nobody:secret@"), "role \"nobody\" does not exist");
    server.execute("postgres", "create database latin encoding latin1 template template0 locale 'C'");
    expect(&server.address("latin"), "encoding LATIN1");

    let newer = server.create_database();
    drop(open(&newer).unwrap());
    server.execute(
        newer.rsplit('/').next().unwrap(),
        "update guard.meta set value = '7' where name = 'version'",
    );
    expect(&newer, "version 7");
}

#[test]
fn silent_server_is_given_up_after_a_time_limit() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let start = Instant::now();
    let error = open(&format!("postgres://me:secret@127.0.0.1:{port}/queue")).err().unwrap().to_string();
    assert!(error.contains("did not answer within 10 s") && !error.contains("secret"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn tls_checks_the_certificate_and_the_name_of_the_server() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&["localhost"]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = format!("listen_addresses = '127.0.0.1'\nport = {port}\nssl = on\n");
    let access = "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n";
    let key = key.serialize_pem();
    let files = [("server.crt", certificate.pem()), ("server.key", key), ("pg_hba.conf", access.to_string())];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let Some(server) = own_server(&settings, &files) else { return };
    server.execute_on_port(port, "alter role guard password 'se@cr/et:1'");

    let scratch = Scratch::new("tls");
    let trusted = scratch.write("authority.pem", authority.pem());
    let other = scratch.write("other.pem", Authority::new().pem());
    let list = |host: &str, password: &str, mode: &str, authorities: &Path| {
        let store = format!("postgres://guard:{password}@{host}:{port}/postgres?sslmode={mode}");
        let mut command = guard();
        command.args(["batch", "list"]).env("GUARD_STORE", store).env("SSL_CERT_FILE", authorities);
        let output = command.output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!message.contains("et:1") && !message.contains("et%3A1"), "{message}");
        if output.status.success() { Ok(()) } else { Err(message) }
    };
    let password = "se%40cr%2Fet%3A1";
    for mode in ["require", "verify-ca", "verify-full"] {
        list("localhost", password, mode, &trusted).unwrap();
        let expect = |host, authorities: &Path, expected: &str| {
            let message = list(host, password, mode, authorities).unwrap_err();
            assert!(message.contains(expected), "{mode}: {message}");
        };
        expect("localhost", &other, "invalid peer certificate");
        expect("127.0.0.1", &trusted, "not valid for name");
    }
    let expect = |password, mode, expected: &str| {
        let message = list("localhost", password, mode, &trusted).unwrap_err();
        assert!(message.contains(expected), "{message}");
    };
    expect("se%40cr%2Fet%3A12", "require", "password authentication failed");
    expect(password, "disable", "no encryption");
    expect(password, "prefer", "no encryption");
}

#[test]
fn server_without_tls_is_refused_if_tls_is_required() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = format!("listen_addresses = '127.0.0.1'\nport = {port}\n");
    let Some(_server) = own_server(&settings, &[]) else { return };
    let error = open(&format!("postgres://guard@localhost:{port}/postgres?sslmode=require")).err().unwrap();
    assert!(error.to_string().contains("server does not support TLS"), "{error}");
    open(&format!("postgres://guard@localhost:{port}/postgres")).unwrap();
}

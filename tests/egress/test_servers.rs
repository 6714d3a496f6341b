//! Real clients use the servers of these tests without guard, to prove that the servers behave like real ones.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::registries::{NAME, SAYS, VERSION, cargo, git, npm, pip};
use crate::support::http_server::{Authority, Response, Server, Step};
use crate::support::scripted_api::{Api, Part, Turn, USED};
use crate::support::{Scratch, skip};

/// A home and a working directory for a client of these servers.
struct ClientDirectory(Scratch);

impl ClientDirectory {
    fn new(name: &str) -> Self {
        let directory = Self(Scratch::new(&format!("servers-{name}")));
        std::fs::create_dir_all(directory.0.0.join("home")).unwrap();
        directory
    }

    /// Runs a script with only PATH of the user's variables. Returns its output.
    fn bash(&self, script: &str) -> String {
        let output = Command::new("bash")
            .args(["-euc", script])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.0.0.join("home"))
            .env("RUSTUP_HOME", rustup())
            .current_dir(&self.0.0)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Returns the user's rustup directory, which cargo needs here because the client has a home directory of its own.
fn rustup() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    std::env::var_os("RUSTUP_HOME").map_or_else(|| home.join(".rustup"), PathBuf::from)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !is_there {
        skip(program, "it is not installed; scripts/setup installs it");
    }
    is_there
}

/// Sends bytes and reads to the end. Returns what it read, and whether the connection was closed properly.
pub(super) fn exchange(mut stream: impl Read + Write, question: &str) -> (String, bool) {
    stream.write_all(question.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let is_orderly = stream.read_to_end(&mut answer).is_ok();
    (String::from_utf8_lossy(&answer).into_owned(), is_orderly)
}

fn over_tls(authority: &Authority, server: &Server, name: &str) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(name.to_string()).unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(client, TcpStream::connect(server.address()).unwrap())
}

/// The headers with which these tests end the last request on a connection.
pub(super) const ONCE: &str = "connection: close\r\nhost: x\r\n\r\n";

#[test]
fn test_server_records_requests_and_sends_answers_as_written() {
    let server = Server::plain(|request| match request.path() {
        "/steps" => {
            let bytes = |text: &str| Step::Bytes(text.as_bytes().to_vec());
            Response::steps(
                "text/plain",
                vec![bytes("one"), Step::Wait(Duration::from_millis(50)), bytes("two")],
            )
        }
        "/cut" => Response::steps("text/plain", vec![Step::Bytes(b"one".to_vec()), Step::Cut]),
        _ => Response::text("fine").with("x-own", "1"),
    });
    let connect = || TcpStream::connect(server.address()).unwrap();
    let question = format!(
        "POST /a?b=c HTTP/1.1\r\nX-Key: v\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\nGET /second HTTP/1.1\r\n{ONCE}"
    );
    let (answer, _) = exchange(connect(), &question);
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 2, "{answer}");
    assert!(answer.contains("x-own: 1\r\n") && answer.ends_with("\r\n\r\nfine"), "{answer}");
    let started = Instant::now();
    let (answer, _) = exchange(connect(), &format!("GET /steps HTTP/1.1\r\n{ONCE}"));
    assert!(answer.ends_with("3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"), "{answer}");
    assert!(started.elapsed() >= Duration::from_millis(50));
    let (answer, _) = exchange(connect(), &format!("GET /cut HTTP/1.1\r\n{ONCE}"));
    assert!(answer.ends_with("3\r\none\r\n"), "{answer}");
    let seen = server.requests();
    let first = &seen[0];
    assert_eq!((first.method.as_str(), first.target.as_str()), ("POST", "/a?b=c"));
    assert_eq!((first.path(), first.query(), first.header("x-key")), ("/a", "b=c", Some("v")));
    assert_eq!((first.body.as_slice(), seen[1].connection, seen[2].connection), (&b"abcde"[..], 0, 1));
    assert_eq!(server.connections(), 3);
}

#[test]
fn test_server_speaks_tls_with_its_own_authority() {
    let authority = Authority::new();
    let server = Server::tls(&authority, &["one.example", "127.0.0.1"], |request| match request.path() {
        "/cut" => Response::steps("text/plain", vec![Step::Bytes(b"one".to_vec()), Step::Cut]),
        _ => Response::text("fine"),
    });
    let (answer, is_orderly) =
        exchange(over_tls(&authority, &server, "one.example"), &format!("GET / HTTP/1.1\r\n{ONCE}"));
    assert!(answer.ends_with("fine") && is_orderly, "{answer}");
    let (answer, is_orderly) =
        exchange(over_tls(&authority, &server, "127.0.0.1"), &format!("GET /cut HTTP/1.1\r\n{ONCE}"));
    assert!(answer.ends_with("3\r\none\r\n") && !is_orderly, "{answer}");
    let names: Vec<Option<String>> =
        server.requests().into_iter().map(|request| request.server_name).collect();
    assert_eq!(names, [Some("one.example".to_string()), None]);
    // A client that trusts another authority must refuse the certificate.
    let mut stranger = over_tls(&Authority::new(), &server, "one.example");
    assert!(stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").and_then(|()| stranger.read(&mut [0])).is_err());
    assert!(server.url_as("one.example", "/").starts_with("https://one.example:"));
    assert!(authority.pem().contains("BEGIN CERTIFICATE"));
}

#[test]
fn pip_installs_from_the_test_index() {
    if !is_installed("python3") {
        return;
    }
    let directory = ClientDirectory::new("pip");
    let server = Server::plain(pip(&directory.0.0));
    let (url, module) = (server.url("/simple/"), NAME.replace('-', "_"));
    let script = format!(
        "python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir --target here --index-url {url} {NAME}=={VERSION}
         PYTHONPATH=here python3 -c 'import {module}; print({module}.says())'"
    );
    assert_eq!(directory.bash(&script).trim(), SAYS);
}

#[test]
fn npm_installs_from_the_test_registry() {
    if !is_installed("npm") {
        return;
    }
    let directory = ClientDirectory::new("npm");
    let server = Server::plain(npm(&directory.0.0, "http"));
    let script = format!(
        "mkdir here && cd here && echo '{{}}' > package.json
         npm install --silent --no-audit --no-fund --registry {} {NAME}@{VERSION} >&2
         node -p 'require(\"{NAME}\")()'",
        server.url("/")
    );
    assert_eq!(directory.bash(&script).trim(), SAYS);
}

#[test]
fn cargo_fetches_from_the_test_registry() {
    let directory = ClientDirectory::new("cargo");
    let server = Server::plain(cargo(&directory.0.0, "http"));
    let manifest = format!(
        "[package]\nname = \"user\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\n{NAME} = {{ version = \"{VERSION}\", registry = \"tiny\" }}\n[workspace]\n"
    );
    let write = |path: &str, text: &str| {
        let path = directory.0.0.join(path);
        std::fs::create_dir_all(Path::parent(&path).unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("user/Cargo.toml", &manifest);
    write(
        "user/src/main.rs",
        &format!("fn main() {{ println!(\"{{}}\", {}::says()) }}\n", NAME.replace('-', "_")),
    );
    let index = server.url("/index/");
    let printed = directory.bash(&format!(
        "export CARGO_REGISTRIES_TINY_INDEX=sparse+{index} CARGO_HOME=$HOME/.cargo; cd user && cargo run --quiet"
    ));
    assert_eq!(printed.trim(), SAYS);
}

#[test]
fn git_fetches_from_and_pushes_to_the_test_server() {
    let directory = ClientDirectory::new("git");
    let server = Server::plain(git(&directory.0.0));
    let url = server.url("/git/tiny.git");
    let script = format!(
        "git clone -q {url} clone && cd clone && cat README && echo more > more && git add more
         git -c user.name=n -c user.email=e commit -qm more && git push -q origin HEAD:refs/heads/other
         git ls-remote {url} refs/heads/other | wc -l"
    );
    assert_eq!(directory.bash(&script), format!("{SAYS}1\n"));
}

#[test]
fn scripted_api_ends_a_silent_answer_with_its_client() {
    let api = Api::plain(vec![Turn::Silent(vec![Part::Text("Well".to_string())]), Turn::text("later")]);
    let target = "/v1beta/models/m:streamGenerateContent?alt=sse";
    let question = format!("POST {target} HTTP/1.1\r\n{ONCE}");
    let mut client = TcpStream::connect(api.server.address()).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    client.write_all(question.as_bytes()).unwrap();
    let mut answer = Vec::new();
    assert!(client.read_to_end(&mut answer).is_err(), "it should not end");
    assert!(String::from_utf8_lossy(&answer).contains("Well"));
    drop(client);
    let (answer, _) = exchange(TcpStream::connect(api.server.address()).unwrap(), &question);
    assert!(
        answer.contains("later") && answer.contains(&format!("\"promptTokenCount\":{}", USED[0])),
        "{answer}"
    );
    let (answer, _) = exchange(TcpStream::connect(api.server.address()).unwrap(), &question);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("over"), "{answer}");
}

// slow
//! A run must reach nothing outside by sockets, and must not be reachable from outside.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use super::{Boundary, Report, Victim};
use crate::support::{
    SandboxFixture, SandboxUser, holds_within, probe_directory, sandbox_configurations, set_mode,
    skip_unsupported, system_python,
};

fn was_contacted(victim: &mut Victim, report: &Report) -> bool {
    // Data may arrive a moment after the probe sent it, so the test waits, and longer if the call succeeded.
    let patience = if report.succeeded() { 2000 } else { 20 };
    let mut told = || victim.tell().is_none_or(|told| !told["contacts"].as_array().unwrap().is_empty());
    holds_within(Duration::from_millis(patience), &mut told)
}

fn holds(attacks: &[&[&str]]) {
    for attack in attacks {
        Boundary::new("sockets.py", attack).check_victim(|_, victim, report| was_contacted(victim, report));
    }
}

#[test]
fn unix_sockets_outside_cannot_be_reached() {
    holds(&[
        &["unix", "{stream}"],
        &["unix-root", "{stream}"],
        &["unix-behind-link", "{stream}"],
        &["unix-relative", "{stream}"],
        &["unix-linked", "{stream}"],
        &["unix-seqpacket", "{seqpacket}"],
        &["abstract", "{abstract}"],
    ]);
}

#[test]
fn unix_datagrams_do_not_reach_outside() {
    holds(&[
        &["unix-datagram", "{datagram}"],
        &["unix-raw", "{datagram}"],
        &["unix-datagram-pair", "{datagram}"],
        &["unix-raw-pair", "{datagram}"],
        &["abstract-datagram", "{abstract}"],
        &["abstract-raw-pair", "{abstract}"],
    ]);
}

/// A run has its own `/tmp`. A link to `/tmp` must not lead the supervisor, which connects on behalf of the run, to the
/// machine's.
#[test]
fn socket_in_the_tmp_of_the_machine_is_not_reached_through_a_link() {
    for folder in ["/tmp", "/var/tmp", "/dev/shm"] {
        let setup = |fixture: &SandboxFixture| {
            let name = fixture.base.file_name().unwrap().to_str().unwrap();
            let path = PathBuf::from(format!("{folder}/guard-door-{}-{name}", std::process::id()));
            let server = std::os::unix::net::UnixListener::bind(&path).unwrap();
            set_mode(&path, 0o777);
            server.set_nonblocking(true).unwrap();
            std::os::unix::fs::symlink(&path, fixture.base.join("door")).unwrap();
            std::fs::write(fixture.outside.join("door-name"), path.to_str().unwrap()).unwrap();
            (server, path)
        };
        let Some(python) = system_python() else { return };
        let run = |fixture: &SandboxFixture, mut command: std::process::Command, path: &PathBuf| {
            command.arg(python).arg(probe_directory().join("sockets.py")).arg("unix-behind-link").arg(path);
            let _ = fixture;
            Report::of(&command.output().unwrap())
        };
        for user in SandboxUser::available() {
            let fixture = SandboxFixture::new(user);
            let (server, path) = setup(&fixture);
            let report = run(&fixture, fixture.command("/usr/bin/env"), &path);
            assert!(server.accept().is_ok(), "bare {folder}: {report:?}");
            std::fs::remove_file(path).unwrap();
        }
        for configuration in sandbox_configurations() {
            let fixture = SandboxFixture::new(configuration.user);
            let (server, path) = setup(&fixture);
            let report = run(&fixture, fixture.guard(configuration, &[]), &path);
            let reached = server.accept().is_ok();
            std::fs::remove_file(path).unwrap();
            assert!(!reached, "{configuration:?} {folder}: {report:?}");
            assert!(report.errno().is_some_and(|errno| errno != 0), "{configuration:?} {folder}: {report:?}");
        }
    }
}

#[test]
fn tcp_servers_outside_cannot_be_reached() {
    holds(&[
        &["tcp", "{tcp}"],
        &["tcp-named", "{tcp}"],
        &["tcp-any", "{tcp}"],
        &["tcp-nonblocking", "{tcp}"],
        &["tcp6-mapped", "{tcp}"],
        &["fast", "sendto", "{tcp}"],
        &["fast", "sendmsg", "{tcp}"],
        &["fast", "sendmmsg", "{tcp}"],
        &["fast-connect", "{tcp}"],
    ]);
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        holds(&[&["tcp6", "{tcp6}"]]);
    } else {
        skip_unsupported("TCP over IPv6", "there is no ::1 here");
    }
}

#[test]
fn udp_and_mptcp_do_not_reach_outside() {
    holds(&[&["udp", "{udp}"], &["udp6-mapped", "{udp}"]]);
    let fixture = SandboxFixture::new(SandboxUser::Ordinary);
    if system_python().is_some() && Victim::new(&fixture).fact("mptcp") != "0" {
        holds(&[&["mptcp", "{mptcp}"]]);
    } else {
        skip_unsupported("MPTCP", "this kernel does not have it");
    }
}

/// A run must not be able to create sockets of other kinds. Without guard, some of them are reserved for root.
#[test]
fn sockets_of_other_families_cannot_be_created() {
    let refused = [libc::EPERM, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT, libc::ESOCKTNOSUPPORT];
    let made = |_: &SandboxFixture, (): &mut (), report: &Report| report.succeeded();
    let kinds: [(&str, [i32; 3], Option<SandboxUser>); 12] = [
        ("raw", [2, 3, 1], Some(SandboxUser::Root)),
        ("raw IPv6", [10, 3, 58], Some(SandboxUser::Root)),
        ("packet", [17, 3, 0x0300], Some(SandboxUser::Root)),
        ("kernel events", [16, 3, 15], None),
        ("audit", [16, 3, 9], None),
        ("netfilter", [16, 3, 12], None),
        ("generic netlink", [16, 3, 16], None),
        ("vsock", [40, 1, 0], None),
        ("SCTP", [2, 1, 132], None),
        ("UDP-Lite", [2, 2, 136], None),
        ("crypto", [38, 5, 0], None),
        ("ping", [2, 2, 1], Some(SandboxUser::Root)),
    ];
    for (name, numbers, bare) in kinds {
        let words = numbers.map(|number| number.to_string());
        let arguments = ["make", &words[0], &words[1], &words[2]];
        let boundary = Boundary::new("sockets.py", &arguments).refused_with(&refused);
        let boundary = match bare {
            Some(user) => boundary.bare_only(user),
            None => boundary,
        };
        // A socket type that this kernel lacks cannot be tested without guard.
        let boundary = if super::can_be_made(&arguments) {
            boundary
        } else {
            boundary.no_bare(&format!("this kernel has no {name} sockets"))
        };
        boundary.check(|_| (), made);
    }
}

/// A process outside the run tries to connect to every socket on which the run listens. No connection may succeed.
#[test]
fn sockets_inside_cannot_be_reached_from_outside() {
    let Some(python) = system_python() else { return };
    for attack in ["serve", "serve-any", "serve-unbound"] {
        let run = |mut command: std::process::Command, fixture: &SandboxFixture| {
            command
                .arg(python)
                .arg(probe_directory().join("sockets.py"))
                .arg(attack)
                .arg(fixture.work.join("port"));
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut reached = false;
            holds_within(Duration::from_secs(10), || {
                let port = std::fs::read_to_string(fixture.work.join("port")).unwrap_or_default();
                let port = port.parse::<u16>().unwrap_or(0);
                reached = port != 0 && std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
                reached || child.try_wait().unwrap().is_some()
            });
            (reached, Report::of(&child.wait_with_output().unwrap()))
        };
        for user in SandboxUser::available() {
            let fixture = SandboxFixture::new(user);
            let (reached, report) = run(fixture.command("/usr/bin/env"), &fixture);
            assert!(reached, "bare {attack}: {report:?}");
        }
        for configuration in sandbox_configurations() {
            let fixture = SandboxFixture::new(configuration.user);
            let (reached, report) = run(fixture.guard(configuration, &[]), &fixture);
            assert!(!reached, "{configuration:?} {attack}: {report:?}");
            assert!(report.errno().is_some_and(|errno| errno != 0), "{configuration:?} {attack}: {report:?}");
        }
    }
}

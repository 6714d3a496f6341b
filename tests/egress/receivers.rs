//! Receivers outside the run, one for each kind of connection that a probe tries. They record what arrives.

use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen,
    sendmsg, socket,
};
use serde_json::{Value, json};

/// Listeners outside the run, one for each kind of connection. They record what arrives; dropping the value stops
/// them.
pub(crate) struct Receivers {
    kept: Arc<Mutex<Vec<u8>>>,
    is_over: Arc<AtomicBool>,
    plan: Value,
    folder: PathBuf,
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// An HTTP response that lets every client finish.
const ANSWER: &[u8] = b"HTTP/1.1 200 Fine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

type Kept = Arc<Mutex<Vec<u8>>>;

fn keep(kept: &Kept, bytes: &[u8]) {
    let mut kept = kept.lock().unwrap();
    kept.extend_from_slice(bytes);
    kept.push(b'\n');
}

/// Reads from a connection up to the text `-end`, which ends the probe's data, or until the client pauses. Records
/// the bytes, sends a response, and closes the connection.
fn converse(mut stream: impl Read + Write, patience: impl Fn(Duration), kept: &Kept) {
    let (mut all, mut bytes) = (Vec::new(), vec![0; 64 << 10]);
    patience(Duration::from_secs(20));
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        all.extend_from_slice(&bytes[..count]);
        if all.windows(4).any(|part| part == b"-end") {
            break;
        }
        patience(Duration::from_millis(200));
    }
    if !all.is_empty() {
        keep(kept, &all);
        let _ = stream.write_all(ANSWER);
    }
}

fn tcp(listener: TcpListener, kept: &Kept) -> u16 {
    let port = listener.local_addr().unwrap().port();
    let kept = Arc::clone(kept);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let kept = Arc::clone(&kept);
            std::thread::spawn(move || {
                converse(&stream, |time| _ = stream.set_read_timeout(Some(time)), &kept);
            });
        }
    });
    port
}

fn udp(socket: UdpSocket, kept: &Kept) -> u16 {
    let port = socket.local_addr().unwrap().port();
    let kept = Arc::clone(kept);
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok((count, _)) = socket.recv_from(&mut bytes) {
            keep(&kept, &bytes[..count]);
        }
    });
    port
}

fn datagrams(socket: UnixDatagram, kept: &Kept) {
    let kept = Arc::clone(kept);
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count) = socket.recv(&mut bytes) {
            keep(&kept, &bytes[..count]);
        }
    });
}

fn unix(listener: UnixListener, kept: &Kept) {
    let kept = Arc::clone(kept);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            converse(&stream, |time| _ = stream.set_read_timeout(Some(time)), &kept);
        }
    });
}

fn everybodys(path: &Path) -> &Path {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    path
}

/// Returns an address of this machine that is not loopback. If there is none, returns another loopback address.
fn machine() -> IpAddr {
    let asked = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        // `connect` on a UDP socket sends nothing. It only makes the kernel choose the local address.
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    asked.map_or(Ipv4Addr::new(127, 0, 0, 3).into(), |address| address.ip())
}

impl Receivers {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("guard-out-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = Path::new("/var/tmp").join(&name);
        std::fs::create_dir_all(&folder).unwrap();
        everybodys(&folder);
        let kept = Kept::default();
        let is_over = Arc::new(AtomicBool::new(false));
        let port = tcp(TcpListener::bind("0.0.0.0:0").unwrap(), &kept);
        let or_none = |bound: std::io::Result<u16>| bound.unwrap_or(9);
        let tcp6 = or_none(TcpListener::bind("[::]:0").map(|listener| tcp(listener, &kept)));
        let udp6 = or_none(UdpSocket::bind("[::]:0").map(|socket| udp(socket, &kept)));
        let udp4 = udp(UdpSocket::bind("0.0.0.0:0").unwrap(), &kept);
        let path = |name: &str| folder.join(name);
        for name in ["agent", "docker", "bus"] {
            unix(UnixListener::bind(path(name)).unwrap(), &kept);
            everybodys(&path(name));
        }
        datagrams(UnixDatagram::bind(path("datagram")).unwrap(), &kept);
        everybodys(&path("datagram"));
        unix(UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(), &kept);
        let second = SocketAddr::from_abstract_name(format!("{name}-datagram")).unwrap();
        datagrams(UnixDatagram::bind_addr(&second).unwrap(), &kept);
        seqpacket(&path("seqpacket"), &kept);
        gifts(&path("gifts"), port);
        let plan = json!({
            "tcp": port, "tcp6": tcp6, "udp": udp4, "udp6": udp6, "machine": machine().to_string(),
            "agent": path("agent"), "docker": path("docker"), "bus": path("bus"), "datagram": path("datagram"),
            "seqpacket": path("seqpacket"), "gifts": path("gifts"), "abstract": name,
            "ssh": ssh(&kept), "listening": visits(&kept, &is_over), "door-udp": udp4,
        });
        Self { kept, is_over, plan, folder }
    }

    pub(crate) fn port(&self) -> u16 {
        u16::try_from(self.plan["tcp"].as_u64().unwrap()).unwrap()
    }

    pub(crate) fn port6(&self) -> u16 {
        u16::try_from(self.plan["tcp6"].as_u64().unwrap()).unwrap()
    }

    /// Returns where each receiver listens, for the probe.
    pub(crate) fn plan(&self) -> &Value {
        &self.plan
    }

    /// Adds a UDP receiver on this port. Returns false if another program uses the port.
    pub(crate) fn at_udp(&self, port: u16) -> bool {
        let Ok(socket) = UdpSocket::bind(("127.0.0.1", port)) else { return false };
        udp(socket, &self.kept);
        true
    }

    /// Returns the names of the attempts whose data arrived: the text between `way-` and `-end`.
    pub(crate) fn arrived(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.kept.lock().unwrap()).into_owned();
        let marks = text.split("way-").skip(1).filter_map(|rest| rest.split_once("-end"));
        let mut names: Vec<String> = marks.map(|(name, _)| name.to_string()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns everything that arrived, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept.lock().unwrap()).into_owned()
    }

    /// Waits at most 30 seconds until the data of all of these attempts has arrived.
    pub(crate) fn wait_for(&self, names: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline
            && !names.iter().all(|name| self.arrived().iter().any(|known| known == name))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Starts a receiver that records a connection only if the client first sends its ssh version.
fn ssh(kept: &Kept) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let kept = Arc::clone(kept);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = [0; 4];
            if stream.read_exact(&mut bytes).is_ok() && bytes == *b"SSH-" {
                keep(&kept, b"way-ssh-end");
            }
        }
    });
    port
}

/// Starts a client outside that keeps connecting to this port, where a probe in the run may listen.
fn visits(kept: &Kept, is_over: &Arc<AtomicBool>) -> u16 {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (kept, is_over) = (Arc::clone(kept), Arc::clone(is_over));
    std::thread::spawn(move || {
        while !is_over.load(Ordering::SeqCst) {
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
                let mut bytes = Vec::new();
                let _ = stream.read_to_end(&mut bytes);
                keep(&kept, &bytes);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    port
}

fn seqpacket(path: &Path, kept: &Kept) {
    let server = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(server.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    everybodys(path);
    listen(&server, Backlog::new(16).unwrap()).unwrap();
    let kept = Arc::clone(kept);
    std::thread::spawn(move || {
        while let Ok(client) = accept(server.as_raw_fd()) {
            let mut bytes = [0; 1024];
            if let Ok(count) = nix::sys::socket::recv(client, &mut bytes, MsgFlags::empty()) {
                keep(&kept, &bytes[..count]);
            }
            let _ = nix::unistd::close(client);
        }
    });
}

/// Starts a server that passes an open connection to each client as a file descriptor.
fn gifts(path: &Path, port: u16) {
    let listener = UnixListener::bind(path).unwrap();
    everybodys(path);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let gift = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let numbers = [gift.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&numbers)];
            let _ =
                sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(b"here")], &rights, MsgFlags::empty(), None);
        }
    });
}

//! An HTTP/1 server for tests, on loopback, plain or with TLS. It records the requests it receives.
//!
//! It is handwritten, with a thread for each connection, because tests need it to cut a body in the middle or fall
//! silent, which ordinary server libraries prevent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::Value;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The time after which the server closes an idle connection.
const IDLE: Duration = Duration::from_secs(60);

/// A certificate authority that signs the certificates of the test servers.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    certificate: CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "guard's tests");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self {
            pem: certificate.pem(),
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Returns the certificate in PEM format, for programs that read a file of authorities.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the certificate, for clients in the test itself.
    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    /// Returns a certificate and a key for a server with these names or addresses.
    pub(crate) fn sign(&self, names: &[&str]) -> (Certificate, KeyPair) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_string()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "guard's test server");
        // Some TLS clients require these three settings.
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Returns the TLS configuration of a server with these names or addresses.
    fn server(&self, names: &[&str]) -> Arc<ServerConfig> {
        let (certificate, key) = self.sign(names);
        let chain = vec![certificate.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

/// A request that the server received.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path and the query, as they were sent.
    pub(crate) target: String,
    /// The headers in their order, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The name that the TLS client requested.
    pub(crate) server_name: Option<String>,
    /// The number of the connection, counted from 0.
    pub(crate) connection: usize,
}

impl Request {
    /// Returns the first header with this name, which must be in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the target without its query.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(crate) fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }

    /// Returns the body as JSON; `null` if it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A response that the server sends.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

#[derive(Debug, Clone)]
enum Body {
    Whole(Vec<u8>),
    /// The body is sent in chunks, step by step.
    Steps(Vec<Step>),
}

/// A part of a streamed body.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Bytes(Vec<u8>),
    Wait(Duration),
    /// The server breaks the connection here, in the middle of the body.
    Cut,
    /// The server sends nothing more until the client disconnects or the test ends.
    Silence,
}

impl Response {
    pub(crate) fn new(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type".to_string(), kind.to_string())];
        Self { status, headers, body: Body::Whole(body.into()) }
    }

    pub(crate) fn text(body: impl Into<Vec<u8>>) -> Self {
        Self::new(200, "text/plain", body)
    }

    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::new(status, "application/json", body.to_string())
    }

    pub(crate) fn not_found() -> Self {
        Self::new(404, "text/plain", "not found\n")
    }

    pub(crate) fn steps(kind: &str, steps: Vec<Step>) -> Self {
        Self { body: Body::Steps(steps), ..Self::new(200, kind, "") }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_string(), value.into()));
        self
    }
}

type Routes = dyn Fn(&Request) -> Response + Send + Sync;

/// A running HTTP server that answers with a function of the test, and stores the requests. Dropping the value stops
/// the server.
pub(crate) struct Server {
    address: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
}

struct Shared {
    routes: Box<Routes>,
    tls: Option<Arc<ServerConfig>>,
    seen: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    is_over: AtomicBool,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address);
    }
}

impl Server {
    pub(crate) fn plain(routes: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        Self::start(None, Box::new(routes))
    }

    /// Starts a server with a certificate for these names or addresses.
    pub(crate) fn tls(
        authority: &Authority,
        names: &[&str],
        routes: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> Self {
        Self::start(Some(authority.server(names)), Box::new(routes))
    }

    fn start(tls: Option<Arc<ServerConfig>>, routes: Box<Routes>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let shared = Arc::new(Shared {
            routes,
            tls,
            seen: Mutex::default(),
            connections: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if all.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), shared) = (stream, Arc::clone(&all)) else { return };
                let connection = all.connections.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || shared.connection(&stream, connection));
            }
        });
        Self { address, scheme, shared }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns `http://127.0.0.1:PORT` and the path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    /// Returns the URL with this host name instead of the address.
    pub(crate) fn url_as(&self, name: &str, path: &str) -> String {
        format!("{}://{name}:{}{path}", self.scheme, self.port())
    }

    /// Returns all requests that have arrived.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Returns the number of connections, including those without a request.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

/// The way in which a connection ends.
enum End {
    /// The server closes the connection properly.
    Orderly,
    /// The server breaks the connection.
    Broken,
}

impl Shared {
    fn connection(&self, socket: &TcpStream, number: usize) {
        let _ = socket.set_read_timeout(Some(IDLE));
        let _ = socket.set_nodelay(true);
        match &self.tls {
            None => _ = self.talk(&mut BufReader::new(Plain(socket)), socket, number),
            Some(config) => {
                let connection = ServerConnection::new(Arc::clone(config)).unwrap();
                let mut stream = BufReader::new(StreamOwned::new(connection, Plain(socket)));
                if let Ok(End::Orderly) = self.talk(&mut stream, socket, number) {
                    let stream = stream.get_mut();
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            }
        }
        let _ = socket.shutdown(Shutdown::Both);
    }

    fn talk<S: Stream>(
        &self,
        stream: &mut BufReader<S>,
        socket: &TcpStream,
        number: usize,
    ) -> std::io::Result<End> {
        loop {
            let Some(mut request) = read(stream, number)? else { return Ok(End::Orderly) };
            request.server_name = stream.get_ref().server_name();
            self.seen.lock().unwrap().push(request.clone());
            let response = (self.routes)(&request);
            if let End::Broken = self.answer(&request, &response, stream.get_mut(), socket)? {
                return Ok(End::Broken);
            }
            let closes =
                request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
            if closes || self.is_over.load(Ordering::SeqCst) {
                return Ok(End::Orderly);
            }
        }
    }

    fn answer(
        &self,
        request: &Request,
        response: &Response,
        to: &mut impl Write,
        socket: &TcpStream,
    ) -> std::io::Result<End> {
        let mut head = format!("HTTP/1.1 {} Test\r\n", response.status);
        for (name, value) in &response.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let steps = match &response.body {
            Body::Whole(body) => {
                let mut whole = format!("{head}content-length: {}\r\n\r\n", body.len()).into_bytes();
                if request.method != "HEAD" {
                    whole.extend(body);
                }
                to.write_all(&whole)?;
                to.flush()?;
                return Ok(End::Orderly);
            }
            Body::Steps(steps) => steps,
        };
        to.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes())?;
        for step in steps {
            match step {
                Step::Bytes(bytes) if bytes.is_empty() => {}
                Step::Bytes(bytes) => {
                    to.write_all(&[format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat())?;
                }
                Step::Wait(time) => {
                    to.flush()?;
                    std::thread::sleep(*time);
                }
                Step::Cut => {
                    to.flush()?;
                    return Ok(End::Broken);
                }
                Step::Silence => {
                    to.flush()?;
                    self.wait_for_the_end(socket);
                    return Ok(End::Broken);
                }
            }
        }
        to.write_all(b"0\r\n\r\n")?;
        to.flush()?;
        Ok(End::Orderly)
    }

    /// Waits until the client disconnects or the test ends.
    fn wait_for_the_end(&self, socket: &TcpStream) {
        let started = Instant::now();
        let _ = socket.set_read_timeout(Some(Duration::from_millis(20)));
        while !self.is_over.load(Ordering::SeqCst) && started.elapsed() < IDLE {
            match socket.peek(&mut [0]) {
                Ok(0) => return,
                // Unread data is available, perhaps a TLS alert, so `peek` would return at once.
                Ok(_) => std::thread::sleep(Duration::from_millis(20)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

/// A connection without TLS.
struct Plain<'a>(&'a TcpStream);

impl Read for Plain<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let mut socket = self.0;
        socket.read(to)
    }
}

impl Write for Plain<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut socket = self.0;
        socket.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

trait Stream: Read + Write {
    fn server_name(&self) -> Option<String>;
}

impl Stream for Plain<'_> {
    fn server_name(&self) -> Option<String> {
        None
    }
}

impl Stream for StreamOwned<ServerConnection, Plain<'_>> {
    fn server_name(&self) -> Option<String> {
        self.conn.server_name().map(str::to_string)
    }
}

fn bad(text: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, text)
}

fn line(from: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    from.by_ref().take(64 * 1024).read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_string())
}

/// Reads the next request; `None` if the client has closed the connection.
fn read<S: Stream>(from: &mut BufReader<S>, connection: usize) -> std::io::Result<Option<Request>> {
    if from.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let first = line(from)?;
    let mut words = first.split(' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return Err(bad(&first)) };
    let mut headers = Vec::new();
    loop {
        let line = line(from)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| bad(&line))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
    }
    let mut request = Request {
        method: method.to_string(),
        target: target.to_string(),
        headers,
        body: Vec::new(),
        server_name: None,
        connection,
    };
    if request.header("expect").is_some() {
        from.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        from.get_mut().flush()?;
    }
    request.body = body(&request, from)?;
    Ok(Some(request))
}

fn body(request: &Request, from: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if request.header("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
        loop {
            let size = line(from)?;
            let size = size.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(size, 16).map_err(|_| bad(size))?;
            from.by_ref().take(size).read_to_end(&mut body)?;
            if !line(from)?.is_empty() {
                return Err(bad("a chunk has no end"));
            }
            if size == 0 {
                return Ok(body);
            }
        }
    }
    let length = request.header("content-length").map_or(Ok(0), str::parse).map_err(|_| bad("length"))?;
    from.by_ref().take(length).read_to_end(&mut body)?;
    if body.len() as u64 == length { Ok(body) } else { Err(bad("the body was cut")) }
}

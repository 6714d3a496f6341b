//! Tests which name guard reads from real TLS ClientHello messages, and which messages it refuses.

use std::sync::Arc;

use guard::run::egress::tls_client_hello::{Hello, LIMIT, read};
use proptest::prelude::*;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion, version,
};

/// Returns the ClientHello that rustls sends for this name.
fn rustls(name: &str, versions: &[&'static SupportedProtocolVersion]) -> Vec<u8> {
    let config = ClientConfig::builder_with_protocol_versions(versions)
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_string()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// The ClientHello of `openssl s_client -tls1_2 -servername Www.Example.ORG`, release 3.0.
const OPENSSL: &str = "16030100cf010000cb030302f2b72fa60eef875af48dae5743657c9d672ecd1d3732b581d4a03a9ac0eb2a000038c02cc030009fcca9cca8ccaac02bc02f009ec024c028006bc023c0270067c00ac0140039c009c0130033009d009c003d003c0035002f00ff0100006a00000014001200000f5777772e4578616d706c652e4f5247000b000403000102000a000c000a001d0017001e00190018002300000016000000170000000d002a0028040305030603080708080809080a080b080408050806040105010601030303010302040205020602";
/// The ClientHello of `openssl s_client -noservername` with TLS 1.3.
const OPENSSL_NAMELESS: &str = "16030100dc010000d80303305833812444c9b68ec002790bfa1b85a4b19d5c784802334b9e679b3ea0f6e1206110d271d78cdd94050ba8287ee559358a89843aa651545a2399c922c704c0e3000813021303130100ff01000087000b000403000102000a00160014001d0017001e0019001801000101010201030104002300000016000000170000000d001e001c040305030603080708080809080a080b080408050806040105010601002b0003020304002d00020101003300260024001d002003505fb6cfc6d7103a9c2c875690081aa41db94daad86c559507044e751d3f1c";

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn named(name: &str) -> Hello {
    Hello::Named(name.to_string())
}

/// Splits a handshake message into records of at most this many bytes.
fn in_records(message: &[u8], length: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    message.chunks(length.max(1)).flat_map(record).collect()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &(data.len() as u16).to_be_bytes(), data].concat()
}

/// Returns a `server_name` extension with these names.
fn names(names: &[&[u8]]) -> Vec<u8> {
    let name = |name: &&[u8]| [&[0][..], &(name.len() as u16).to_be_bytes(), name].concat();
    let list: Vec<u8> = names.iter().flat_map(name).collect();
    extension(0, &[&(list.len() as u16).to_be_bytes()[..], &list].concat())
}

/// Returns a ClientHello with these extensions.
fn hello(extensions: &[u8]) -> Vec<u8> {
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &[0, 2, 0x13, 1],
        &[1, 0],
        &(extensions.len() as u16).to_be_bytes(),
        extensions,
    ]
    .concat();
    [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat()
}

fn in_one_record(extensions: &[u8]) -> Hello {
    read(&in_records(&hello(extensions), 16_384))
}

/// A ClientHello with an encrypted server name must be recognized, because the visible name may not be the real one.
#[test]
fn encrypted_client_hello_is_recognised() {
    for kind in [0xfe0d, 0xffce] {
        let hidden = extension(kind, &[0, 0, 1, 0, 1, 7, 0, 0, 0, 0]);
        let name = names(&[b"a.example.org"]);
        assert_eq!(in_one_record(&[&name[..], &hidden].concat()), Hello::Hidden);
        assert_eq!(in_one_record(&[&hidden[..], &name].concat()), Hello::Hidden);
        assert_eq!(in_one_record(&hidden), Hello::Hidden);
    }
}

#[test]
fn server_names_of_real_clients_are_read() {
    for versions in [&[&version::TLS13][..], &[&version::TLS12], &[&version::TLS13, &version::TLS12]] {
        assert_eq!(read(&rustls("api.example.org", versions)), named("api.example.org"));
        assert_eq!(read(&rustls("127.0.0.1", versions)), Hello::Nameless);
    }
    assert_eq!(read(&bytes_of(OPENSSL)), named("www.example.org"));
    assert_eq!(read(&bytes_of(OPENSSL_NAMELESS)), Hello::Nameless);
}

#[test]
fn every_prefix_of_a_hello_is_incomplete() {
    for whole in [rustls("a.b", &[&version::TLS13]), bytes_of(OPENSSL), bytes_of(OPENSSL_NAMELESS)] {
        for record in [1 + whole.len() / 60, 100, whole.len()] {
            let bytes = in_records(&whole[5..], record);
            assert_eq!(read(&bytes), read(&whole), "in records of {record}");
            for end in 0..bytes.len() {
                assert_eq!(read(&bytes[..end]), Hello::Incomplete, "{end} of {}", bytes.len());
            }
            // Bytes after the ClientHello, such as a ChangeCipherSpec record or early data, must not change the result.
            assert_eq!(read(&[&bytes[..], &[20, 3, 3, 0, 1, 1]].concat()), read(&whole));
        }
    }
}

#[test]
fn other_protocols_are_not_tls() {
    for other in
        [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x", b"\x00", b"\x16\x02", b"\x80\x2e\x01\x03\x01", b"\x15\x03"]
    {
        assert_eq!(read(other), Hello::NotTls, "{other:?}");
    }
}

#[test]
fn ambiguous_server_names_are_refused() {
    assert_eq!(in_one_record(&names(&[b"Example.org."])), named("example.org"));
    assert_eq!(in_one_record(&names(&[b"xn--bcher-kva.example"])), named("xn--bcher-kva.example"));
    assert_eq!(in_one_record(&[]), Hello::Nameless);
    let long = [b'a'; 64];
    let longest = [&[b'a'; 63][..]; 4].join(&b'.');
    let bad: [&[&[u8]]; 14] = [
        &[],
        &[b""],
        &[b"."],
        &[b"a.."],
        &[b".a"],
        &[b"a..b"],
        &[b"a", b"b"],
        &[b"a", b"a"],
        &[b"a\0.b"],
        &["b\u{fc}cher.example".as_bytes()],
        &[b"a b"],
        &[b"*.a"],
        &[&long],
        &[&longest],
    ];
    for bad in bad {
        assert_eq!(in_one_record(&names(bad)), Hello::Malformed, "{bad:?}");
    }
    let twice = [names(&[b"a"]), names(&[b"a"])].concat();
    assert_eq!(in_one_record(&twice), Hello::Malformed);
    let grease_twice = [extension(0x0a0a, &[]), names(&[b"a"]), extension(0x0a0a, &[])].concat();
    assert_eq!(in_one_record(&grease_twice), Hello::Malformed);
    // The list of names is shorter than the extension, or longer.
    for list in [3, 5] {
        assert_eq!(in_one_record(&extension(0, &[0, list, 0, 0, 1, b'a'])), Hello::Malformed);
    }
    // The name has an unknown type.
    assert_eq!(in_one_record(&extension(0, &[0, 4, 1, 0, 1, b'a'])), Hello::Malformed);
    // The length of the extension reaches beyond the ClientHello.
    assert_eq!(in_one_record(&[0, 0, 0, 9, 0, 4, 0, 0, 1, b'a']), Hello::Malformed);
}

#[test]
fn malformed_records_and_messages_are_refused() {
    let message = hello(&names(&[b"a.b"]));
    let whole = in_records(&message, 16_384);
    let changed = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        read(&bytes)
    };
    assert_eq!(changed(2, 9), Hello::Malformed, "a version of the record");
    assert_eq!(changed(5, 2), Hello::Malformed, "a server's hello");
    assert_eq!(changed(6, 1), Hello::Malformed, "longer than the bound");
    assert_eq!(changed(9, 2), Hello::Malformed, "a version of the hello");
    assert_eq!(changed(43, 33), Hello::Malformed, "a session that is too long");
    assert_eq!(changed(45, 1), Hello::Malformed, "half a cipher");
    // One record contains two messages.
    assert_eq!(read(&in_records(&[&message[..], &message].concat(), 16_384)), Hello::Malformed);
    // An empty record comes first, or a record of another type is between two parts of the message.
    assert_eq!(read(&[&[22, 3, 1, 0, 0][..], &whole].concat()), Hello::Malformed);
    let parts = in_records(&message, message.len() - 1);
    let (first, second) = parts.split_at(4 + message.len());
    assert_eq!(read(&[first, second].concat()), named("a.b"));
    assert_eq!(read(&[first, &[20, 3, 3, 0, 1, 1], second].concat()), Hello::Malformed);
    // Each record contains one byte.
    assert_eq!(read(&in_records(&hello(&names(&[b"a.example.org"])), 1)), Hello::Malformed);
}

#[test]
fn hello_over_the_size_limit_is_refused() {
    let space = 16_384 - 43 - 4;
    let fits = hello(&extension(21, &vec![0; space]));
    assert_eq!(read(&in_records(&fits, 16_384)), Hello::Nameless);
    assert!(in_records(&fits, 16_384).len() <= LIMIT);
    let beyond = hello(&extension(21, &vec![0; space + 1]));
    assert_eq!(read(&in_records(&beyond, 16_384)), Hello::Malformed);
    // guard must refuse a message that is too long when it has read the header, without the sixteen kilobytes that
    // follow.
    assert_eq!(read(&in_records(&beyond, 16_384)[..9]), Hello::Malformed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn parser_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), tls: bool) {
        let bytes = if tls { in_records(&hello(&bytes), 50) } else { bytes };
        let _ = read(&bytes);
    }

    /// A changed ClientHello must be refused or give a valid host name, and the decision about a prefix must not differ
    /// from that about the whole.
    #[test]
    fn changed_hello_is_refused_or_gives_a_valid_name(at in 0usize..10_000, to: u8, cut in 0usize..10_000, record in 40usize..600) {
        let mut bytes = in_records(&rustls("api.example.org", &[&version::TLS13])[5..], record);
        let at = at % bytes.len();
        bytes[at] = to;
        let whole = read(&bytes);
        if let Hello::Named(name) = &whole {
            prop_assert!(!name.is_empty() && name.len() <= 253);
            prop_assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.')));
        }
        // For a prefix, the result must be `Incomplete` or the same as for the whole. guard must never read a name
        // that later bytes change.
        let prefix = read(&bytes[..cut % bytes.len()]);
        prop_assert!(prefix == Hello::Incomplete || prefix == whole, "{:?} {:?}", prefix, whole);
    }

    #[test]
    fn hello_over_the_limit_is_never_incomplete(record in 1usize..400, filling: u8) {
        let message = [&[1, 0, 0x40, 0][..], &vec![filling; 16_383]].concat();
        let mut bytes = in_records(&message, record);
        bytes.resize(LIMIT.max(bytes.len()), 22);
        prop_assert_ne!(read(&bytes), Hello::Incomplete);
    }

    #[test]
    fn server_name_is_read_from_any_record_size(name in "[a-zA-Z0-9_-]{1,63}(\\.[a-zA-Z0-9-]{1,20}){0,5}", record in 2usize..300) {
        let message = hello(&names(&[name.as_bytes()]));
        prop_assert_eq!(read(&in_records(&message, record.max(1 + message.len() / 60))), named(&name.to_lowercase()));
    }
}

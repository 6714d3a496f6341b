//! A DNS server over TCP that answers the lookups of a run. It answers a name that the policy allows with a synthetic
//! address, and never asks another DNS server.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::listeners::Peer;
use super::proxy_state::ProxyState;
use crate::judge::policy::Host;

/// How long the server waits for the next query on a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Size limit of a query: a name of 255 bytes and a few options. The server closes the connection if a query is longer.
const MAX_QUERY: usize = 1024;
/// The time to live of DNS answers, in seconds.
const TTL: u32 = 60;

const HEADER: usize = 12;
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const CLASS_IN: u16 = 1;

/// The content of the reply to a DNS query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Address(Ipv4Addr),
    /// The name exists, but has no record of the type that the query asks for.
    Nothing,
    NoSuchName,
    /// The query could not be parsed.
    Malformed,
    /// The run has already looked up as many names as the server can remember.
    Refused,
}

impl Answer {
    fn code(self) -> u8 {
        match self {
            Self::Address(_) | Self::Nothing => 0,
            Self::Malformed => 1,
            Self::NoSuchName => 3,
            Self::Refused => 5,
        }
    }
}

/// Answers the queries on one connection until the client disconnects, sends nothing for `IDLE_TIMEOUT`, or sends a
/// query that is too long.
pub(super) async fn serve(mut client: TcpStream, state: Rc<ProxyState>, peer: Peer) {
    while let Ok(Ok(length)) = timeout(IDLE_TIMEOUT, client.read_u16()).await {
        if usize::from(length) > MAX_QUERY {
            return;
        }
        let mut message = vec![0; usize::from(length)];
        if !matches!(timeout(IDLE_TIMEOUT, client.read_exact(&mut message)).await, Ok(Ok(_))) {
            return;
        }
        let question = Question::parse(&message);
        let answer = match &question {
            Some(question) => judge(question, &state, &peer).await,
            None => Answer::Malformed,
        };
        let reply = reply(&message, question.as_ref(), answer);
        let length = u16::try_from(reply.len()).unwrap_or_default();
        let framed = [&length.to_be_bytes(), reply.as_slice()].concat();
        if client.write_all(&framed).await.is_err() {
            return;
        }
    }
}

async fn judge(question: &Question, state: &ProxyState, peer: &Peer) -> Answer {
    // Answer queries of other types, such as reverse lookups, as if the name did not exist. Do not record them, because
    // they request no host.
    if !matches!(question.kind, TYPE_A | TYPE_AAAA) {
        return Answer::NoSuchName;
    }
    let answer_with =
        |address| if question.kind == TYPE_A { Answer::Address(address) } else { Answer::Nothing };
    let Ok(host @ Host::Name(_)) = Host::parse(&question.name) else { return Answer::NoSuchName };
    let name = host.to_string();
    // Programs look up the machine's own name, for a log or an id, without connecting to a host, so no rule
    // applies.
    let is_machine = || nix::unistd::gethostname().is_ok_and(|own| own.eq_ignore_ascii_case(&name));
    if name == "localhost" || name.ends_with(".localhost") || is_machine() {
        return answer_with(Ipv4Addr::LOCALHOST);
    }
    if let Err(refusal) = state.dialer.rules.judge_name(&host) {
        // One lookup can cause several queries: clients ask for both address types, and C libraries query the same name
        // again for the search list that guard sets, which has only the root domain. Record only one refusal.
        if question.kind == TYPE_A && state.is_new_refused_lookup(peer, &name) {
            let what = format!("look up {name}");
            state.refused(peer, &name, 0, &what, &refusal);
            state.explain(peer, &name, &refusal.line(&what)).await;
        }
        return Answer::NoSuchName;
    }
    state.address_of(&name).map_or(Answer::Refused, answer_with)
}

/// The question of a DNS query; a query must have exactly one.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    name: String,
    kind: u16,
    /// Offset of the question's end in the message.
    end: usize,
}

impl Question {
    fn parse(message: &[u8]) -> Option<Self> {
        let number =
            |at: usize| message.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        // Accept only a standard query with exactly one question.
        if message.get(2)? & 0xf8 != 0 || number(4)? != 1 {
            return None;
        }
        let mut name = String::new();
        let mut at = HEADER;
        loop {
            let length = usize::from(*message.get(at)?);
            at += 1;
            match length {
                0 => break,
                // Larger values are compression pointers. They refer to an earlier name, and this is the first name of
                // the message.
                1..=63 => {
                    let label = std::str::from_utf8(message.get(at..at + length)?).ok()?;
                    if label.contains('.') || name.len() + length > 253 {
                        return None;
                    }
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.push_str(label);
                    at += length;
                }
                _ => return None,
            }
        }
        (number(at + 2)? == CLASS_IN).then_some(())?;
        Some(Self { name, kind: number(at)?, end: at + 4 })
    }
}

fn reply(message: &[u8], question: Option<&Question>, answer: Answer) -> Vec<u8> {
    let echoed = question.and_then(|question| message.get(HEADER..question.end)).unwrap_or_default();
    let mut reply = Vec::with_capacity(HEADER + echoed.len() + 16);
    reply.extend(message.iter().copied().chain([0, 0]).take(2));
    // These DNS flags mark the message as a response, with recursion desired and available.
    reply.extend([0x81, 0x80 | answer.code()]);
    let is_address = matches!(answer, Answer::Address(_));
    for count in [!echoed.is_empty(), is_address, false, false] {
        reply.extend(u16::from(count).to_be_bytes());
    }
    reply.extend(echoed);
    if let Answer::Address(address) = answer {
        // A compression pointer to the name in the question.
        reply.extend([0xc0, HEADER as u8]);
        reply.extend(TYPE_A.to_be_bytes());
        reply.extend(CLASS_IN.to_be_bytes());
        reply.extend(TTL.to_be_bytes());
        reply.extend(4u16.to_be_bytes());
        reply.extend(address.octets());
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(labels: &[&str], kind: u16) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in labels {
            message.push(u8::try_from(label.len()).expect("a short label"));
            message.extend(label.as_bytes());
        }
        message.push(0);
        message.extend(kind.to_be_bytes());
        message.extend(CLASS_IN.to_be_bytes());
        message
    }

    #[test]
    fn a_question_is_echoed_with_its_answer() {
        let asked = message(&["a", "Example"], TYPE_A);
        let question = Question::parse(&asked).expect("a question");
        assert_eq!((question.name.as_str(), question.kind, question.end), ("a.Example", TYPE_A, asked.len()));
        let answered = reply(&asked, Some(&question), Answer::Address(Ipv4Addr::new(198, 18, 0, 7)));
        assert_eq!(answered[..HEADER], [0x12, 0x34, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(answered[HEADER..asked.len()], asked[HEADER..]);
        assert_eq!(answered[asked.len()..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 0, 7]);
        let refused = reply(&asked, Some(&question), Answer::NoSuchName);
        assert_eq!(refused[..HEADER], [0x12, 0x34, 0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(refused.len(), asked.len());
    }

    #[test]
    fn what_is_no_plain_question_is_malformed() {
        let plain = message(&["a", "example"], TYPE_A);
        for end in 0..plain.len() {
            assert_eq!(Question::parse(&plain[..end]), None, "{end}");
        }
        let changed = |at: usize, byte: u8| {
            let mut message = plain.clone();
            message[at] = byte;
            Question::parse(&message)
        };
        assert_eq!(changed(2, 0x81), None, "an answer");
        assert_eq!(changed(5, 2), None, "two questions");
        assert_eq!(changed(HEADER, 0xc0), None, "a pointer");
        assert_eq!(changed(HEADER + 1, b'.'), None, "a dot inside a label");
        assert_eq!(changed(HEADER + 1, 0xff), None, "not text");
        assert_eq!(changed(plain.len() - 1, 3), None, "another class");
        let long = "x".repeat(63);
        assert_eq!(Question::parse(&message(&[long.as_str(); 5], TYPE_A)), None, "too long");
        assert_eq!(reply(&[], None, Answer::Malformed)[..], [0, 0, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}

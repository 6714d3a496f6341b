//! Connects the run to the network: judges requests by host, port and address, then forwards, counts and records them.
//!
//! ```text
//!   run ──connect──► supervisor: only to a listener, and only for the run ──► listener (loopback)
//!     proxy    CONNECT / http:// / SOCKS5 ─► judge name ─► resolve ─► judge address ─► (TLS name = judged name) ─► forward
//!     lookup   DNS over TCP ─► judge name ─► a synthetic address for the name
//!     direct   connect to such an address ─► judged by name and port, forwarded like a tunnel or request of the proxy
//!     gateway  API call ─► method and path ─► budget ─► key added ─► TLS to the one upstream ─► forward, count tokens
//! ```
//!
//! [`Client`] sends guard's own API requests on the user's behalf. It is not used for requests of a run.
//!
//! No process of the run reaches the network itself: the supervisor lets it connect to these listeners and to nothing
//! else. One thread, outside the sandbox, serves all listeners. Every error becomes a refusal with an explanation.
#![forbid(unsafe_code)]

mod budget;
mod client;
mod dial;
mod dns;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod host_stats;
mod http_server;
pub mod key_removal;
mod listeners;
mod memory_budget;
mod proxy;
mod proxy_state;
mod refusal_notices;
mod request_body;
mod response_body;
mod server;
mod socks;
mod synthetic_addresses;
pub mod tls_client_hello;
pub mod token_usage;
mod tunnel;
mod upstream;

pub use budget::{Budget, Spent};
pub use client::{ApiRequest, ApiResponse, Client, ClientError};
pub use dial::{ProxyError, UpstreamProxy};
pub use gateway::GatewayPlan;
pub use listeners::{Peer, PeerRegistry, Purpose};
pub use proxy_state::{Bounds, Traffic};
pub use refusal_notices::RefusalNotices;
pub use server::{BoundListener, Handle, ListenerKind, ProxyConfig, start};
pub use upstream::{Upstream, UpstreamError};

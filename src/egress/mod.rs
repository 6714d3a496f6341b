//! Connects the run to the network: judges requests by host, port and address, then carries, counts and records them.
//!
//! ```text
//!   run ──connect──► supervisor: only to a listener, and only for the run ──► listener (loopback)
//!     proxy    CONNECT / http:// / SOCKS5 ─► judge name ─► resolve ─► judge address ─► (TLS name = asked name) ─► carry
//!     lookup   DNS over TCP ─► judge name ─► a synthetic address for the name
//!     direct   a connect to such an address ─► judged by name and port, carried like a proxy's tunnel or request
//!     gateway  API call ─► method and path ─► budget ─► key added ─► TLS to the one upstream ─► carry, count tokens
//! ```
//!
//! [`Client`] is for guard's own API requests on the user's behalf; it is not part of a run.
//!
//! No process of the run reaches the network by itself: it may connect to the listeners opened here and to nothing
//! else. One thread, outside the sandbox, serves them all. Every error is a refusal with an explanation.
#![forbid(unsafe_code)]

mod budget;
mod client;
mod dial;
mod dns;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod host_stats;
pub mod key_removal;
mod listeners;
mod memory_budget;
mod proxy;
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
pub use client::{Asked, Client, ClientError, Question};
pub use dial::{CompanyProxy, ProxyError};
pub use gateway::GatewayPlan;
pub use listeners::{Peer, PeerRegistry, Purpose};
pub use server::{Bounds, Door, Handle, OpenedListeners, ProxyConfig, Traffic, start};
pub use upstream::{Upstream, UpstreamError};

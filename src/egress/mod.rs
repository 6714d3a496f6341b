//! The way to the network: what the run asks for → judged by host, port and address → carried, counted and recorded.
//!
//! Nothing of the run reaches the network by itself. It may connect to the doors opened here (a proxy, gateways to APIs), on
//! loopback, and to nothing else; behind a door names are resolved and connections made outside, and keys are added that
//! never enter the sandbox. Anything that goes wrong on the way is a refusal with an explanation.
#![forbid(unsafe_code)]

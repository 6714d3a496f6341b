//! A run in progress, with the threads and resources that guard holds for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, Sender};

use nix::sys::eventfd::EventFd;

use super::Started;
use super::cache_links::Links;
use super::network::Network;
use super::output_pump::{Pump, SharedReader, Tail};
use super::terminal::{Raw, Screen};
use super::user_notes::UserNotes;
use crate::run::egress;
use crate::run::launch::process::protocol::Used;
use crate::run::launch::process::stdin_feeder::StdinFeeder;
use crate::run::outcome::DenialCounter;
use crate::run::supervisor::ShimService;
use crate::run::transcript::{Recorder, Stream, Writer};

/// A run whose init process exists, with guard's threads for it.
pub(crate) struct Running {
    pub(crate) started: Started,
    pub(crate) recorder: Recorder,
    pub(crate) writer: Writer,
    pub(crate) tally: DenialCounter,
    /// A counter that increases with output, program starts and data that the network proxy transfers. While the
    /// counter changes, the run is not idle.
    pub(crate) activity: Arc<AtomicU64>,
    /// True while a question waits for the user's answer. The run is not idle then.
    pub(crate) asking: Arc<AtomicBool>,
    pub(crate) network: Network,
    /// The network proxy; `None` until its thread runs.
    pub(crate) proxy: Option<egress::Handle>,
    /// True when the run has used up its budget for model requests.
    pub(crate) exhausted: Arc<AtomicBool>,
    pub(crate) tails: Vec<(Stream, Tail)>,
    /// An eventfd that becomes readable when every process of the run is dead.
    pub(crate) everything_dead: Arc<EventFd>,
    /// The sender for `pumps_done`. Every thread that copies output has a clone of it, so `pumps_done` is
    /// disconnected when the last of these threads has ended.
    pub(crate) pump_done: Option<Sender<()>>,
    pub(crate) pumps_done: Receiver<()>,
    /// The parser of the agent's output, if guard knows the agent's program.
    pub(crate) reader: Option<SharedReader>,
    /// The thread that copies the caller's standard input to the agent; `None` if that is `/dev/null` or a terminal.
    pub(crate) feeder: Option<StdinFeeder>,
    /// Services for which guard has not started a thread yet, because they had no work.
    pub(crate) lazy_threads: Vec<LazyThread>,
    /// The user's package caches, to which guard makes links in the private home directory when a program first uses
    /// them.
    pub(crate) links: Option<Arc<Links>>,
    /// The resources that the run used. Init reports them when every other process is dead.
    pub(crate) used: Option<Used>,
    /// True if guard has reaped every process of the run, including init.
    pub(crate) all_dead: bool,
    /// True when the run is over, so that the thread that reads the user's keys ends.
    pub(crate) over: Arc<AtomicBool>,
    /// The user's terminal in raw mode; `None` if the run has no terminal.
    pub(crate) raw: Option<Raw>,
    /// The user's terminal, if the agent's output goes there.
    pub(crate) user_terminal: Option<OwnedFd>,
    pub(crate) screen: Screen,
    pub(crate) notes: UserNotes,
}

/// A service for which guard starts a thread when its descriptor first becomes readable. Many short runs never need
/// these threads, and starting them all would take a good part of the launch time.
pub(crate) enum LazyThread {
    /// Copies an output stream. Its descriptor becomes readable when there is output, or when every writer has closed
    /// the stream.
    Output(Pump),
    /// Answers the shims. Its descriptor becomes readable when a shim connects.
    Shims(UnixListener, Box<ShimService>),
    /// The network proxy. Its descriptor becomes readable when a client connects to the proxy.
    Network(Box<egress::ProxyConfig>),
}

impl LazyThread {
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Output(pump) => pump.from.as_fd(),
            Self::Shims(listener, _) => listener.as_fd(),
            Self::Network(config) => config.proxy_listener(),
        }
    }
}

//! Handles signals only where the program waits for them.
//!
//! A signal that is ignored when guard starts, as under `nohup`, stays ignored.
//!
//! This module uses no signalfd: one would wake every thread that waits on it at every signal. The main thread would
//! wake for each of the supervisor's SIGCHLDs, which come with every exec.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::poll::{PollFd, ppoll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::time::TimeSpec;

/// Signals that arrived and were not taken yet, one bit each.
static CAME: AtomicU64 = AtomicU64::new(0);

extern "C" fn notice(signal: libc::c_int) {
    CAME.fetch_or(1 << signal, Ordering::Relaxed);
}

/// Signals that users and systems send to end a program.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// The signals that end guard, without those that its caller ignores: a hangup under `nohup`, terminal keys in the
/// background of a script. SIGTERM is always included.
pub fn ending() -> SigSet {
    ENDING.into_iter().filter(|&signal| signal == Signal::SIGTERM || !is_ignored(signal)).collect()
}

fn is_ignored(signal: Signal) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null action changes nothing; the structure is read only if the kernel has filled it in.
    unsafe {
        libc::sigaction(signal as libc::c_int, std::ptr::null(), found.as_mut_ptr()) == 0
            && found.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// A pending, blocked signal that asks this program to end.
pub fn waiting() -> Option<Signal> {
    let mut found = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the kernel fills in the set if it succeeds, and the set is read only then.
    let found = unsafe {
        if libc::sigpending(found.as_mut_ptr()) != 0 {
            return None;
        }
        SigSet::from_sigset_t_unchecked(found.assume_init())
    };
    ending().iter().find(|&signal| found.contains(signal))
}

/// Waits for one of these signals, which every thread must have blocked, for the given time or without limit. `None`
/// if none arrived.
pub fn wait_for(signals: &SigSet, patience: Option<std::time::Duration>) -> Option<Signal> {
    let time = patience.map(TimeSpec::from_duration);
    let time = time.as_ref().map_or(std::ptr::null(), |time| std::ptr::from_ref(time.as_ref()));
    loop {
        // SAFETY: the set and the time (unless null) outlive the call; the kernel writes nothing.
        let found = unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), time) };
        match Signal::try_from(found) {
            Ok(signal) => return Some(signal),
            Err(_) if nix::errno::Errno::last() == nix::errno::Errno::EINTR => {}
            Err(_) => return None,
        }
    }
}

/// Whether this thread blocks the terminal keys that end a program.
pub fn are_held() -> bool {
    SigSet::thread_get_mask().is_ok_and(|mask| mask.contains(Signal::SIGINT))
}

/// Signals that are blocked except while [`SignalWaiter::poll`] waits.
#[derive(Debug)]
pub struct SignalWaiter {
    /// The signal mask during `poll`.
    others: SigSet,
    own: SigSet,
}

impl SignalWaiter {
    /// Blocks these signals and installs a handler that notes them.
    pub fn new(signals: &SigSet) -> io::Result<Self> {
        signals.thread_block()?;
        let action = SigAction::new(SigHandler::Handler(notice), SaFlags::empty(), SigSet::empty());
        for signal in signals {
            // SAFETY: the handler only sets a bit of an atomic number.
            unsafe { sigaction(signal, &action) }?;
        }
        let mut others = SigSet::thread_get_mask()?;
        for signal in signals {
            others.remove(signal);
        }
        Ok(Self { others, own: *signals })
    }

    /// Polls descriptors until one is ready, the time is over, or one of the signals arrives. Returns the number of
    /// ready descriptors.
    pub fn poll(&self, fds: &mut [PollFd<'_>], patience: std::time::Duration) -> nix::Result<i32> {
        ppoll(fds, Some(TimeSpec::from_duration(patience)), Some(self.others))
    }

    /// Takes one signal that arrived, if any.
    pub fn take(&self) -> Option<Signal> {
        let came = CAME.load(Ordering::Relaxed);
        let first = self.own.iter().find(|&signal| came & (1 << signal as i32) != 0)?;
        CAME.fetch_and(!(1 << first as i32), Ordering::Relaxed);
        Some(first)
    }
}

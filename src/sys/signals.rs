//! Signals that are noticed where they are waited for, and nowhere else.
//!
//! Who started guard may have decided that it does not hear of some, as `nohup` does: then it does not.
//!
//! A descriptor for signals would wake everybody in the process who waits on one, at every signal: the main thread at each of
//! the supervisor's, which comes with every program start.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::poll::{PollFd, ppoll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::time::TimeSpec;

/// Those that came and were not taken yet, a bit for each.
static CAME: AtomicU64 = AtomicU64::new(0);

extern "C" fn notice(signal: libc::c_int) {
    CAME.fetch_or(1 << signal, Ordering::Relaxed);
}

/// Those by which people and machines end a program.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Those that end a program, as far as whoever started this one wants it to hear them: a hangup not under `nohup`, a key not in
/// the background of a script. A request to end (`SIGTERM`) is always heard.
pub fn ending() -> SigSet {
    ENDING.into_iter().filter(|&signal| signal == Signal::SIGTERM || !is_ignored(signal)).collect()
}

fn is_ignored(signal: Signal) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is changed; a place for what the kernel fills in when it succeeds.
    unsafe {
        libc::sigaction(signal as libc::c_int, std::ptr::null(), found.as_mut_ptr()) == 0
            && found.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// One that is to end this program, and waits because it is blocked.
pub fn waiting() -> Option<Signal> {
    let mut found = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: a place for what the kernel fills in when it succeeds, which is all that is looked at.
    let found = unsafe {
        if libc::sigpending(found.as_mut_ptr()) != 0 {
            return None;
        }
        SigSet::from_sigset_t_unchecked(found.assume_init())
    };
    ending().iter().find(|&signal| found.contains(signal))
}

/// Waits for one of these signals, which every thread must have blocked: for so long, or for ever. `None` when none came.
pub fn wait_for(signals: &SigSet, patience: Option<std::time::Duration>) -> Option<Signal> {
    let time = patience.map(TimeSpec::from_duration);
    let time = time.as_ref().map_or(std::ptr::null(), |time| std::ptr::from_ref(time.as_ref()));
    loop {
        // SAFETY: a set and, unless it is null, a time that both outlive the call; nothing is to be filled in.
        let found = unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), time) };
        match Signal::try_from(found) {
            Ok(signal) => return Some(signal),
            Err(_) if nix::errno::Errno::last() == nix::errno::Errno::EINTR => {}
            Err(_) => return None,
        }
    }
}

/// Whether those keys that end a program wait, because this thread blocks them.
pub fn are_held() -> bool {
    SigSet::thread_get_mask().is_ok_and(|mask| mask.contains(Signal::SIGINT))
}

/// Signals that are blocked but while `SignalWaiter::poll` waits.
#[derive(Debug)]
pub struct SignalWaiter {
    /// What is blocked while it waits.
    others: SigSet,
    own: SigSet,
}

impl SignalWaiter {
    /// Blocks these signals and notices them from now on.
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

    /// Waits for descriptors, for so long, or until one of the signals comes. The number of descriptors that are ready.
    pub fn poll(&self, fds: &mut [PollFd<'_>], patience: std::time::Duration) -> nix::Result<i32> {
        ppoll(fds, Some(TimeSpec::from_duration(patience)), Some(self.others))
    }

    /// One that came, if any did.
    pub fn take(&self) -> Option<Signal> {
        let came = CAME.load(Ordering::Relaxed);
        let first = self.own.iter().find(|&signal| came & (1 << signal as i32) != 0)?;
        CAME.fetch_and(!(1 << first as i32), Ordering::Relaxed);
        Some(first)
    }
}

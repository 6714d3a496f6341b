//! Lets guard receive signals only at the points where it waits for them.
//!
//! A termination signal that was ignored when guard started, as SIGHUP is under `nohup`, stays ignored. The only
//! exception is SIGTERM.
//!
//! This module uses no signalfd. A signalfd would wake the main thread at every SIGCHLD for the supervisor, and every
//! exec causes one.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::poll::{PollFd, ppoll};
use nix::sys::signal::{SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal, sigaction};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

/// Signals that arrived and that [`SignalWaiter::take`] has not returned yet, one bit each.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_signal(signal: libc::c_int) {
    ARRIVED.fetch_or(1 << signal, Ordering::Relaxed);
}

/// Signals with which users and service managers end a program.
const END_SIGNALS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Returns the signals that end guard. Leaves out signals that were already ignored when guard started, such as SIGHUP
/// under `nohup`, or the signals of terminal keys if a script started guard in the background. SIGTERM is always
/// included.
pub fn end_signals() -> SigSet {
    END_SIGNALS.into_iter().filter(|&signal| signal == Signal::SIGTERM || !is_ignored(signal)).collect()
}

fn is_ignored(signal: Signal) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null action changes nothing; the structure is read only if the kernel has filled it in.
    unsafe {
        libc::sigaction(signal as libc::c_int, std::ptr::null(), found.as_mut_ptr()) == 0
            && found.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Returns a termination signal that is blocked and pending; `None` if there is none.
pub fn pending_end_signal() -> Option<Signal> {
    let mut found = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the kernel fills in the set if it succeeds, and the set is read only then.
    let found = unsafe {
        if libc::sigpending(found.as_mut_ptr()) != 0 {
            return None;
        }
        SigSet::from_sigset_t_unchecked(found.assume_init())
    };
    end_signals().iter().find(|&signal| found.contains(signal))
}

/// Waits for one of these signals, for the given time or without limit. Every thread must block these signals.
/// Returns `None` if none arrived.
pub fn wait_for(signals: &SigSet, time_limit: Option<std::time::Duration>) -> Option<Signal> {
    let time = time_limit.map(TimeSpec::from_duration);
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

/// Returns true if this thread blocks SIGINT. guard always blocks SIGINT together with the other termination signals.
pub fn are_blocked() -> bool {
    SigSet::thread_get_mask().is_ok_and(|mask| mask.contains(Signal::SIGINT))
}

/// The signal of [`CallTimer`]. If the process has no handler for this signal, the kernel ignores it.
const INTERRUPT: Signal = Signal::SIGURG;

extern "C" fn do_nothing(_: libc::c_int) {}

/// A timer that interrupts a blocking system call of the thread that created it. Unlike `O_NONBLOCK` and `SO_SNDTIMEO`,
/// it does not depend on the open file, whose settings another process can change if it shares the file.
#[derive(Debug)]
pub struct CallTimer(Timer);

impl CallTimer {
    /// Creates a timer for this thread.
    pub fn new() -> nix::Result<Self> {
        let action = SigAction::new(SigHandler::Handler(do_nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing.
        unsafe { sigaction(INTERRUPT, &action) }?;
        SigSet::from(INTERRUPT).thread_unblock()?;
        let thread_id = nix::unistd::gettid().as_raw();
        let notify = SigevNotify::SigevThreadId { signal: INTERRUPT, thread_id, si_value: 0 };
        Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify)).map(Self)
    }

    /// Runs `call`. A system call in it that blocks for longer than `limit` fails with `EINTR`.
    pub fn limit<T>(&mut self, limit: std::time::Duration, call: impl FnOnce() -> T) -> nix::Result<T> {
        let time = TimeSpec::from_duration(limit);
        // Repeat the signal, because the first one may come before the thread has entered the system call.
        self.0.set(Expiration::IntervalDelayed(time, time), TimerSetTimeFlags::empty())?;
        let result = call();
        let stopped = Expiration::OneShot(TimeSpec::from_duration(std::time::Duration::ZERO));
        self.0.set(stopped, TimerSetTimeFlags::empty())?;
        Ok(result)
    }
}

/// Receives signals that are blocked except during [`SignalWaiter::poll`].
#[derive(Debug)]
pub struct SignalWaiter {
    /// The signal mask during `poll`.
    mask_while_waiting: SigSet,
    signals: SigSet,
}

impl SignalWaiter {
    /// Blocks these signals in this thread and installs a handler that records their arrival.
    pub fn new(signals: &SigSet) -> io::Result<Self> {
        signals.thread_block()?;
        let action = SigAction::new(SigHandler::Handler(note_signal), SaFlags::empty(), SigSet::empty());
        for signal in signals {
            // SAFETY: the handler only sets a bit of an atomic number.
            unsafe { sigaction(signal, &action) }?;
        }
        let mut mask_while_waiting = SigSet::thread_get_mask()?;
        for signal in signals {
            mask_while_waiting.remove(signal);
        }
        Ok(Self { mask_while_waiting, signals: *signals })
    }

    /// Polls descriptors until one is ready or the time limit passes, and returns the number of ready descriptors.
    /// Fails with `EINTR` if one of the signals arrives.
    pub fn poll(&self, fds: &mut [PollFd<'_>], time_limit: std::time::Duration) -> nix::Result<i32> {
        ppoll(fds, Some(TimeSpec::from_duration(time_limit)), Some(self.mask_while_waiting))
    }

    /// Returns one signal that has arrived and that no earlier call has returned; `None` if there is none.
    pub fn take(&self) -> Option<Signal> {
        let arrived = ARRIVED.load(Ordering::Relaxed);
        let first = self.signals.iter().find(|&signal| arrived & (1 << signal as i32) != 0)?;
        ARRIVED.fetch_and(!(1 << first as i32), Ordering::Relaxed);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_blocking_call_is_interrupted() {
        let mut timer = CallTimer::new().unwrap_or_else(|error| panic!("{error}"));
        let (reader, _writer) = nix::unistd::pipe().unwrap_or_else(|error| panic!("{error}"));
        for _ in 0..3 {
            let began = Instant::now();
            let read = timer.limit(Duration::from_millis(5), || nix::unistd::read(&reader, &mut [0]));
            assert_eq!(read, Ok(Err(nix::errno::Errno::EINTR)));
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        }
    }
}

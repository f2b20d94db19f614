//! Signals that end a command: Ctrl-C, SIGTERM and SIGHUP. Asked once, a command ends in order; asked twice, at once.
//!
//! A thread notes the wish and calls the hook; commands look at [`requested`] between steps. The exit code is 128 and
//! the number of the first signal. Commands that only read do not install this: they need no orderly end, so the signal
//! ends them at once.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use terrace_base::exec::{Executor, ThreadPool};

use crate::failure::{CommandResult, Failure};

/// The signal that was sent first; 0 before there is one.
static REQUESTED: AtomicI32 = AtomicI32::new(0);
static HOOK: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// The listener; kept for as long as the process lives.
static LISTENER: Mutex<Option<ThreadPool>> = Mutex::new(None);

/// Whether a signal was sent, for code that looks at it from afar.
static STOP: AtomicBool = AtomicBool::new(false);

/// Becomes true when a signal comes.
pub fn flag() -> &'static AtomicBool {
    &STOP
}

/// Has a write beyond the limit of a file's size fail instead of ending the process, which could not say why.
pub fn survive_limits() {
    // Where that is refused the process ends as it would have.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Takes the signals over. Calling again does nothing.
pub fn install() -> CommandResult {
    let mut listener = LISTENER.lock();
    if listener.is_some() {
        return Ok(());
    }
    let hangups = if hangups_are_ignored() { None } else { Some(SIGHUP) };
    let heeded = [SIGINT, SIGTERM].into_iter().chain(hangups);
    let mut signals =
        Signals::new(heeded).map_err(|e| Failure::error(format!("cannot listen for signals: {e}")))?;
    let threads = ThreadPool::new("signals", 1);
    threads.spawn(Box::new(move || signals.forever().for_each(note)));
    *listener = Some(threads);
    Ok(())
}

/// Whether this process was started to outlive its terminal, as `nohup` does.
fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}

fn note(signal: i32) {
    if let Err(first) = REQUESTED.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst) {
        std::process::exit(128 + first);
    }
    STOP.store(true, Ordering::SeqCst);
    if let Some(hook) = &*HOOK.lock() {
        hook();
    }
}

/// Whether the command is to end.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst) != 0
}

/// The failure of a command that was asked to end.
pub fn stopped(message: impl Into<String>) -> Failure {
    // Signals have small numbers.
    Failure::new(128 | (REQUESTED.load(Ordering::SeqCst) & 0x7f) as u8, message)
}

/// Calls `hook` when a signal comes, from another thread; at once if one came already.
pub fn set_hook(hook: impl Fn() + Send + 'static) {
    let mut held = HOOK.lock();
    if requested() {
        hook();
    }
    *held = Some(Box::new(hook));
}

/// A stream that ends when a signal comes, even while it waits for bytes.
#[derive(Debug)]
pub struct Interruptible<R>(pub R);

impl<R: Read + AsFd> Read for Interruptible<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        while !requested() {
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&LOOK_EVERY)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // An error shows itself in the read.
                _ => return self.0.read(buf),
            }
        }
        Ok(0)
    }
}

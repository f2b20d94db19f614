//! Ctrl-C: asked for once, a command ends cleanly; asked for twice, at once.
//!
//! The handler only notes the wish and calls the hook; commands look at [`requested`] between steps.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::{CommandResult, Failure, exit};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static HOOK: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// Takes over Ctrl-C. Call once.
pub fn install() -> CommandResult {
    ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
        if let Some(hook) = &*HOOK.lock() {
            hook();
        }
    })
    .map_err(|e| Failure::error(format!("cannot listen for Ctrl-C: {e}")))
}

/// Whether Ctrl-C was pressed.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Calls `hook` when Ctrl-C is pressed, from another thread; at once if it was pressed already.
pub fn set_hook(hook: impl Fn() + Send + 'static) {
    let mut held = HOOK.lock();
    if requested() {
        hook();
    }
    *held = Some(Box::new(hook));
}

/// A stream that ends when Ctrl-C is pressed, even while it waits for bytes.
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

//! The handler of `SIGBUS`: its installation, and its treatment of foreign signals.
//!
//! 1. Each guard of a mapping makes sure that the handler is installed ([`ensure`]). It asks each time, since the
//!    program may have set the signal back to its default meanwhile.
//! 2. A handler that the program has set after this one stays. It may pass signals on to this one; two handlers that
//!    pass on to each other would never end.
//! 3. A signal that is not about a guarded mapping goes to the earlier handler, or ends the process as it would have
//!    without this one. An earlier handler may install the default in place of this one, as that of a Rust program
//!    does. If an instruction faulted that is right: it faults again and ends the process. If no instruction is
//!    repeated the process lives on, so this handler is put back, and the default counts as the earlier handler.
//!
//! [`ensure`] is also called in the handler, so it only uses atomics and calls that are allowed there.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::{c_int, c_void, sigaction, siginfo_t};

use super::bus::replace_page;

/// The earlier action: its handler's address or a special value, and whether the handler takes a `siginfo`. It is one
/// word, so that a signal never combines halves of two actions.
static BEFORE: AtomicU64 = AtomicU64::new(libc::SIG_DFL as u64);

/// The bit of that word for a handler with `siginfo`: no address of a program has it.
const TAKES_INFO: u64 = 1 << 63;

/// The handler was installed once.
static WAS_SET: AtomicBool = AtomicBool::new(false);

/// Installs the handler, unless the program has set another one since; false if that is not possible.
pub(super) fn ensure() -> bool {
    let Some(now) = exchange(None) else { return false };
    let is_special = now.sa_sigaction == libc::SIG_DFL || now.sa_sigaction == libc::SIG_IGN;
    if is_ours(&now) || WAS_SET.load(Ordering::Acquire) && !is_special {
        return true;
    }
    // The earlier action is stored before ours is installed, and again in case another one was set in between.
    BEFORE.store(word_of(&now), Ordering::Release);
    let Some(replaced) = exchange(Some(&ours())) else { return false };
    if !is_ours(&replaced) {
        BEFORE.store(word_of(&replaced), Ordering::Release);
    }
    WAS_SET.store(true, Ordering::Release);
    true
}

fn is_ours(action: &sigaction) -> bool {
    action.sa_sigaction == address()
}

/// Where the handler is.
fn address() -> usize {
    on_fault as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as *const () as usize
}

fn word_of(action: &sigaction) -> u64 {
    let takes_info = action.sa_flags & libc::SA_SIGINFO != 0;
    action.sa_sigaction as u64 | if takes_info { TAKES_INFO } else { 0 }
}

/// No action of any kind.
fn blank() -> sigaction {
    // SAFETY: it is a struct of numbers, an optional function and a set of numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

fn ours() -> sigaction {
    // A mask of zeros is the empty set: during the handler only its own signal is blocked. It runs on the alternate
    // stack where a thread has one, as the runtime's own handler has to be called there.
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    sigaction { sa_sigaction: address(), sa_flags: flags, ..blank() }
}

/// The present action at the signal; replaced by `new`, if that is given.
fn exchange(new: Option<&sigaction>) -> Option<sigaction> {
    let mut old = blank();
    // SAFETY: `new` is null or a whole action, and `old` is one to be written; both are valid for the call. The handler
    // of an action that is given is `on_fault`, which keeps to what is allowed in one.
    let done = unsafe { libc::sigaction(libc::SIGBUS, new.map_or(ptr::null(), ptr::from_ref), &mut old) };
    (done == 0).then_some(old)
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the system hands a valid `info` to a handler set with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Somebody sent the signal, or it reports failed memory that nobody has touched: no instruction faulted.
    let is_told = code <= 0 || code == libc::BUS_MCEERR_AO;
    if is_told || !replace_page(address) {
        pass_on(signal, info, context, is_told);
    }
}

/// Does what would happen without this handler.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void, is_told: bool) {
    let before = BEFORE.load(Ordering::Acquire);
    match (before & !TAKES_INFO) as usize {
        libc::SIG_IGN if is_told => {}
        // SAFETY: both calls are allowed in a handler. The signal is blocked until that returns: then one that was told
        // is delivered, and an instruction that faulted does so again, and either ends the process.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if is_told {
                libc::raise(signal);
            }
        },
        handler => {
            // SAFETY: neither of the special values, so it is the function that was set, of the type its flag says. It
            // is called as the system would have, within a handler of the same signal.
            unsafe {
                if before & TAKES_INFO != 0 {
                    let handle: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                        std::mem::transmute(handler);
                    handle(signal, info, context);
                } else {
                    let handle: extern "C" fn(c_int) = std::mem::transmute(handler);
                    handle(signal);
                }
            }
            if is_told {
                ensure();
            }
        }
    }
}

/// Tests in processes of their own: they end their process, or change it in a way that would disturb others.
#[cfg(test)]
pub(super) mod alone {
    use std::process::{Command, ExitStatus, Stdio};

    use rustix::process::{Resource, Rlimit, setrlimit};

    /// The exit code of a process whose test passed.
    pub(in super::super) const WELL: i32 = 71;

    /// How a process of its own ended that ran the test `name` of `module` alone; `None` in that process.
    pub(in super::super) fn ended(module: &str, name: &str) -> Option<ExitStatus> {
        const CHILD: &str = "TERRACE_TEST_ALONE";
        if std::env::var_os(CHILD).is_some() {
            setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
            return None;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("real::{module}::tests::{name}")]).env(CHILD, "1");
        Some(child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;
    use std::process::exit;

    use super::super::region::Region;
    use super::alone::{WELL, ended};
    use super::*;

    fn mapped() -> (File, Region) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * rustix::param::page_size() as u64).unwrap();
        let region = Region::of_file(&file, file.metadata().unwrap().len()).unwrap();
        (file, region)
    }

    /// Ends the process well if a fault in the region is caught.
    fn end_by_a_fault((file, region): (File, Region)) {
        file.set_len(0).unwrap();
        assert_eq!((region.as_ref()[9], region.has_failed()), (0, true));
        exit(WELL);
    }

    fn send() {
        // SAFETY: the call takes a number.
        assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0);
    }

    /// Sends the signal that the system sends when memory fails that nobody has touched.
    fn tell_of_failed_memory() {
        // SAFETY: it is a struct of numbers and addresses, for which zero is a value.
        let mut info: siginfo_t = unsafe { std::mem::zeroed() };
        (info.si_signo, info.si_code) = (libc::SIGBUS, libc::BUS_MCEERR_AO);
        // SAFETY: `info` is valid for the call, which goes to this thread.
        let sent = unsafe {
            let (process, thread) = (libc::getpid(), libc::gettid());
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, libc::SIGBUS, &raw mut info)
        };
        assert_eq!(sent, 0);
    }

    fn set(handler: usize) {
        // SAFETY: a special value or, below, a function that does nothing.
        assert_ne!(unsafe { libc::signal(libc::SIGBUS, handler) }, libc::SIG_ERR);
    }

    #[test]
    fn a_signal_that_is_sent_takes_nothing_away() {
        let Some(status) = ended("signal", "a_signal_that_is_sent_takes_nothing_away") else {
            let mapped = mapped();
            send();
            return end_by_a_fault(mapped);
        };
        assert_eq!(status.code(), Some(WELL), "{status}");
    }

    #[test]
    fn nor_does_one_that_tells_of_failed_memory() {
        let Some(status) = ended("signal", "nor_does_one_that_tells_of_failed_memory") else {
            let mapped = mapped();
            tell_of_failed_memory();
            return end_by_a_fault(mapped);
        };
        assert_eq!(status.code(), Some(WELL), "{status}");
    }

    /// The runtime's handler has set the default at the first one.
    #[test]
    fn the_second_one_that_is_sent_ends_the_process_as_ever() {
        let Some(status) = ended("signal", "the_second_one_that_is_sent_ends_the_process_as_ever") else {
            let _mapped = mapped();
            send();
            send();
            exit(WELL);
        };
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }

    #[test]
    fn where_the_default_was_set_the_next_mapping_has_the_handler_again() {
        let Some(status) =
            ended("signal", "where_the_default_was_set_the_next_mapping_has_the_handler_again")
        else {
            let earlier = mapped();
            set(libc::SIG_DFL);
            let _next = mapped();
            return end_by_a_fault(earlier);
        };
        assert_eq!(status.code(), Some(WELL), "{status}");
    }

    #[test]
    fn a_fault_of_others_ends_the_process_as_ever() {
        let Some(status) = ended("signal", "a_fault_of_others_ends_the_process_as_ever") else {
            let (_mapped, file) = (mapped(), tempfile::tempfile().unwrap());
            let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
            // SAFETY: a new mapping at an address of the kernel's choice, of a page of which nothing is there.
            let read = unsafe {
                let base = rustix::mm::mmap(ptr::null_mut(), 4096, protection, flags, &file, 0).unwrap();
                base.cast::<u8>().read_volatile()
            };
            exit(WELL + i32::from(read));
        };
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }

    #[test]
    fn a_handler_that_the_program_sets_later_stays() {
        extern "C" fn later(_: c_int) {}
        let Some(status) = ended("signal", "a_handler_that_the_program_sets_later_stays") else {
            let _earlier = mapped();
            let address = later as extern "C" fn(c_int) as *const () as usize;
            set(address);
            let _next = mapped();
            assert_eq!(exchange(None).unwrap().sa_sigaction, address);
            exit(WELL);
        };
        assert_eq!(status.code(), Some(WELL), "{status}");
    }
}

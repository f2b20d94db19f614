//! Running what users give the database to call: it may fail and panic, and must not use the database.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use terrace_base::{Error, Result};

thread_local! {
    /// Whether this thread runs one.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// # Errors
///
/// `InvalidArgument` if a merge operator or a compaction filter calls this: it may run within the group of writes that
/// its write would wait for.
pub(crate) fn check_none_runs() -> Result<()> {
    if RUNS.get() {
        return Err(Error::invalid("a merge operator or a compaction filter must not use the database"));
    }
    Ok(())
}

/// Drops what a panic carries, which might panic, too.
pub(crate) fn forget(panic: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(another);
    }
}

/// What `call` returns; why it did not, if it panicked.
///
/// What it may have half changed when it panicked is its own: it gets nothing that it could change.
pub(super) fn run<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    let ran_before = RUNS.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    RUNS.set(ran_before);
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        forget(panic);
        format!("it panicked: {}", text.as_deref().unwrap_or("no message"))
    })
}

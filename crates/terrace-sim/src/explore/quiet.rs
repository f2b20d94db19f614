//! Catches panics without printing them: checked code may panic thousands of times.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// How many [`catch`]es this thread is within.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The last panic's message and place.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work`; a panic becomes an error with its message and place.
pub(super) fn catch<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    install();
    DEPTH.set(DEPTH.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    outcome.unwrap_or_else(|_| {
        Err(format!("panicked: {}", LAST.take().unwrap_or_else(|| "with no message".into())))
    })
}

/// Keeps the panics of threads within a [`catch`] instead of printing them; all others are printed as before.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(
            move |info| if DEPTH.get() > 0 { LAST.set(Some(describe(info))) } else { print(info) },
        ));
    });
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("with no message");
    match info.location() {
        Some(at) => format!("{message} ({}:{})", at.file(), at.line()),
        None => message.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_that_names_its_place() {
        let error = catch::<()>(|| panic!("one of {}", 7)).unwrap_err();
        assert!(error.starts_with("panicked: one of 7 (") && error.contains("quiet.rs:"), "{error}");
        assert_eq!(catch(|| Ok(1)), Ok(1));
        assert_eq!(catch::<()>(|| Err("said".into())), Err("said".into()));
    }
}

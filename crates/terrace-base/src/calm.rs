//! Whether work ends with a panic of its own.

/// A piece of work has begun on this thread: a guard keeps it, and asks at its drop whether the work has panicked. A
/// thread that was panicking before, and works in a destructor, is not taken for one that panics in the work.
///
/// ```
/// use terrace_base::Calm;
///
/// assert!(!Calm::now().is_over());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Calm {
    was_panicking: bool,
}

impl Calm {
    /// Notes how the thread is now.
    pub fn now() -> Calm {
        Calm { was_panicking: std::thread::panicking() }
    }

    /// Whether the thread panics since then.
    pub fn is_over(self) -> bool {
        !self.was_panicking && std::thread::panicking()
    }
}

//! A small number for each running thread, so that counters need no locked instructions.
//!
//! Invariant: a number below [`EXCLUSIVE`] belongs to at most one running thread; it is handed on when that
//! thread ends. Threads beyond that share the number [`EXCLUSIVE`].

use std::cell::Cell;

use parking_lot::Mutex;

/// Threads that get a number of their own.
pub const EXCLUSIVE: usize = 64;

/// Distinct numbers: the exclusive ones and the shared one.
pub const COUNT: usize = EXCLUSIVE + 1;

struct Free {
    next: usize,
    returned: Vec<usize>,
}

static FREE: Mutex<Free> = Mutex::new(Free { next: 0, returned: Vec::new() });

struct Number(usize);

impl Number {
    fn take() -> Self {
        let mut free = FREE.lock();
        if let Some(number) = free.returned.pop() {
            return Number(number);
        }
        let number = free.next.min(EXCLUSIVE);
        free.next = number + usize::from(number < EXCLUSIVE);
        Number(number)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        // Code that still runs in this thread uses the shared number.
        KNOWN.set(EXCLUSIVE);
        if self.0 < EXCLUSIVE {
            FREE.lock().returned.push(self.0);
        }
    }
}

thread_local! {
    static NUMBER: Number = Number::take();
    /// The number once more, for reads that need not ask whether the thread is ending.
    static KNOWN: Cell<usize> = const { Cell::new(UNKNOWN) };
}

const UNKNOWN: usize = usize::MAX;

/// This thread's number; the shared one while the thread is being torn down.
#[inline]
pub fn current() -> usize {
    match KNOWN.get() {
        UNKNOWN => first_asked(),
        known => known,
    }
}

/// This thread's number if it was asked for before, else something no less than [`EXCLUSIVE`].
#[inline(always)]
pub fn known() -> usize {
    KNOWN.get()
}

#[cold]
fn first_asked() -> usize {
    let number = NUMBER.try_with(|n| n.0).unwrap_or(EXCLUSIVE);
    KNOWN.set(number);
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_threads_have_different_numbers_until_there_are_too_many() {
        let barrier = std::sync::Barrier::new(EXCLUSIVE + 8);
        let numbers: Vec<usize> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..EXCLUSIVE + 8)
                .map(|_| {
                    scope.spawn(|| {
                        let number = current();
                        barrier.wait();
                        number
                    })
                })
                .collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        });
        let mut exclusive: Vec<_> = numbers.into_iter().filter(|&n| n < EXCLUSIVE).collect();
        let before = exclusive.len();
        exclusive.sort_unstable();
        exclusive.dedup();
        assert_eq!(exclusive.len(), before);
    }
}

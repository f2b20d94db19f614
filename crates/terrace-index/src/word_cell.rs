//! An 8-byte word in PM that many threads change without a lock, and that no reader sees before it is durable.
//!
//! Beside the word lies a *state*: the pool generation that wrote it and how many changes are in flight. A writer
//! counts itself in, swaps the word, persists it and counts itself out. A reader that meets changes in flight persists
//! the word itself before it returns it. The state is only meaningful within a session: a state of an older generation
//! was left by a dead process; it counts once as "in flight" and is then reset.
//!
//! A cell may be reached through a link that is itself not durable yet: the making of the link counts as a change in
//! flight until it is durable, and readers persist the link as well.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::Result;
use terrace_pmem::{POff, Pool};

/// Bytes of a cell whose state follows the word.
pub(crate) const CELL_BYTES: u64 = 16;

/// A cell in place.
pub(crate) struct WordCell<'a> {
    pool: &'a Pool,
    generation: u64,
    at: u64,
    /// Bytes from the word on that the state is among.
    span: u64,
    word: &'a AtomicU64,
    state: &'a AtomicU64,
}

/// The state of a cell whose first link is being made in generation `generation`.
pub(crate) fn state_in_flight(generation: u64) -> u64 {
    generation << 32 | 1
}

impl<'a> WordCell<'a> {
    /// The cell at `at`, in the pool's generation `generation`.
    pub fn at(pool: &'a Pool, generation: u64, at: u64) -> Result<Self> {
        let [word, state] = pool.get::<[AtomicU64; 2]>(POff::new(at))?;
        Ok(WordCell { pool, generation, at, span: CELL_BYTES, word, state })
    }

    /// The cell whose word lies at `at` and whose state somewhere in the `span` bytes from there.
    #[inline]
    pub fn of(
        pool: &'a Pool,
        generation: u64,
        at: u64,
        (word, state): (&'a AtomicU64, &'a AtomicU64),
        span: u64,
    ) -> Self {
        WordCell { pool, generation, at, span, word, state }
    }

    /// The word, durable on return, as is the link at `link` (0: none) that led here.
    #[inline]
    pub fn load(&self, link: u64) -> u64 {
        let word = self.word.load(Ordering::Acquire);
        // In this order: a writer counts itself in before it swaps and out when the word is durable.
        let state = self.state.load(Ordering::Acquire);
        if in_flight(state) != 0 {
            self.help(state, link);
        }
        word
    }

    /// Swaps the word, durable on return; the other word if it is not `old`, durable too.
    pub fn compare_exchange(&self, old: u64, new: u64, link: u64) -> Result<(), u64> {
        let before = self.begin();
        let swapped = self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_ok() || before != 0 {
            self.persist(if before != 0 { link } else { 0 });
        }
        self.end();
        swapped.map(|_| ())
    }

    /// Counts the caller out: its change, or the link it has made, is durable.
    pub fn end(&self) {
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// Counts the caller in; how many were there.
    fn begin(&self) -> u64 {
        let generation = self.generation << 32;
        self.pool.touched(self.at, self.span);
        loop {
            let state = self.state.load(Ordering::Acquire);
            let current = state >> 32 == generation >> 32;
            let next = if current { state + 1 } else { generation | 1 };
            if self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return in_flight(state);
            }
        }
    }

    fn persist(&self, link: u64) {
        self.pool.flush(self.at, 8);
        if link != 0 {
            self.pool.flush(link, 8);
        }
        self.pool.drain();
    }

    #[cold]
    fn help(&self, state: u64, link: u64) {
        self.persist(link);
        let generation = self.generation << 32;
        // The state was left by a killed process; readers that may not store leave it.
        if state >> 32 != generation >> 32
            && let Some(_touching) = self.pool.touching(self.at, self.span)
        {
            let _ = self.state.compare_exchange(state, generation, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

fn in_flight(state: u64) -> u64 {
    state & 0xffff_ffff
}

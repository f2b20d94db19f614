//! What is written down while threads are at work.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a key holds: the number of the value, every written value having its own.
pub type Held = Option<u64>;

/// A whole database.
pub type State = BTreeMap<u8, u64>;

/// Moments, in order.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// A moment after all moments before.
    pub fn now(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// What one key becomes; `None` removes it.
pub type Write = (u8, Held);

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// All writes at once, in order.
    Write(Vec<Write>),
    /// A put that takes place only if the key's being there is as said.
    WriteIf {
        exists: bool,
        key: u8,
        value: u64,
    },
    /// A transaction that has found this, and all of the database if that is given, and wrote the rest.
    Transact {
        reads: BTreeMap<u8, Held>,
        all: Option<State>,
        writes: Vec<Write>,
    },
    Get(u8),
    Contains(u8),
    /// Some keys as of one moment.
    MultiGet(Vec<u8>),
    /// Everything as of one moment: a snapshot or an iterator.
    ReadAll,
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// Whether a conditional write or a transaction took place, or a key is there.
    Bool(bool),
    Value(Held),
    Values(Vec<Held>),
    All(State),
}

/// An operation between two moments.
#[derive(Debug, Clone)]
pub struct Op {
    pub thread: usize,
    pub begin: u64,
    pub end: u64,
    pub action: Action,
    pub answer: Answer,
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Op { thread, begin, end, action, answer } = self;
        writeln!(f, "  thread {thread}, from {begin} to {end}: {action:?} -> {answer:?}")
    }
}

/// One thread's notes.
#[derive(Debug)]
pub struct Recorder<'c> {
    clock: &'c Clock,
    thread: usize,
    pub ops: Vec<Op>,
}

impl<'c> Recorder<'c> {
    pub fn new(clock: &'c Clock, thread: usize) -> Self {
        Recorder { clock, thread, ops: Vec::new() }
    }

    /// Does `ask` and notes it.
    pub fn note(&mut self, action: Action, ask: impl FnOnce() -> Answer) {
        let begin = self.clock.now();
        let answer = ask();
        let end = self.clock.now();
        self.ops.push(Op { thread: self.thread, begin, end, action, answer });
    }

    /// Does `ask`, which says what it was asked, too.
    pub fn note_whole(&mut self, ask: impl FnOnce() -> (Action, Answer)) {
        let begin = self.clock.now();
        let (action, answer) = ask();
        let end = self.clock.now();
        self.ops.push(Op { thread: self.thread, begin, end, action, answer });
    }

    /// Does `take`, whose answer to `action` comes out later: see [`Later::answer`].
    pub fn note_later<T>(&mut self, action: Action, take: impl FnOnce() -> T) -> (Later, T) {
        let begin = self.clock.now();
        let taken = take();
        (Later { begin, end: self.clock.now(), action }, taken)
    }

    /// The answer to what was asked before.
    pub fn answer(&mut self, later: Later, answer: Answer) {
        let Later { begin, end, action } = later;
        self.ops.push(Op { thread: self.thread, begin, end, action, answer });
    }
}

/// An operation whose answer has not come out yet.
#[derive(Debug)]
pub struct Later {
    begin: u64,
    end: u64,
    action: Action,
}

//! Log entries that are not in a buffer yet, after an open.
//!
//! An open does not replay logs. The log of a key, one of a few by its hash, is read and sorted when the first of its
//! keys is asked for. A reader takes a key's word from its log. A writer first has the key's entry replayed: into its
//! node's buffer, unless the leaf has it already. Meanwhile jobs replay all the rest. The logs stay, and are appended
//! to: replaying writes nothing.
//!
//! 1. No entry of a log that has not been read is in a buffer, and that log is not appended to.
//! 2. An entry is replayed once, under the lock of its log's share, before any write to its key continues.
//! 3. The sets that were found are freed only after everything has been replayed.
//!
//! Lock order: a share, then a node. Scans, counts and walks wait until everything has been replayed.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use terrace_base::Result;

use super::Core;
use super::key::Probe;
use super::logs::log_of;
use super::replay::LogEntries;

/// Entries that jobs replay before they release the share for others.
const STRETCH: usize = 32;

/// The state of the replay.
#[derive(Default)]
pub(super) struct Pending {
    shares: Vec<Mutex<Share>>,
    /// Shares that are not fully replayed.
    left: AtomicUsize,
    /// The share that the next job takes up.
    next: AtomicUsize,
}

/// The entries of one log of each set.
#[derive(Default)]
struct Share {
    entries: Option<LogEntries>,
    /// Entries that are replayed, by their place; those before `at` all are.
    replayed: Vec<bool>,
    at: usize,
    is_done: bool,
}

impl Share {
    /// The entry about a key, and its place, unless it is replayed.
    fn pending(&self, key: &[u8]) -> Option<(&LogEntries, usize)> {
        let entries = self.entries.as_ref()?;
        entries.find(key).filter(|i| !self.replayed[*i]).map(|i| (entries, i))
    }
}

impl Pending {
    pub fn new(logs: usize) -> Pending {
        Pending { shares: (0..logs).map(|_| Mutex::default()).collect(), ..Pending::default() }
    }

    /// Everything in the logs is pending from now on.
    pub fn begin(&self) {
        self.left.store(self.shares.len(), Ordering::Release);
    }

    /// Whether everything is replayed.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}

impl Core {
    /// Replays the logs' entry for a key that is about to be written. The caller is present and has nothing locked.
    #[inline]
    pub(super) fn replay_key(&self, key: &[u8]) -> Result<()> {
        if self.pending.is_done() { Ok(()) } else { self.replay_pending_key(key) }
    }

    #[cold]
    fn replay_pending_key(&self, key: &[u8]) -> Result<()> {
        let log = log_of(key, self.pending.shares.len());
        let mut share = self.pending.shares[log].lock();
        self.read_share(log, &mut share)?;
        let Some((entries, i)) = share.pending(key) else { return Ok(()) };
        self.replay_entry(entries, i)?;
        share.replayed[i] = true;
        Ok(())
    }

    /// The word that logs have of a key and that is pending, 0 if the key was removed: that is its present word, since
    /// a write to the key replays it first. A reader need not replay it, which might need room.
    #[inline]
    pub(super) fn pending_word(&self, key: &[u8]) -> Result<Option<u64>> {
        if self.pending.is_done() { Ok(None) } else { self.look_up_pending(key) }
    }

    #[cold]
    fn look_up_pending(&self, key: &[u8]) -> Result<Option<u64>> {
        let log = log_of(key, self.pending.shares.len());
        let mut share = self.pending.shares[log].lock();
        self.read_share(log, &mut share)?;
        Ok(share.pending(key).map(|(entries, i)| entries.entry(i).1))
    }

    /// Replays everything, or waits for the jobs that do. The caller has nothing locked.
    pub(super) fn replay_all(&self) -> Result<()> {
        if self.pending.is_done() {
            return Ok(());
        }
        let _here = self.limbo.enter();
        (0..self.pending.shares.len()).try_for_each(|log| self.replay_share(log, false))
    }

    /// Replays shares until none is left to take, or the tree is closed.
    pub(super) fn replay_in_background(&self) {
        let _here = self.limbo.enter();
        loop {
            let log = self.pending.next.fetch_add(1, Ordering::Relaxed);
            // Lookups report entries that cannot be read now.
            let is_over = log >= self.pending.shares.len() || self.jobs.is_closed();
            if is_over || self.replay_share(log, true).is_err() {
                return;
            }
        }
    }

    fn replay_share(&self, log: usize, may_end: bool) -> Result<()> {
        let mut share = self.pending.shares[log].lock();
        self.read_share(log, &mut share)?;
        while let Share { entries: Some(entries), replayed, at, .. } = &mut *share {
            let all = entries.len();
            let end = (*at + STRETCH).min(all);
            for (i, is_replayed) in (*at..end).zip(&mut replayed[*at..end]) {
                if !*is_replayed {
                    self.replay_entry(entries, i)?;
                    // Noted at once: if the next one fails, this one must not be replayed again.
                    *is_replayed = true;
                }
            }
            *at = end;
            if end == all {
                *share = Share { is_done: true, ..Share::default() };
                self.pending.left.fetch_sub(1, Ordering::AcqRel);
            } else if may_end && self.jobs.is_closed() {
                return Ok(());
            } else {
                MutexGuard::bump(&mut share);
            }
        }
        Ok(())
    }

    /// Reads and sorts the entries of a log, unless that has been done.
    fn read_share(&self, log: usize, share: &mut Share) -> Result<()> {
        if share.is_done || share.entries.is_some() {
            return Ok(());
        }
        let mut entries = LogEntries::default();
        let mut last = 0;
        self.visit_log(log, &mut |set, number, word, key| {
            last = last.max(number);
            entries.add(number, word, key, set);
        })?;
        entries.keep_newest();
        if let Some(logs) = &self.logs {
            // The later one of two entries about a key must have the higher number.
            logs.next.fetch_max(last + 1, Ordering::Relaxed);
        }
        share.replayed = vec![false; entries.len()];
        share.entries = Some(entries);
        Ok(())
    }

    /// Puts entry `i` into its node's buffer, unless its leaf has it.
    fn replay_entry(&self, entries: &LogEntries, i: usize) -> Result<()> {
        let (key, word, set) = entries.entry(i);
        let probe = Probe::new(key);
        loop {
            let locked = self.lock_leaf_of(&probe)?;
            let before = self.find(locked.0, &probe, locked.0.version())?.flatten().map(|(_, item)| item.1);
            if before.unwrap_or(0) == word || self.put_back(locked, &probe, (word, set), before)? {
                return Ok(());
            }
        }
    }
}

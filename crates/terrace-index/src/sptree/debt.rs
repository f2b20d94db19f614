//! What logs say and buffers do not yet, after an open.
//!
//! An open does not replay logs. The log of a key, one of a few by its hash, is read and sorted when the first of its keys is
//! asked for. Who reads a key takes what its log says last. Who writes to it brings that back first: into its node's
//! buffer, unless the leaf has it already. Meanwhile jobs bring back all the rest. The logs stay what they
//! are, and are added to: nothing is written for all this.
//!
//! 1. Of a log that has not been read nothing is in a buffer, and nobody adds to it.
//! 2. An entry comes back once, under the lock of its log's share, before anybody who writes to its key looks further.
//! 3. The sets that were found are freed only after everything has come back.
//!
//! Lock order: a share, then a node. Scans, counts and walks wait until all is back.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use terrace_base::Result;

use super::Core;
use super::key::Probe;
use super::logs::log_of;
use super::replay::Said;

/// Entries that jobs bring back before others get at the share.
const STRETCH: usize = 32;

/// What is still to come back.
#[derive(Default)]
pub(super) struct Debt {
    shares: Vec<Mutex<Share>>,
    /// Shares of which something is left.
    unpaid: AtomicUsize,
    /// The share that the next job takes up.
    next: AtomicUsize,
}

/// What one log of each set says.
#[derive(Default)]
struct Share {
    said: Option<Said>,
    /// Entries that are back, by their place; those before `at` all are.
    back: Vec<bool>,
    at: usize,
    is_paid: bool,
}

impl Share {
    /// The entry about a key, and its place, unless it is back.
    fn owed(&self, key: &[u8]) -> Option<(&Said, usize)> {
        let said = self.said.as_ref()?;
        said.find(key).filter(|i| !self.back[*i]).map(|i| (said, i))
    }
}

impl Debt {
    pub fn new(logs: usize) -> Debt {
        Debt { shares: (0..logs).map(|_| Mutex::default()).collect(), ..Debt::default() }
    }

    /// Everything in the logs is owed from now on.
    pub fn owe(&self) {
        self.unpaid.store(self.shares.len(), Ordering::Release);
    }

    /// Whether everything is back.
    #[inline]
    pub fn is_paid(&self) -> bool {
        self.unpaid.load(Ordering::Acquire) == 0
    }
}

impl Core {
    /// Brings back what logs say about a key that is to be written to. The caller is present and has nothing locked.
    #[inline]
    pub(super) fn settle(&self, key: &[u8]) -> Result<()> {
        if self.debt.is_paid() { Ok(()) } else { self.settle_owed(key) }
    }

    #[cold]
    fn settle_owed(&self, key: &[u8]) -> Result<()> {
        let log = log_of(key, self.debt.shares.len());
        let mut share = self.debt.shares[log].lock();
        self.read_share(log, &mut share)?;
        let Some((said, i)) = share.owed(key) else { return Ok(()) };
        self.bring_back(said, i)?;
        share.back[i] = true;
        Ok(())
    }

    /// What logs say about a key and is not back, 0 if it was removed: that is its word, since whoever writes to the key
    /// has it brought back first. A reader has no need of that, nor of the room that it may take.
    #[inline]
    pub(super) fn owed(&self, key: &[u8]) -> Result<Option<u64>> {
        if self.debt.is_paid() { Ok(None) } else { self.look_up_owed(key) }
    }

    #[cold]
    fn look_up_owed(&self, key: &[u8]) -> Result<Option<u64>> {
        let log = log_of(key, self.debt.shares.len());
        let mut share = self.debt.shares[log].lock();
        self.read_share(log, &mut share)?;
        Ok(share.owed(key).map(|(said, i)| said.entry(i).1))
    }

    /// Brings everything back, or waits for those who are at it. The caller has nothing locked.
    pub(super) fn pay_debt(&self) -> Result<()> {
        if self.debt.is_paid() {
            return Ok(());
        }
        let _here = self.limbo.enter();
        (0..self.debt.shares.len()).try_for_each(|log| self.pay_share(log, false))
    }

    /// Works on what is to come back until nothing is left to take, or the tree is closed.
    pub(super) fn work_on_debt(&self) {
        let _here = self.limbo.enter();
        loop {
            let log = self.debt.next.fetch_add(1, Ordering::Relaxed);
            // What cannot be read now is met by those who ask for it.
            if log >= self.debt.shares.len() || self.jobs.is_closed() || self.pay_share(log, true).is_err() {
                return;
            }
        }
    }

    fn pay_share(&self, log: usize, may_end: bool) -> Result<()> {
        let mut share = self.debt.shares[log].lock();
        self.read_share(log, &mut share)?;
        while let Share { said: Some(said), back, at, .. } = &mut *share {
            let all = said.len();
            let end = (*at + STRETCH).min(all);
            for (i, is_back) in (*at..end).zip(&mut back[*at..end]) {
                if !*is_back {
                    self.bring_back(said, i)?;
                    // At once: should the next one fail, this one must not come back again.
                    *is_back = true;
                }
            }
            *at = end;
            if end == all {
                *share = Share { is_paid: true, ..Share::default() };
                self.debt.unpaid.fetch_sub(1, Ordering::AcqRel);
            } else if may_end && self.jobs.is_closed() {
                return Ok(());
            } else {
                MutexGuard::bump(&mut share);
            }
        }
        Ok(())
    }

    /// Reads and sorts what logs say, unless that has been done.
    fn read_share(&self, log: usize, share: &mut Share) -> Result<()> {
        if share.is_paid || share.said.is_some() {
            return Ok(());
        }
        let mut said = Said::default();
        let mut last = 0;
        self.visit_log(log, &mut |set, number, word, key| {
            last = last.max(number);
            said.add(number, word, key, set);
        })?;
        said.settle();
        if let Some(logs) = &self.logs {
            // Of entries about a key the later one must have the higher number.
            logs.next.fetch_max(last + 1, Ordering::Relaxed);
        }
        share.back = vec![false; said.len()];
        share.said = Some(said);
        Ok(())
    }

    /// Puts entry `i` into its node's buffer, unless its leaf has it.
    fn bring_back(&self, said: &Said, i: usize) -> Result<()> {
        let (key, word, set) = said.entry(i);
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

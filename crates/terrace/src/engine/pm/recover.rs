//! The remains of a crash beside the index and its records: what was allocated and not named, or no longer
//! named, and versions for snapshots that died with their process. It is reclaimed in the background.

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_index::{PointIndex, ScanBatch};
use terrace_pmem::Marks;

use super::elsewhere::VersionRefOf;
use super::index::{KeyIndex, PmEngine, PositionOf};
use super::{NO_GROUP, PmStore};
use crate::pool::StartState;

/// Receives a key and its word.
type Visit<'a, E> = dyn FnMut(&[u8], VersionRefOf<E>) -> Result<()> + 'a;

/// Keys examined during one hold of the gate.
const CHUNK: usize = 256;

impl<E: PmEngine> PmStore<E> {
    /// Starts the remaining work in the background.
    pub(super) fn recover(&self, state: Option<StartState>) {
        // Even after a clean close something may remain that readers had kept until then.
        if state.is_some_and(|state| state == StartState::Crashed || self.pool.needs_reclaim()) {
            self.jobs.tidy(&self.me, Self::reclaim);
        }
    }

    pub(super) fn reclaim(&self) -> Result<()> {
        let mut marks = self.pool.marks();
        let gone = self.mark(&mut marks)?;
        {
            // A writer that had unlinked something before the marking passed it has retired it by now: it is
            // in limbo, which is searched below, or has been freed.
            let _alone = self.gate.exclusive();
            if self.pending.load(Ordering::Relaxed) != NO_GROUP {
                // A group could not be taken back: only the undo list names what the next open puts back.
                self.pool.leave_unreclaimed();
                return Ok(());
            }
        }
        self.pool.reclaim(&marks)?;
        if self.give_back() {
            // Nothing unlinked before remains to be freed: reclaimed room may be used again.
            self.pool.release_reclaimed()?;
        }
        for key in gone {
            let _alone = self.gate.exclusive();
            if self.is_pending() {
                self.pool.leave_unreclaimed();
                return Ok(());
            }
            let _here = self.limbo.enter();
            self.collapse(&key, &self.core.snapshots.list())?;
        }
        Ok(())
    }

    /// Marks everything reachable in the pool, a few keys at a time; returns the keys of which only a
    /// deletion of an earlier session is left, or a record for a place that can do without it.
    fn mark(&self, marks: &mut Marks) -> Result<Vec<Vec<u8>>> {
        let mut gone = Vec::new();
        marks.slot(self.header)?;
        self.index.mark(marks)?;
        self.each_word(&mut |key, word| {
            let chain = self.chain(word, key)?;
            let is_remote = word.record().is_some_and(|record| record.is_remote());
            if (word.is_tombstone() || is_remote) && chain.len() == 1 {
                gone.push(key.to_vec());
            }
            chain
                .iter()
                .filter_map(|version| version.word().record())
                .try_for_each(|r| marks.slot(r.offset()))
        })?;
        Ok(gone)
    }

    /// Calls `each` with every key and word, a few at a time: a group may happen between two calls, but none
    /// is running during a call.
    fn each_word(&self, each: &mut Visit<'_, E>) -> Result<()> {
        let (mut cursor, mut batch, mut more) = (PositionOf::<E>::default(), ScanBatch::new(), true);
        while more {
            let _shared = self.gate.shared();
            more = self.visit_batch(&mut cursor, &mut batch, each)?;
        }
        Ok(())
    }

    /// Calls `visit` with the keys and words of about [`CHUNK`] keys from `cursor` on; returns whether there
    /// may be more. The caller holds the gate.
    pub(in crate::engine) fn visit_batch(
        &self,
        cursor: &mut PositionOf<E>,
        batch: &mut ScanBatch,
        visit: &mut Visit<'_, E>,
    ) -> Result<bool> {
        let _here = self.limbo.enter();
        batch.clear();
        let more = self.index.walk(cursor, CHUNK, batch)?;
        for (key, bits) in batch.iter() {
            visit(key, self.decode(bits)?)?;
        }
        Ok(more)
    }
}

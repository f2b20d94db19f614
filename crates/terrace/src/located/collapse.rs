//! Dropping versions that no snapshot needs any more from chains.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::moves::CHUNK_KEYS;
use super::{CHAIN_KIND, Chain, Located};
use crate::manifest::JobKind;

impl Located {
    /// Drops versions that no snapshot needs any more from chains.
    pub fn collapse_chains(&self) -> Result<()> {
        let _alone = self.collapsing.lock();
        let keys: Vec<Vec<u8>> = self.keys_of_chains().into_iter().collect();
        if keys.is_empty() {
            let _still = self.writer.lock();
            if self.pool.slots(CHAIN_KIND).next().is_none() {
                // Chains that were counted at opening without being reachable have been reclaimed.
                self.chains.store(0, Ordering::Release);
            }
            return Ok(());
        }
        let mut job = self.start_job(self.roots.collapse, JobKind::Flush, Vec::new())?;
        for chunk in keys.chunks(CHUNK_KEYS) {
            if let Err(e) = job.collapse(chunk) {
                job.give_up(false)?;
                return Err(e);
            }
        }
        job.finish(Vec::new)
    }

    /// The keys of all chains. A key's retired chain may still exist beside its current one: each key is
    /// listed once, as all moves of one chunk are decided before the first is made.
    fn keys_of_chains(&self) -> BTreeSet<Vec<u8>> {
        let _here = self.limbo.enter();
        let offsets = self.pool.slots(CHAIN_KIND).map(|(offset, _)| offset);
        // A chain retired meanwhile may read as damaged, or as another key's: processing that key's chain is
        // harmless. A reader of a damaged linked chain finds the damage.
        offsets.filter_map(|offset| Chain::load(&self.pool, offset).ok()).map(|c| c.key).collect()
    }
}

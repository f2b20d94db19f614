//! How many keys the table holds, and the bytes of its records.

use terrace_base::Result;
use terrace_index::parts::SavedTotals;

use super::Cceh;
use super::layout::HEADER_BYTES;

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    /// Keys, and bytes of records.
    pub(super) fn counted(&self) -> (u64, u64) {
        self.totals.counted(|| self.count_all())
    }

    /// Takes over what the last close saved, if it can be trusted.
    pub(super) fn load_totals(&self) -> Result<()> {
        self.totals.load(&self.pool, &self.saved_totals()?);
        Ok(())
    }

    /// Saves the totals for the next session.
    pub(super) fn save_totals(&self) -> Result<()> {
        if self.totals.save(&self.pool, &self.saved_totals()?) {
            self.pool.persist(self.header_off, HEADER_BYTES);
        }
        Ok(())
    }

    fn saved_totals(&self) -> Result<SavedTotals<'_>> {
        let head = self.header()?;
        Ok(SavedTotals { keys: &head.keys, bytes: &head.pair_bytes, crc: &head.totals_crc })
    }
}

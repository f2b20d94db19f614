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

    /// The totals of the last close, and the place for those of the next one.
    pub(super) fn saved_totals(&self) -> Result<SavedTotals<'_>> {
        let head = self.header()?;
        let header = (self.header_off, HEADER_BYTES);
        Ok(SavedTotals { keys: &head.keys, bytes: &head.pair_bytes, crc: &head.totals_crc, header })
    }
}

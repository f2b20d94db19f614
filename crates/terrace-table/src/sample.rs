//! Keys of a table at about equal distances, at which scans and merges are divided and ranges of keys cut.
//!
//! The root tells a few of them for nothing: about one in three mebibytes. It has none within a small table but its end,
//! so that where each table counts, keys are sampled by the index.

use std::sync::Arc;

use terrace_base::Result;

use crate::cursor::Cursor;
use crate::nested::{Handles, IndexCursor, RootCursor};
use crate::table::Table;

impl Table {
    /// Keys of the table in order, each with the bytes of data from the one before it, of about equal shares: a scan
    /// can be divided at them. Reads nothing from the file.
    pub fn anchors(self: &Arc<Self>) -> Result<Vec<(Vec<u8>, u64)>> {
        let mut root = RootCursor::new(self);
        let mut keys = Vec::new();
        root.first()?;
        while let Some(key) = root.key() {
            keys.push(key.to_vec());
            root.next()?;
        }
        let share = self.footer()?.data_end / keys.len().max(1) as u64;
        Ok(keys.into_iter().map(|key| (key, share)).collect())
    }

    /// Keys of the table in order, `wanted` of them at most and fewer if it has fewer, at about equal distances in bytes.
    /// Reads the index, and the block of each key.
    pub fn sample(self: &Arc<Self>, wanted: usize) -> Result<Vec<Vec<u8>>> {
        let end = self.footer()?.data_end;
        let targets: Vec<u64> = (0..wanted as u64).map(|i| (2 * i + 1) * end / (2 * wanted as u64)).collect();
        let (mut index, mut at, mut before) = (IndexCursor::index(self, false), 0, None);
        let mut keys = Vec::new();
        index.first()?;
        while let Some(handle) = index.handle()?.filter(|_| at < targets.len()) {
            let block_end = handle.offset + handle.len;
            let within = targets[at..].iter().take_while(|target| **target < block_end).count();
            if within > 0 {
                let entries = self.meta().entries as u128 * u128::from(handle.len) / u128::from(end.max(1));
                self.sample_block(
                    before.as_deref(),
                    index.inner().key(),
                    (entries as usize, within),
                    &mut keys,
                )?;
            }
            at += within;
            before = Some(index.inner().key().to_vec());
            index.next()?;
        }
        keys.dedup();
        Ok(keys)
    }

    /// Adds `wanted` of the about `entries` keys of the block between the separators `before` and `last`.
    fn sample_block(
        self: &Arc<Self>,
        before: Option<&[u8]>,
        last: &[u8],
        (entries, wanted): (usize, usize),
        keys: &mut Vec<Vec<u8>>,
    ) -> Result<()> {
        let mut cursor = self.cursor(false, 0);
        match before {
            Some(before) => cursor.seek(before, 0)?,
            None => cursor.seek_first()?,
        }
        let mut passed = 0;
        for i in 0..wanted {
            let target = (2 * i + 1) * entries / (2 * wanted);
            while passed < target && cursor.valid() && cursor.key() <= last {
                cursor.next()?;
                passed += 1;
            }
            if !cursor.valid() || cursor.key() > last {
                break;
            }
            keys.push(cursor.key().to_vec());
        }
        Ok(())
    }
}

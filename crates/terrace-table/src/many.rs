//! Lookups by several positions of one table together.

use std::sync::Arc;

use terrace_base::Result;

use crate::block::Block;
use crate::entry::Entry;
use crate::position::Position;
use crate::scratch::with_scratch;
use crate::table::Table;

impl Table {
    /// As [`get_at`](Self::get_at) for several positions, in their order; blocks that are not in the
    /// cache are read together.
    pub fn get_many(&self, requests: &[(Position, &[u8])], max_seq: u64) -> Result<Vec<Option<Entry>>> {
        let Some(map) = self.map() else { return self.get_many_by_calls(requests, max_seq) };
        let found = self.get_many_mapped(map, requests, max_seq).into_iter().zip(requests);
        let each = found.map(|(found, &(position, key))| match found {
            Some(found) => found,
            None => self.get_at_by_calls(position, key, max_seq),
        });
        each.collect()
    }

    fn get_many_by_calls(&self, requests: &[(Position, &[u8])], max_seq: u64) -> Result<Vec<Option<Entry>>> {
        let mut blocks: Vec<Option<Arc<Block>>> = Vec::with_capacity(requests.len());
        for (position, _) in requests {
            self.check_position(*position)?;
            blocks.push(self.cached(position.offset()));
        }
        self.load_missing(requests, &mut blocks)?;
        let found = requests.iter().zip(&blocks).map(|((_, key), block)| match block {
            Some(block) => self.find_or_follow(block, key, max_seq),
            None => Ok(None),
        });
        found.collect()
    }

    /// Reads the blocks of `requests` that `blocks` lacks, each once and all together.
    fn load_missing(&self, requests: &[(Position, &[u8])], blocks: &mut [Option<Arc<Block>>]) -> Result<()> {
        let mut missing: Vec<usize> = (0..requests.len()).filter(|&i| blocks[i].is_none()).collect();
        missing.sort_by_key(|&i| requests[i].0);
        let mut firsts = missing.clone();
        firsts.dedup_by_key(|&mut i| requests[i].0.offset());
        if firsts.is_empty() {
            return Ok(());
        }
        let lens: Vec<usize> =
            firsts.iter().map(|&i| self.first_read(requests[i].0)).collect::<Result<_>>()?;
        with_scratch(lens.iter().sum(), |mut rest| -> Result<()> {
            let mut reads: Vec<(u64, &mut [u8])> = Vec::with_capacity(lens.len());
            for (&i, &len) in firsts.iter().zip(&lens) {
                let (buf, behind) = std::mem::take(&mut rest).split_at_mut(len);
                reads.push((requests[i].0.offset(), buf));
                rest = behind;
            }
            self.file().read_many(&mut reads)?;
            for (&i, (_, buf)) in firsts.iter().zip(&reads) {
                blocks[i] = Some(self.complete(requests[i].0, buf)?);
            }
            Ok(())
        })?;
        // The sort is stable: the first of equal positions, which was read, comes before the others.
        for pair in missing.windows(2) {
            if blocks[pair[1]].is_none() {
                blocks[pair[1]] = blocks[pair[0]].clone();
            }
        }
        Ok(())
    }
}

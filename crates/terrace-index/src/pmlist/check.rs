//! Proving a list: every node, every record, every figure.

use terrace_base::{Kind, Result};

use super::buffer::part_of;
use super::layout::{BLOCK_NODES, record_span};
use super::{Figures, Inner, PmList};

impl PmList {
    /// Reads all of it.
    ///
    /// # Errors
    /// `Corruption` at the first error.
    pub fn verify(&self) -> Result<()> {
        let inner = &*self.inner;
        let towers = inner.towers()?;
        let mut seen = Figures { min_seq: u64::MAX, ..Figures::default() };
        let mut live = vec![0; inner.parts.len()];
        let mut before: Option<(&[u8], u64)> = None;
        for index in 0..inner.figures.entries {
            let node = inner.node(index)?;
            let record = inner.follow(&node)?;
            record.value()?;
            let number = (index / BLOCK_NODES as u64) as usize;
            let is_first = index.is_multiple_of(BLOCK_NODES as u64);
            let rest = record.key.get(inner.common..).unwrap_or_default();
            if terrace_base::prefix::head(rest) != node.head
                || is_first && towers.get(number) != Some(&node.head)
            {
                return Err(inner.damaged(index, "a node that says how its key begins"));
            }
            let here = (record.key, record.seq);
            if before.is_some_and(|(key, seq)| key.cmp(record.key).then(record.seq.cmp(&seq)).is_ge()) {
                return Err(inner.damaged(index, "records in order"));
            }
            before = Some(here);
            seen.entries += 1;
            seen.deletes += u64::from(record.kind == Kind::Delete);
            seen.min_seq = seen.min_seq.min(record.seq);
            seen.max_seq = seen.max_seq.max(record.seq);
            seen.raw_bytes += (record.key.len() + record.value_len()) as u64;
            let span = record_span(record.key.len(), record.value_len());
            seen.record_bytes += span;
            let part = inner.parts.iter().position(|part| part.buffer.holds(node.record));
            part.iter().for_each(|part| live[*part] += span);
        }
        inner.check_figures(&seen, &live)
    }
}

impl Inner {
    fn check_figures(&self, seen: &Figures, live: &[u64]) -> Result<()> {
        let ends = [(0, &self.about.smallest), (self.figures.entries - 1, &self.about.largest)];
        for (index, key) in ends {
            if self.record(index)?.key != &key[..] {
                return Err(self.damaged(index, "the first and last key that the list says it has"));
            }
        }
        if *seen != self.figures {
            return Err(self.damaged(0, "records that add up to the list's figures"));
        }
        match self.parts.iter().map(|part| part.live).eq(live.iter().copied()) {
            true => Ok(()),
            false => Err(self.damaged(0, "as many bytes in each buffer as the list says")),
        }
    }

    fn damaged(&self, index: u64, expected: &str) -> terrace_base::Error {
        let at = self.node(index).ok().filter(|node| part_of(&self.parts, node.record).is_some());
        let at = at.map_or(self.extent.offset, |node| node.record);
        self.pool().corruption(at, expected, "others")
    }
}

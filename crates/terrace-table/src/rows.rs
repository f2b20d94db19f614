//! Looks up keys that lie side by side in mapped blocks, each behind the one before it.
//!
//! A scan by positions asks for most entries of a block, and for block after block, in their order. To search the block
//! for each of them would cost more than to pass from one to the next. What is not found so is left to a search of its
//! own.

use crate::block::Lookup;
use crate::entry::Entry;
use crate::frame::BlockKind;
use crate::many::find_each;
use crate::mapped::TableMap;
use crate::position::Position;
use crate::table::Table;

/// Bytes that are loaded into the processor's caches ahead of the entry that is read. The processor does not foresee
/// them by itself: it goes no further than the end of a page.
const LOADED_BYTES: u64 = 4 << 10;

type Request<'a> = (Position, &'a [u8]);

/// Whether `b` is the block `a` or about the next one.
fn are_side_by_side(a: Position, b: Position) -> bool {
    a.number() == b.number() && b.offset() <= a.offset() + a.read_len() as u64
}

impl Table {
    /// [`get_ahead`](Table::get_ahead) through `map`.
    pub(crate) fn get_ahead_mapped(
        &self,
        map: &TableMap,
        requests: &[Request<'_>],
        max_seq: u64,
    ) -> Vec<Option<Entry>> {
        let mut found = Vec::with_capacity(requests.len());
        for row in requests.chunk_by(|a, b| are_side_by_side(a.0, b.0)) {
            match row {
                // A search loads less for a single one.
                [_] => found.push(None),
                _ => map.find_row(row, max_seq, &mut found),
            }
        }
        // What was sound when it was found may be zeros by now.
        if !map.is_sound() {
            found.fill(None);
        }
        self.find_missed(requests, max_seq, &mut found);
        found
    }

    /// Searches for those of `requests` that have no entry in `found`.
    fn find_missed(&self, requests: &[Request<'_>], max_seq: u64, found: &mut [Option<Entry>]) {
        let places: Vec<usize> = (0..requests.len()).filter(|&i| found[i].is_none()).collect();
        if places.is_empty() {
            return;
        }
        let missed: Vec<Request<'_>> = places.iter().map(|&i| requests[i]).collect();
        let searched = find_each(&self.sought(&missed), max_seq).unwrap_or_default();
        for (i, entry) in places.into_iter().zip(searched) {
            found[i] = entry.ok().flatten();
        }
    }
}

impl TableMap {
    /// Appends to `out`, for each key of `row`, the newest version up to `max_seq`; `None` where it is not found.
    fn find_row(&self, row: &[Request<'_>], max_seq: u64, out: &mut Vec<Option<Entry>>) {
        let ends = row.last().map_or(0, |(last, _)| last.offset() + last.read_len() as u64);
        let mut loaded = row.first().map_or(0, |(first, _)| first.offset());
        // The block, the key before, and where the entry behind that begins.
        let mut block = None;
        let mut last: Option<(&[u8], usize)> = None;
        for &(position, key) in row {
            let offset = position.offset();
            let wanted = (offset + LOADED_BYTES).min(ends);
            self.prefetch(loaded.max(offset), wanted);
            loaded = loaded.max(wanted);
            if block.as_ref().is_none_or(|&(at, _, _)| at != offset) {
                let view = self.has_number(position).then(|| self.view(offset, BlockKind::Data)).flatten();
                (block, last) = (view.map(|(start, view)| (offset, start, view)), None);
            }
            let found = block.as_ref().and_then(|(_, start, view)| {
                let behind = last.and_then(|(before, at)| view.find_behind(at, before, key, max_seq));
                let found = behind.or_else(|| match view.find(key, max_seq) {
                    Ok(Lookup::Found(found)) => Some(found),
                    _ => None,
                })?;
                last = Some((key, found.value.end));
                Some(self.entry(*start, found))
            });
            out.push(found);
        }
    }
}

//! Opens a list: only its header is read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use terrace_base::checksum::unseal48;
use terrace_base::{Error, Result};
use terrace_pmem::{Extent, POff, Pool};

use super::layout::{BLOCK_BYTES, BLOCK_NODES, END_AT, LIST_HEAD_BYTES, ListHead, part_crc};
use super::lists::{LIST_KIND, Lists};
use super::{About, Figures, Inner, Part, PmList};

/// The error about an object of another version.
pub(super) fn foreign(pool: &Pool, found: String) -> Error {
    Error::other_version(pool.path(), found, "version 1")
}

impl Lists {
    /// The list at `head`. It is not named yet.
    ///
    /// # Errors
    /// `Corruption` if there is none, if it is not whole, or if its header is damaged; `InvalidFormat` if another
    /// version wrote it.
    pub fn open(&self, offset: u64) -> Result<PmList> {
        let pool = self.pool();
        let damaged = |found: &str| pool.corruption(offset, "a whole list", found);
        let head = pool.get::<ListHead>(POff::new(offset))?;
        pool.charge_read(offset, LIST_HEAD_BYTES);
        if let Some(version) = head.other_version(pool.place(offset)) {
            return Err(foreign(pool, format!("a list of version {version}")));
        }
        if !head.is_sound(pool.place(offset)) {
            return Err(damaged("other bytes"));
        }
        if unseal48(head.id, pool.atomic_checked(POff::new(offset + END_AT))?.load(Ordering::Acquire))
            != Some(head.entries)
        {
            return Err(damaged("one that is not whole"));
        }
        let about_bytes = u64::from(head.about_bytes);
        // SAFETY: a whole list does not change, and it is freed only with its last handle; there is none yet.
        let bytes = unsafe { pool.bytes(offset + LIST_HEAD_BYTES, about_bytes)? };
        pool.charge_rest(offset + LIST_HEAD_BYTES, about_bytes.max(1));
        if part_crc(head.id, bytes) != head.about_crc {
            return Err(damaged("another checksum of where it comes from"));
        }
        let (about, named) = About::decode(bytes).ok_or_else(|| damaged("what no list says"))?;
        let blocks = offset + (LIST_HEAD_BYTES + about_bytes).next_multiple_of(BLOCK_BYTES);
        let count = head.entries.div_ceil(BLOCK_NODES as u64);
        let tail = blocks.saturating_add(count.saturating_mul(BLOCK_BYTES));
        let end = tail.saturating_add(8 * count).saturating_add(u64::from(head.filter_bytes));
        let common = head.common as usize;
        let is_inside = offset.checked_add(head.bytes).is_some_and(|extent_end| extent_end <= pool.size());
        let fits = end - offset <= head.bytes && is_inside && count > 0;
        if !fits
            || about.smallest.get(..common) != about.largest.get(..common)
            || about.smallest.len() < common
        {
            return Err(damaged("lengths that contradict one another"));
        }
        let parts = named.into_iter().map(|(at, id, live)| Ok(Part { buffer: self.buffer(at, id)?, live }));
        let parts = parts.collect::<Result<Vec<Part>>>()?;
        let live = parts.iter().try_fold(0, |sum, part: &Part| {
            let is_there = part.live <= part.buffer.filled();
            is_there.then(|| part.live.checked_add(sum)).flatten()
        });
        if live != Some(head.record_bytes) {
            return Err(damaged("other bytes of records than its buffers hold"));
        }
        let extent = self.adopt(&Extent { offset, bytes: head.bytes, kind: LIST_KIND });
        let inner = Inner {
            extent,
            id: head.id,
            figures: figures(head),
            about,
            parts,
            common,
            blocks,
            tail: tail..end,
            filter_bytes: u64::from(head.filter_bytes),
            tail_crc: head.tail_crc,
            towers: OnceLock::new(),
            named: AtomicBool::new(false),
        };
        Ok(PmList { inner: Arc::new(inner) })
    }
}

fn figures(head: &ListHead) -> Figures {
    let ListHead { entries, deletes, min_seq, max_seq, raw_bytes, record_bytes, .. } = *head;
    Figures { entries, deletes, min_seq, max_seq, raw_bytes, record_bytes }
}

//! Recovers records of buffers whose lists are lost.

use terrace_base::{Kind, Result};
use terrace_pmem::Pool;

use super::buffer::{read_head, record_in};
use super::layout::{BUFFER_HEAD_BYTES, RECORD_HEAD_BYTES, record_span};
use super::lists::BUFFER_KIND;

/// Is called with each record: key, sequence number, kind and value.
pub type EachRecord<'a> = dyn FnMut(&[u8], u64, Kind, &[u8]) -> Result<()> + 'a;

/// Gives every sound record of the buffer at `offset`, in the order in which they lie there: key, sequence number,
/// kind, value. It is not known which of them a list led to. Returns how many places were damaged.
///
/// # Errors
/// `Corruption` if the buffer's header is damaged; errors of `each`.
pub fn salvage_buffer(pool: &Pool, offset: u64, each: &mut EachRecord<'_>) -> Result<u64> {
    let (id, _, end) = read_head(pool, offset)?;
    let (mut at, end, mut damaged, mut was_sound) = (offset + BUFFER_HEAD_BYTES, offset + end, 0, true);
    while at + RECORD_HEAD_BYTES <= end {
        let record = match record_in(pool, id, at, end) {
            Ok(record) => record,
            Err(e) if e.is_of_another_version() => return Err(e),
            Err(_) => {
                damaged += u64::from(was_sound);
                was_sound = false;
                // Records begin at multiples of eight, and each knows its place.
                at += 8;
                continue;
            }
        };
        was_sound = true;
        match record.value() {
            Ok(value) => each(record.key, record.seq, record.kind, value)?,
            Err(_) => damaged += 1,
        }
        at += record_span(record.key.len(), record.value_len());
    }
    Ok(damaged)
}

impl super::Lists {
    /// Where buffers are.
    pub fn buffers(&self) -> Vec<u64> {
        self.pool().extents(BUFFER_KIND).into_iter().map(|extent| extent.offset).collect()
    }
}

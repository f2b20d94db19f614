//! A merge that reads ahead.

use terrace_base::Result;
use terrace_table::{Cursor, MergeCursor, merge};

use crate::core::Core;
use crate::core::memory::Loan;

/// A merge over the cursors that `child` makes for each of `inputs`, at its first entry. It reads ahead up to
/// `readahead` bytes in each, fewer if the memory budget is small; they count as a job's as long as the loan
/// is kept.
pub(crate) fn merge_ahead<T>(
    core: &Core,
    readahead: usize,
    inputs: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    mut child: impl FnMut(T, usize) -> Result<Box<dyn Cursor>>,
) -> Result<(MergeCursor, Loan)> {
    let inputs = inputs.into_iter();
    let readahead = core.memory.buffer(inputs.len(), readahead);
    let loan = core.memory.lend(inputs.len() * readahead);
    let children: Vec<Box<dyn Cursor>> =
        inputs.map(|input| child(input, readahead)).collect::<Result<_>>()?;
    let mut cursor = merge(children);
    cursor.seek_first()?;
    Ok((cursor, loan))
}

/// Shows `each` the first version of each key, which is the newest, from the position of `cursor` to its end.
pub(crate) fn each_newest(
    cursor: &mut dyn Cursor,
    mut each: impl FnMut(&mut dyn Cursor) -> Result<()>,
) -> Result<()> {
    let mut key: Option<Vec<u8>> = None;
    while cursor.valid() {
        if key.as_deref() != Some(cursor.key()) {
            each(cursor)?;
            let key = key.get_or_insert_default();
            key.clear();
            key.extend_from_slice(cursor.key());
        }
        cursor.next()?;
    }
    Ok(())
}

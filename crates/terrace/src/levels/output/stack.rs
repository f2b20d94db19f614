//! Operands in a merge of runs, with what they stand on.

use std::ops::RangeInclusive;

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Cursor, Kind};

use super::super::merge::Survivors;
use super::Outputs;

/// Bytes of operands that are folded together: more are folded in parts, from the oldest on, by later merges.
const MOST_STACK_BYTES: usize = 16 << 20;

/// A version of which others are made.
struct Stacked {
    seq: u64,
    kind: Kind,
    value: Bytes,
    /// Where its record lies in the pool.
    record: Option<u64>,
    /// Whether it stays as long as it is not folded.
    stays: bool,
}

impl Stacked {
    fn at<C: Cursor>(cursor: &C, stays: bool) -> Result<Stacked> {
        let (seq, kind, record) = (cursor.seq(), cursor.kind(), cursor.record());
        Ok(Stacked { seq, kind, value: cursor.value()?, record, stays })
    }
}

impl Outputs<'_> {
    /// Adds the operand at `cursor`, which stays, with what it stands on: folded, if that is here as far as nobody sees
    /// it apart from the operand, and nothing that lies outside the merge belongs in between. The cursor passes these
    /// versions.
    pub(super) fn add_stack<C: Cursor, F: Fn(&[u8], RangeInclusive<u64>) -> bool>(
        &mut self,
        cursor: &mut C,
        survivors: &mut Survivors<'_, F>,
        is_input: impl Fn(&C) -> bool,
    ) -> Result<()> {
        let (key, is_newest) = (cursor.key().to_vec(), survivors.is_newest());
        let mut stack = vec![Stacked::at(cursor, true)?];
        let first = stack[0].seq;
        // From which number on all versions must be here for it to be folded; `None` if its beginning is not.
        let mut begins: Option<u64> = None;
        let (mut is_apart, mut bytes) = (false, 0);
        loop {
            let last = stack.last().map_or(0, |last| last.seq);
            cursor.next()?;
            if !cursor.valid() || cursor.key() != key {
                begins = Some(0);
                break;
            }
            let (seq, kind) = (cursor.seq(), cursor.kind());
            if seq == last {
                // A copy that a repair has left, which may be what a merge has made of the operand.
                if kind.is_whole() {
                    survivors.keeps(&key, seq, kind);
                    stack.pop();
                    stack.push(Stacked::at(cursor, true)?);
                    begins = Some(seq);
                    cursor.next()?;
                    break;
                }
                continue;
            }
            is_apart = survivors.would_be_apart(seq);
            bytes += if kind.is_whole() { 0 } else { cursor.value_len() };
            if !is_input(cursor) || is_apart || bytes > MOST_STACK_BYTES {
                // It goes on from here as if there was nothing above.
                break;
            }
            let stays = survivors.keeps(&key, seq, kind);
            stack.push(Stacked::at(cursor, stays)?);
            if kind.is_whole() {
                begins = Some(seq);
                cursor.next()?;
                break;
            }
        }
        let is_complete = begins.is_some_and(|from| survivors.has_all(&key, from..=first));
        let folded = if is_complete { self.fold(&key, &stack) } else { None };
        let Some(value) = folded else {
            // A tombstone that hides nothing goes, as it does without operands on it.
            for Stacked { seq, kind, value, record, .. } in stack.into_iter().filter(|version| version.stays)
            {
                self.add_version(&key, (seq, kind, &value), record)?;
            }
            // What only a snapshot keeps apart is folded when that is released.
            self.keeps_old |= is_apart;
            return Ok(());
        };
        if is_newest && let Some(judge) = self.judge.as_mut().filter(|judge| judge.concerns(&key)) {
            judge.see(&key, &value);
        }
        self.add(&key, stack[0].seq, Kind::Put, &value)
    }

    /// The value that a whole stack is; `None` if it cannot be told.
    fn fold(&self, key: &[u8], stack: &[Stacked]) -> Option<Bytes> {
        let (operands, base) = match stack.split_last()? {
            (last, above) if last.kind.is_whole() => {
                (above, Some(last).filter(|last| last.kind == Kind::Put))
            }
            _ => (stack, None),
        };
        if operands.is_empty() {
            return None;
        }
        let operands: Vec<Bytes> = operands.iter().map(|operand| operand.value.clone()).collect();
        self.core.merging.fold(key, base.map(|base| base.value.clone()), &operands).ok()
    }
}

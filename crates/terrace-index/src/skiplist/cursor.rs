//! Walking a list in both directions.

use std::sync::atomic::Ordering;

use terrace_base::{Kind, Result};
use terrace_pmem::StartedRead;

use super::SkipList;
use super::layout::NODE_BYTES;
use super::read::Node;

/// A record's head and a short key.
const STARTED_BYTES: u64 = NODE_BYTES + 16;

/// A place in a list, which it keeps alive. Forward by the links; backward by a new descent.
#[derive(Clone, Debug)]
pub struct ListCursor {
    list: SkipList,
    at: u64,
    /// The record after it, on its way into the caches.
    started: Option<(u64, StartedRead)>,
}

impl SkipList {
    /// A cursor that is not on a record yet.
    pub fn cursor(&self) -> ListCursor {
        ListCursor { list: self.clone(), at: 0, started: None }
    }
}

impl ListCursor {
    /// Whether the cursor is on a record.
    pub fn valid(&self) -> bool {
        self.at != 0
    }

    /// To the first record.
    pub fn seek_first(&mut self) -> Result<()> {
        self.land(self.list.inner.after(self.list.inner.head))
    }

    /// To the last record.
    pub fn seek_last(&mut self) -> Result<()> {
        self.land(self.list.inner.last()?)
    }

    /// To the first record at or after (`key`, `seq`): of `key` the newest version of at most `seq`, else the
    /// next key.
    pub fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.land(self.list.inner.first_from(key, seq)?)
    }

    /// To the last record at or before (`key`, `seq`) in the list's order.
    pub fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        let at = match seq.checked_sub(1) {
            Some(older) => self.list.inner.last_before(key, older)?,
            None => {
                // After every version of `key` comes the next key, whose smallest is `key` and a zero byte.
                let next = [key, &[0]].concat();
                self.list.inner.last_before(&next, u64::MAX)?
            }
        };
        self.land(at)
    }

    /// To the next record; off the end, to none.
    #[expect(
        clippy::should_implement_trait,
        reason = "a cursor is no iterator: it moves both ways and can fail"
    )]
    pub fn next(&mut self) -> Result<()> {
        match self.at {
            0 => Ok(()),
            at => self.land(self.list.inner.after(at)),
        }
    }

    /// To the record before; off the beginning, to none.
    pub fn prev(&mut self) -> Result<()> {
        if self.at == 0 {
            return Ok(());
        }
        let node = self.node();
        let before = self.list.inner.last_before(node.key, node.head.seq)?;
        self.land(before)
    }

    /// The key; the cursor must be valid.
    pub fn key(&self) -> &[u8] {
        self.node().key
    }

    /// The sequence number; the cursor must be valid.
    pub fn seq(&self) -> u64 {
        self.node().head.seq
    }

    /// The sequence number that names the record's batch; the cursor must be valid.
    pub fn batch_first(&self) -> u64 {
        self.node().head.batch_first
    }

    /// The caller's byte; the cursor must be valid.
    pub fn kind(&self) -> u8 {
        self.node().head.kind
    }

    /// The kind of a version according to that byte; the cursor must be valid. A byte that is not a kind is damage.
    pub fn version_kind(&self) -> Result<Kind> {
        self.node().version_kind(&self.list.inner)
    }

    /// The value in place; the cursor must be valid.
    pub fn value(&self) -> Result<&[u8]> {
        self.list.inner.value(&self.node())
    }

    /// Bytes of the value; the cursor must be valid.
    pub fn value_len(&self) -> u64 {
        u64::from(self.node().head.vlen)
    }

    /// Reads the whole record and compares its checksum.
    pub fn verify(&self) -> Result<()> {
        self.list.inner.verify(&self.node())
    }

    fn land(&mut self, at: u64) -> Result<()> {
        if at != 0 {
            let pool = &self.list.inner.pool;
            let next = self.list.inner.node(at)?.head.next.load(Ordering::Acquire);
            match self.started.take() {
                Some((expected, started)) if expected == at => pool.await_read(started),
                _ => pool.charge_read(at, STARTED_BYTES),
            }
            // A reader in order uses this record for a while.
            self.started = (next != 0).then(|| (next, pool.start_read(next, STARTED_BYTES)));
        }
        self.at = at;
        Ok(())
    }

    fn node(&self) -> Node<'_> {
        self.list
            .inner
            .node(self.at)
            .expect("a valid cursor's record was bounds-checked when it landed there")
    }
}

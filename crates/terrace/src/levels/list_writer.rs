//! Writing lists in persistent memory, one after the other as each fills up.
//!
//! 1. All versions of a key go into the same list.
//! 2. Each output of a merge records the keys that it stands for: from the end of the previous one to the
//!    beginning of the next. So the outputs that are whole after a crash show what is left to merge.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_index::pmlist::{About, Cover, ListBuilder};
use terrace_table::{FilterBuilder, Kind, TableMeta};

use super::lists::{ListStore, MadeList};
use crate::manifest::Manifest;

/// The purpose of a series of lists.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListJob {
    /// Their level.
    pub level: u32,
    /// The merged runs; none for a flush.
    pub inputs: Vec<u64>,
    /// The keys of this part of the merge.
    pub cover: Cover,
    /// Size at which a list is full.
    pub run_bytes: u64,
}

/// Writes a series of lists.
pub(crate) struct ListWriter<'a> {
    store: &'a Arc<ListStore>,
    manifest: &'a Manifest,
    job: ListJob,
    current: Option<Open>,
    last_key: Vec<u8>,
}

struct Open {
    number: u64,
    builder: ListBuilder,
    filter: FilterBuilder,
}

/// A finished list, and the bytes that were written for it.
#[derive(Debug)]
pub(crate) struct FinishedList {
    pub meta: TableMeta,
    pub list: MadeList,
    pub written_bytes: u64,
}

impl<'a> ListWriter<'a> {
    /// A writer of lists with numbers from `manifest`.
    pub fn new(store: &'a Arc<ListStore>, manifest: &'a Manifest, job: ListJob) -> Self {
        ListWriter { store, manifest, job, current: None, last_key: Vec::new() }
    }

    /// Whether a list is being written.
    pub fn is_open(&self) -> bool {
        self.current.is_some()
    }

    /// Whether a version of `key` may go to a list of its own.
    pub fn may_cut(&self, key: &[u8]) -> bool {
        self.current.is_none() || self.last_key != key
    }

    /// Whether the list being written has reached its size.
    pub fn is_full(&self) -> bool {
        self.current.as_ref().is_some_and(|open| open.builder.bytes() >= self.job.run_bytes)
    }

    /// Adds a version, with its record's `place` if that lies in the pool already; `value` is called if it
    /// must be copied. Begins a list if there is none.
    pub fn add<V: AsRef<[u8]>>(
        &mut self,
        (key, seq, kind, vlen): (&[u8], u64, Kind, usize),
        place: Option<u64>,
        value: impl FnOnce() -> Result<V>,
    ) -> Result<()> {
        if self.current.is_none() {
            self.manifest.unseal()?;
            let number = self.manifest.take_numbers(1).start;
            let builder = self.store.lists().builder(self.store.options.style);
            self.last_key.clear();
            self.current = Some(Open { number, builder, filter: FilterBuilder::default() });
        }
        let Some(open) = &mut self.current else { return Ok(()) };
        if open.builder.entries() == 0 || self.last_key != key {
            open.filter.add(key);
            self.last_key.clear();
            self.last_key.extend_from_slice(key);
        }
        let points = match place {
            Some(at) => open.builder.point(key, seq, kind, vlen, at)?,
            None => false,
        };
        if points { Ok(()) } else { open.builder.add(key, seq, kind, value()?.as_ref()) }
    }

    /// Finishes the list being written, if there is one: it is durable and whole on return. `next` is the key
    /// that follows, if known.
    pub fn finish(&mut self, keeps_old: bool, next: Option<&[u8]>) -> Result<Option<FinishedList>> {
        let Some(Open { number, builder, filter }) = self.current.take() else { return Ok(None) };
        let to = next.map_or_else(|| self.job.cover.to.clone(), |key| Some(key.to_vec()));
        let from = std::mem::replace(&mut self.job.cover.from, next.map(<[u8]>::to_vec));
        let about = About {
            level: self.job.level,
            keeps_old,
            inputs: self.job.inputs.clone(),
            cover: Cover { from, to },
            ..About::default()
        };
        let copied = builder.copied_bytes();
        let filter = match self.store.options.filter_bits {
            0 => Vec::new(),
            bits => filter.finish(bits),
        };
        let Some(list) = builder.finish(about, &filter)? else { return Ok(None) };
        self.store.counts.copied_bytes.fetch_add(copied, Ordering::Relaxed);
        let written_bytes = copied + list.list_bytes();
        let list = self.store.made(number, list, filter);
        Ok(Some(FinishedList { meta: list.run.meta().clone(), list, written_bytes }))
    }
}

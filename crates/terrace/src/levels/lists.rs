//! Runs in persistent memory: lists of places of records ([`terrace_index::pmlist`]) with their figures and filters.
//!
//! 1. A list that the manifest names is also named in the pool's book-keeping, from the moment when the
//!    manifest has it until the manifest drops it. So what it leads to stays as long as a crash may make it
//!    reachable again.
//! 2. Opening reads only the headers of lists. Every read of a damaged list returns that error, and nothing
//!    is given back to the pool until it is repaired: nobody knows what the list led to.
//! 3. Lists that a merge had finished when the process died are kept until the merge has continued.
//! 4. No list that an opening finds is dropped before the logs are read: one that holds more than manifest
//!    and logs know was named by groups that the manifest has lost.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use terrace_base::trail::{self, Touch};
use terrace_base::{Error, Result};
use terrace_index::pmlist::{Figures, Found, ListUse, Lists, Lookup, PmList, Style};
use terrace_pmem::Marks;
use terrace_table::{Entry, Filter, TableMeta};

use crate::compaction::leveled::{ListFigures, Tiering};
use crate::manifest::{ListPlace, Manifest, State};
use crate::stats::Stats;

/// The most pieces that a list may be cut into.
const ANCHORS: u64 = 16;

/// The options of a store of lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListOptions {
    /// How records enter lists.
    pub style: Style,
    /// Which runs are lists.
    pub tiering: Tiering,
    /// Bits of filter for each key.
    pub filter_bits: u32,
}

/// The lists of an open database.
#[derive(Debug)]
pub(crate) struct ListStore {
    lists: Lists,
    pub options: ListOptions,
    runs: Mutex<BTreeMap<u64, Arc<ListRun>>>,
    /// Lists that a failed group of edits names: they stay until the manifest has decided about it.
    undecided: Mutex<Vec<Arc<ListRun>>>,
    /// Lists that an opening found and that the manifest does not name, as long as it may take that back or may have
    /// lost its end: they are treated as named.
    unnamed: Mutex<Vec<PmList>>,
    /// The unnamed lists are known to be unnecessary.
    is_proved: AtomicBool,
    /// Nothing is dropped: a list that the manifest names cannot be read.
    is_damaged: bool,
    /// The first number that no file or list had at this opening. Earlier numbers may have been reused since
    /// then.
    next_file: u64,
    unfinished: Mutex<Vec<Unfinished>>,
    /// The bytes of lists when the last attempt to empty buffers found no room.
    refused_at: AtomicU64,
    pub counts: ListCounts,
}

/// Counts since the opening.
#[derive(Debug, Default)]
pub(crate) struct ListCounts {
    pub evicted: AtomicU64,
    pub emptied: AtomicU64,
    pub resumed: AtomicU64,
    pub copied_bytes: AtomicU64,
}

/// A merge that a crash has cut short, with its finished part.
#[derive(Debug, Clone)]
pub(crate) struct Unfinished {
    pub level: u32,
    pub inputs: Vec<u64>,
    pub outputs: Vec<PmList>,
}

/// A list as a run.
pub(crate) struct ListRun {
    meta: TableMeta,
    list: Result<PmList>,
    filter: OnceLock<Option<Filter>>,
}

impl ListRun {
    /// A list as the run `number`.
    pub fn new(number: u64, list: PmList) -> Arc<ListRun> {
        let meta = meta_of(number, &list);
        Arc::new(ListRun { meta, list: Ok(list), filter: OnceLock::new() })
    }

    fn with_filter(self: Arc<Self>, filter: Vec<u8>) -> Arc<ListRun> {
        // It is none if there are to be no filters.
        let _ = self.filter.set(Filter::of(Bytes::from(filter)));
        self
    }

    pub fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// The list, or the error that prevents reading it.
    pub fn list(&self) -> Result<&PmList> {
        self.list.as_ref().map_err(Error::clone)
    }

    /// Starts loading what [`may_contain`](Self::may_contain) reads, if it is in memory.
    pub fn prefetch_filter(&self, key: &[u8]) {
        if let Some(Some(filter)) = self.filter.get() {
            filter.prefetch(key);
        }
    }

    pub fn may_contain(&self, key: &[u8]) -> Result<bool> {
        let filter = match self.filter.get() {
            Some(filter) => filter,
            None => {
                let bytes = self.list()?.filter()?;
                self.filter.get_or_init(|| Filter::of(Bytes::from(bytes)))
            }
        };
        let Some(filter) = filter else { return Ok(true) };
        let may = filter.may_contain(key);
        trail::note(|| Touch::Filter { number: Some(self.meta.number), may });
        Ok(may)
    }

    /// The newest version of `key` up to sequence number `at`, whatever the filter says.
    pub fn search(&self, key: &[u8], at: u64) -> Result<Option<Entry>> {
        Ok(self.list()?.get(key, at)?.map(|found| entry_of(key, &found)))
    }

    /// [`search`](Self::search) for each key in its list. What they read is loaded side by side.
    pub fn search_each(sought: &[(&ListRun, &[u8])], at: u64) -> Result<Vec<Option<Entry>>> {
        let lookups: Result<Vec<_>> = sought.iter().map(|(run, key)| run.list()?.lookup(key)).collect();
        let lookups = lookups?;
        lookups.iter().flatten().for_each(Lookup::prefetch_block);
        lookups.iter().flatten().for_each(Lookup::prefetch_record);
        let finished = lookups.into_iter().zip(sought).map(|(lookup, (_, key))| {
            let found = lookup.map(|lookup| lookup.finish(at)).transpose()?.flatten();
            Ok(found.map(|found| entry_of(key, &found)))
        });
        finished.collect()
    }

    pub fn anchors(&self) -> Result<Vec<(Vec<u8>, u64)>> {
        self.list()?.anchors((self.meta.entries / ANCHORS).max(1))
    }

    pub fn dram_bytes(&self) -> u64 {
        let filter = self.filter.get().and_then(Option::as_ref).map_or(0, |f| f.memory_bytes() as u64);
        filter + self.list.as_ref().map_or(0, PmList::dram_bytes)
    }
}

impl fmt::Debug for ListRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListRun").field("meta", &self.meta).field("list", &self.list).finish()
    }
}

fn entry_of(key: &[u8], found: &Found<'_>) -> Entry {
    trail::note(|| Touch::Record { bytes: (key.len() + found.value.len()) as u64 });
    Entry { seq: found.seq, kind: found.kind, value: Bytes::copy_from_slice(found.value) }
}

/// The figures of a list like those of a table: the bytes of the file are its bytes in the pool.
pub(crate) fn meta_of(number: u64, list: &PmList) -> TableMeta {
    let Figures { entries, deletes, min_seq, max_seq, raw_bytes, record_bytes } = *list.figures();
    TableMeta {
        number,
        file_bytes: list.list_bytes() + record_bytes,
        entries,
        deletes,
        smallest: list.about().smallest.clone(),
        largest: list.about().largest.clone(),
        min_seq,
        max_seq,
        raw_bytes,
    }
}

impl ListStore {
    /// Opens the lists in `pool` that `state` names, and those of merges that were cut short. Others are
    /// dropped, except those that hold more than the manifest knows: they stay until they are
    /// [proved](Self::prove) unnecessary. If the manifest may still take the state back (not `is_decided`),
    /// all stay until it cannot ([`sweep`](Self::sweep)).
    ///
    /// # Errors
    /// `InvalidFormat` if another version wrote one of them.
    pub fn open(
        lists: Lists,
        state: &State,
        options: ListOptions,
        is_decided: bool,
    ) -> Result<Arc<ListStore>> {
        // What a list leads to is known only when all of them are open.
        lists.keep_all(true);
        let (mut runs, mut is_damaged) = (BTreeMap::new(), false);
        let named = state.tables.iter().filter_map(|(number, table)| Some((*number, table, table.list?)));
        for (number, table, place) in named {
            let list = open_named(&lists, place, &table.meta);
            match &list {
                Ok(list) => list.name(),
                Err(e) if e.is_of_another_version() => return Err(e.clone()),
                Err(error) => {
                    tracing::warn!(%error, "a list cannot be read");
                    is_damaged = true;
                }
            }
            let meta = (*table.meta).clone();
            runs.insert(number, Arc::new(ListRun { meta, list, filter: OnceLock::new() }));
        }
        let in_runs = state.tables.values().map(|table| table.meta.max_seq).max().unwrap_or(0);
        let known = in_runs.max(state.flushed_seq);
        let (older, newer): (Vec<_>, Vec<_>) =
            unnamed(&lists, state).into_iter().partition(|list| list.figures().max_seq <= known);
        lists.keep_all(is_damaged);
        let mut store = ListStore {
            lists,
            options,
            runs: Mutex::new(runs),
            undecided: Mutex::default(),
            unnamed: Mutex::new(newer),
            is_damaged,
            is_proved: AtomicBool::new(false),
            next_file: state.next_file,
            unfinished: Mutex::default(),
            refused_at: AtomicU64::new(u64::MAX),
            counts: ListCounts::default(),
        };
        match is_decided && !is_damaged {
            true => *store.unfinished.get_mut() = store.cut_short(older, state),
            false => store.unnamed.get_mut().extend(older),
        }
        store.unnamed.get_mut().iter().for_each(PmList::name);
        Ok(Arc::new(store))
    }

    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    pub fn get(&self, number: u64) -> Option<Arc<ListRun>> {
        self.runs.lock().get(&number).cloned()
    }

    /// Adds a run that the manifest names.
    pub fn insert(&self, run: Arc<ListRun>) {
        self.runs.lock().insert(run.meta.number, run);
    }

    /// Removes run `number`, which the manifest no longer names, if it is a list; returns whether it was one.
    pub fn remove(&self, number: u64) -> bool {
        let Some(run) = self.runs.lock().remove(&number) else { return false };
        if let Ok(list) = &run.list {
            list.unname();
        }
        true
    }

    /// Whether there is a merge to continue, or something to drop.
    pub fn has_unfinished(&self) -> bool {
        !self.unfinished.lock().is_empty()
    }

    /// A merge that was cut short.
    pub fn take_unfinished(&self) -> Option<Unfinished> {
        self.unfinished.lock().pop()
    }

    /// Proves the unnamed lists unnecessary: manifest and logs know everything in them, up to `last`. What a
    /// flush writes was in logs before, and what a merge writes was in lists.
    ///
    /// # Errors
    /// `Corruption` if a list continues after that: the manifest has lost its end, and only a repair
    /// recovers what it named.
    pub fn prove(&self, last: u64) -> Result<()> {
        let unnamed = self.unnamed.lock();
        if let Some(list) = unnamed.iter().find(|list| list.figures().max_seq > last) {
            let found = format!(
                "a list with write {}, which the manifest has lost; run repair",
                list.figures().max_seq
            );
            let expected = format!("lists of writes up to {last}");
            return Err(self.lists.pool().corruption(list.head(), expected, found));
        }
        self.is_proved.store(!self.is_damaged, Ordering::Release);
        Ok(())
    }

    /// The merges whose inputs all exist, with the `unnamed` lists that they had finished. The others are
    /// dropped.
    fn cut_short(&self, unnamed: Vec<PmList>, state: &State) -> Vec<Unfinished> {
        let mut found: BTreeMap<(u32, Vec<u64>), Vec<PmList>> = BTreeMap::new();
        for list in unnamed {
            let about = list.about();
            let is_there = |n: &u64| *n < self.next_file && state.tables.contains_key(n);
            if !about.inputs.is_empty() && about.inputs.iter().all(is_there) {
                found.entry((about.level, about.inputs.clone())).or_default().push(list);
            }
        }
        let unfinished = |((level, inputs), outputs)| Unfinished { level, inputs, outputs };
        found.into_iter().map(unfinished).collect()
    }

    /// Drops what a failed group of edits has left, once the manifest has decided, and what an opening could
    /// not drop.
    pub fn sweep(&self, manifest: &Manifest) {
        let waiting = std::mem::take(&mut *self.undecided.lock());
        let unnamed = match self.is_proved.load(Ordering::Acquire) {
            true => std::mem::take(&mut *self.unnamed.lock()),
            false => Vec::new(),
        };
        if waiting.is_empty() && unnamed.is_empty() {
            return;
        }
        if let Err(error) = manifest.decide() {
            tracing::warn!(%error, "lists stay until the manifest has decided");
            self.unnamed.lock().extend(unnamed);
            return self.undecided.lock().extend(waiting);
        }
        let state = manifest.state();
        unnamed.iter().for_each(PmList::unname);
        self.unfinished.lock().extend(self.cut_short(unnamed, &state));
        for run in waiting.iter().filter(|run| !state.tables.contains_key(&run.meta.number)) {
            run.list.iter().for_each(PmList::unname);
        }
    }

    /// Notes that emptying buffers lacked room: it is not tried again before something else has changed that.
    pub fn note_refusal(&self) {
        self.refused_at.store(self.lists.bytes(), Ordering::Relaxed);
    }

    /// Whether emptying buffers was refused at the current size.
    pub fn was_refused(&self) -> bool {
        self.refused_at.load(Ordering::Relaxed) == self.lists.bytes()
    }

    /// The pool's bytes that lists take.
    pub fn usage(&self) -> ListUse {
        self.lists.usage()
    }

    /// The figures of each list in the manifest, as far as tiering needs them.
    pub fn figures(&self) -> Vec<ListFigures> {
        let runs = self.runs.lock();
        let figures = |run: &Arc<ListRun>| {
            let list = run.list.as_ref().ok()?;
            Some(ListFigures {
                number: run.meta.number,
                sparse_bytes: list.sparse_bytes(),
                list_bytes: list.list_bytes(),
            })
        };
        runs.values().filter_map(figures).collect()
    }

    /// Bytes of DRAM for finding records.
    pub fn dram_bytes(&self) -> u64 {
        self.runs.lock().values().map(|run| run.dram_bytes()).sum()
    }

    /// Marks the lists' memory in the pool; nothing of that is freed before `then` has returned.
    pub fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T> {
        self.lists.with_marked(marks, then)
    }

    pub fn fill_stats(&self, stats: &mut Stats) {
        let (usage, count) = (self.usage(), |count: &AtomicU64| count.load(Ordering::Relaxed));
        let runs = self.runs.lock();
        stats.lists.lists = runs.len() as u64;
        stats.lists.entries = runs.values().map(|run| run.meta.entries).sum();
        stats.lists.bytes = usage.bytes;
        stats.lists.live_bytes = usage.live;
        stats.lists.bound = usage.limit;
        stats.lists.evicted = count(&self.counts.evicted);
        stats.lists.emptied = count(&self.counts.emptied);
        stats.lists.resumed = count(&self.counts.resumed);
        stats.lists.copied_bytes = count(&self.counts.copied_bytes);
        stats.dram.index = runs.values().map(|run| run.dram_bytes()).sum();
        stats.dram.allocator = self.lists.pool().dram_bytes();
    }

    /// A finished list, as a run that is not in the manifest yet.
    pub fn made(self: &Arc<Self>, number: u64, list: PmList, filter: Vec<u8>) -> MadeList {
        MadeList { run: ListRun::new(number, list).with_filter(filter), store: self.clone() }
    }

    /// The same for one that was found whole.
    pub fn adopted(self: &Arc<Self>, number: u64, list: PmList) -> MadeList {
        MadeList { run: ListRun::new(number, list), store: self.clone() }
    }
}

/// A whole list that the manifest does not name yet. Dropping this removes it unless it is kept.
#[derive(Debug)]
pub(crate) struct MadeList {
    pub run: Arc<ListRun>,
    store: Arc<ListStore>,
}

impl MadeList {
    /// Its place.
    pub fn place(&self) -> ListPlace {
        let list = self.run.list.as_ref();
        list.map_or(ListPlace { head: 0, id: 0 }, |list| ListPlace { head: list.head(), id: list.id() })
    }

    /// It stays: the manifest has it.
    pub fn keep(self) {
        self.run.list.iter().for_each(PmList::name);
    }

    /// It stays until the manifest has decided about a failed group that names it.
    pub fn keep_until_decided(self) {
        // A crash, or this process, would find it again: it counts as named until then.
        self.run.list.iter().for_each(PmList::name);
        self.store.undecided.lock().push(self.run);
    }
}

fn open_named(lists: &Lists, place: ListPlace, meta: &TableMeta) -> Result<PmList> {
    let list = lists.open(place.head)?;
    if list.id() != place.id || meta_of(meta.number, &list) != *meta {
        let pool = lists.pool();
        return Err(pool.corruption(place.head, "the list that the manifest names", "another list"));
    }
    Ok(list)
}

/// The whole lists that nothing names.
fn unnamed(lists: &Lists, state: &State) -> Vec<PmList> {
    let named: Vec<u64> = state.tables.values().filter_map(|table| Some(table.list?.head)).collect();
    let others = lists.heads().into_iter().filter(|head| !named.contains(head));
    others.filter_map(|head| lists.open(head).ok()).collect()
}

//! SPTree: a persistent range index whose inner nodes are in DRAM and whose leaves are in PM
//! (Spot-On, chapter 4).
//!
//! ```text
//! DRAM   adaptive radix tree over low keys                        `art`
//!        middle nodes: range, filter, tags, bitmap, write buffer  `mnode`, `buffer`
//! PM     leaves of 64 entries in a chain                          `layout`, `leaf`
//!        FAST&FAIR tree from low keys to leaves, for the next open `top`
//!        logs of what is in write buffers                         `logs`, `pending`, `replay`
//! ```
//!
//! A search goes through DRAM to the one slot in PM that has its key's tag, or, mostly, to none. A write stores
//! one slot and then one word.
//!
//! Thread safety: every method may be called from any thread at any time. Readers take no locks (`mnode`).
//! Writers lock one node, a split the new one besides, a merge two from left to right.
//!
//! Invariants:
//!
//! 1. A leaf's range begins at its low key, which never changes, and ends where the next leaf's begins. The first
//!    leaf begins at the empty key and is there as long as the tree.
//! 2. One 8-byte store makes each change of a leaf, each split and each merge; everything that it makes reachable is
//!    durable before. State that remains to be cleaned up lies in the same cache line (`split`, `merge`).
//! 3. Readers see a change when it is durable.
//! 4. Every leaf that the top layer in PM names is in the chain; other leaves of the chain are found by walking right.
//! 5. Every entry of a write buffer is in a log that an open reads, until the leaf has it durably (`logs`, `pending`).
//! 6. A leaf has room for its buffer's entries, and the pool for the records of their keys: removals still work in a
//!    full pool (`buffer`).

mod arena;
mod art;
mod bound;
mod buffer;
mod check;
mod jobs;
mod key;
mod layout;
mod leaf;
mod logs;
mod mark;
mod merge;
mod mnode;
mod moves;
mod order;
mod page;
mod pending;
mod read;
mod rebuild;
mod replay;
mod scan;
mod split;
mod together;
mod top;
mod write;

use std::fmt;
use std::ops::Bound as RangeBound;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Weak};

use terrace_base::exec::{Executor, ThreadPool};
use terrace_base::{Error, Result};
use terrace_pmem::{Kind, Marks, Opened, POff, Pool};

use crate::FastFair;
use crate::kinds;
use crate::limbo::Limbo;
use crate::ordered::OrderedIndex;
use crate::point::{PointIndex, Wish, admit_key};
use crate::reserved::Reserved;
use crate::scan_batch::ScanBatch;

use arena::{Arena, Shape};
use art::{Art, Node};
use bound::Bytes;
use jobs::Jobs;
pub use jobs::Still;
use layout::{TREE_HEADER_BYTES, TreeHeader};
use mnode::Mnode;
use pending::Pending;
use rebuild::Rebuild;
use top::Waiting;

/// Entries of a leaf. One slot stays free, so that the new word of a key needs no split.
pub const LEAF_ENTRIES: usize = layout::SLOTS;

/// Most entries of a write buffer.
pub const BUFFER_ENTRIES: usize = buffer::MAX_ENTRIES;

/// Options of a tree. None of them is stored in PM: each open may choose differently.
#[derive(Debug, Clone)]
pub struct SpOptions {
    /// Whether new entries go to write buffers in DRAM and a log, and to their leaves many at a time: a third of
    /// the blocks written, for more DRAM and a replay at open. Default: no.
    pub buffered: bool,
    /// Entries of a write buffer, 1 to [`BUFFER_ENTRIES`], which is the default.
    pub buffer_entries: usize,
    /// Bytes of log after which a new one is begun, or half as much as the buffers of all leaves hold, if that is more.
    /// Default: 16 MiB.
    pub log_bytes: u64,
    /// Logs that entries are spread over by their keys, 1 to 32: the first read after a crash has to go through
    /// one of them. Default: 16.
    pub logs: usize,
    /// Bits of the filter for each entry of a leaf: 1, 2 or 4. Beside the tags, which are in DRAM too, of keys that
    /// are not there about 8, 5 or 3 in a hundred get through to PM. Default: 1.
    pub filter_bits: usize,
    /// Entries after which a leaf is split, 4 to [`LEAF_ENTRIES`], which is the default. Less is for tests.
    pub leaf_entries: usize,
    /// The executor of background work; `None`, the default: two threads of the tree's own.
    pub executor: Option<Arc<dyn Executor>>,
}

impl Default for SpOptions {
    fn default() -> Self {
        SpOptions {
            buffered: false,
            buffer_entries: BUFFER_ENTRIES,
            log_bytes: 16 << 20,
            logs: logs::LOGS,
            filter_bits: 1,
            leaf_entries: LEAF_ENTRIES,
            executor: None,
        }
    }
}

impl SpOptions {
    fn admit(&self) -> Result<()> {
        let right = (1..=BUFFER_ENTRIES).contains(&self.buffer_entries)
            && (1..=logs::MAX_LOGS).contains(&self.logs)
            && (4..=LEAF_ENTRIES).contains(&self.leaf_entries)
            && [1, 2, 4].contains(&self.filter_bits);
        if right { Ok(()) } else { Err(Error::invalid(format!("options of an SPTree: {self:?}"))) }
    }
}

/// Background threads of a tree that brings its own.
const THREADS: usize = 2;

/// A persistent range index with its inner nodes in DRAM.
///
/// ```
/// use terrace_index::{PointIndex, SpOptions, SpTree};
/// use terrace_pmem::{Pool, PoolOptions};
/// let dir = tempfile::tempdir().unwrap();
/// let options = PoolOptions { size: 1 << 20, prefault: false, ..PoolOptions::default() };
/// let pool = Pool::create(&dir.path().join("pool"), &options)?;
/// let tree = SpTree::create(&pool, "tree", &SpOptions::default())?;
/// tree.insert(b"key", 7)?;
/// assert_eq!(tree.get(b"key")?, Some(7));
/// # Ok::<(), terrace_base::Error>(())
/// ```
pub struct SpTree {
    core: Arc<Core>,
}

/// The tree itself; background work holds on to it weakly.
struct Core {
    me: Weak<Core>,
    pool: Pool,
    header_off: u64,
    /// The first leaf.
    first: u64,
    /// Whether the session before ended without closing the pool.
    unclean: bool,
    /// Whether nothing may be stored in the pool.
    read_only: bool,
    /// Entries after which a leaf is split.
    capacity: usize,
    art: Art,
    arena: Arc<Arena>,
    limbo: Limbo<Garbage>,
    top: FastFair,
    waiting: Waiting,
    rebuild: Rebuild,
    pending: Pending,
    merges: merge::Merges,
    keys: AtomicI64,
    /// Whether a job is flushing buffers for the old log set.
    flushing: AtomicBool,
    logs: Option<logs::Logs>,
    jobs: Arc<Jobs>,
    executor: Arc<dyn Executor>,
}

/// Something unlinked.
enum Garbage {
    /// A slot of the pool.
    Slot(Kind, u64),
    /// The address of a node, which is its arena's.
    Mnode(usize),
    Art(Node),
    Bytes(Bytes),
    /// The address of a buffer's boxed key.
    Key(usize),
}

impl SpTree {
    /// Makes an empty tree under the root `root_name`, and its top layer under that name with `.top` behind it.
    pub fn create(pool: &Pool, root_name: &str, options: &SpOptions) -> Result<Self> {
        options.admit()?;
        let mut reserved = Reserved::new(pool);
        let header = reserved.take(kinds::SPTREE_HEADER, TREE_HEADER_BYTES)?;
        let first = reserved.take(kinds::SPTREE_LEAF, layout::LEAF_BYTES)?;
        let top = FastFair::make(pool, &mut reserved)?;
        pool.write(first, &layout::encode_leaf(pool.place(first), 0, 0, 0, &[]));
        pool.flush(first, layout::LEAF_BYTES);
        pool.write(header, &layout::encode_header(pool.place(header), first, 0));
        pool.flush(header, TREE_HEADER_BYTES);
        reserved.activate();
        let core = Core::new(pool, (header, first), top, Rebuild::from(first), options);
        core.finish_rebuild();
        // The roots that an open needs come first; the logs, whose slots the header names, come last.
        core.top.name(&mut reserved, &top_name(root_name))?;
        reserved.name(root_name, header)?;
        core.open_logs()?;
        reserved.keep();
        Ok(SpTree { core })
    }

    /// Attaches to the tree under the root `root_name`, after a crash as after a clean close. It serves at once; its
    /// layers in DRAM are rebuilt in the background, and so are write buffers from their logs. In a pool that is open
    /// for reading only it has no buffers, stores nothing, and must have been closed.
    pub fn open(pool: &Pool, root_name: &str, options: &SpOptions) -> Result<Self> {
        options.admit()?;
        let header = pool
            .root(root_name)?
            .ok_or_else(|| Error::corruption(pool.path(), 0, format!("a root {root_name}"), "none"))?;
        let head = pool.get::<TreeHeader>(POff::new(header))?;
        let (magic, own) = (head.magic.to_le_bytes(), layout::MAGIC.to_le_bytes());
        let is_of = |place| head.crc == layout::header_crc(head.magic, place, head.first);
        // Version 1 covered the offset.
        let is_sound = is_of(pool.place(header));
        if magic != own && magic[..7] == own[..7] && (is_sound || is_of(header)) {
            return Err(Error::other_version(
                pool.path(),
                format!("SPTree version {}", magic[7]),
                format!("SPTree version {}", own[7]),
            ));
        }
        if magic != own || !is_sound {
            return Err(pool.corruption(header, "an SPTree's header", "other bytes"));
        }
        let top = FastFair::open(pool, &top_name(root_name))?;
        let core = Core::new(pool, (header, head.first), top, Rebuild::from(head.first), options);
        core.open_logs()?;
        for _ in 0..THREADS {
            core.spawn(Core::work_on_rebuild);
        }
        if !core.pending.is_done() {
            for _ in 0..THREADS {
                core.spawn(Core::replay_in_background);
            }
        }
        Ok(SpTree { core })
    }

    /// Whether new entries go to write buffers.
    pub fn is_buffered(&self) -> bool {
        self.core.is_buffered()
    }

    /// Waits until the layers in DRAM are complete, and helps; an error if a leaf could not be read.
    pub fn rebuild(&self) -> Result<()> {
        self.core.finish_rebuild();
        self.core.rebuild.failure().map_or(Ok(()), Err)?;
        self.core.replay_all()
    }

    /// Waits until the layers in DRAM are complete and nothing is left to be done in the background. Writers are at
    /// rest.
    pub fn rest(&self) -> Result<()> {
        self.rebuild()?;
        self.core.enter_waiting();
        self.core.jobs.rest();
        Ok(())
    }

    /// Waits for running background work, and defers later work while the guard exists.
    pub fn still(&self) -> Still<'_> {
        self.core.still()
    }

    /// Leaves in the tree, by a walk; for figures.
    pub fn leaves(&self) -> Result<u64> {
        let _here = self.core.limbo.enter();
        let mut leaves = 0;
        self.core.for_each_node(&mut |_, _, _| {
            leaves += 1;
            Ok(())
        })?;
        Ok(leaves)
    }

    /// Merges leaves that have room for each other, beside readers and writers; an error if one could not be read.
    pub fn shrink(&self) -> Result<()> {
        self.rebuild()?;
        self.core.merge_all()
    }

    /// Gives back unlinked memory, as far as present readers allow; returns whether that is everything.
    pub fn drain(&self) -> bool {
        self.core.limbo.drain();
        self.core.limbo.is_empty() && self.core.top.drain()
    }
}

impl Drop for SpTree {
    fn drop(&mut self) {
        self.core.jobs.close();
        self.core.limbo.drain();
    }
}

impl Core {
    fn new(
        pool: &Pool,
        (header_off, first): (u64, u64),
        top: FastFair,
        rebuild: Rebuild,
        options: &SpOptions,
    ) -> Arc<Core> {
        // The top layer is written to in the background and read at opens alone.
        top.set_shortcut_limit(0);
        let read_only = pool.is_read_only();
        let buffered = options.buffered && !read_only;
        let buffer_words = if buffered { buffer::WORDS } else { 0 };
        let arena = Arc::new(Arena::new(Shape { filter_words: options.filter_bits, buffer_words }));
        let (stock, free) = (arena.clone(), pool.clone());
        let limbo = Limbo::new(move |garbage| match garbage {
            // Memory that cannot be freed is unreachable, and the pool's check finds it.
            Garbage::Slot(kind, off) => drop(free.free(off, kind)),
            // SAFETY: retired once, when nothing led there any more, and those present then have left.
            Garbage::Mnode(node) => unsafe { stock.give(node as *mut Mnode) },
            // SAFETY: as above.
            Garbage::Art(node) => unsafe { node.free() },
            // SAFETY: as above.
            Garbage::Bytes(bytes) => unsafe { bytes.free() },
            // SAFETY: as above.
            Garbage::Key(key) => unsafe { buffer::free_key(key) },
        });
        let own = || -> Arc<dyn Executor> { Arc::new(ThreadPool::new("sptree", THREADS)) };
        Arc::new_cyclic(|me| Core {
            me: me.clone(),
            pool: pool.clone(),
            header_off,
            first,
            unclean: !matches!(pool.opened(), Opened::Created | Opened::Clean),
            read_only,
            capacity: options.leaf_entries.min(layout::SLOTS - 1),
            art: Art::new(),
            arena,
            limbo,
            top,
            waiting: Waiting::default(),
            rebuild,
            pending: Pending::new(options.logs),
            merges: merge::Merges::new(),
            keys: AtomicI64::new(0),
            flushing: AtomicBool::new(false),
            logs: buffered.then(|| logs::Logs::new(options)),
            jobs: jobs::registry(),
            executor: options.executor.clone().unwrap_or_else(own),
        })
    }

    /// The node at an address that the search tree holds. The caller is present, so it is not freed.
    fn node_at(&self, address: usize) -> &Mnode {
        // SAFETY: the search tree holds addresses of this arena's nodes alone; they live as long as it does.
        unsafe { &*(address as *const Mnode) }
    }
}

impl Drop for Core {
    /// Slots that are reserved for keys in buffers go back to the pool, which may live on.
    fn drop(&mut self) {
        self.arena.for_each(|node| self.give_back_reserved(&buffer::entries(node, &self.arena.shape)));
    }
}

impl PointIndex for SpTree {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        admit_key(key)?;
        let _here = self.core.limbo.enter();
        self.core.get(key)
    }

    fn get_many(&self, keys: &[&[u8]], words: &mut Vec<Option<u64>>) -> Result<()> {
        keys.iter().try_for_each(|key| admit_key(key))?;
        let _here = self.core.limbo.enter();
        self.core.get_together(keys, words)
    }

    fn update(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>> {
        admit_key(key)?;
        self.core.apply(key, wish)
    }

    /// Exact whenever writers are at rest. Waits until the layers in DRAM are complete.
    fn len(&self) -> u64 {
        self.core.count()
    }

    fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.core.mark_all(marks)
    }

    fn check(&self) -> Result<Vec<String>> {
        self.core.check_all()
    }

    fn dram_bytes(&self) -> u64 {
        self.core.dram_bytes()
    }

    fn pm_bytes(&self) -> u64 {
        self.core.pm_bytes()
    }

    /// Writes the buffers' entries to the leaves, and updates the top layer.
    fn close(&self) -> Result<()> {
        self.core.finish_rebuild();
        self.core.flush_all()?;
        self.core.enter_waiting();
        self.core.jobs.rest();
        self.core.limbo.drain();
        self.core.top.close()
    }
}

impl OrderedIndex for SpTree {
    fn scan(&self, from: RangeBound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()> {
        let end = out.len().saturating_add(limit);
        self.core.replay_all()?;
        let _here = self.core.limbo.enter();
        if reverse { self.core.scan_down(from, end, out) } else { self.core.scan_up(from, end, out) }
    }
}

impl fmt::Debug for SpTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpTree").field("header", &self.core.header_off).finish()
    }
}

fn top_name(root_name: &str) -> String {
    format!("{root_name}.top")
}

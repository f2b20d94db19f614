//! A pool: one mapped medium with a superblock, roots, an allocator and statistics.
//!
//! Thread safety: a [`Pool`] is a cheap handle, all of whose methods may be called from any thread. The pool orders
//! nothing between threads by itself: bytes that one thread is writing belong to that thread until it has published
//! them, by [`Pool::publish`] or its kin, and published bytes are changed by 8-byte stores alone. The soundness of the
//! plain stores rests on that contract ([`Pool::write`], [`Pool::copy_flush`]).

mod create;
mod digests;
mod format;
mod open;
mod options;
mod place;
mod roots;
mod state;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use terrace_base::{Error, Result};

use crate::alloc::Allocator;
use crate::layout::Superblock;
use crate::media::{Gate, Granularity, Media};
use crate::stats::{PmStats, Recorder};

pub use digests::{CLOSED_WITH, Touching};
pub use format::BLANK;
pub use options::{Known, MediaRequest, PoolOptions};
pub use store::StartedRead;

/// The outcome of opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opened {
    /// The pool was made by this call.
    Created,
    /// The pool had been closed in order.
    Clean,
    /// Its process ended without closing it; since then the machine was not restarted, and the file was not mounted
    /// anew or copied and did not fail to be written back: no store is lost.
    SameBoot,
    /// The machine went down while the pool was open, or another of these events has happened, and its media do not
    /// survive that: its contents mean nothing. Allocation in it fails; make it again.
    Torn,
    /// The machine went down while the pool was open; drained stores are there.
    Crashed,
}

/// A persistent-memory pool; cheap to clone. Dropping the last handle without [`close`](Pool::close) leaves it
/// as a crash of the process would.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    base: *mut u8,
    gate: Gate,
    /// Whether reads cost something on this medium.
    charges_reads: bool,
    /// Bytes in use by the pool, a multiple of the extent; never shrinks.
    len: AtomicU64,
    /// Bytes that may be used without further checks: `len`, or 0 while some unit is not verified.
    reach: AtomicU64,
    pub(crate) digests: digests::Digests,
    pub(crate) stats: Recorder,
    pub(crate) alloc: Allocator,
    media: Arc<dyn Media>,
    name: PathBuf,
    max_size: u64,
    superblock: Superblock,
    opened: Opened,
    generation: u64,
    /// The pool's state slots; see `state`.
    session: Mutex<state::Session>,
    /// A growth could not be synced.
    is_doubted: AtomicBool,
    /// Held while the medium grows, and until a failure is known by `is_doubted`. Who holds it waits for no lock of
    /// the pool.
    growing: Mutex<()>,
    /// Whether the session only reads.
    read_only: bool,
    /// A debt that was noted since the pool was opened, or found by one that cannot reclaim.
    unreclaimed: AtomicBool,
    /// Closed in order: nothing is stored any more.
    over: AtomicBool,
    /// Whether readers may not store even what is never flushed; see [`Pool::touching`].
    still: RwLock<bool>,
    /// Held exclusively to change roots.
    roots: RwLock<()>,
}

// SAFETY: `base` is the address of the mapping that `media` owns and keeps in place; everything else is Send.
unsafe impl Send for Inner {}
// SAFETY: shared access to the mapping follows the pool's contract (module head); everything else is Sync.
unsafe impl Sync for Inner {}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.inner.name)
            .field("size", &self.size())
            .field("opened", &self.inner.opened)
            .field("media", &self.inner.media.describe())
            .finish()
    }
}

impl Pool {
    /// The outcome of opening.
    pub fn opened(&self) -> Opened {
        self.inner.opened
    }

    /// Counts the opens of this pool: a durable number that no earlier session had.
    pub fn generation(&self) -> u64 {
        self.inner.generation
    }

    /// Whether something was stored in it since it was opened.
    pub fn has_changed(&self) -> bool {
        self.inner.digests.has_changed(self.size())
    }

    /// The file or device, or the name the medium was given.
    pub fn path(&self) -> &Path {
        &self.inner.name
    }

    /// Bytes in the pool now.
    pub fn size(&self) -> u64 {
        self.inner.len.load(Ordering::Acquire)
    }

    /// Bytes it may grow to.
    pub fn max_size(&self) -> u64 {
        self.inner.max_size
    }

    /// The unit in which extents are allocated.
    pub fn extent_bytes(&self) -> u64 {
        self.inner.superblock.extent_bytes
    }

    /// The pool's identity, given at creation.
    pub fn uuid(&self) -> [u8; 16] {
        self.inner.superblock.uuid
    }

    /// The number of a place: it is unique in this pool, and equal to one in another pool only by chance. Checks that
    /// cover it detect bytes that were written elsewhere.
    #[inline]
    pub fn place(&self, offset: u64) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.inner.superblock.uuid;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]).wrapping_add(offset)
    }

    /// The pool's medium.
    pub fn media(&self) -> &dyn Media {
        &*self.inner.media
    }

    /// Whether it was made on an ordinary file, wherever it lies now.
    pub fn was_made_in_file(&self) -> bool {
        self.inner.superblock.is_of_pages()
    }

    /// How stores are flushed to be durable.
    pub fn granularity(&self) -> Granularity {
        self.inner.media.granularity()
    }

    /// Whether reads cost something on this medium. Where they do not, code that reads at the speed of caches need not
    /// [charge](Self::charge_read) them one by one.
    #[inline]
    pub fn charges_reads(&self) -> bool {
        self.inner.charges_reads
    }

    /// The pool in plain words.
    pub fn describe(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        format!(
            "{}: {:.1} of {:.1} MiB used, may grow to {:.0} MiB; {}",
            self.inner.name.display(),
            mib(self.used_bytes()),
            mib(self.size()),
            mib(self.inner.max_size),
            self.inner.media.describe()
        )
    }

    /// Stores and reads since the pool was opened.
    pub fn stats(&self) -> PmStats {
        self.inner.stats.snapshot()
    }

    /// Makes everything stored so far durable by the medium's own means: `msync` where drains are not enough. Once that
    /// has failed the pool is not trusted any more: a later success means nothing, as the system may have dropped pages
    /// that it could not write.
    pub fn sync(&self) -> Result<()> {
        self.sync_in(&mut self.inner.session.lock())
    }

    fn sync_in(&self, session: &mut state::Session) -> Result<()> {
        self.drain();
        if self.inner.media.power_safe() {
            return Ok(());
        }
        self.check_trusted(session)?;
        self.inner.media.sync().inspect_err(|_| self.distrust_in(session))?;
        // A growth beside it may have been told what this sync was not: then it began before this sync has ended, and
        // is waited for.
        drop(self.inner.growing.lock());
        self.check_trusted(session)
    }

    fn check_trusted(&self, session: &mut state::Session) -> Result<()> {
        self.keep_doubt(session);
        if session.is_distrusted() {
            let failed = std::io::Error::other("an earlier attempt has failed");
            return Err(Error::io(&self.inner.name, "sync", failed));
        }
        Ok(())
    }

    /// Has the medium grow to `len` bytes.
    pub(crate) fn grow_media(&self, len: u64) -> Result<()> {
        let _one = self.inner.growing.lock();
        self.try_to_keep_doubt();
        self.inner.media.grow(len).inspect_err(|why| self.doubt_after(why))
    }

    /// Notes that a growth could not be synced: it may be how the system tells that it has lost pages, and it tells
    /// that once.
    fn doubt_after(&self, why: &Error) {
        let is_sync = matches!(why, Error::Io { operation: "sync", .. });
        if is_sync && !self.inner.media.power_safe() {
            self.inner.is_doubted.store(true, Ordering::Release);
            self.try_to_keep_doubt();
        }
    }

    /// [Keeps the doubt](Self::keep_doubt) unless somebody has the session, who may wait for a lock of the caller's.
    /// Whoever syncs looks at the doubt then, and so does the next growth.
    fn try_to_keep_doubt(&self) {
        if self.inner.is_doubted.load(Ordering::Acquire)
            && let Some(mut session) = self.inner.session.try_lock()
        {
            self.keep_doubt(&mut session);
        }
    }

    /// Notes a [doubt](Self::doubt_after) in the pool, so that the next opening knows of it.
    fn keep_doubt(&self, session: &mut state::Session) {
        if self.inner.is_doubted.load(Ordering::Acquire) {
            self.distrust_in(session);
        }
    }

    /// Whether the system could not write all of the pool back, as far as it has told: the next opening will not trust
    /// what is in it.
    pub fn is_doubtful(&self) -> bool {
        self.inner.is_doubted.load(Ordering::Acquire)
    }

    fn distrust_in(&self, session: &mut state::Session) {
        self.inner.is_doubted.store(true, Ordering::Release);
        if let Ok(raw) = format::Raw::new(&*self.inner.media, &self.inner.name) {
            session.distrust(&raw);
        }
    }

    /// An [`Error::Corruption`] in this pool.
    pub fn corruption(&self, offset: u64, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::corruption(&self.inner.name, offset, expected, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::Kind;
    use crate::media::MemMedia;

    /// A doubt that comes while somebody has the session is kept by the next growth.
    #[test]
    fn a_doubt_that_could_not_be_kept_is_kept_later() {
        let options = PoolOptions { size: 1 << 20, extent_bytes: 4096, ..PoolOptions::default() };
        let media = MemMedia::new(options.size, 4 << 20, Granularity::Page).expect("memory");
        let pool = Pool::create_on(Arc::new(media), Path::new("pool"), &options).expect("a pool");
        let session = pool.inner.session.lock();
        assert!(!pool.is_read_only(), "asking takes no lock");
        let told = Error::io(pool.path(), "sync", std::io::Error::other("lost"));
        assert!(!pool.is_doubtful());
        pool.doubt_after(&told);
        assert!(pool.is_doubtful() && !session.is_distrusted());
        drop(session);
        let size = pool.size();
        while pool.size() == size {
            pool.reserve_extent(Kind(3), 64 << 10).expect("room");
        }
        assert!(pool.inner.session.lock().is_distrusted());
    }
}

//! Opening and closing a pool.
//!
//! Opening reads the superblock, the state slots, the extent table and the slabs' heads and bitmaps; never the
//! objects. It makes the new session durable before anything else can change, so that a crash at any later
//! moment is known for one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use terrace_base::{Error, Result};
use zerocopy::IntoBytes;

use super::create::map;
use super::format::{self, Raw};
use super::state::{self, Previous, Session};
use super::{Inner, Opened, Pool, PoolOptions};
use crate::alloc::{Allocator, Problem};
use crate::layout::{SIZE_WORD_AT, SUPERBLOCK_AT, Superblock};
use crate::media::{Gate, Granularity, Media};
use crate::stats::Recorder;
use crate::word::{self, Tag};

/// What a pool is put together from.
pub(super) struct Parts {
    pub superblock: Superblock,
    pub size: u64,
    pub opened: Opened,
    pub session: Session,
    pub unreclaimed: bool,
}

impl Pool {
    /// Opens the pool at `path`, a file or a device, and locks it.
    ///
    /// Errors: [`Error::Locked`]; [`Error::InvalidFormat`] for what is no pool, or one of another version;
    /// [`Error::NotClosed`] to read one only that was not closed in order; [`Error::Corruption`]. A pool that a power cut has torn opens with [`Opened::Torn`], or as corruption
    /// if not even its header is whole.
    pub fn open(path: &Path, options: &PoolOptions) -> Result<Pool> {
        // Mapping makes files; opening must not.
        std::fs::metadata(path).map_err(|e| Error::io(path, "open", e))?;
        Self::open_on(map(path, path, 0, options)?, path, options)
    }

    /// Opens the pool on a medium. `name` stands for it in messages.
    pub fn open_on(media: Arc<dyn Media>, name: &Path, options: &PoolOptions) -> Result<Pool> {
        let raw = Raw::new(&*media, name)?;
        let superblock = format::read_superblock(&raw, name)?;
        let previous = Previous::read(&raw, name)?;
        let boot = state::boot_hash(options.boot_id.as_deref());
        let opened = previous.verdict(boot);
        let mut session = Session::after(&previous, opened, boot, media.power_safe());
        if options.read_only {
            if opened != Opened::Clean {
                return Err(Error::NotClosed { path: name.to_path_buf() });
            }
            session = session.read_only();
        }
        let size = match format::read_size(&raw, &superblock, media.len(), name) {
            Err(_) if options.salvage => media.len() / superblock.extent_bytes * superblock.extent_bytes,
            size => size?,
        };
        let parts = Parts { superblock, size, opened, session, unreclaimed: previous.unreclaimed() };
        if opened == Opened::SameBoot && media.power_safe() && media.granularity() == Granularity::CacheLine {
            // The dead process may have stored what it did not flush. This session sees it and will build on
            // it, so it must not be taken back by a later power cut.
            media.sync()?;
        }
        let pool = Pool::assemble(media.clone(), name, options, parts)?;
        // Written last, so that a damaged pool is left as it was found.
        if !options.salvage {
            session.write(&raw)?;
        }
        Ok(pool)
    }

    /// Puts a pool together and loads its allocator.
    pub(super) fn assemble(
        media: Arc<dyn Media>,
        name: &Path,
        options: &PoolOptions,
        parts: Parts,
    ) -> Result<Pool> {
        let xplines = options.count_xplines && media.granularity() != Granularity::Page;
        let pool = Pool {
            inner: Arc::new(Inner {
                base: media.base(),
                gate: media.gate(),
                charges_reads: media.gate() == Gate::Dispatch,
                len: AtomicU64::new(parts.size),
                stats: Recorder::new(xplines),
                alloc: Allocator::empty(&parts.superblock),
                name: name.to_path_buf(),
                max_size: if options.salvage { parts.size } else { options.max_size.max(parts.size) }
                    .min(media.capacity()),
                media,
                superblock: parts.superblock,
                opened: parts.opened,
                generation: parts.session.generation(),
                session: Mutex::new(parts.session),
                unreclaimed: AtomicBool::new(parts.unreclaimed),
                roots: RwLock::new(()),
            }),
        };
        if options.salvage {
            pool.load_what_is_sound();
        } else if parts.opened != Opened::Torn {
            pool.load_allocator(parts.unreclaimed)?;
        }
        Ok(pool)
    }

    /// Closes the pool in order: everything stored is durable, and the next opening is [`Opened::Clean`]. The
    /// caller has stopped changing it. Closing again does nothing; neither does closing a torn pool.
    pub fn close(&self) -> Result<()> {
        let mut session = self.inner.session.lock();
        if session.is_closed() {
            return Ok(());
        }
        self.inner.media.closed();
        self.sync()?;
        let raw = Raw::new(&*self.inner.media, &self.inner.name)?;
        session.close(self.needs_reclaim(), &raw)
    }

    /// Whether it was opened to be read only: then nobody stores to it, not even locks. The next session will have
    /// this one's generation.
    pub fn is_read_only(&self) -> bool {
        self.inner.session.lock().is_read_only()
    }

    /// Whether something active when the pool was opened may belong to nobody: see [`Pool::reclaim`].
    pub fn needs_reclaim(&self) -> bool {
        self.inner.unreclaimed.load(Ordering::Acquire)
    }

    /// Says that something active will belong to nobody when this session is over. The close remembers it for the
    /// next session's [`reclaim`](Pool::reclaim).
    pub fn leave_unreclaimed(&self) {
        self.inner.unreclaimed.store(true, Ordering::Release);
    }

    /// Whether the header on the medium still is what was opened.
    pub(crate) fn check_header(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for at in SUPERBLOCK_AT {
            if self.copy_out::<128>(at) != *self.inner.superblock.as_bytes() {
                problems.push(Problem::new(at, "superblock copy changed while in use"));
            }
        }
        let stored = u64::from_le_bytes(self.copy_out(SIZE_WORD_AT));
        let units = word::unseal(Tag::Size, SIZE_WORD_AT, stored);
        if units.map(|u| u * self.extent_bytes()) != Some(self.size()) {
            problems.push(Problem::new(SIZE_WORD_AT, format!("size word is {stored:#018x}")));
        }
        problems
    }

    pub(crate) fn reclaimed(&self) {
        self.inner.unreclaimed.store(false, Ordering::Release);
    }
}

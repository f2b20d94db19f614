//! Opening and closing a pool.
//!
//! Opening reads the superblock, the state slots, the extent table and the slabs' heads and bitmaps; never the objects.
//! It makes the new session durable before anything else can change, so that a crash at any later moment is recognised.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use terrace_base::{Error, Result};
use zerocopy::IntoBytes;

use super::create::map;
use super::digests::Digests;
use super::format::{self, Raw};
use super::state::{self, Previous, Session};
use super::{Inner, Known, Opened, Pool, PoolOptions};
use crate::alloc::{Allocator, Problem};
use crate::layout::{ROOTS_AT, SIZE_WORD_AT, STATE_AT, SUPERBLOCK_AT, Superblock};
use crate::media::{Gate, Granularity, Media};
use crate::stats::Recorder;
use crate::word::{self, Tag};

/// The parts of a pool.
pub(super) struct Parts {
    pub superblock: Superblock,
    pub size: u64,
    pub opened: Opened,
    pub session: Session,
    /// The digest of a clean close; 0 for none.
    pub digest: u64,
    pub unreclaimed: bool,
}

impl Pool {
    /// Opens the pool at `path`, a file or a device, and locks it.
    ///
    /// Errors: [`Error::Locked`]; [`Error::InvalidFormat`] if it is not a pool, or one of another version;
    /// [`Error::NotClosed`] if it is to be opened read-only and was not closed in order; [`Error::Corruption`]. A pool
    /// that a power cut has torn opens with [`Opened::Torn`], or as corruption if not even its header is whole.
    pub fn open(path: &Path, options: &PoolOptions) -> Result<Pool> {
        // Mapping makes files; opening must not.
        std::fs::metadata(path).map_err(|e| Error::io(path, "open", e))?;
        Self::open_on(map(path, path, 0, options)?, path, options)
    }

    /// Opens the pool on a medium. `name` stands for it in messages.
    pub fn open_on(media: Arc<dyn Media>, name: &Path, options: &PoolOptions) -> Result<Pool> {
        let raw = Raw::new(&*media, name)?;
        // A caller that may not open the pool must not mend it either.
        let superblock = format::read_superblock(&raw, name)?;
        let previous = Previous::read(&raw, name)?;
        // The identity is compared first: another database's pool may be made for any medium. A pool that is opened for
        // reading only may be on other media.
        if let Some(known) = options.known.as_ref().filter(|_| !options.salvage) {
            compare(&superblock, &previous, known, name)?;
        }
        if !options.read_only && !options.salvage {
            refuse_other_media(&superblock, media.granularity(), name)?;
        }
        let place = state::place(options, &*media);
        let opened = previous.verdict(place);
        let mut session = Session::after(&previous, opened, place, media.power_safe());
        if options.read_only {
            if opened != Opened::Clean {
                return Err(Error::NotClosed { path: name.to_path_buf() });
            }
            session = session.read_only();
        }
        // The system tells once that it could not write stores back, and not at the next opening. Of a pool that was closed
        // in order all was written back before.
        let distrust = |_: &Error| {
            if !media.power_safe() && opened != Opened::Clean {
                session.distrust_after(&previous, &raw);
            }
        };
        if opened == Opened::SameBoot && !media.power_safe() && !options.salvage {
            media.sync_range(SUPERBLOCK_AT[0], 64).inspect_err(distrust)?;
        }
        let size = match format::read_size(&raw, &superblock, media.len(), name) {
            Err(e) if options.salvage => format::whole_extents(&superblock, media.len()).ok_or(e)?,
            size => size?,
        };
        let digest = if options.salvage { 0 } else { previous.digest() };
        let parts = Parts { superblock, size, opened, session, digest, unreclaimed: previous.unreclaimed() };
        if opened == Opened::SameBoot && media.power_safe() && media.granularity() == Granularity::CacheLine {
            // The dead process may have made stores that it did not flush. This opening sees them and builds on them,
            // so a later power cut must not take them back.
            media.sync()?;
        }
        let pool = Pool::assemble(media.clone(), name, options, parts)?;
        // Written last, so that a damaged pool is left as it was found.
        if !options.salvage && !options.read_only {
            format::mend_superblock(&raw, &superblock)
                .and_then(|()| session.write_after(&previous, &raw))
                .inspect_err(distrust)?;
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
        let max_size = if options.salvage { parts.size } else { options.max_size.max(parts.size) };
        let max_size = max_size.min(media.capacity());
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
                max_size,
                reach: AtomicU64::new(parts.size),
                digests: Digests::new(max_size.max(parts.size), parts.superblock.extent_bytes),
                media,
                superblock: parts.superblock,
                opened: parts.opened,
                generation: parts.session.generation(),
                read_only: parts.session.is_read_only(),
                still: RwLock::new(parts.session.is_read_only()),
                session: Mutex::new(parts.session),
                is_doubted: AtomicBool::new(false),
                growing: Mutex::new(()),
                // A salvage inherits nothing, and so it frees nothing either.
                unreclaimed: AtomicBool::new(options.salvage && parts.unreclaimed),
                over: AtomicBool::new(false),
                roots: RwLock::new(()),
            }),
        };
        if options.salvage {
            pool.load_what_is_sound();
        } else if parts.opened != Opened::Torn {
            if parts.digest != 0 && pool.digest_of_header() != parts.digest {
                return Err(pool.not_what_was_closed(ROOTS_AT));
            }
            pool.load_allocator(parts.unreclaimed)?;
            if parts.digest != 0 {
                pool.expect_digests();
            }
        }
        Ok(pool)
    }

    /// Closes the pool in order: everything stored is durable, and the next opening is [`Opened::Clean`]. The caller
    /// has stopped changing it. Closing again does nothing, nor does closing a torn pool. A pool that once could not be
    /// written back is never closed in order.
    pub fn close(&self) -> Result<()> {
        let mut session = self.inner.session.lock();
        if session.is_closed() {
            return Ok(());
        }
        self.inner.media.closed();
        if session.is_distrusted() {
            return self.sync_in(&mut session);
        }
        // Stores by readers are digested, too.
        *self.inner.still.write() = true;
        let digests = self.write_digests(self.inner.opened != Opened::Clean);
        self.sync_in(&mut session)?;
        let raw = Raw::new(&*self.inner.media, &self.inner.name)?;
        session.close(self.needs_reclaim() || self.is_debt_noted(), digests, &raw)?;
        self.inner.over.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the pool was closed. Objects that are freed after that stay active in the pool, since it is not stored
    /// to any more; the closing thread has [noted](Self::leave_unreclaimed) that something would be left.
    pub fn is_over(&self) -> bool {
        self.inner.over.load(Ordering::Acquire)
    }

    /// Whether it was opened read-only: then it is not stored to, not even for locks. The next session will have this
    /// one's generation.
    pub fn is_read_only(&self) -> bool {
        self.inner.read_only
    }

    /// Whether objects that were active when the pool was opened may have no owner: see [`Pool::reclaim`].
    pub fn needs_reclaim(&self) -> bool {
        self.inner.alloc.inherits.load(Ordering::Acquire)
    }

    /// Notes that what the pool [needs](Self::needs_reclaim) cannot be done yet: the owner does not know what it will
    /// reach. Until a [`reclaim`](Pool::reclaim) has been, a [`check`](Pool::check) takes what was inherited for a
    /// debt.
    pub fn put_off_reclaim(&self) {
        self.inner.alloc.is_put_off.store(true, Ordering::Release);
    }

    /// Whether a reclaim was put off, and has not been since.
    pub fn is_reclaim_put_off(&self) -> bool {
        self.needs_reclaim() && self.inner.alloc.is_put_off.load(Ordering::Acquire)
    }

    /// Notes that some active object has no owner, or will have none when the pool is closed. The close remembers it
    /// for the [`reclaim`](Pool::reclaim) of the next writer; one before that close does not undo it.
    pub fn leave_unreclaimed(&self) {
        self.inner.unreclaimed.store(true, Ordering::Release);
    }

    /// Whether some active object may have no owner although nothing was inherited.
    pub(crate) fn is_debt_noted(&self) -> bool {
        self.inner.unreclaimed.load(Ordering::Acquire)
    }

    /// Whether the header on the medium is still the one that was opened.
    pub(crate) fn check_header(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        // Opening a pool to write restores a damaged copy from the other one; opening it to read leaves it damaged.
        let copies = if self.is_read_only() { &SUPERBLOCK_AT[..0] } else { &SUPERBLOCK_AT[..] };
        for &at in copies {
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
}

/// An error if the pool was made for media that are written in another way: on an ordinary file its owner keeps a log
/// of what a power cut could take, on persistent memory none.
fn refuse_other_media(superblock: &Superblock, found: Granularity, name: &Path) -> Result<()> {
    let words = |is_page: bool| if is_page { "an ordinary file" } else { "persistent memory" };
    let (was, is) = (superblock.is_of_pages(), found == Granularity::Page);
    if was == is {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{} was made on {} and lies on {} now; move it back, or open it to read only and export what it holds",
        name.display(),
        words(was),
        words(is)
    )))
}

/// An error if this is not the pool that its owner knows.
fn compare(superblock: &Superblock, previous: &Previous, known: &Known, name: &Path) -> Result<()> {
    let compared = match superblock.uuid == known.uuid {
        true => previous.compare(known),
        false => Err("another one".to_owned()),
    };
    let expected = "the pool that the manifest knows (try `repair`)";
    compared.map_err(|found| Error::corruption(name, STATE_AT[0], expected, found))
}

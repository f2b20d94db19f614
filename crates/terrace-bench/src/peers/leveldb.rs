//! LevelDB, as the system's library, through its C API: the only file that declares and calls it.
//!
//! Invariants:
//! 1. Every pointer of [`LevelDb`] comes from the library's own create functions, was not null, and is destroyed once,
//!    by `drop`, in the order the library asks for: the database first, then what it was opened with.
//! 2. LevelDB itself guards a database against several threads; iterators and batches stay in the function that makes
//!    them.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::{BLOCK_BYTES, FILTER_BITS, Opened, Setup, WRITE_BUFFERS, mib, page_cache_durability, settings};
use crate::store::{Batch, Direction, Store, StoreResult, StoreStats, Visit};

/// The types of `leveldb/c.h`, which only pointers to are ever seen.
type Object = c_void;

unsafe extern "C" {
    fn leveldb_open(options: *const Object, name: *const c_char, error: *mut *mut c_char) -> *mut Object;
    fn leveldb_close(db: *mut Object);
    fn leveldb_put(
        db: *mut Object,
        options: *const Object,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_delete(
        db: *mut Object,
        options: *const Object,
        key: *const u8,
        key_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_get(
        db: *mut Object,
        options: *const Object,
        key: *const u8,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut u8;
    fn leveldb_write(db: *mut Object, options: *const Object, batch: *mut Object, error: *mut *mut c_char);
    fn leveldb_compact_range(
        db: *mut Object,
        start: *const u8,
        start_len: usize,
        limit: *const u8,
        limit_len: usize,
    );
    fn leveldb_free(memory: *mut c_void);

    fn leveldb_writebatch_create() -> *mut Object;
    fn leveldb_writebatch_destroy(batch: *mut Object);
    fn leveldb_writebatch_put(
        batch: *mut Object,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
    );
    fn leveldb_writebatch_delete(batch: *mut Object, key: *const u8, key_len: usize);

    fn leveldb_create_iterator(db: *mut Object, options: *const Object) -> *mut Object;
    fn leveldb_iter_destroy(at: *mut Object);
    fn leveldb_iter_valid(at: *const Object) -> c_uchar;
    fn leveldb_iter_seek_to_first(at: *mut Object);
    fn leveldb_iter_seek_to_last(at: *mut Object);
    fn leveldb_iter_seek(at: *mut Object, key: *const u8, key_len: usize);
    fn leveldb_iter_next(at: *mut Object);
    fn leveldb_iter_prev(at: *mut Object);
    fn leveldb_iter_key(at: *const Object, len: *mut usize) -> *const u8;
    fn leveldb_iter_value(at: *const Object, len: *mut usize) -> *const u8;
    fn leveldb_iter_get_error(at: *const Object, error: *mut *mut c_char);

    fn leveldb_options_create() -> *mut Object;
    fn leveldb_options_destroy(options: *mut Object);
    fn leveldb_options_set_create_if_missing(options: *mut Object, yes: c_uchar);
    fn leveldb_options_set_write_buffer_size(options: *mut Object, bytes: usize);
    fn leveldb_options_set_block_size(options: *mut Object, bytes: usize);
    fn leveldb_options_set_compression(options: *mut Object, kind: c_int);
    fn leveldb_options_set_cache(options: *mut Object, cache: *mut Object);
    fn leveldb_options_set_filter_policy(options: *mut Object, policy: *mut Object);
    fn leveldb_cache_create_lru(bytes: usize) -> *mut Object;
    fn leveldb_cache_destroy(cache: *mut Object);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> *mut Object;
    fn leveldb_filterpolicy_destroy(policy: *mut Object);
    fn leveldb_readoptions_create() -> *mut Object;
    fn leveldb_readoptions_destroy(options: *mut Object);
    fn leveldb_writeoptions_create() -> *mut Object;
    fn leveldb_writeoptions_destroy(options: *mut Object);
    fn leveldb_writeoptions_set_sync(options: *mut Object, yes: c_uchar);
    fn leveldb_major_version() -> c_int;
    fn leveldb_minor_version() -> c_int;
}

const NO_COMPRESSION: c_int = 0;

struct LevelDb {
    db: NonNull<Object>,
    made: Made,
}

/// The objects that a database is opened with; they must outlive it.
struct Made {
    options: NonNull<Object>,
    cache: NonNull<Object>,
    filter: NonNull<Object>,
    read: NonNull<Object>,
    write: NonNull<Object>,
}

// SAFETY: the library allows a database, its options, caches and filters to be used and destroyed from any thread
// ("a database may be used by multiple threads without synchronisation"); nothing here is bound to a thread.
unsafe impl Send for LevelDb {}
// SAFETY: as above; `LevelDb` only reads its pointers.
unsafe impl Sync for LevelDb {}

pub(super) fn open(setup: &Setup) -> StoreResult<Opened> {
    let name = CString::new(setup.dir.as_os_str().as_bytes())?;
    let made = Made::new(setup)?;
    let mut error = ptr::null_mut();
    // SAFETY: the options are whole, the name ends in a zero byte, and the library takes a copy of both.
    let db = unsafe { leveldb_open(made.options.as_ptr(), name.as_ptr(), &mut error) };
    checked(error)?;
    let db = NonNull::new(db).ok_or("LevelDB did not open")?;
    // SAFETY: these take nothing and return a number.
    let (major, minor) = unsafe { (leveldb_major_version(), leveldb_minor_version()) };
    let settings = settings(&[
        ("version", format!("LevelDB {major}.{minor} (the system's library)")),
        ("durability", page_cache_durability(setup.sync)),
        ("write_buffer_size", format!("{} (LevelDB has {WRITE_BUFFERS} of them)", mib(setup.write_buffer()))),
        ("cache", mib(setup.cache())),
        ("filter", format!("Bloom, {FILTER_BITS} bits a key")),
        ("block_size", BLOCK_BYTES.to_string()),
        ("compression", "none".into()),
        ("threads", "one in the background: LevelDB has no more".into()),
    ]);
    Ok(Opened { store: Arc::new(LevelDb { db, made }), settings })
}

impl Made {
    fn new(setup: &Setup) -> StoreResult<Made> {
        let whole = |pointer| NonNull::new(pointer).ok_or("LevelDB is out of memory");
        // SAFETY: create functions have no conditions but a sane size.
        let made = unsafe {
            Made {
                options: whole(leveldb_options_create())?,
                cache: whole(leveldb_cache_create_lru(setup.cache() as usize))?,
                filter: whole(leveldb_filterpolicy_create_bloom(FILTER_BITS as c_int))?,
                read: whole(leveldb_readoptions_create())?,
                write: whole(leveldb_writeoptions_create())?,
            }
        };
        let options = made.options.as_ptr();
        // SAFETY: all pointers come from the create functions above, and `made` keeps cache and filter until the
        // database is closed.
        unsafe {
            leveldb_options_set_create_if_missing(options, 1);
            leveldb_options_set_write_buffer_size(options, setup.write_buffer() as usize);
            leveldb_options_set_block_size(options, BLOCK_BYTES);
            leveldb_options_set_compression(options, NO_COMPRESSION);
            leveldb_options_set_cache(options, made.cache.as_ptr());
            leveldb_options_set_filter_policy(options, made.filter.as_ptr());
            leveldb_writeoptions_set_sync(made.write.as_ptr(), u8::from(setup.sync));
        }
        Ok(made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: invariant 1; the database, which used them, has been closed, or was never opened.
        unsafe {
            leveldb_options_destroy(self.options.as_ptr());
            leveldb_cache_destroy(self.cache.as_ptr());
            leveldb_filterpolicy_destroy(self.filter.as_ptr());
            leveldb_readoptions_destroy(self.read.as_ptr());
            leveldb_writeoptions_destroy(self.write.as_ptr());
        }
    }
}

impl Drop for LevelDb {
    fn drop(&mut self) {
        // SAFETY: invariant 1; `made` is dropped after this.
        unsafe { leveldb_close(self.db.as_ptr()) };
    }
}

/// An error of the library, if there is one; frees it.
fn checked(error: *mut c_char) -> StoreResult<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the library sets an error to a string of its own that ends in a zero byte; it is read before it is freed
    // and freed once.
    let text = unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        leveldb_free(error.cast());
        text
    };
    Err(text.into())
}

/// A slice that the library showed; it may show an empty one as null.
///
/// # Safety
/// `bytes` is null, or `len` bytes that stay as they are for `'a`.
unsafe fn shown<'a>(bytes: *const u8, len: usize) -> &'a [u8] {
    if bytes.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(bytes, len) }
}

/// An iterator, destroyed when dropped.
struct At(NonNull<Object>);

impl Drop for At {
    fn drop(&mut self) {
        // SAFETY: made by `leveldb_create_iterator`, destroyed once; the holder of this borrows the database.
        unsafe { leveldb_iter_destroy(self.0.as_ptr()) };
    }
}

impl At {
    fn seek(&mut self, from: Option<&[u8]>, direction: Direction) {
        let at = self.0.as_ptr();
        // SAFETY: the iterator is live; the key is read during the call only.
        unsafe {
            match (from, direction) {
                (None, Direction::Forward) => leveldb_iter_seek_to_first(at),
                (None, Direction::Backward) => leveldb_iter_seek_to_last(at),
                (Some(from), _) => leveldb_iter_seek(at, from.as_ptr(), from.len()),
            }
        }
        let (Some(from), Direction::Backward) = (from, direction) else { return };
        // A seek stops at or after the key; going backward starts at or before it.
        match self.record().map(|(key, _)| key > from) {
            Some(true) => self.step(Direction::Backward),
            Some(false) => {}
            // SAFETY: the iterator is live.
            None => unsafe { leveldb_iter_seek_to_last(at) },
        }
    }

    fn record(&self) -> Option<(&[u8], &[u8])> {
        let at = self.0.as_ptr();
        let (mut key_len, mut value_len) = (0, 0);
        // SAFETY: key and value are asked for only where the iterator is valid; they stay until it moves, which takes
        // `&mut self`.
        unsafe {
            if leveldb_iter_valid(at) == 0 {
                return None;
            }
            let key = leveldb_iter_key(at, &mut key_len);
            let value = leveldb_iter_value(at, &mut value_len);
            Some((shown(key, key_len), shown(value, value_len)))
        }
    }

    /// Moves on; only where there is a record.
    fn step(&mut self, direction: Direction) {
        // SAFETY: the callers have just seen a record, so the iterator is valid.
        unsafe {
            match direction {
                Direction::Forward => leveldb_iter_next(self.0.as_ptr()),
                Direction::Backward => leveldb_iter_prev(self.0.as_ptr()),
            }
        }
    }

    fn finish(self) -> StoreResult<()> {
        let mut error = ptr::null_mut();
        // SAFETY: the iterator is live.
        unsafe { leveldb_iter_get_error(self.0.as_ptr(), &mut error) };
        checked(error)
    }
}

impl Store for LevelDb {
    fn put(&self, key: &[u8], value: &[u8]) -> StoreResult<()> {
        let mut error = ptr::null_mut();
        // SAFETY: database and options are live (invariant 1); key and value are copied during the call.
        unsafe {
            let (db, write) = (self.db.as_ptr(), self.made.write.as_ptr());
            leveldb_put(db, write, key.as_ptr(), key.len(), value.as_ptr(), value.len(), &mut error);
        }
        checked(error)
    }

    fn delete(&self, key: &[u8]) -> StoreResult<()> {
        let mut error = ptr::null_mut();
        // SAFETY: as for `put`.
        unsafe {
            leveldb_delete(self.db.as_ptr(), self.made.write.as_ptr(), key.as_ptr(), key.len(), &mut error);
        }
        checked(error)
    }

    fn get(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> StoreResult<bool> {
        let (mut error, mut len) = (ptr::null_mut(), 0);
        // SAFETY: as for `put`; the length is written before the call returns.
        let value = unsafe {
            let (db, read) = (self.db.as_ptr(), self.made.read.as_ptr());
            leveldb_get(db, read, key.as_ptr(), key.len(), &mut len, &mut error)
        };
        checked(error)?;
        if value.is_null() {
            return Ok(false);
        }
        // SAFETY: a found value is `len` bytes of our own, freed once, after the visit.
        unsafe {
            visit(shown(value, len));
            leveldb_free(value.cast());
        }
        Ok(true)
    }

    fn scan(&self, from: Option<&[u8]>, direction: Direction, visit: Visit<'_>) -> StoreResult<()> {
        // SAFETY: database and options are live (invariant 1).
        let at = unsafe { leveldb_create_iterator(self.db.as_ptr(), self.made.read.as_ptr()) };
        let mut at = At(NonNull::new(at).ok_or("LevelDB made no iterator")?);
        at.seek(from, direction);
        while let Some((key, value)) = at.record() {
            if !visit(key, value) {
                break;
            }
            at.step(direction);
        }
        at.finish()
    }

    fn write_batch(&self, batch: &Batch) -> StoreResult<()> {
        let mut error = ptr::null_mut();
        // SAFETY: the batch is made, filled (the library copies), written and destroyed here; database and options are
        // live (invariant 1).
        unsafe {
            let writes = leveldb_writebatch_create();
            for (key, value) in batch.iter() {
                match value {
                    Some(value) => {
                        leveldb_writebatch_put(writes, key.as_ptr(), key.len(), value.as_ptr(), value.len());
                    }
                    None => leveldb_writebatch_delete(writes, key.as_ptr(), key.len()),
                }
            }
            leveldb_write(self.db.as_ptr(), self.made.write.as_ptr(), writes, &mut error);
            leveldb_writebatch_destroy(writes);
        }
        checked(error)
    }

    /// LevelDB flushes before it compacts, and has no call that only flushes.
    fn flush(&self) -> StoreResult<()> {
        self.compact()
    }

    fn compact(&self) -> StoreResult<()> {
        // SAFETY: the database is live; null stands for either end of the key space.
        unsafe { leveldb_compact_range(self.db.as_ptr(), ptr::null(), 0, ptr::null(), 0) };
        Ok(())
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

//! Media that fail to write back, and files that are not the ones that were written.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use terrace_base::{Error, ErrorKind, Result};
use terrace_pmem::{Granularity, Kind, Media, MemMedia, Opened, Pool, PoolOptions};

use crate::stale::{bytes_of, small};
use crate::support::{memory_dir, name};

const ARENA: Kind = Kind(3);

/// Memory that calls itself an ordinary file, and fails to write back as often as it is told.
#[derive(Debug)]
struct Failing {
    memory: MemMedia,
    /// So many succeed before others fail.
    passes: AtomicU32,
    failures: AtomicU32,
    instance: u64,
    /// Whom a growth that has failed tells, and for whom it waits then.
    growth: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    /// Whom a sync tells that has succeeded.
    synced: Mutex<Option<Sender<()>>>,
}

impl Failing {
    fn new(image: Option<&[u8]>, instance: u64) -> Arc<Failing> {
        let o = small();
        let memory = MemMedia::new(o.size, o.max_size, Granularity::Page).unwrap();
        if let Some(image) = image {
            // SAFETY: as long as the image, and nobody else knows it yet.
            unsafe { memory.base().copy_from_nonoverlapping(image.as_ptr(), image.len()) };
        }
        let (passes, failures) = (AtomicU32::new(0), AtomicU32::new(0));
        let (growth, synced) = (Mutex::default(), Mutex::default());
        Arc::new(Failing { memory, passes, failures, instance, growth, synced })
    }
}

impl Media for Failing {
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    fn grow(&self, len: u64) -> Result<()> {
        if let Err(error) = self.sync() {
            if let Some((told, is_synced)) = self.growth.lock().unwrap().take() {
                told.send(()).unwrap();
                is_synced.recv().unwrap();
                // Whoever does not wait for the growth is done by now.
                (0..1000).for_each(|_| std::thread::yield_now());
            }
            return Err(error);
        }
        self.memory.grow(len)
    }

    fn granularity(&self) -> Granularity {
        Granularity::Page
    }

    fn flush(&self, _offset: u64, _len: u64) {}

    fn drain(&self) {}

    fn order(&self, _offset: u64) {}

    fn charge_read(&self, _offset: u64, _len: u64) {}

    fn sync(&self) -> Result<()> {
        let takes_one = |of: &AtomicU32| {
            of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
        };
        if !takes_one(&self.passes) && takes_one(&self.failures) {
            return Err(Error::io(Path::new("failing"), "sync", std::io::Error::other("lost")));
        }
        if let Some(synced) = self.synced.lock().unwrap().take() {
            synced.send(()).unwrap();
        }
        Ok(())
    }

    fn instance(&self) -> u64 {
        self.instance
    }

    fn describe(&self) -> String {
        "failing".into()
    }
}

/// Takes extents until one is refused.
fn fill(pool: &Pool) -> Result<()> {
    loop {
        pool.reserve_extent(ARENA, 1 << 10)?;
    }
}

/// The system says once that it could not write back; a second attempt succeeds, and has written nothing.
#[test]
fn a_pool_that_could_not_be_written_back_once_is_not_trusted() {
    for how in ["sync", "close", "growth"] {
        let media = Failing::new(None, 0);
        let pool = Pool::create_on(media.clone(), name(), &small()).unwrap();
        pool.set_root("a", 1).unwrap();
        media.failures.store(1, Ordering::Relaxed);
        let failed = match how {
            "sync" => pool.sync(),
            "close" => pool.close(),
            _ => fill(&pool),
        };
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io, "{how}");
        assert_eq!(media.failures.load(Ordering::Relaxed), 0);
        for _ in 0..2 {
            assert_eq!(pool.sync().unwrap_err().kind(), ErrorKind::Io, "{how}: a second sync");
            assert_eq!(pool.close().unwrap_err().kind(), ErrorKind::Io, "{how}: a second close");
        }
        drop(pool);
        for _ in 0..2 {
            assert_eq!(
                Pool::open_on(media.clone(), name(), &small()).unwrap().opened(),
                Opened::Torn,
                "{how}"
            );
        }
    }
}

/// Opening hears of what failed while nobody had the pool open, and says so once, as the system does. That is not
/// forgotten, also if the note of it could not be written back either.
#[test]
fn opening_asks_whether_everything_was_written_back() {
    for failures in 1..4 {
        let media = Failing::new(None, 0);
        drop(Pool::create_on(media.clone(), name(), &small()).unwrap());
        let open = || Pool::open_on(media.clone(), name(), &small());
        assert_eq!(open().unwrap().opened(), Opened::SameBoot);
        media.failures.store(failures, Ordering::Relaxed);
        assert_eq!(open().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(media.failures.load(Ordering::Relaxed), 0, "the note was tried to be written back");
        for _ in 0..2 {
            assert_eq!(open().unwrap().opened(), Opened::Torn, "{failures} failures");
        }
    }
}

/// The same for each write of an opening. A pool that was closed in order has lost nothing by it: all of it was written back
/// before.
#[test]
fn an_opening_that_cannot_be_written_back_is_not_forgotten() {
    for closes in [false, true] {
        let mut failing = 0;
        loop {
            let media = Failing::new(None, 0);
            let pool = Pool::create_on(media.clone(), name(), &small()).unwrap();
            if closes {
                pool.close().unwrap();
            }
            drop(pool);
            media.passes.store(failing, Ordering::Relaxed);
            media.failures.store(1, Ordering::Relaxed);
            let Err(error) = Pool::open_on(media.clone(), name(), &small()) else { break };
            assert_eq!(error.kind(), ErrorKind::Io);
            let read = PoolOptions { read_only: true, ..small() };
            let before = bytes_of(&media.memory);
            let read = Pool::open_on(media.clone(), name(), &read);
            assert!(closes || read.is_err_and(|e| e.kind() == ErrorKind::NotClosed));
            assert!(bytes_of(&media.memory) == before, "a reader has written");
            let opened = Pool::open_on(media, name(), &small()).unwrap().opened();
            assert_eq!(opened == Opened::Torn, !closes, "sync {failing}, closed: {closes}, {opened:?}");
            failing += 1;
        }
        assert!(failing >= 2, "an opening syncs more often");
    }
}

/// A sync that succeeds only because a growth beside it was told of lost pages fails, too.
#[test]
fn a_sync_hears_what_a_growth_beside_it_was_told() {
    for _ in 0..50 {
        let (told, is_told) = channel();
        let (synced, is_synced) = channel();
        let media = Failing::new(None, 0);
        let pool = Pool::create_on(media.clone(), name(), &small()).unwrap();
        media.failures.store(1, Ordering::Relaxed);
        *media.growth.lock().unwrap() = Some((told, is_synced));
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(fill(&pool).unwrap_err().kind(), ErrorKind::Io));
            is_told.recv().unwrap();
            *media.synced.lock().unwrap() = Some(synced);
            assert_eq!(pool.sync().unwrap_err().kind(), ErrorKind::Io);
        });
    }
}

/// In one boot of the machine: the same file, and one that was mounted anew, or copied.
#[test]
fn the_same_boot_is_not_the_same_file() {
    let o = PoolOptions { boot_id: None, ..small() };
    let media = Failing::new(None, 1);
    let pool = Pool::create_on(media.clone(), name(), &o).unwrap();
    pool.set_root("a", 1).unwrap();
    drop(pool);
    let image = bytes_of(&media.memory);
    let opened = |instance| {
        let media = Failing::new(Some(&image), instance);
        Pool::open_on(media, name(), &o).unwrap().opened()
    };
    assert_eq!([opened(1), opened(2), opened(0)], [Opened::SameBoot, Opened::Torn, Opened::SameBoot]);

    let dir = memory_dir();
    let at = |name: &str| dir.path().join(name);
    drop(Pool::create(&at("pool"), &o).unwrap());
    std::fs::copy(at("pool"), at("copy")).unwrap();
    assert_eq!(Pool::open(&at("copy"), &o).unwrap().opened(), Opened::Torn);
    std::fs::rename(at("pool"), at("moved")).unwrap();
    assert_eq!(Pool::open(&at("moved"), &o).unwrap().opened(), Opened::SameBoot);
}

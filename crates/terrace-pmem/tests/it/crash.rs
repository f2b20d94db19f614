//! Power cuts at every drain: a medium with a durable image beside the current one, of which at a crash any
//! subset of the undrained 8-byte units survives.
//!
//! The owner under test is a directory: one extent of words, each the offset of an object or zero, changed by
//! publish alone. After each crash every object published is whole, the word in flight is the old or the new
//! one, and once the owner has marked what it reaches and reclaimed the rest, nothing is lost or claimed twice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use terrace_base::rng::Rng;
use terrace_base::{ErrorKind, Result};
use terrace_pmem::{Granularity, Kind, Media, MemMedia, Opened, POff, Pool, PoolOptions};

use crate::support::{name, options, other_boot};

const LINE: u64 = 64;
const DIRECTORY: Kind = Kind(1);
const OBJECT: Kind = Kind(2);
const ENTRIES: u64 = 24;

type Hook = Box<dyn FnMut(&CrashMedia) + Send>;

/// Plain memory with a second, durable image.
struct CrashMedia {
    current: MemMedia,
    durable: Mutex<Vec<u8>>,
    /// Lines flushed since the last drain, as they were then.
    flushed: Mutex<BTreeMap<u64, [u8; LINE as usize]>>,
    hook: Mutex<Option<Hook>>,
}

impl std::fmt::Debug for CrashMedia {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CrashMedia")
    }
}

impl CrashMedia {
    fn new(image: &[u8]) -> Self {
        let o = options();
        let current = MemMedia::new(image.len() as u64, o.max_size, Granularity::CacheLine).unwrap();
        // SAFETY: the medium is as long as the image, and nobody else knows it yet.
        unsafe { current.base().copy_from_nonoverlapping(image.as_ptr(), image.len()) };
        CrashMedia {
            current,
            durable: Mutex::new(image.to_vec()),
            flushed: Mutex::default(),
            hook: Mutex::new(None),
        }
    }

    fn line(&self, line: u64) -> [u8; LINE as usize] {
        // SAFETY: callers pass lines inside the medium; these tests run on one thread.
        unsafe { self.current.base().add((line * LINE) as usize).cast::<[u8; LINE as usize]>().read() }
    }

    /// What is on the medium after a power cut now. Each unit holds what was drained, what was flushed, or
    /// what was stored last; seeds 0 and 1 take the two extremes.
    fn survivor(&self, seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let mut image = self.durable.lock().unwrap().clone();
        let flushed = self.flushed.lock().unwrap();
        for line in 0..image.len() as u64 / LINE {
            let now = self.line(line);
            let at = (line * LINE) as usize;
            if now == image[at..at + LINE as usize] && !flushed.contains_key(&line) {
                continue;
            }
            let earlier = flushed.get(&line).copied().unwrap_or(now);
            for unit in (0..LINE as usize).step_by(8) {
                let choice = if seed < 2 { seed } else { rng.below(3) };
                match choice {
                    0 => {}
                    1 => image[at + unit..][..8].copy_from_slice(&now[unit..][..8]),
                    _ => image[at + unit..][..8].copy_from_slice(&earlier[unit..][..8]),
                }
            }
        }
        image
    }
}

impl Media for CrashMedia {
    fn base(&self) -> *mut u8 {
        self.current.base()
    }

    fn len(&self) -> u64 {
        self.current.len()
    }

    fn capacity(&self) -> u64 {
        self.current.capacity()
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.current.grow(len)?;
        self.durable.lock().unwrap().resize(self.current.len() as usize, 0);
        Ok(())
    }

    fn granularity(&self) -> Granularity {
        Granularity::CacheLine
    }

    fn flush(&self, offset: u64, len: u64) {
        let mut flushed = self.flushed.lock().unwrap();
        for line in offset / LINE..(offset + len).div_ceil(LINE) {
            flushed.insert(line, self.line(line));
        }
    }

    fn drain(&self) {
        // Taken out while it runs: the hook must not see itself.
        let hook = self.hook.lock().unwrap().take();
        if let Some(mut hook) = hook {
            hook(self);
            *self.hook.lock().unwrap() = Some(hook);
        }
        let mut durable = self.durable.lock().unwrap();
        for (line, bytes) in std::mem::take(&mut *self.flushed.lock().unwrap()) {
            durable[(line * LINE) as usize..][..LINE as usize].copy_from_slice(&bytes);
        }
    }

    fn order(&self, _offset: u64) {}

    fn charge_read(&self, _offset: u64, _len: u64) {}

    fn sync(&self) -> Result<()> {
        let mut durable = self.durable.lock().unwrap();
        for line in 0..durable.len() as u64 / LINE {
            durable[(line * LINE) as usize..][..LINE as usize].copy_from_slice(&self.line(line));
        }
        self.flushed.lock().unwrap().clear();
        Ok(())
    }

    fn describe(&self) -> String {
        "memory with a durable image".to_owned()
    }
}

/// Length of each object by directory entry: what was acknowledged, and the entry in flight.
#[derive(Clone, Default)]
struct Expected {
    objects: BTreeMap<u64, (u64, u64)>,
    in_flight: Option<(u64, Option<(u64, u64)>)>,
}

struct Owner {
    pool: Pool,
    directory: u64,
    expected: Arc<Mutex<Expected>>,
}

impl Owner {
    fn word(&self, entry: u64) -> POff<u64> {
        POff::new(self.directory + entry * 8)
    }

    /// Replaces an entry's object by one of `len` bytes, or removes it.
    fn put(&self, entry: u64, id: u64, len: Option<u64>) {
        let object = len.map(|len| (id, len.max(24)));
        let old = self.pool.atomic(self.word(entry)).load(std::sync::atomic::Ordering::Acquire);
        let new = match object {
            None => 0,
            Some((id, len)) => match self.pool.reserve(OBJECT, len) {
                Ok(slot) => {
                    self.pool.copy_flush(slot.offset, &contents(id, len));
                    self.pool.activate(&slot);
                    self.pool.drain();
                    slot.offset
                }
                Err(e) => return assert_eq!(e.kind(), ErrorKind::PoolFull),
            },
        };
        self.expected.lock().unwrap().in_flight = Some((entry, object));
        self.pool.publish(self.word(entry), new);
        let mut expected = self.expected.lock().unwrap();
        expected.in_flight = None;
        match object {
            Some(object) => expected.objects.insert(entry, object),
            None => expected.objects.remove(&entry),
        };
        drop(expected);
        if old != 0 {
            self.pool.free(old, OBJECT).unwrap();
        }
    }
}

fn contents(id: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![id as u8; len as usize];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..16].copy_from_slice(&len.to_le_bytes());
    bytes
}

fn create(o: &PoolOptions) -> (Arc<CrashMedia>, Owner) {
    let media = Arc::new(CrashMedia::new(&vec![0; o.size as usize]));
    let pool = Pool::create_on(media.clone(), name(), o).unwrap();
    let extent = pool.reserve_extent(DIRECTORY, ENTRIES * 8).unwrap();
    pool.zero(extent.offset, extent.bytes);
    pool.flush(extent.offset, extent.bytes);
    pool.activate(&extent);
    pool.drain();
    pool.set_root("directory", extent.offset).unwrap();
    (media, Owner { pool, directory: extent.offset, expected: Arc::default() })
}

/// Opens what a crash left and compares. With `depth`, crashes again at every drain of the recovery.
fn verify(image: &[u8], expected: &Expected, depth: u32, context: &str) {
    let media = Arc::new(CrashMedia::new(image));
    if depth > 0 {
        let (expected, context) = (expected.clone(), context.to_owned());
        *media.hook.lock().unwrap() = Some(Box::new(move |crashed| {
            for seed in 0..3 {
                let context = format!("{context}, again with seed {seed}");
                verify(&crashed.survivor(seed), &expected, depth - 1, &context);
            }
        }));
    }
    let o = PoolOptions { boot_id: Some(format!("{depth} before the last")), ..options() };
    let pool = Pool::open_on(media, name(), &o).unwrap();
    assert_eq!(pool.opened(), Opened::Crashed, "{context}");
    let directory = pool.root("directory").unwrap().unwrap();
    let mut marks = pool.marks();
    marks.extent(directory).unwrap();
    let mut found = BTreeMap::new();
    for entry in 0..ENTRIES {
        let offset = *pool.get(POff::<u64>::new(directory + entry * 8)).unwrap();
        if offset != 0 {
            marks.slot(offset).unwrap();
            let &[id, len] = pool.get(POff::<[u64; 2]>::new(offset)).unwrap();
            // SAFETY: nobody stores to this pool.
            let bytes = unsafe { pool.bytes(offset, len) }.unwrap();
            assert!(bytes == contents(id, len), "{context}: object {id} is not whole");
            found.insert(entry, (id, len));
        }
    }
    let mut done = expected.objects.clone();
    if let Some((entry, object)) = expected.in_flight {
        match object {
            Some(object) => done.insert(entry, object),
            None => done.remove(&entry),
        };
    }
    assert!(found == expected.objects || found == done, "{context}: {found:?}, not {done:?}");
    let used = pool.used_bytes();
    let freed = pool.reclaim(&marks).unwrap();
    assert_eq!(pool.check(&marks), [], "{context}");
    assert_eq!(pool.release_reclaimed().unwrap(), freed, "{context}");
    assert_eq!(pool.check(&marks), [], "{context}");
    assert!(pool.used_bytes() <= used - freed, "{context}");
    assert_eq!(pool.reclaim(&marks).unwrap(), 0);
}

/// Objects that are put, replaced and removed at random, with a crash at every drain.
struct Churn {
    seed: u64,
    /// How many objects are put or removed.
    steps: u64,
    /// How often the recovery from a crash is crashed in turn.
    depth: u32,
}

fn run(Churn { seed, steps, depth }: Churn) {
    let o = PoolOptions { size: 64 << 10, max_size: 512 << 10, ..options() };
    let (media, owner) = create(&o);
    let mut rng = Rng::new(seed);
    let (expected, mut drains) = (owner.expected.clone(), 0u64);
    *media.hook.lock().unwrap() = Some(Box::new(move |media| {
        drains += 1;
        let expected = expected.lock().unwrap().clone();
        for image in [0, 1, 2 + drains * 2, 3 + drains * 2] {
            let context = format!("seed {seed} drain {drains} image {image}");
            verify(&media.survivor(image), &expected, depth, &context);
        }
    }));
    for id in 1..=steps {
        let len = match rng.below(8) {
            0 => None,
            1 => Some(4096 + rng.below(20_000)),
            2..=4 => Some(200 + rng.below(300)),
            _ => Some(rng.below(100)),
        };
        owner.put(rng.below(ENTRIES), id, len);
    }
    *media.hook.lock().unwrap() = None;
}

/// Must catch an object that is named before it is durable, and space that two owners or none have after a crash.
#[test]
fn no_crash_loses_or_doubles_an_owner() {
    for seed in 0..6 {
        run(Churn { seed, steps: 60, depth: 0 });
    }
}

/// Must catch a recovery that, cut short, leaves less than it found, or frees what is still named.
#[test]
fn nor_does_a_crash_during_the_recovery() {
    run(Churn { seed: 100, steps: 25, depth: 1 });
}

/// Must catch a table of extents that grows and is named before its new part is durable.
#[test]
fn nor_when_the_pool_is_nearly_full_and_grows() {
    let o = PoolOptions { size: 40 << 10, max_size: 3 << 20, ..options() };
    let (media, owner) = create(&o);
    let expected = owner.expected.clone();
    *media.hook.lock().unwrap() = Some(Box::new(move |media| {
        let expected = expected.lock().unwrap().clone();
        for seed in 0..8 {
            verify(&media.survivor(seed), &expected, 0, "growth");
        }
    }));
    for id in 1..=ENTRIES {
        owner.put(id - 1, id, Some(130_000 + id * 500));
    }
    assert!(owner.pool.size() > 2 << 20, "the table took a second segment");
    *media.hook.lock().unwrap() = None;
}

/// Must catch space that is given to a new owner while a power cut can still bring back the old one.
#[test]
fn a_freed_extent_is_not_reused_before_its_word_is_durable() {
    let (media, owner) = create(&options());
    let expected = owner.expected.clone();
    owner.put(0, 1, Some(2 * 4096));
    owner.put(1, 2, Some(3 * 4096));
    *media.hook.lock().unwrap() = Some(Box::new(move |media| {
        let expected = expected.lock().unwrap().clone();
        for seed in 0..20 {
            verify(&media.survivor(seed), &expected, 0, "reuse");
        }
    }));
    // The third lies across the place of the second's word.
    owner.put(0, 3, None);
    owner.put(1, 4, None);
    owner.put(2, 5, Some(4 * 4096));
    *media.hook.lock().unwrap() = None;
}

/// Must catch a root that is half of one value and half of another, or missing, after a crash.
#[test]
fn a_root_changes_at_once_or_not_at_all() {
    let (media, owner) = create(&options());
    let steps: Arc<Mutex<(Option<u64>, Option<u64>)>> = Arc::default();
    let seen = steps.clone();
    *media.hook.lock().unwrap() = Some(Box::new(move |media| {
        let (before, after) = *seen.lock().unwrap();
        for seed in 0..6 {
            let survivor = Arc::new(CrashMedia::new(&media.survivor(seed)));
            let pool = Pool::open_on(survivor, name(), &other_boot()).unwrap();
            let value = pool.root("answer").unwrap();
            assert!(value == before || value == after, "{value:?} is neither {before:?} nor {after:?}");
            assert!(pool.root("directory").unwrap().is_some());
        }
    }));
    for (before, after) in [(None, Some(1)), (Some(1), Some(u64::MAX >> 16)), (Some(u64::MAX >> 16), None)] {
        *steps.lock().unwrap() = (before, after);
        match after {
            Some(value) => owner.pool.set_root("answer", value).unwrap(),
            None => owner.pool.clear_root("answer").unwrap(),
        }
    }
    *media.hook.lock().unwrap() = None;
}

/// Must catch a session word that, torn, makes a sound pool unreadable.
#[test]
fn a_crash_while_opening_or_closing_leaves_a_pool() {
    let (media, owner) = create(&options());
    let image = {
        owner.put(0, 1, Some(100));
        owner.pool.close().unwrap();
        media.durable.lock().unwrap().clone()
    };
    let reopened = Arc::new(CrashMedia::new(&image));
    *reopened.hook.lock().unwrap() = Some(Box::new(move |media| {
        for seed in 0..20 {
            let pool = Pool::open_on(Arc::new(CrashMedia::new(&media.survivor(seed))), name(), &other_boot());
            let pool = pool.unwrap();
            assert!(matches!(pool.opened(), Opened::Clean | Opened::Crashed));
            assert!(pool.root("directory").unwrap().is_some());
        }
    }));
    let pool = Pool::open_on(reopened.clone(), name(), &options()).unwrap();
    assert_eq!(pool.opened(), Opened::Clean);
    pool.close().unwrap();
    *reopened.hook.lock().unwrap() = None;
}

/// Must catch a store of a killed process that the next one sees and a power cut then takes.
#[test]
fn what_a_dead_process_stored_is_durable_once_another_has_seen_it() {
    let (media, owner) = create(&options());
    owner.put(0, 1, Some(100));
    // Stored and never flushed; then the process dies, and another opens the pool in the same boot.
    let slot = owner.pool.reserve(OBJECT, 100).unwrap();
    owner.pool.write(slot.offset, &contents(2, 100));
    owner.pool.write(owner.word(1).get(), &slot.offset.to_le_bytes());
    owner.pool.activate(&slot);
    drop(owner.pool);
    let pool = Pool::open_on(media.clone(), name(), &options()).unwrap();
    assert_eq!(pool.opened(), Opened::SameBoot);
    let expected = Expected { objects: BTreeMap::from([(0, (1, 100)), (1, (2, 100))]), in_flight: None };
    verify(&media.survivor(0), &expected, 0, "after the death of a process");
}

/// Must catch a pool that is half made and counts as one.
#[test]
fn a_crash_while_creating_leaves_a_pool_or_none() {
    let o = options();
    let media = Arc::new(CrashMedia::new(&vec![0; o.size as usize]));
    *media.hook.lock().unwrap() = Some(Box::new(|media| {
        for seed in 0..4 {
            let survivor = Arc::new(CrashMedia::new(&media.survivor(seed)));
            match Pool::open_on(survivor.clone(), name(), &other_boot()) {
                Ok(pool) => assert_eq!(pool.check(&pool.marks()), []),
                Err(e) => {
                    assert!(matches!(e.kind(), ErrorKind::InvalidFormat | ErrorKind::Corruption), "{e}");
                    Pool::recreate_on(survivor, name(), &other_boot()).unwrap();
                }
            }
        }
    }));
    Pool::create_on(media.clone(), name(), &o).unwrap();
    *media.hook.lock().unwrap() = None;
}

//! Slots on drives of other kinds than the one that they were written on, and files that are not what they were.

use std::io;
use std::path::Path;
use std::sync::Arc;

use terrace_base::rng::Rng;
use terrace_base::{Error, ErrorKind};
use terrace_disk::slots::{LEAST_SPARE_BYTES, WINDOW_BYTES};
use terrace_disk::{BlockBuf, Fs, FsEvent, MeteredFs, Observer, RealFs, SimFs, Slots};

use super::{BLOCK, PATH, SECTOR, Store, assert_holds, item, open, slots_of};

/// Sectors and blocks of drives, one for each life.
const DRIVES: [(u32, u32); 7] =
    [(512, 4096), (4096, 4096), (512, 65536), (512, 512), (4096, 16384), (8192, 8192), (512, 4096)];

#[test]
fn a_file_is_moved_from_drive_to_drive() {
    for seed in 0..20 {
        let (fs, mut rng) = (SimFs::new(), Rng::new(seed));
        let mut store = Store::open(&fs);
        for (sector, block) in DRIVES {
            fs.set_sectors(sector, block);
            store = store.reopen(&fs);
            let block = u64::from(block.max(512));
            for _ in 0..25 {
                let keys = [(rng.below(20), 1 + rng.below(40)), (20 + rng.below(20), 9)];
                store.put(&keys).unwrap();
                store.free(rng.below(9)).unwrap();
                if rng.one_in(6) {
                    store.slots.give_back(4 * block).unwrap();
                }
            }
            assert_holds(&store.slots, &store.index, "on this drive");
            assert_eq!(store.slots.check(slots_of(&store.index)).unwrap(), 0);
            let found: Vec<BlockBuf> =
                store.slots.ahead(slots_of(&store.index)).map(|found| found.unwrap()).collect();
            assert!(
                found
                    .iter()
                    .zip(store.index.values())
                    .all(|(found, (slot, id))| { **found == *item(*id, slot.sectors()) })
            );
            let stats = store.slots.stats();
            let most = stats.item_bytes + 2 * stats.items * (block - SECTOR);
            assert!(stats.held_bytes <= most, "{stats:?}");
            // Power is cut on the way to the next drive.
            store.slots.sync().unwrap();
            assert_holds(&open(&fs.crash_losing_all()), &store.index, "after a power cut");
        }
    }
}

/// The last block of the file, which the drive before had no need of, is written to all the same.
#[test]
fn a_file_that_ends_within_a_block_is_used_to_its_end() {
    let fs = SimFs::new();
    fs.set_sectors(512, 512);
    let file = fs.open_blocks(Path::new(PATH), true).unwrap();
    file.grow(9 * 512).unwrap();
    file.write_many(&[terrace_disk::BlockWrite { offset: 0, parts: vec![&item(0, 9)] }]).unwrap();
    drop(file);
    fs.set_sectors(512, 4096);
    let slots = open(&fs);
    let live = terrace_disk::Slot::from_bits(9).unwrap();
    slots.adopt([live]).unwrap();
    assert!(*slots.read(live).unwrap() == *item(0, 9));
    slots.retire(live).unwrap();
    slots.free(live).unwrap();
    let again = slots.write(item(1, 16), true).unwrap();
    assert_eq!((again.first(), slots.stats().file_bytes), (0, 2 * BLOCK));
    assert!(*slots.read(again).unwrap() == *item(1, 16));
    slots.retire(again).unwrap();
    slots.free(again).unwrap();
    assert_eq!(slots.give_back(0).unwrap(), 2 * BLOCK);
}

#[test]
fn where_nothing_can_be_given_back_what_is_free_is_used_again() {
    let fs = SimFs::new();
    fs.set_holes(false);
    let mut store = Store::open(&fs);
    let (mut rng, mut most_held) = (Rng::new(1), 0);
    for _ in 0..400 {
        store.put(&[(rng.below(12), 1 + rng.below(100))]).unwrap();
        store.free(0).unwrap();
        assert_eq!(store.slots.tidy().unwrap(), 0);
        most_held = most_held.max(store.slots.stats().held_bytes);
    }
    store.check();
    let stats = store.slots.stats();
    assert_eq!((stats.hole_bytes, fs.used_bytes()), (0, stats.file_bytes));
    assert!(stats.file_bytes <= 2 * most_held + LEAST_SPARE_BYTES, "{stats:?}, {most_held}");
    store.reopen(&fs).check();
}

/// Refuses to give anything back, with an error that is not that of a full disk.
#[derive(Debug)]
struct NoDiscards;

impl Observer for NoDiscards {
    fn before(&self, _event: FsEvent<'_>) {}

    fn refuse(&self, _path: &Path, operation: &'static str) -> Option<io::Error> {
        (operation == "discard").then(|| io::Error::other("refused"))
    }
}

/// A writer that meets a full disk gets an error that says so, whatever becomes of the attempt to make room, and may
/// try again.
#[test]
fn a_full_disk_is_told_where_nothing_can_be_given_back() {
    let fs = SimFs::new();
    let mut store = Store::open(&fs);
    store.put(&[(0, 100), (1, 100)]).unwrap();
    store.publish(0, None).unwrap();
    store.free(0).unwrap();
    fs.observe(Some(Arc::new(NoDiscards)));
    fs.set_capacity(Some(fs.used_bytes()));
    let error = store.slots.write(item(9, 4000), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(store.slots.tidy().unwrap(), 0, "there is nothing beyond what is kept");
    assert!(store.slots.give_back(0).is_err());
    store.check();
    fs.observe(None);
    fs.set_capacity(None);
    store.put(&[(9, 4000)]).unwrap();
    store.check();
}

/// A file that was cut, is of long ago or another's: slots that cannot be are told when it is adopted; and what lies
/// elsewhere than it did is another item, which whoever reads it finds by what it has written into it.
#[test]
fn files_that_are_not_what_they_were() {
    let fs = SimFs::new();
    let mut store = Store::open(&fs);
    (0..40).for_each(|key| store.put(&[(key, 20)]).unwrap());
    let (index, whole) = (store.index.clone(), fs.read(Path::new(PATH)).unwrap());
    drop(store);
    for cut in [0, 1, 511, 4096, 5000, 20 * BLOCK as usize, 100 * BLOCK as usize + 1] {
        fs.plant(Path::new(PATH), &whole[..cut]).unwrap();
        let slots = open(&fs);
        for (slot, id) in index.values() {
            let is_there = (slot.first() + slot.sectors()) * SECTOR <= cut as u64;
            match slots.read(*slot) {
                Ok(found) => assert!(is_there && *found == *item(*id, 20)),
                Err(e) => assert!(!is_there && e.kind() == ErrorKind::Corruption, "{e}"),
            }
        }
        // Before that is found the file grows over what it had.
        let written: Vec<_> = (0..60).map(|id| slots.write(item(1000 + id, 19), true).unwrap()).collect();
        let list = slots_of(&index).chain(written.iter().copied());
        let error = slots.adopt(list).unwrap_err();
        assert!(error.kind() == ErrorKind::Corruption && !slots.is_adopted(), "{cut}: {error}");
        slots.check(written.iter().copied()).unwrap();
        assert!(written.iter().zip(1000..).all(|(slot, id)| *slots.read(*slot).unwrap() == *item(id, 19)));
        drop(slots);
    }
    fs.plant(Path::new(PATH), &vec![7; whole.len()]).unwrap();
    let slots = open(&fs);
    slots.adopt(slots_of(&index)).unwrap();
    assert!(slots_of(&index).all(|slot| slots.read(slot).unwrap().iter().all(|&byte| byte == 7)));
}

/// Reads that were begun go on beside what else is done, and may be dropped.
#[test]
fn reads_are_begun() {
    let real = tempfile::tempdir().unwrap();
    let sim = SimFs::new();
    let places: [(&dyn Fs, &Path); 2] = [(&RealFs, real.path()), (&sim, Path::new("/"))];
    for (fs, dir) in places {
        let path = dir.join("slots");
        let slots = Arc::new(Slots::open(fs.open_blocks(&path, true).unwrap(), 4096).unwrap());
        slots.adopt([]).unwrap();
        let items: Vec<BlockBuf> = (0..300).map(|id| item(id, 8 * (1 + id % 40))).collect();
        let written = slots.write_all(items.clone(), true).unwrap();
        // More than are under way at a time, one of them large.
        let large = slots.write(item(999, 8 * 700), true).unwrap();
        let begun: Vec<_> = written.chunks(100).map(|some| slots.begin_reads(some).unwrap()).collect();
        let of_large = slots.begin_reads(&[large]).unwrap();
        drop(slots.begin_reads(&written).unwrap());
        drop(slots.begin_reads(&[]).unwrap());
        let more = slots.write(item(5, 8), true).unwrap();
        for (begun, items) in begun.into_iter().rev().zip(items.chunks(100).rev()) {
            assert!(begun.finish().unwrap().iter().zip(items).all(|(found, item)| **found == **item));
        }
        assert!(*of_large.finish().unwrap()[0] == *item(999, 8 * 700));
        assert!(*slots.read(more).unwrap() == *item(5, 8));
        // A thread that begins reads may end before they do.
        let begun = std::thread::scope(|scope| {
            scope.spawn(|| slots.begin_reads(&written[..50]).unwrap()).join().unwrap()
        });
        assert!(begun.finish().unwrap().iter().zip(&items).all(|(found, item)| **found == **item));
        let behind = terrace_disk::Slot::from_bits(1 << 40 | 1).unwrap();
        assert_eq!(slots.begin_reads(&[behind]).unwrap_err().kind(), ErrorKind::Corruption);
        // What is told of one is told of those that are read with it.
        let mut ahead = slots.ahead([written[0], written[1], behind, written[2]].into_iter());
        assert!(*ahead.next().unwrap().unwrap() == *items[0]);
        assert!(ahead.next().unwrap().is_err() && ahead.next().is_none());
        // A waiter reports a file that ends sooner than it did.
        if let Ok(file) = std::fs::File::options().write(true).open(&path) {
            let begun = slots.begin_reads(&written).unwrap();
            drop(begun);
            file.set_len(8192).unwrap();
            let error = slots.begin_reads(&written).unwrap().finish().unwrap_err();
            assert!(matches!(error, Error::Corruption { .. }), "{error}");
        }
    }
}

/// Of what is read ahead, no more than a window is read and not used, or one large item.
#[test]
fn little_is_read_ahead() {
    let fs = MeteredFs::new(Arc::new(SimFs::new()));
    let slots = open(&fs);
    slots.adopt([]).unwrap();
    let mut rng = Rng::new(2);
    let sizes: Vec<u64> = (0..30).map(|_| [9, 200, 3000, 9000][rng.below(4) as usize]).collect();
    let written: Vec<_> =
        sizes.iter().zip(0..).map(|(size, id)| slots.write(item(id, *size), false).unwrap()).collect();
    let before = fs.stats();
    let (mut used, mut largest) = (0, 0);
    for (found, (id, size)) in slots.ahead(written.into_iter()).zip((0..).zip(sizes)) {
        assert!(*found.unwrap() == *item(id, size));
        let read = fs.stats().since(&before);
        assert!(read.bytes_read - used <= WINDOW_BYTES.max(size * SECTOR), "{read:?}");
        assert!(id > 0 || read.reads == 1, "the first is read alone");
        used += size * SECTOR;
        largest = largest.max(size * SECTOR);
    }
    assert!(largest > WINDOW_BYTES);
}

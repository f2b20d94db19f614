//! Pools as files: making, opening, closing, growing, locking, and what is not a pool.

use std::fs;

use terrace_base::{Error, ErrorKind};
use terrace_pmem::{Granularity, Kind, MediaRequest, Opened, POff, Pool, PoolOptions, Profile};

use crate::support::{memory_dir, memory_pool, name, options, other_boot};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_closed_pool_opens_clean_with_what_it_held() {
    let dir = dir();
    let path = dir.path().join("pool");
    let pool = Pool::create(&path, &options()).unwrap();
    assert_eq!((pool.opened(), pool.generation()), (Opened::Created, 1));
    assert_eq!(pool.granularity(), Granularity::Page);
    let slot = pool.reserve(Kind(1), 100).unwrap();
    assert_eq!(slot.bytes, 128);
    pool.copy_flush(slot.offset, &[7; 100]);
    pool.activate(&slot);
    pool.drain();
    pool.set_root("head", slot.offset).unwrap();
    let used = pool.used_bytes();
    pool.close().unwrap();
    pool.close().unwrap();
    drop(pool);

    let pool = Pool::open(&path, &other_boot()).unwrap();
    assert_eq!((pool.opened(), pool.generation()), (Opened::Clean, 2));
    assert!(!pool.needs_reclaim());
    assert_eq!(pool.root("head").unwrap(), Some(slot.offset));
    assert_eq!(pool.used_bytes(), used);
    assert_eq!(pool.slots(Kind(1)).collect::<Vec<_>>(), [(slot.offset, 128)]);
    // SAFETY: nothing stores to the slot.
    assert_eq!(unsafe { pool.bytes(slot.offset, 100) }.unwrap(), [7; 100]);
    let mut marks = pool.marks();
    marks.slot(slot.offset).unwrap();
    assert_eq!(pool.check(&marks), []);
}

#[test]
fn the_verdict_depends_on_boot_and_media() {
    let dir = dir();
    let path = dir.path().join("pool");
    drop(Pool::create(&path, &options()).unwrap());
    assert_eq!(Pool::open(&path, &options()).unwrap().opened(), Opened::SameBoot);
    for _ in 0..2 {
        // A torn pool stays torn, whatever boot looks at it.
        let torn = Pool::open(&path, &other_boot()).unwrap();
        assert_eq!(torn.opened(), Opened::Torn);
        assert_eq!(torn.reserve_extent(Kind(1), 1).unwrap_err().kind(), ErrorKind::Corruption);
        torn.close().unwrap();
    }

    let (media, pool) = memory_pool();
    drop(pool);
    let pool = Pool::open_on(media, name(), &other_boot()).unwrap();
    assert_eq!((pool.opened(), pool.generation()), (Opened::Crashed, 2));
}

#[test]
fn one_process_at_a_time() {
    let dir = dir();
    let path = dir.path().join("pool");
    let pool = Pool::create(&path, &options()).unwrap();
    assert!(matches!(Pool::open(&path, &options()), Err(Error::Locked { path: p, .. }) if p == path));
    drop(pool);
    Pool::open(&path, &options()).unwrap();
}

#[test]
fn what_is_there_is_never_overwritten() {
    let dir = dir();
    let path = dir.path().join("file");
    fs::write(&path, "somebody's letter").unwrap();
    assert_eq!(Pool::create(&path, &options()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(Pool::open(&path, &options()).unwrap_err().kind(), ErrorKind::InvalidFormat);
    assert_eq!(fs::read(&path).unwrap(), b"somebody's letter");
    fs::write(&path, [&b"version 9 of a letter"[..], &vec![b'x'; 100_000]].concat()).unwrap();
    let foreign = Pool::open(&path, &options()).unwrap_err();
    assert!(foreign.kind() == ErrorKind::InvalidFormat && !foreign.is_of_another_version(), "{foreign}");
    fs::write(&path, vec![b'x'; 100_000]).unwrap();
    assert_eq!(Pool::open(&path, &options()).unwrap_err().kind(), ErrorKind::InvalidFormat);
    assert_eq!(fs::read(&path).unwrap(), vec![b'x'; 100_000]);
    let missing = dir.path().join("missing");
    assert_eq!(Pool::open(&missing, &options()).unwrap_err().kind(), ErrorKind::Io);
    assert!(!missing.exists());
}

/// Under the name that a pool has while it is made may lie anything: another pool, open or closed, or somebody's file.
#[test]
fn what_lies_where_a_pool_is_made_is_not_removed_for_it() {
    let dir = dir();
    let (path, beside) = (dir.path().join("pool"), dir.path().join("pool.new"));
    let other = Pool::create(&beside, &options()).unwrap();
    other.set_root("head", 7).unwrap();
    let made = || Pool::create(&path, &options()).map(drop);
    assert_eq!(made().unwrap_err().kind(), ErrorKind::Locked);
    other.close().unwrap();
    drop(other);
    let whole = fs::read(&beside).unwrap();
    let mut spoilt = whole.clone();
    spoilt[9] ^= 1;
    spoilt[4096 + 9] ^= 1;
    for bytes in [&whole[..], &spoilt, &whole[..5000], b"a thesis"] {
        fs::write(&beside, bytes).unwrap();
        let refused = made().unwrap_err();
        assert!(refused.kind() == ErrorKind::InvalidArgument && refused.to_string().contains("move it away"));
        assert!(fs::read(&beside).unwrap() == bytes && !path.exists());
    }
    fs::remove_file(&beside).unwrap();
    fs::create_dir(&beside).unwrap();
    assert_eq!(made().unwrap_err().kind(), ErrorKind::InvalidArgument);
    fs::remove_dir(&beside).unwrap();
    std::os::unix::fs::symlink("nowhere", &beside).unwrap();
    assert_eq!(made().unwrap_err().kind(), ErrorKind::InvalidArgument);
    fs::remove_file(&beside).unwrap();
    // The rest of a creation is nobody's: nothing in it, no superblock yet or none with a magic, one superblock of two, or
    // a pool that has not got its name.
    drop(Pool::create(&dir.path().join("unnamed"), &options()).unwrap());
    let unnamed = fs::read(dir.path().join("unnamed")).unwrap();
    let without = |first: usize, second: usize| {
        let mut bytes = unnamed.clone();
        bytes[..first].fill(0);
        bytes[4096..4096 + second].fill(0);
        bytes
    };
    let begun = [without(8, 128), without(0, 128), without(0, 8)];
    let cut = begun[0][..5000].to_vec();
    for bytes in [vec![], vec![0; 1 << 20], cut, unnamed.clone()].into_iter().chain(begun) {
        fs::write(&beside, bytes).unwrap();
        made().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!beside.exists());
    }
}

#[test]
fn an_interrupted_creation_leaves_no_pool_and_does_not_hinder_the_next() {
    let dir = dir();
    let path = dir.path().join("pool");
    fs::write(dir.path().join("pool.new"), [vec![0; 10_000], vec![1; 40_000]].concat()).unwrap();
    fs::write(&path, "").unwrap();
    let pool = Pool::create(&path, &options()).unwrap();
    assert!(!dir.path().join("pool.new").exists());
    pool.set_root("a", 1).unwrap();
}

#[test]
fn a_pool_grows_in_place_and_says_when_it_is_full() {
    let dir = dir();
    let path = dir.path().join("pool");
    let pool = Pool::create(&path, &options()).unwrap();
    let base = pool.media().base();
    let mut offsets = Vec::new();
    let error = loop {
        match pool.reserve_extent(Kind(3), 10_000) {
            Ok(extent) => {
                assert_eq!(extent.bytes, 12288);
                pool.write(extent.offset, &[3; 12288]);
                pool.activate(&extent);
                offsets.push(extent.offset);
            }
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), ErrorKind::PoolFull);
    assert_eq!(pool.size(), 16 << 20);
    assert_eq!(pool.media().base(), base);
    assert!(offsets.len() > 1300, "{}", offsets.len());
    pool.drain();
    pool.close().unwrap();
    drop(pool);
    let pool = Pool::open(&path, &options()).unwrap();
    assert_eq!(pool.size(), 16 << 20);
    let mut found: Vec<u64> = pool.extents(Kind(3)).iter().map(|e| e.offset).collect();
    offsets.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, offsets);
    for offset in offsets {
        pool.free_extent(offset, Kind(3)).unwrap();
        assert_eq!(pool.free_extent(offset, Kind(3)).unwrap_err().kind(), ErrorKind::Corruption);
    }
    assert_eq!(pool.check(&pool.marks()), []);
    pool.reserve_extent(Kind(4), 7 << 20).unwrap();
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let dir = dir();
    let path = dir.path().join("pool");
    for bad in [
        PoolOptions { extent_bytes: 5000, ..options() },
        PoolOptions { extent_bytes: 512, ..options() },
        PoolOptions { extent_bytes: 0, ..options() },
        PoolOptions { size: 20_000, ..options() },
        PoolOptions { size: 0, ..options() },
    ] {
        let kind = Pool::create(&path, &bad).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::InvalidArgument | ErrorKind::InvalidFormat), "{bad:?} {kind:?}");
        assert!(!path.exists());
    }
}

#[test]
fn an_emulated_pool_says_so_and_does_not_claim_to_survive_a_reboot() {
    let dir = dir();
    let path = dir.path().join("pool");
    let emulated = |o: PoolOptions| PoolOptions { media: MediaRequest::Emulated(Profile::DRAM), ..o };
    let pool = Pool::create(&path, &emulated(options())).unwrap();
    assert_eq!(pool.granularity(), Granularity::CacheLine);
    assert!(pool.describe().contains("EMULATED"));
    pool.set_root("x", 9).unwrap();
    drop(pool);
    let pool = Pool::open(&path, &emulated(options())).unwrap();
    assert_eq!((pool.opened(), pool.root("x").unwrap()), (Opened::SameBoot, Some(9)));
    drop(pool);
    assert_eq!(Pool::open(&path, &emulated(other_boot())).unwrap().opened(), Opened::Torn);
}

#[test]
fn primitives_store_and_count() {
    let (_, pool) = memory_pool();
    let extent = pool.reserve_extent(Kind(1), 4096).unwrap();
    let at = POff::<u64>::new(extent.offset);
    let before = pool.stats();
    pool.publish(at, 5);
    pool.store_ordered(at.field(8), 7);
    pool.copy_persist(extent.offset + 100, &[1; 300]);
    pool.charge_read(extent.offset, 300);
    assert_eq!(pool.atomic(at).load(std::sync::atomic::Ordering::Acquire), 5);
    assert_eq!(pool.get(at.field::<[u64; 2]>(0)).unwrap(), &[5, 7]);
    let s = pool.stats().since(&before);
    assert_eq!((s.flushes, s.drains, s.publishes, s.bytes_flushed), (2, 2, 1, 308));
    assert_eq!((s.lines, s.xpline_writes, s.xpline_reads), (7, 2, 2));
    let end = pool.size();
    assert_eq!(pool.get(POff::<u64>::new(end - 4)).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(pool.atomic_checked(POff::new(4)).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(pool.get(POff::<u64>::new(u64::MAX - 3)).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn roots_come_and_go() {
    let (media, pool) = memory_pool();
    assert_eq!(pool.root("none").unwrap(), None);
    for i in 0..60 {
        pool.set_root(&format!("root-{i}"), i).unwrap();
    }
    assert_eq!(pool.set_root("one more", 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
    pool.clear_root("root-7").unwrap();
    pool.clear_root("root-7").unwrap();
    pool.set_root("one more", (1 << 48) - 1).unwrap();
    pool.set_root("root-8", 88).unwrap();
    for bad in ["", "a name of twenty-four byt", "zero\0"] {
        assert_eq!(pool.set_root(bad, 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(pool.set_root("big", 1 << 48).unwrap_err().kind(), ErrorKind::InvalidArgument);
    drop(pool);
    let pool = Pool::open_on(media, name(), &options()).unwrap();
    assert_eq!(pool.roots().unwrap().len(), 60);
    assert_eq!(pool.root("root-7").unwrap(), None);
    assert_eq!(pool.root("root-8").unwrap(), Some(88));
    assert_eq!(pool.root("one more").unwrap(), Some((1 << 48) - 1));
}

#[test]
fn a_prefault_stops_when_the_pool_closes_and_changes_nothing() {
    let dir = memory_dir();
    let path = dir.path().join("pool");
    let o = PoolOptions { size: 32 << 20, max_size: 64 << 20, prefault: true, ..options() };
    let pool = Pool::create(&path, &o).unwrap();
    let extent = pool.reserve_extent(Kind(1), 40 << 20).unwrap();
    pool.write(extent.offset + extent.bytes - 5, b"early");
    pool.activate(&extent);
    pool.close().unwrap();
    // SAFETY: nothing stores to the extent.
    assert_eq!(unsafe { pool.bytes(extent.offset + extent.bytes - 5, 5) }.unwrap(), b"early");
    drop(pool);
    assert_eq!(Pool::open(&path, &o).unwrap().extents(Kind(1)), [extent]);
}

#[test]
fn a_growing_pool_on_a_full_file_system_is_an_error_and_goes_on() {
    let dir = memory_dir();
    let path = dir.path().join("pool");
    let o = PoolOptions { max_size: 1 << 50, ..options() };
    let refused = Pool::create(&path, &PoolOptions { size: 1 << 45, max_size: 1 << 45, ..options() });
    assert!(refused.is_err());
    let pool = match Pool::create(&path, &o) {
        Ok(pool) => pool,
        // Not even addresses for that much: nothing to test here.
        Err(_) => Pool::create(&path, &PoolOptions { max_size: 1 << 45, ..options() }).unwrap(),
    };
    let kind = pool.reserve_extent(Kind(1), 1 << 44).unwrap_err().kind();
    assert!(matches!(kind, ErrorKind::NoSpace | ErrorKind::PoolFull), "{kind:?}");
    pool.reserve_extent(Kind(1), 1 << 20).unwrap();
}

#[test]
fn a_medium_is_emptied_for_the_next_pool_whatever_it_held() {
    let (media, pool) = memory_pool();
    assert!(!Pool::is_blank_on(&*media, name()).unwrap());
    pool.set_root("a", 1).unwrap();
    drop(pool);
    let refused = Pool::create_on(media.clone(), name(), &options()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    Pool::remove_on(&*media, name()).unwrap();
    assert!(Pool::is_blank_on(&*media, name()).unwrap());
    assert_eq!(
        Pool::open_on(media.clone(), name(), &options()).unwrap_err().kind(),
        ErrorKind::InvalidFormat
    );
    let pool = Pool::create_on(media, name(), &options()).unwrap();
    assert_eq!(pool.roots().unwrap(), []);
}

#[test]
fn a_file_is_there_until_it_is_removed() {
    let dir = dir();
    let path = dir.path().join("pool");
    assert!(!Pool::exists(&path).unwrap());
    drop(Pool::create(&path, &options()).unwrap());
    assert!(Pool::exists(&path).unwrap());
    Pool::remove(&path).unwrap();
    assert!(!path.exists());
    // A device that is no persistent memory is neither looked at nor unlinked.
    assert_eq!(Pool::exists("/dev/null".as_ref()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(Pool::remove("/dev/null".as_ref()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(std::path::Path::new("/dev/null").exists());
}

#[test]
fn a_medium_can_be_copied_to_a_file() {
    let dir = dir();
    let path = dir.path().join("copy");
    let (media, pool) = memory_pool();
    pool.set_root("head", 77).unwrap();
    let file = fs::File::create(&path).unwrap();
    Pool::copy_on(&*media, name(), &file).unwrap();
    drop(file);
    let as_it_was = PoolOptions { media: MediaRequest::Force(Granularity::CacheLine), ..options() };
    assert_eq!(Pool::open(&path, &as_it_was).unwrap().root("head").unwrap(), Some(77));
}

#[test]
fn no_file_is_made_where_devices_are_nor_over_what_is_none() {
    let dir = dir();
    let missing = std::path::Path::new("/dev/terrace-there-is-no-such-device");
    for path in [missing, dir.path()] {
        let refused = Pool::create(path, &options()).map(drop).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::InvalidArgument | ErrorKind::Io), "{refused}");
    }
    assert!(!missing.exists() && dir.path().is_dir());
    assert!(Pool::create(missing, &options()).map(drop).unwrap_err().to_string().contains("no device"));
    assert_eq!(Pool::exists(dir.path()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// An owner that remembers an offset asks whether it still is what it was. The answer is no error, whatever is there.
#[test]
fn only_an_active_slot_of_its_kind_is_active() {
    let (_, pool) = memory_pool();
    for bytes in [24, 100, 3 * 4096] {
        let slot = pool.reserve(Kind(1), bytes).unwrap();
        assert!(!pool.is_active(slot.offset, Kind(1)), "it is reserved");
        pool.activate(&slot);
        assert!(pool.is_active(slot.offset, Kind(1)));
        assert!(!pool.is_active(slot.offset, Kind(2)), "it is of another kind");
        let beside = [slot.offset - 8, slot.offset + 8, slot.offset + slot.bytes, slot.offset + 4096];
        assert!(beside.iter().all(|at| !pool.is_active(*at, Kind(1))), "nothing begins there");
        pool.free(slot.offset, Kind(1)).unwrap();
        assert!(!pool.is_active(slot.offset, Kind(1)), "it was freed");
        // What comes into its place is another's.
        let next = std::iter::from_fn(|| pool.reserve(Kind(2), bytes).ok())
            .inspect(|next| pool.activate(next))
            .find(|next| next.offset == slot.offset);
        assert!(next.is_some_and(|next| pool.is_active(next.offset, Kind(2))));
        assert!(!pool.is_active(slot.offset, Kind(1)));
        let all: Vec<u64> = pool.slots(Kind(2)).map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| pool.free(at, Kind(2)).unwrap());
    }
    let extent = pool.reserve_extent(Kind(1), 4096).unwrap();
    pool.activate(&extent);
    let elsewhere = [0, 1, 4096, extent.offset, pool.size(), pool.size() + 4096, u64::MAX];
    assert!(elsewhere.iter().all(|at| !pool.is_active(*at, Kind(1))), "no slot is there");
}

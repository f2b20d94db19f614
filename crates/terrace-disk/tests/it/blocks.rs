//! Files of sectors: what all of them promise, and what a power cut, a fault or a full disk leaves of simulated ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use terrace_base::ErrorKind;
use terrace_base::rng::Rng;
use terrace_disk::{BlockBuf, BlockFile, BlockWrite, Fault, Fs, IoStats, MeteredFs, RealFs, Room, SimFs};

const BLOCK: u64 = 4096;

/// Runs `test` on each file system, in an empty directory of it: of real ones with the page cache and without.
fn everywhere(test: impl Fn(&dyn Fs, &Path)) {
    let real = tempfile::tempdir().unwrap();
    test(&RealFs, real.path());
    if let Ok(memory) = tempfile::tempdir_in("/dev/shm") {
        test(&MeteredFs::new(Arc::new(RealFs)), memory.path());
    }
    for (sector, block) in [(512, 4096), (4096, 4096), (512, 512)] {
        let sim = SimFs::new();
        sim.set_sectors(sector, block);
        test(&sim, Path::new("/"));
    }
}

fn read(file: &dyn BlockFile, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = BlockBuf::zeroed(len);
    file.read_many(&mut [(offset, &mut buf)]).unwrap();
    buf.to_vec()
}

fn filled(byte: u8, len: usize) -> BlockBuf {
    let mut buf = BlockBuf::zeroed(len);
    buf.fill(byte);
    buf
}

#[test]
fn what_is_written_is_read() {
    everywhere(|fs, dir| {
        let path = dir.join("blocks");
        assert!(fs.open_blocks(&path, false).is_err());
        let file = fs.open_blocks(&path, true).unwrap();
        assert!(fs.open_blocks(&path, true).is_err() && file.is_empty());
        let sector = file.geometry().sector_bytes as usize;
        let block = u64::from(file.geometry().block_bytes);
        let len = 600 * block;
        file.grow(len).unwrap();
        file.grow(block).unwrap();
        assert_eq!((file.len(), file.path()), (len, path.as_path()));
        let mut model = vec![0u8; len as usize];
        file.write_many(&[BlockWrite { offset: 0, parts: vec![&model.clone()] }]).unwrap();
        let mut rng = Rng::new(7);
        for round in 0..60 {
            // Writes that do not overlap, of one part or more, in memory that lies right or not.
            let mut at = rng.below(40) as usize * sector;
            let (mut bufs, mut writes) = (Vec::new(), Vec::new());
            for _ in 0..1 + rng.below(8) {
                let most = [3, 20, 300][rng.below(3) as usize];
                let mut buf = BlockBuf::zeroed((1 + rng.below(most) as usize) * sector + 1);
                rng.fill(&mut buf);
                bufs.push((at, usize::from(round % 3 == 0), buf));
                at += (most + rng.below(9)) as usize * sector;
            }
            for (at, from, buf) in &bufs {
                let data = &buf[*from..buf.len() - 1 + from];
                if *at + data.len() > model.len() {
                    continue;
                }
                model[*at..*at + data.len()].copy_from_slice(data);
                let (head, tail) = data.split_at(data.len() / sector / 2 * sector);
                writes.push(BlockWrite { offset: *at as u64, parts: vec![head, tail] });
            }
            file.write_many(&writes).unwrap();
            if rng.one_in(3) {
                let start = rng.below(590) * block;
                let range = start..start + rng.below(10) * block;
                if file.discard(range.clone()).unwrap() {
                    model[range.start as usize..range.end as usize].fill(0);
                }
            }
            if rng.one_in(4) {
                file.sync().unwrap();
            }
            let from = rng.below(len / sector as u64) as usize * sector;
            let mut skewed = vec![0; (model.len() - from).min(40 * sector) + 1];
            file.read_many(&mut [(from as u64, &mut skewed[1..])]).unwrap();
            assert!(skewed[1..] == model[from..from + skewed.len() - 1]);
        }
        assert!(read(&*file, 0, model.len()) == model);
        file.sync().unwrap();
        drop(file);
        let again = fs.open_blocks(&path, false).unwrap();
        assert!(again.len() == len && read(&*again, 0, model.len()) == model);
        // A write to allocated blocks is durable at once; one to given-back blocks is not.
        for offset in [block, 5 * block] {
            again.write_many(&[BlockWrite { offset, parts: vec![&filled(9, 3 * sector)] }]).unwrap();
            again.sync().unwrap();
            again.discard(offset..offset + block).unwrap();
            again.write_many(&[BlockWrite { offset, parts: vec![&filled(8, sector)] }]).unwrap();
            assert_eq!(read(&*again, offset, sector), [8].repeat(sector));
        }
    });
}

#[test]
fn what_is_no_sector_is_refused() {
    everywhere(|fs, dir| {
        let file = fs.open_blocks(&dir.join("blocks"), true).unwrap();
        let (sector, block) = (file.geometry().sector_bytes as usize, u64::from(file.geometry().block_bytes));
        file.grow(4 * block).unwrap();
        let data = filled(1, 8 * sector);
        let write =
            |offset: u64, len: usize| file.write_many(&[BlockWrite { offset, parts: vec![&data[..len]] }]);
        assert_eq!(write(1, sector).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(write(0, sector - 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(write(4 * block, sector).unwrap_err().kind(), ErrorKind::Corruption);
        assert_eq!(write(u64::MAX / block * block, sector).unwrap_err().kind(), ErrorKind::Corruption);
        write(4 * block, 0).unwrap();
        file.write_many(&[]).unwrap();
        let mut buf = filled(0, 2 * sector);
        for (offset, kind) in [(1, ErrorKind::InvalidArgument), (4 * block, ErrorKind::Corruption)] {
            assert_eq!(file.read_many(&mut [(offset, &mut buf)]).unwrap_err().kind(), kind);
        }
        assert!(file.grow(block + 1).is_err() && file.discard(1..block).is_err());
        #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        let backwards = block..0;
        assert!(file.discard(backwards).is_err() && file.discard(0..5 * block).is_err());
        file.discard(0..0).unwrap();
    });
}

#[test]
fn the_meter_counts() {
    let fs = MeteredFs::new(Arc::new(SimFs::new()));
    let file = fs.open_blocks(Path::new("/blocks"), true).unwrap();
    file.grow(4 * BLOCK).unwrap();
    let data = filled(1, 1024);
    let write = |offset| BlockWrite { offset, parts: vec![&data[..512], &data[..512]] };
    file.write_many(&[write(0), write(BLOCK)]).unwrap();
    assert!(file.sync().unwrap());
    file.write_many(&[write(0)]).unwrap();
    read(&*file, 0, 512);
    file.discard(BLOCK..3 * BLOCK).unwrap();
    let expected = IoStats {
        bytes_written: 3072,
        writes: 3,
        bytes_synced: 2048,
        syncs: 1,
        creates: 1,
        bytes_read: 512,
        reads: 1,
        bytes_discarded: 2 * BLOCK,
        ..IoStats::default()
    };
    assert_eq!(fs.stats(), expected);
}

fn path() -> PathBuf {
    PathBuf::from("/blocks")
}

/// A simulated file of so many blocks, all durably zeros.
fn simulated(blocks: u64) -> (SimFs, Arc<dyn BlockFile>) {
    let fs = SimFs::new();
    let file = fs.open_blocks(&path(), true).unwrap();
    file.grow(blocks * BLOCK).unwrap();
    file.sync().unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    (fs, file)
}

/// What each sector may hold after a power cut, by its first byte: all of a sector's bytes are alike.
#[derive(Default)]
struct Allowed {
    /// Of every sector written to since the last sync.
    since: BTreeMap<u64, BTreeSet<u8>>,
    now: Vec<u8>,
}

impl Allowed {
    fn set(&mut self, sectors: std::ops::Range<u64>, byte: u8) {
        for sector in sectors {
            let held = self.since.entry(sector).or_default();
            held.extend([self.now[sector as usize], byte]);
            self.now[sector as usize] = byte;
        }
    }

    fn allows(&self, image: &[u8]) -> bool {
        let touched: BTreeSet<u64> = self.since.keys().map(|sector| sector / 8).collect();
        image.chunks(512).enumerate().all(|(i, found)| {
            let is_alike = found.iter().all(|byte| *byte == found[0]);
            let held = self.since.get(&(i as u64));
            let is_held = is_alike && held.map_or(self.now[i] == found[0], |held| held.contains(&found[0]));
            // Or the whole block is lost.
            is_held || touched.contains(&(i as u64 / 8))
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_power_cut_keeps_what_was_promised(
        ops in prop::collection::vec((0..8u8, 0..120u64, 1..20u64, 1..=255u8), 1..30), seed: u64,
    ) {
        let (fs, file) = simulated(16);
        let mut model = Allowed { now: vec![0; 128], ..Allowed::default() };
        for (op, at, count, byte) in ops {
            match op {
                0..5 => {
                    let end = (at + count).min(128);
                    let data = filled(byte, (end - at) as usize * 512);
                    file.write_many(&[BlockWrite { offset: at * 512, parts: vec![&data] }]).unwrap();
                    model.set(at..end, byte);
                }
                5 => {
                    let (start, end) = (at / 8, (at / 8 + count / 4).min(16));
                    file.discard(start * BLOCK..end.max(start) * BLOCK).unwrap();
                    model.set(start * 8..end.max(start) * 8, 0);
                }
                _ => {
                    file.sync().unwrap();
                    model.since.clear();
                }
            }
            let least = fs.crash_losing_all();
            prop_assert!(model.allows(&least.read(&path()).unwrap()));
            let mut rng = Rng::new(seed);
            for _ in 0..4 {
                let image = fs.crash(&mut rng);
                let found = image.read(&path()).unwrap();
                prop_assert!(model.allows(&found));
                // What is left is durable.
                prop_assert_eq!(image.crash(&mut rng).read(&path()).unwrap(), found);
            }
            let now: Vec<u8> = model.now.iter().flat_map(|byte| [*byte; 512]).collect();
            prop_assert_eq!(&fs.fork().read(&path()).unwrap(), &now);
            prop_assert_eq!(fs.crash_keeping_all().read(&path()).unwrap(), now);
        }
    }
}

#[test]
fn every_kind_of_loss_is_met() {
    let (fs, file) = simulated(4);
    file.write_many(&[BlockWrite { offset: 0, parts: vec![&filled(1, 4096)] }]).unwrap();
    file.sync().unwrap();
    // Three sectors of the first block, and what it is grown by.
    file.write_many(&[BlockWrite { offset: 512, parts: vec![&filled(2, 1536)] }]).unwrap();
    file.grow(6 * BLOCK).unwrap();
    file.write_many(&[BlockWrite { offset: 4 * BLOCK, parts: vec![&filled(3, 8192)] }]).unwrap();
    let (mut old, mut new, mut torn, mut neighbours, mut short, mut tail) = Default::default();
    let mut rng = Rng::new(1);
    for _ in 0..400 {
        let image = fs.crash(&mut rng);
        let found = image.read(&path()).unwrap();
        let sectors: Vec<u8> = (1..4).map(|i| found[i * 512]).collect();
        let whole = found[4000..4096].iter().all(|&byte| byte == 1);
        old |= whole && sectors == [1; 3];
        new |= whole && sectors == [2; 3];
        torn |= whole && sectors.contains(&1) && sectors.contains(&2);
        neighbours |= !whole;
        short |= found.len() < 6 * BLOCK as usize;
        tail |= found.len() == 6 * BLOCK as usize && found[4 * BLOCK as usize..] == [3; 8192];
        assert_eq!(image.open_blocks(&path(), false).unwrap().len() % 512, 0);
    }
    let kinds: [bool; 6] = [old, new, torn, neighbours, short, tail];
    assert_eq!(kinds, [true; 6]);
}

/// At whatever operation a call fails, only the sectors that it was to write are others, and it can be made again.
#[test]
fn a_write_that_fails_leaves_each_sector_old_or_new() {
    let (mut done_of_others, mut failures) = (0, 0);
    for after in 0..12 {
        for skip in 0..20 {
            let (fs, file) = simulated(16);
            for _ in 0..skip {
                file.sync().unwrap();
            }
            let data = filled(7, 2048);
            let writes: Vec<_> =
                (0..4).map(|i| BlockWrite { offset: i * 4 * BLOCK, parts: vec![&data] }).collect();
            fs.inject(Some(Fault { after, only_changes: true, sticky: false }));
            let done = file.write_many(&writes);
            let found = read(&*file, 0, 16 * BLOCK as usize);
            for (at, sector) in found.chunks(512).enumerate() {
                let is_written = at % 32 < 4;
                assert!(sector.iter().all(|&byte| byte == sector[0]));
                assert!(sector[0] == 0 && (!is_written || done.is_err()) || sector[0] == 7 && is_written);
            }
            if done.is_err() {
                failures += 1;
                done_of_others += u32::from(found.iter().filter(|&&byte| byte == 7).count() > 2048);
                fs.inject(None);
                file.write_many(&writes).unwrap();
            }
            assert_eq!(read(&*file, 12 * BLOCK, 2048), [7; 2048]);
        }
    }
    assert!(failures > 50 && done_of_others > 20, "{failures} {done_of_others}");
}

/// A failed sync may lose what was written since the last, even for readers; what is written and synced then is
/// durable.
#[test]
fn after_a_failed_sync_the_file_goes_on() {
    let (mut lost, mut full) = (0, 0);
    for skip in 0..12 {
        let (fs, file) = simulated(4);
        for _ in 0..skip {
            file.sync().unwrap();
        }
        let write = |byte| file.write_many(&[BlockWrite { offset: BLOCK, parts: vec![&filled(byte, 8192)] }]);
        write(1).unwrap();
        fs.inject(Some(Fault { after: 0, only_changes: true, sticky: false }));
        full += u32::from(file.sync().unwrap_err().kind() == ErrorKind::NoSpace);
        let found = read(&*file, BLOCK, 8192);
        assert!(found.iter().all(|&byte| byte <= 1));
        lost += u32::from(found.contains(&0));
        write(2).unwrap();
        file.sync().unwrap();
        assert_eq!(fs.crash_losing_all().read(&path()).unwrap()[4096..12288], [2; 8192]);
    }
    assert!(lost > 2 && full > 2, "{lost} {full}");
}

#[test]
fn a_full_disk_takes_what_has_its_space_and_what_is_given_back_is_free() {
    let (fs, file) = simulated(8);
    fs.set_capacity(Some(8 * BLOCK));
    assert_eq!(file.grow(9 * BLOCK).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(file.len(), 8 * BLOCK);
    let write = |offset| file.write_many(&[BlockWrite { offset, parts: vec![&filled(1, 4096)] }]);
    write(0).unwrap();
    file.discard(0..2 * BLOCK).unwrap();
    assert_eq!(fs.used_bytes(), 6 * BLOCK);
    let other = fs.open_blocks(Path::new("/other"), true).unwrap();
    other.grow(2 * BLOCK).unwrap();
    assert_eq!(write(BLOCK).unwrap_err().kind(), ErrorKind::NoSpace);
    write(2 * BLOCK).unwrap();
    fs.remove(Path::new("/other")).unwrap();
    drop(other);
    write(BLOCK).unwrap();
    assert_eq!(fs.used_bytes(), 7 * BLOCK);
    file.sync().unwrap();
    let after = fs.crash_losing_all();
    assert_eq!((after.used_bytes(), after.free_bytes(Path::new("/")).unwrap()), (7 * BLOCK, BLOCK));
    assert_eq!(fs.descriptors(), 1);
}

/// What was given back of what the file was grown by is gone with that, if nobody synced it.
#[test]
fn a_power_cut_takes_what_was_grown_and_what_was_given_back_of_it() {
    let (fs, file) = simulated(2);
    file.grow(16 * BLOCK).unwrap();
    file.discard(4 * BLOCK..10 * BLOCK).unwrap();
    assert_eq!(fs.used_bytes(), 10 * BLOCK);
    let mut lengths = BTreeSet::new();
    for seed in 0..40 {
        let image = fs.crash(&mut Rng::new(seed));
        let len = image.read(&path()).unwrap().len() as u64;
        assert!(image.used_bytes() <= len && (2 * BLOCK..=16 * BLOCK).contains(&len));
        let again = image.open_blocks(&path(), false).unwrap();
        again.grow(20 * BLOCK).unwrap();
        again.write_many(&[BlockWrite { offset: 5 * BLOCK, parts: vec![&filled(1, 4096)] }]).unwrap();
        lengths.insert(len);
    }
    assert!(lengths.len() > 2 && fs.crash_losing_all().used_bytes() == 2 * BLOCK);
}

/// Opening a file changes nothing of it, whatever it holds and however long it is.
#[test]
fn to_open_a_file_changes_nothing() {
    let real = tempfile::tempdir().unwrap();
    let sim = SimFs::new();
    let places: [(&dyn Fs, &Path); 2] = [(&RealFs, real.path()), (&sim, Path::new("/"))];
    for (fs, dir) in places {
        let path = dir.join("file");
        let mut file = fs.create_reserved(&path, Room::Mapped).unwrap();
        file.append(&[7; 5000]).unwrap();
        file.sync().unwrap();
        drop(file);
        let before = fs.read(&path).unwrap();
        let blocks = fs.open_blocks(&path, false).unwrap();
        let sector = u64::from(blocks.geometry().sector_bytes);
        assert_eq!(blocks.len(), before.len() as u64 / sector * sector);
        assert_eq!(read(&*blocks, 0, 4096), [7; 4096]);
        drop(blocks);
        assert!(fs.read(&path).unwrap() == before);
    }
}

/// Discards that a file system refuses, and faults of every operation: what was there stays, and all goes on.
#[test]
fn any_operation_of_a_file_may_fail() {
    for after in 0..40 {
        let (fs, file) = simulated(8);
        fs.set_holes(after % 2 == 0);
        let mut model = vec![0u8; 8 * BLOCK as usize];
        fs.inject(Some(Fault { after, only_changes: false, sticky: false }));
        let mut failed = 0;
        for step in 1..12u64 {
            let at = step % 8 * BLOCK;
            let range = at as usize..(at + BLOCK) as usize;
            let data = filled(step as u8, 4096);
            let write = || file.write_many(&[BlockWrite { offset: at, parts: vec![&data] }]);
            failed += u32::from(write().is_err() && write().is_ok());
            model[range.clone()].fill(step as u8);
            if file.sync().is_err() {
                failed += 1;
                // What it covered may be lost, and is written again.
                write().unwrap();
                file.sync().unwrap();
            }
            match file.discard(at..at + BLOCK) {
                Ok(true) => model[range].fill(0),
                Ok(false) => assert!(after % 2 == 1),
                Err(_) => failed += 1,
            }
            let longer = (8 + step) * BLOCK;
            if file.grow(longer).is_err() {
                failed += 1;
                assert!(file.len() < longer);
                file.grow(longer).unwrap();
            }
            let mut found = BlockBuf::zeroed(8 * BLOCK as usize);
            if file.read_many(&mut [(0, &mut found)]).is_err() {
                failed += 1;
                file.read_many(&mut [(0, &mut found)]).unwrap();
            }
            assert!(*found == model, "step {step}");
        }
        assert_eq!(failed, 1, "after {after}");
        file.sync().unwrap();
        assert!(fs.crash_losing_all().read(&path()).unwrap()[..model.len()] == model);
    }
}

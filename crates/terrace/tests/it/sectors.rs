//! Files of sectors, and slots in them, in every world that the suites open databases in.

use std::path::Path;
use std::sync::Arc;

use terrace::{EngineKind, ErrorKind};
use terrace_disk::{BlockBuf, Fs, ScratchFs, Slot, Slots};
use terrace_pmem::Granularity;
use terrace_sim::{PmOptions, World, WorldOptions};

use crate::crash::env::Process;
use crate::damage::image::{Image, options};
use crate::harness::{Engine, Machine, setups};

const SECTOR: u32 = 4096;

fn item(byte: u8) -> BlockBuf {
    BlockBuf::holding(&[byte; 9000], SECTOR)
}

fn open(fs: &dyn Fs, path: &Path, is_new: bool) -> Arc<Slots> {
    Arc::new(Slots::open(fs.open_blocks(path, is_new).unwrap(), SECTOR).unwrap())
}

/// Writes items to a new file; where they lie.
fn write(fs: &dyn Fs, path: &Path) -> Vec<Slot> {
    let slots = open(fs, path, true);
    fs.sync_dir(path.parent().unwrap()).unwrap();
    slots.adopt([]).unwrap();
    let written = slots.write_all((0..4).map(item).collect(), true).unwrap();
    slots.retire(written[3]).unwrap();
    slots.free(written[3]).unwrap();
    written[..3].to_vec()
}

/// Finds the items, writes another where one was, gives the rest back, and has nothing changed for the next.
fn read(fs: &dyn Fs, path: &Path, live: &[Slot]) {
    let slots = open(fs, path, false);
    slots.adopt(live.iter().copied()).unwrap();
    for (byte, found) in (0..).zip(slots.ahead(live.iter().copied())) {
        assert!(*found.unwrap() == *item(byte));
    }
    let more = slots.write(item(9), true).unwrap();
    assert!(*slots.read(more).unwrap() == *item(9));
    assert_eq!(slots.check(live.iter().copied().chain([more])).unwrap(), 0);
    slots.retire(more).unwrap();
    slots.free(more).unwrap();
    slots.give_back(0).unwrap();
    assert_eq!(slots.check(live.iter().copied()).unwrap(), 0);
    let file = fs.open(path, terrace_disk::Access::Random).unwrap();
    let mut bytes = vec![0; 9000];
    file.read_at(live[1].first() * u64::from(SECTOR), &mut bytes).unwrap();
    assert!(bytes == [1; 9000], "as any other file is read");
}

/// All of it in one world, which `next` has other processes in.
fn live(fs: &dyn Fs, dir: &Path, next: impl Fn() -> Vec<Arc<dyn Fs>>) {
    let (path, moved) = (dir.join("items"), dir.join("moved"));
    fs.create_dir_all(dir).unwrap();
    let slots = write(fs, &path);
    read(fs, &path, &slots);
    for fs in next() {
        let before = fs.read(&path).unwrap();
        let scratch = ScratchFs::new(fs.clone());
        read(&scratch, &path, &slots);
        scratch.rename(&path, &moved).unwrap();
        read(&scratch, &moved, &slots);
        assert!(fs.read(&path).unwrap() == before, "what only reads changes nothing");
        read(&*fs, &path, &slots);
        fs.rename(&path, &moved).unwrap();
        read(&*fs, &moved, &slots);
        assert!(fs.open_blocks(&path, false).is_err() && fs.open_blocks(&moved, true).is_err());
        fs.rename(&moved, &path).unwrap();
        fs.remove(&path).unwrap();
        assert!(!fs.exists(&path).unwrap());
    }
}

#[test]
fn processes_that_are_killed_and_cut_off() {
    for seed in 0..24 {
        let pm = PmOptions { bytes: 64 << 10, ..PmOptions::default() };
        let world = World::new(seed, WorldOptions { pm });
        let process = Process::new(&world);
        let next = || {
            let worlds = [world.kill(), world.crash(seed), world.kill().crash(1).kill(), world.clone()];
            worlds.iter().map(|world| Process::new(world).env.fs).collect()
        };
        live(&*process.env.fs, Path::new("/db"), next);
        process.died();
    }
}

#[test]
fn machines() {
    for setup in setups(&Engine::of(EngineKind::Slm)) {
        let machine = Machine::new(&setup);
        let next = || vec![machine.kill().env().fs, machine.power_cut(3).env().fs, machine.env().fs];
        live(&*machine.env().fs, machine.dir(), next);
    }
}

/// Boots, copies and files with each other's names: a machine is made of an image's bytes.
#[test]
fn machines_made_of_bytes() {
    let bed = Image::empty(options(EngineKind::Slm), Granularity::CacheLine).bed();
    let dir = Path::new("/db");
    let (one, two) = (dir.join("one"), dir.join("two"));
    let slots = write(bed.fs(), &one);
    let mut image = bed.image();
    let bytes = image.files[&one].clone();
    image.files.insert(two.clone(), bytes);
    image.boot = "another boot";
    let bed = image.bed();
    read(bed.fs(), &one, &slots);
    read(bed.fs(), &two, &slots);
    // A reader of the bytes finds one flipped bit, and no other does.
    let at = (slots[1].first() * u64::from(SECTOR)) as usize;
    bed.fs().damage(&one, |bytes| bytes[at] ^= 1).unwrap();
    let damaged = open(bed.fs(), &one, false);
    assert!(damaged.read(slots[0]).unwrap()[..9000] == [0; 9000]);
    assert_eq!(damaged.read(slots[1]).unwrap()[..2], [0, 1]);
    // What was cut off is told before memory is taken for it.
    bed.fs().damage(&one, |bytes| bytes.truncate(at + 5000)).unwrap();
    let cut = open(bed.fs(), &one, false);
    assert_eq!(cut.read(slots[2]).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(cut.adopt(slots.iter().copied()).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(bed.fs().read(&one).unwrap().len(), at + 5000, "to open it changes nothing");
}

#[test]
fn a_machine_that_was_booted_anew() {
    let dir = tempfile::tempdir().unwrap();
    let boots = || ["two", "three"].map(|boot| crate::harness::booted(boot).fs).into_iter();
    live(&*crate::harness::booted("one").fs, &dir.path().join("db"), || boots().take(1).collect());
}

//! Where nothing can be written: a disk without room, which is opened all the same, read, and written to again when
//! there is room; and a disk that refuses every change, of which readers make none.
//!
//! Histories are cut off at an event drawn at random, as a kill does it, or closed in order. `UNWRITABLE_CASES` draws
//! more of them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use terrace::{Db, EngineKind, Env, ErrorKind, Options, Result, WriteBatch};
use terrace_base::Error;
use terrace_base::rng::Rng;
use terrace_disk::{
    BlockBuf, BlockFile, BlockReads, BlockWrite, FileLock, Fs, Geometry, Room, ScratchFs, SimFs, Slots,
    WriteFile, forward_fs,
};

use crate::harness::{Contents, Engine, Machine, Map, Setup, assert_clean, setups, test_each_engine};

/// Cases of each set of options.
const CASES: u64 = 6;

/// What a disk refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refuses {
    /// Whatever needs room.
    Growth,
    /// Every change, and every sync, which there can be no need of.
    Changes,
}

/// A disk that may refuse.
#[derive(Debug, Clone)]
struct Unwritable {
    disk: SimFs,
    refuses: Refuses,
    has_room: Arc<AtomicBool>,
}

impl Unwritable {
    fn grow(&self, path: &Path) -> Result<()> {
        match (self.has_room.load(Ordering::SeqCst), self.refuses) {
            (true, _) => Ok(()),
            (false, Refuses::Growth) => Err(Error::NoSpace { path: path.to_path_buf() }),
            (false, Refuses::Changes) => self.change(path),
        }
    }

    fn change(&self, path: &Path) -> Result<()> {
        match self.refuses {
            Refuses::Growth => Ok(()),
            Refuses::Changes => Err(Error::io(path, "change", std::io::ErrorKind::ReadOnlyFilesystem.into())),
        }
    }
}

#[derive(Debug)]
struct File {
    disk: Unwritable,
    file: Box<dyn WriteFile>,
}

impl WriteFile for File {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.disk.grow(self.file.path())?;
        self.file.append(data)
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync()
    }

    fn cut(&mut self, len: u64) -> Result<()> {
        self.file.cut(len)
    }

    fn trim(&mut self) -> Result<()> {
        self.file.trim()
    }

    fn has_room(&self) -> bool {
        self.file.has_room()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}

#[derive(Debug)]
struct Blocks {
    disk: Unwritable,
    file: Arc<dyn BlockFile>,
}

impl BlockFile for Blocks {
    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn write_many(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.disk.change(self.path())?;
        if self.disk.has_room.load(Ordering::SeqCst) {
            return self.file.write_many(writes);
        }
        // What has its space is written; what was given back finds none.
        self.disk.disk.set_capacity(Some(self.disk.disk.used_bytes()));
        let done = self.file.write_many(writes);
        self.disk.disk.set_capacity(None);
        done
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.file.read_many(reads)
    }

    fn begin_reads(self: Arc<Self>, reads: Vec<(u64, BlockBuf)>) -> Box<dyn BlockReads> {
        self.file.clone().begin_reads(reads)
    }

    fn sync(&self) -> Result<bool> {
        self.disk.change(self.path())?;
        self.file.sync()
    }

    fn grow(&self, len: u64) -> Result<()> {
        if len > self.len() {
            self.disk.grow(self.path())?;
        }
        self.file.grow(len)
    }

    fn discard(&self, range: Range<u64>) -> Result<bool> {
        self.disk.change(self.path())?;
        self.file.discard(range)
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Fs for Unwritable {
    forward_fs! { self, self.disk;
        open list exists lock_to_read epoch
    }

    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        self.grow(path)?;
        Ok(Box::new(File { disk: self.clone(), file: self.disk.create(path)? }))
    }

    fn create_reserved(&self, path: &Path, room: Room) -> Result<Box<dyn WriteFile>> {
        self.grow(path)?;
        Ok(Box::new(File { disk: self.clone(), file: self.disk.create_reserved(path, room)? }))
    }

    fn open_blocks(&self, path: &Path, is_new: bool) -> Result<Arc<dyn BlockFile>> {
        if is_new {
            self.grow(path)?;
        } else {
            self.change(path)?;
        }
        Ok(Arc::new(Blocks { disk: self.clone(), file: self.disk.open_blocks(path, is_new)? }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.change(from)?;
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.change(path)?;
        self.disk.remove(path)
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        self.change(path)?;
        self.disk.sync_file(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.change(path)?;
        self.disk.sync_dir(path)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.grow(path)?;
        self.disk.create_dir_all(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.change(path)?;
        self.disk.remove_dir(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        // Of a file that is there, which is so with each database.
        assert!(self.disk.exists(path)?, "a lock that has to be made");
        self.disk.lock(path)
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        match self.has_room.load(Ordering::SeqCst) {
            true => self.disk.free_bytes(path),
            false => Ok(0),
        }
    }
}

/// A history that ended: the machine, and the one or two states that its database may be in.
struct Ended {
    machine: Machine,
    states: [Map; 2],
}

fn step(db: &Db, model: &Map, rng: &mut Rng, number: u64) -> Map {
    let mut next = model.clone();
    let mut batch = WriteBatch::new();
    for _ in 0..if rng.one_in(4) { 1 + rng.below(6) } else { 1 } {
        let key = format!("key{:03}", rng.below(150)).into_bytes();
        if rng.one_in(5) {
            batch.delete(&key);
            next.remove(&key);
        } else {
            let value = format!("{number}-").repeat(1 + rng.below(30) as usize).into_bytes();
            batch.put(&key, &value);
            next.insert(key, value);
        }
    }
    db.write(batch).unwrap();
    if rng.one_in(60) {
        db.flush().unwrap();
    }
    next
}

/// Writes at random, and is killed at an event or closed.
fn ended(setup: &Setup, seed: u64, killed: bool) -> Ended {
    let mut rng = Rng::new(seed);
    let machine = Machine::new(setup);
    let steps = 100 + rng.below(250);
    let db = machine.open().unwrap();
    let mut model = Map::new();
    for number in 0..steps {
        model = step(&db, &model, &mut rng, number);
    }
    if !killed {
        db.close().unwrap();
        drop(db);
        return Ended { machine, states: [model.clone(), model] };
    }
    // In the middle of one of the next steps, or of what goes on behind them.
    let at = machine.world().events() + rng.below(60);
    let taken: Arc<Mutex<Option<Machine>>> = Arc::default();
    let (watched, into) = (machine.clone(), taken.clone());
    machine.world().on_event(Box::new(move |_, _| {
        if watched.world().events() >= at && into.lock().is_none() {
            *into.lock() = Some(watched.kill());
        }
    }));
    for number in steps.. {
        let next = step(&db, &model, &mut rng, number);
        if let Some(machine) = taken.lock().take() {
            return Ended { machine, states: [model, next] };
        }
        model = next;
    }
    unreachable!("steps are without end")
}

fn env(machine: &Machine, refuses: Refuses) -> (Env, Arc<AtomicBool>) {
    let has_room: Arc<AtomicBool> = Arc::default();
    let env = machine.env();
    let fs = Unwritable { disk: machine.fs(), refuses, has_room: has_room.clone() };
    (Env { fs: Arc::new(fs), ..env }, has_room)
}

#[track_caller]
fn state_of(db: &Db, states: &[Map; 2], case: &str) -> Map {
    let found: Map = db.all().into_iter().collect();
    assert!(states.contains(&found), "{case}: {} entries found", found.len());
    found
}

fn only_read(ended: &Ended, case: &str) {
    let machine = ended.machine.kill();
    let (files, events) = (machine.fs().image(), machine.world().events());
    let (env, _) = env(&machine, Refuses::Changes);
    let options = Options { read_only: true, ..machine.options() };
    for _ in 0..2 {
        let db = Db::open_in(env.clone(), machine.dir(), options.clone())
            .unwrap_or_else(|e| panic!("{case}: {e}"));
        let found = state_of(&db, &ended.states, case);
        for (key, value) in found.iter().take(20) {
            assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..]), "{case}");
        }
        assert_eq!(db.put(b"k", b"v").unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(db.flush().unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_clean(&db);
        db.close().unwrap();
    }
    assert_eq!(machine.fs().image(), files, "{case}");
    assert_eq!(machine.world().events(), events, "{case}: it was written to");
    // What was shown is what is found when it is opened for writing.
    let shown = Db::open_in(env, machine.dir(), options).unwrap().all();
    assert_eq!(machine.open().unwrap().all(), shown, "{case}");
}

fn without_room(ended: &Ended, case: &str) {
    let machine = ended.machine.kill();
    let (env, has_room) = env(&machine, Refuses::Growth);
    let db = Db::open_in(env, machine.dir(), machine.options()).unwrap_or_else(|e| panic!("{case}: {e}"));
    let mut model = state_of(&db, &ended.states, case);
    // An operation that needs no room may go on.
    for i in 0..40u32 {
        let (key, value) = (format!("new{i}").into_bytes(), vec![7; 300]);
        match db.put(&key, &value) {
            Ok(()) => drop(model.insert(key, value)),
            Err(e) => assert!(e.is_out_of_space(), "{case}: {e}"),
        }
    }
    assert_eq!(state_of(&db, &[model.clone(), model.clone()], case), model);
    has_room.store(true, Ordering::SeqCst);
    for i in 0..40u32 {
        let (key, value) = (format!("newer{i}").into_bytes(), vec![8; 300]);
        db.put(&key, &value).unwrap_or_else(|e| panic!("{case}, with room: {e}"));
        model.insert(key, value);
    }
    db.flush().unwrap();
    assert_clean(&db);
    state_of(&db, &[model.clone(), model.clone()], case);
    db.close().unwrap_or_else(|e| panic!("{case}: {e}"));
    drop(db);
    let db = machine.open().unwrap();
    state_of(&db, &[model.clone(), model], case);
    assert_clean(&db);
}

fn explore(kind: EngineKind) {
    let cases = std::env::var("UNWRITABLE_CASES").map_or(CASES, |n| n.parse().unwrap());
    for setup in setups(&Engine::of(kind)) {
        if setup.name.contains("threads") || setup.name.contains("side by side") {
            // A history with threads ends at no one event.
            continue;
        }
        for seed in 0..cases {
            let killed = seed % 3 != 0;
            let case = format!("{}, seed {seed}, {}", setup.name, if killed { "killed" } else { "closed" });
            let ended = ended(&setup, seed, killed);
            only_read(&ended, &case);
            without_room(&ended, &case);
        }
    }
}

test_each_engine!(explore);

/// Slots on a disk without room: what has its space is used, nothing is lost, and with room all goes on; and one that
/// refuses changes has none opened for them.
#[test]
fn slots_without_room() {
    let machine = Machine::new(&setups(&Engine::of(EngineKind::Slm))[0]);
    let (path, item) = (machine.dir().join("items"), |byte| BlockBuf::holding(&[byte; 100_000], 4096));
    let (env_of_it, has_room) = env(&machine, Refuses::Growth);
    machine.fs().create_dir_all(machine.dir()).unwrap();
    assert!(env_of_it.fs.open_blocks(&path, true).unwrap_err().is_out_of_space());
    has_room.store(true, Ordering::SeqCst);
    let slots = Arc::new(Slots::open(env_of_it.fs.open_blocks(&path, true).unwrap(), 4096).unwrap());
    slots.adopt([]).unwrap();
    let mut live = vec![slots.write(item(0), true).unwrap()];
    has_room.store(false, Ordering::SeqCst);
    let refused = loop {
        match slots.write(item(live.len() as u8), true) {
            Ok(slot) => live.push(slot),
            Err(e) => break e,
        }
    };
    assert!(refused.is_out_of_space() && live.len() > 5, "{refused}");
    has_room.store(true, Ordering::SeqCst);
    live.push(slots.write(item(live.len() as u8), true).unwrap());
    assert_eq!(slots.check(live.iter().copied()).unwrap(), 0);
    for (byte, found) in (0..).zip(slots.ahead(live.iter().copied())) {
        assert!(*found.unwrap() == *item(byte));
    }
    let (read_only, _) = env(&machine, Refuses::Changes);
    assert!(read_only.fs.open_blocks(&path, false).is_err());
    let scratch = ScratchFs::new(read_only.fs.clone());
    let slots = Slots::open(scratch.open_blocks(&path, false).unwrap(), 4096).unwrap();
    slots.adopt(live.iter().copied()).unwrap();
    assert!(*slots.read(slots.write(item(9), true).unwrap()).unwrap() == *item(9));
}

//! One history: lives of a database on a simulated machine, and what the model says of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use terrace::{Db, EngineKind, Entries, ErrorKind, Snapshot, WriteBatch, WriteOptions};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use super::change::{self, Change};
use crate::damage::image::{Bed, Image, options};
use crate::damage::spaces::{self, all_of};
use crate::harness::Map;

/// Boots of the machine.
const BOOTS: [&str; 4] = ["the first boot", "the second boot", "the third boot", "the fourth boot"];

const KEYS: u64 = 60;

/// How a life is said to have ended that has left something to be reclaimed.
pub const OWING: &str = " with a debt";

/// What went wrong, under the name of the change that brought it about.
pub type Fault = (String, String);

/// A database between two lives.
pub struct History {
    rng: Rng,
    /// As the last life left it.
    image: Image,
    /// What its contents may be after a power cut: all states from the one that was synced last.
    states: Vec<Map>,
    /// Which of them it must at least be if there is none.
    least: usize,
    /// Whether the last life was closed in order.
    closed: bool,
    /// Images of earlier moments.
    earlier: Vec<Image>,
    boot: usize,
    writes: u32,
    /// How often a value repeats itself at most: of the engine that parts items by size half are large.
    most_times: u64,
    /// Which lives end beside a reader, and which before their background work. It draws for itself, so that a seed
    /// writes and changes the same without that.
    debts: Rng,
    /// What is written to keyspaces and ingested, if anything is; in the same way.
    more: Option<Rng>,
}

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
    PowerCut,
}

impl History {
    /// A database that was made and closed.
    pub fn begin(engine: EngineKind, granularity: Granularity, seed: u64) -> History {
        let mut options = options(engine);
        options.slm.memtable_bytes = 8 << 10;
        let image = Image::empty(options, granularity);
        let (bed, mut map) = (image.bed(), Map::new());
        let db = bed.open().unwrap();
        let more = seed.is_multiple_of(2).then(|| Rng::new(seed ^ 0x5ace));
        if more.is_some() {
            spaces::make(&db, &mut map);
        }
        db.close().unwrap();
        drop(db);
        let states = vec![map];
        let image = bed.image();
        let rng = Rng::new(seed);
        let most_times = if engine == EngineKind::Split { 40 } else { 12 };
        let earlier = Vec::new();
        let debts = Rng::new(!seed);
        let (least, closed, boot, writes) = (0, true, 0, 0);
        History { rng, image, states, least, closed, earlier, boot, writes, most_times, debts, more }
    }

    /// Changes something and lives once more. Says what came of it.
    pub fn live(&mut self) -> Result<Vec<String>, Fault> {
        let mut outcomes = Vec::new();
        for _ in 0..3 {
            let change = Change::choose(&mut self.rng, &self.image, &self.earlier);
            // Nobody can say whether files that were being written are the newest.
            let Some(change) = change.filter(|change| self.closed || !change.is_of_files()) else { continue };
            let outcome =
                self.suffer(&change).map_err(|fault| (change.sort(), format!("{change:?}: {fault}")))?;
            outcomes.push(format!("{}: {outcome}", change.sort()));
        }
        // And a life with nothing changed.
        let end = self.life().map_err(|fault| ("nothing changed".to_owned(), fault))?;
        let owes =
            end == End::Closed && self.image.pool.is_some() && self.image.bed().open_pool().needs_reclaim();
        let how = if owes { OWING } else { "" };
        outcomes.push(format!("nothing changed: lived, then {end:?}{how}"));
        Ok(outcomes)
    }

    /// Opens the changed database. If it opens it must be right. Whatever is left is thrown away if files were
    /// changed; else it goes on being the database.
    fn suffer(&mut self, change: &Change) -> Result<&'static str, String> {
        let changed = change.apply(&self.image, &self.earlier);
        let bed = changed.bed();
        change.burden(&bed);
        let page = self.image.granularity == Granularity::Page;
        let least = if page && matches!(change, Change::Boot) { 0 } else { self.least };
        let outcome = catch_unwind(AssertUnwindSafe(|| look(&bed, &self.states[least..], change)));
        let outcome = outcome.map_err(|panic| format!("a panic: {:?}", panic.downcast_ref::<String>()))??;
        if change.is_of_files() {
            return Ok(outcome);
        }
        // It was another environment; in its own the database is as it was.
        let mut after = bed.image();
        (after.options, after.granularity, after.boot) =
            (self.image.options.clone(), self.image.granularity, self.image.boot);
        let bed = after.bed();
        let db = bed.open().map_err(|e| format!("{outcome}; afterwards: {e}"))?;
        let found = all_of(&db).map_err(|e| format!("{outcome}; afterwards: {e}"))?;
        among(&self.states[least..], &found).map_err(|e| format!("{outcome}; afterwards {e}"))?;
        (self.states, self.least) = (vec![found], 0);
        db.close().map_err(|e| format!("{outcome}; afterwards, closing: {e}"))?;
        drop(db);
        (self.image, self.closed) = (bed.image(), true);
        Ok(outcome)
    }

    /// Opens, compares, writes, ends.
    fn life(&mut self) -> Result<End, String> {
        self.keep();
        let bed = self.image.bed();
        // What is to be reclaimed is then left to the next life.
        let opened = if self.debts.one_in(4) { bed.open_idly() } else { bed.open() };
        let db = opened.map_err(|e| format!("opening: {e}"))?;
        let found = all_of(&db).map_err(|e| format!("reading: {e}"))?;
        among(&self.states[self.least..], &found)?;
        (self.states, self.least) = (vec![found], 0);
        if self.closed {
            let report = db.check().map_err(|e| format!("checking: {e}"))?;
            if !report.is_clean() {
                return Err(format!("check: {:?}", report.problems));
            }
        }
        let began = bed.image();
        // What it needs stays in the pool, and is left to the next life if the database is closed meanwhile.
        let reader = self.reader(&db).map_err(|e| format!("reading: {e}"))?;
        let synced = self.write(&db, &bed)?;
        let end = [End::Closed, End::Closed, End::Killed, End::PowerCut][self.rng.below(4) as usize];
        self.closed = end == End::Closed;
        match end {
            End::Closed => {
                db.close().map_err(|e| format!("closing: {e}"))?;
                drop(db);
                self.image = bed.image();
                self.states.drain(..self.states.len() - 1);
            }
            End::Killed => {
                self.image = bed.image();
                drop(db);
                self.states.drain(..synced);
                self.least = self.states.len() - 1;
            }
            End::PowerCut => {
                self.image = self.cut(&bed, &began);
                drop(db);
                self.states.drain(..synced);
            }
        }
        drop(reader);
        Ok(end)
    }

    /// Now and then somebody who has begun to read.
    fn reader(&mut self, db: &Db) -> terrace::Result<Option<(Snapshot, Entries)>> {
        if !self.debts.one_in(3) {
            return Ok(None);
        }
        let (snapshot, mut entries) = (db.snapshot(), db.entries()?);
        entries.next().transpose()?;
        Ok(Some((snapshot, entries)))
    }

    fn keep(&mut self) {
        self.earlier.push(self.image.clone());
        if self.earlier.len() > 6 {
            self.earlier.remove(0);
        }
    }

    /// Some writes; the number of the state that a power cut must not take.
    fn write(&mut self, db: &Db, bed: &Bed) -> Result<usize, String> {
        let power_safe = bed.image().pool.is_some() && self.image.granularity != Granularity::Page;
        let mut synced = 0;
        for _ in 0..self.rng.below(60) {
            let mut map = self.states.last().cloned().unwrap_or_default();
            let mut batch = WriteBatch::new();
            for _ in 0..1 + self.rng.below(3) {
                self.writes += 1;
                let key = format!("key{:02}", self.rng.below(KEYS)).into_bytes();
                if self.rng.one_in(5) {
                    batch.delete(&key);
                    map.remove(&key);
                } else {
                    let times = 1 + self.rng.below(self.most_times) as usize;
                    let value = format!("{}:", self.writes).repeat(times).into_bytes();
                    batch.put(&key, &value);
                    map.insert(key, value);
                }
            }
            let sync = self.rng.one_in(6);
            db.write_with(batch, WriteOptions { sync }).map_err(|e| format!("writing: {e}"))?;
            self.states.push(map);
            if sync || power_safe {
                synced = self.states.len() - 1;
            }
            if let Some(state) = self.write_more(db)? {
                synced = state;
            }
            if self.rng.one_in(40) {
                self.earlier.push(bed.image());
            }
            if self.rng.one_in(25) {
                db.flush().map_err(|e| format!("flushing: {e}"))?;
            }
        }
        Ok(synced)
    }

    /// Now and then a change in a keyspace, or an ingest; the number of the state that a power cut must not take.
    fn write_more(&mut self, db: &Db) -> Result<Option<usize>, String> {
        let Some(rng) = self.more.as_mut() else { return Ok(None) };
        let mut map = self.states.last().cloned().unwrap_or_default();
        let mut synced = None;
        if rng.one_in(4) {
            let steps = spaces::steps(rng.below(8) as u32);
            let step = &steps[rng.below(steps.len() as u64) as usize];
            spaces::write(db, step).map_err(|e| format!("writing to a keyspace: {e}"))?;
            step.enter(&mut map);
            self.states.push(map.clone());
            synced = Some(self.states.len() - 1);
        }
        if rng.one_in(24) {
            let from = rng.below(KEYS);
            let entries: Vec<(String, String)> =
                (from..KEYS).step_by(3).map(|i| (format!("key{i:02}"), format!("ingested {i} "))).collect();
            let ingested =
                db.ingest(|ingest| entries.iter().try_for_each(|(key, value)| ingest.put(key, value)));
            ingested.map_err(|e| format!("ingesting: {e}"))?;
            map.extend(entries.into_iter().map(|(key, value)| (key.into_bytes(), value.into_bytes())));
            self.states.push(map);
            if self.image.options.engine.ingests_atomically() {
                synced = Some(self.states.len() - 1);
            }
        }
        Ok(synced)
    }

    /// What a power cut leaves: of the disk what was synced and perhaps more, of an ordinary file pages of any time.
    fn cut(&mut self, bed: &Bed, began: &Image) -> Image {
        let mut image = bed.image();
        self.boot = (self.boot + 1) % BOOTS.len();
        image.boot = BOOTS[self.boot];
        image.files = bed.fs().crash(&mut self.rng).image();
        image.files.retain(|path, _| !path.ends_with("LOCK"));
        if let (Granularity::Page, Some(pool), Some(old)) = (image.granularity, &mut image.pool, &began.pool)
        {
            for (page, old) in pool.chunks_mut(4096).zip(old.chunks(4096)).skip(3) {
                if self.rng.one_in(2) {
                    page.copy_from_slice(old);
                }
            }
        }
        image
    }
}

/// Opens and reads: right answers or a clear error.
fn look(bed: &Bed, states: &[Map], change: &Change) -> Result<&'static str, String> {
    let clear = |e: terrace::Error| match e.kind() {
        ErrorKind::Corruption | ErrorKind::InvalidFormat | ErrorKind::InvalidArgument => Ok(()),
        ErrorKind::Unsupported if change.is_of_engine() => Ok(()),
        ErrorKind::Io | ErrorKind::Poisoned | ErrorKind::NoSpace if change.is_of_limits() => Ok(()),
        ErrorKind::Io if matches!(change, Change::Missing(path) if names(&e, path)) => Ok(()),
        _ => Err(format!("an unclear error: {e}")),
    };
    let db = match bed.open() {
        Ok(db) => db,
        Err(e) => return clear(e).map(|()| "refused"),
    };
    let outcome = match all_of(&db) {
        Ok(found) => among(states, &found).map(|()| "right")?,
        Err(e) => clear(e).map(|()| "reading says so")?,
    };
    // A user would go on: what was right stays right.
    if outcome == "right" {
        let value = b"written after the change".to_vec();
        if db.put(b"after", &value).is_ok() {
            let found = db.get(b"after").map_err(|e| format!("reading what was written: {e}"))?;
            if found.as_deref() != Some(&value[..]) {
                return Err("what was written after the change is not there".into());
            }
            change::relieve(bed);
            db.delete(b"after").map_err(|e| format!("deleting: {e}"))?;
        }
    }
    change::relieve(bed);
    drop(db);
    Ok(outcome)
}

/// Whether an error says which file it is about.
fn names(error: &terrace::Error, path: &Path) -> bool {
    path.file_name().is_some_and(|name| error.to_string().contains(&*name.to_string_lossy()))
}

/// An error unless this is one of the states of the history.
fn among(states: &[Map], found: &Map) -> Result<(), String> {
    states.iter().any(|state| state == found).then_some(()).ok_or_else(|| {
        let newest = states.last().cloned().unwrap_or_default();
        let wrong = |(key, value): (&Vec<u8>, &Vec<u8>)| newest.get(key) != Some(value);
        let (missing, odd) = (
            newest.keys().filter(|key| !found.contains_key(*key)).count(),
            found.iter().filter(|entry| wrong(*entry)).count(),
        );
        format!("WRONG: {missing} of {} keys are missing, {odd} are not as in the newest state", newest.len())
    })
}

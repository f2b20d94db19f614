//! The writes that were acknowledged to killed threads, and whether a reopened store still has them.
//!
//! Each thread notes in a file of its own, after each operation, how many were acknowledged: one `pwrite`, which a
//! SIGKILL leaves whole in the page cache. The operations themselves are drawn again afterwards ([`History`]), as a
//! plan always draws the same.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::draw::{Draw, shares};
use crate::keys::{KeyMaker, KeyOrder};
use crate::run::Plan;
use crate::space::KeySpace;
use crate::store::{Store, StoreResult};
use crate::stream::{Op, Stream};
use crate::values::ValuePool;
use crate::workload::{Action, Mix, Start, Workload};

/// Counts of acknowledged operations, one to a thread, where a kill leaves them.
#[derive(Debug)]
pub struct Tally {
    files: Vec<File>,
}

/// Bytes of a note: the workload's seed, and the number of operations.
const NOTE_BYTES: usize = 16;

fn path(dir: &Path, thread: usize) -> PathBuf {
    dir.join(format!("acknowledged-{thread}"))
}

impl Tally {
    /// Files for `threads` threads in `dir`.
    pub fn create(dir: &Path, threads: usize) -> StoreResult<Self> {
        let files = (0..threads).map(|thread| File::create(path(dir, thread)));
        Ok(Tally { files: files.collect::<std::io::Result<_>>()? })
    }

    /// Notes that so many operations of `thread` were acknowledged, of the workload that draws from `seed`.
    pub(crate) fn note(&self, thread: usize, seed: u64, operations: u64) -> std::io::Result<()> {
        let mut note = [0; NOTE_BYTES];
        note[..8].copy_from_slice(&seed.to_le_bytes());
        note[8..].copy_from_slice(&operations.to_le_bytes());
        self.files[thread].write_all_at(&note, 0)
    }

    /// Operations that were acknowledged to `thread` of the workload that draws from `seed`.
    fn read(dir: &Path, thread: usize, seed: u64) -> StoreResult<u64> {
        let bytes = std::fs::read(path(dir, thread))?;
        let word =
            |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
        Ok(word(8).filter(|_| word(0) == Some(seed)).unwrap_or(0))
    }
}

/// A write, whose value its workload chose by a random number.
#[derive(Debug, Clone, Copy)]
struct Write {
    pick: u64,
    by: Writer,
    /// False for the write that a thread was killed in.
    is_acknowledged: bool,
}

/// A thread of one of the two workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Fill(usize),
    Update(usize),
}

/// All writes of a fill and of the updates after it. Each key's writes are in the order of their threads.
#[derive(Debug)]
pub struct History {
    /// By key number.
    writes: Vec<Vec<Write>>,
    filled: ValuePool,
    updated: ValuePool,
    keys: KeyMaker,
}

/// How many keys without an update are looked for.
const FILLED_SAMPLES: usize = 2000;

/// How many of the acknowledged writes are there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Keys with an acknowledged update: all of them were looked for.
    pub updated: u64,
    /// Keys that were only filled and were looked for.
    pub filled: u64,
    /// Keys that are not there.
    pub missing: u64,
    /// Keys that have a value from before their last acknowledged write.
    pub stale: u64,
    /// Keys that have a value which was never theirs.
    pub wrong: u64,
}

impl Kept {
    /// Keys that were looked for.
    pub fn sought(&self) -> u64 {
        self.updated + self.filled
    }

    /// Keys that did not have the value of their last acknowledged write.
    pub fn lost(&self) -> u64 {
        self.missing + self.stale + self.wrong
    }
}

/// Whether `workloads` are a fill and then updates alone, so that their writes can be drawn again.
pub fn can_be_drawn_again(workloads: &[&Workload]) -> bool {
    let [fill, update] = workloads else { return false };
    let mix = |workload: &Workload| match workload.action {
        Action::Operations { mix, .. } => mix,
        _ => Mix::default(),
    };
    // Histories are kept by key number.
    let kept = !fill.draws_from_all_keys() && !update.draws_from_all_keys();
    kept && fill.fills()
        && mix(fill).insert + mix(fill).update == 100
        && !update.fills()
        && mix(update).update == 100
}

impl History {
    /// Draws again all writes of `fill`, and those of `update` as far as the notes in `dir` say.
    ///
    /// # Errors
    /// Those of reading the notes.
    pub fn draw(fill: &Workload, update: &Workload, plan: &Plan, dir: &Path) -> StoreResult<Self> {
        let order = if let Start::Fresh(order) = fill.start { order } else { KeyOrder::Hashed };
        let fill = Draw::new(fill, plan, &Arc::new(KeySpace::new(0, order)));
        let update_operations = plan.operations(update);
        let update = Draw::new(update, plan, &Arc::new(KeySpace::new(plan.num, order)));
        let mut history = History {
            writes: vec![Vec::new(); usize::try_from(plan.num)?],
            filled: fill.values.clone(),
            updated: update.values.clone(),
            keys: KeyMaker::new(plan.key_size, order),
        };
        let threads = plan.threads.max(1);
        for (thread, (first, operations)) in shares(plan.num, threads).into_iter().enumerate() {
            history.add(fill.stream(thread, first), Writer::Fill(thread), operations, false);
        }
        for (thread, (first, _)) in shares(update_operations, threads).into_iter().enumerate() {
            let acknowledged = Tally::read(dir, thread, update.seed)?;
            history.add(update.stream(thread, first), Writer::Update(thread), acknowledged, true);
        }
        Ok(history)
    }

    /// Adds the first writes of a thread; after them, if it `was_killed`, the one that it may have been in.
    fn add(&mut self, stream: Option<Stream>, by: Writer, acknowledged: u64, was_killed: bool) {
        let Some(mut stream) = stream else { return };
        for i in 0..acknowledged + u64::from(was_killed) {
            if let Op::Update(number) | Op::Insert(number) = stream.next_op() {
                let write = Write { pick: stream.random(), by, is_acknowledged: i < acknowledged };
                self.writes[number as usize].push(write);
            }
        }
    }

    fn value(&self, write: &Write) -> &[u8] {
        match write.by {
            Writer::Fill(_) => self.filled.value(write.pick),
            Writer::Update(_) => self.updated.value(write.pick),
        }
    }

    /// Key numbers that have an acknowledged update, and a sample of those that have none.
    fn sought(&self) -> (Vec<usize>, Vec<usize>) {
        let is_updated = |w: &Write| w.is_acknowledged && matches!(w.by, Writer::Update(_));
        let written = (0..self.writes.len()).filter(|&n| self.writes[n].iter().any(|w| w.is_acknowledged));
        let (updated, filled): (Vec<_>, Vec<_>) =
            written.partition(|&number| self.writes[number].iter().any(is_updated));
        let every = filled.len().div_ceil(FILLED_SAMPLES).max(1);
        (updated, filled.into_iter().step_by(every).collect())
    }

    /// Looks in `store` for the last acknowledged write of every updated key, and of some that were only filled.
    ///
    /// # Errors
    /// Those of the store.
    pub fn look_for(&mut self, store: &dyn Store) -> StoreResult<Kept> {
        let (updated, filled) = self.sought();
        let mut kept = Kept { updated: updated.len() as u64, filled: filled.len() as u64, ..Kept::default() };
        let mut value = Vec::new();
        for number in updated.into_iter().chain(filled) {
            let mut keep = |bytes: &[u8]| {
                value.clear();
                value.extend_from_slice(bytes);
            };
            let found = store.get(self.keys.key(number as u64), &mut keep)?;
            match self.judge(number, found.then_some(&*value)) {
                Verdict::Kept => {}
                Verdict::Missing => kept.missing += 1,
                Verdict::Stale => kept.stale += 1,
                Verdict::Wrong => kept.wrong += 1,
            }
        }
        Ok(kept)
    }

    /// The verdict on `value` as the value of key `number`, which has an acknowledged write.
    fn judge(&self, number: usize, value: Option<&[u8]>) -> Verdict {
        let Some(value) = value else { return Verdict::Missing };
        let writes = &self.writes[number];
        // Threads write side by side, so the last write of each thread may be the last of all. Only a thread that did
        // nothing but fill comes before the updates of another.
        let is_updated = writes.iter().any(|w| w.is_acknowledged && matches!(w.by, Writer::Update(_)));
        let may_be_last = |(at, write): (usize, &Write)| {
            let later = &writes[at + 1..];
            !write.is_acknowledged
                || !later.iter().any(|w| w.is_acknowledged && w.by == write.by)
                    && (!is_updated || matches!(write.by, Writer::Update(_)))
        };
        let has = |write: &Write| self.value(write) == value;
        if writes.iter().enumerate().any(|(at, write)| has(write) && may_be_last((at, write))) {
            Verdict::Kept
        } else if writes.iter().any(has) {
            Verdict::Stale
        } else {
            Verdict::Wrong
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Kept,
    Missing,
    Stale,
    Wrong,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUM: u64 = 200;

    fn plan(threads: usize) -> Plan {
        Plan { num: NUM, threads, value_size: 40, ..Plan::default() }
    }

    fn workload(name: &str) -> &'static Workload {
        Workload::find(name).unwrap()
    }

    /// A history in which each thread had `acknowledged` updates before it was killed.
    fn history(fill: &str, threads: usize, acknowledged: u64) -> History {
        let dir = tempfile::tempdir().unwrap();
        let tally = Tally::create(dir.path(), threads).unwrap();
        let (fill, update) = (workload(fill), workload("overwrite"));
        let space = Arc::new(KeySpace::new(NUM, KeyOrder::Hashed));
        let seed = Draw::new(update, &plan(threads), &space).seed;
        for thread in 0..threads {
            tally.note(thread, seed, acknowledged).unwrap();
        }
        History::draw(fill, update, &plan(threads), dir.path()).unwrap()
    }

    fn judged(history: &History, number: usize, write: &Write) -> Verdict {
        history.judge(number, Some(history.value(write)))
    }

    #[test]
    fn of_one_thread_the_last_acknowledged_value_counts_or_the_one_in_flight() {
        let history = history("load", 1, 500);
        let (updated, filled) = history.sought();
        assert_eq!(updated.len() + filled.len(), NUM as usize);
        let mut in_flight = 0;
        for number in updated.into_iter().chain(filled) {
            let writes = &history.writes[number];
            let last = writes.iter().rposition(|w| w.is_acknowledged).unwrap();
            for (at, write) in writes.iter().enumerate() {
                let expected = if at < last { Verdict::Stale } else { Verdict::Kept };
                assert_eq!(judged(&history, number, write), expected, "{number} {at}");
                in_flight += usize::from(!write.is_acknowledged);
            }
            assert_eq!(history.judge(number, None), Verdict::Missing);
            assert_eq!(history.judge(number, Some(b"never")), Verdict::Wrong);
        }
        assert_eq!(in_flight, 1);
    }

    #[test]
    fn of_several_threads_each_may_have_been_the_last() {
        let history = history("fillrandom", 3, 300);
        for number in history.sought().0 {
            let writes = &history.writes[number];
            for write in writes.iter().filter(|w| matches!(w.by, Writer::Fill(_))) {
                assert_eq!(judged(&history, number, write), Verdict::Stale);
            }
            for thread in (0..3).map(Writer::Update) {
                let own: Vec<&Write> =
                    writes.iter().filter(|w| w.by == thread && w.is_acknowledged).collect();
                let Some((last, earlier)) = own.split_last() else { continue };
                assert_eq!(judged(&history, number, last), Verdict::Kept);
                assert!(earlier.iter().all(|w| judged(&history, number, w) == Verdict::Stale));
            }
        }
    }

    #[test]
    fn only_what_is_known_by_number_is_drawn_again() {
        let can = |fill, update| can_be_drawn_again(&[workload(fill), workload(update)]);
        assert!(can("load", "overwrite") && can("fillrandom", "updatezipfian"));
        assert!(
            !can("fillregions", "overwrite") && !can("load", "readrandom") && !can("overwrite", "overwrite")
        );
    }

    #[test]
    fn notes_of_another_workload_are_no_acknowledgements() {
        let dir = tempfile::tempdir().unwrap();
        let tally = Tally::create(dir.path(), 1).unwrap();
        assert_eq!(Tally::read(dir.path(), 0, 7).unwrap(), 0);
        tally.note(0, 7, 12).unwrap();
        assert_eq!((Tally::read(dir.path(), 0, 7).unwrap(), Tally::read(dir.path(), 0, 8).unwrap()), (12, 0));
        assert!(Tally::read(dir.path(), 1, 7).is_err());
    }
}

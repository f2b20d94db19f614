//! Merges, deadlines and compaction filters where one operation of the media fails: the step that it was part of is
//! repeated.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use terrace::{
    CompactionFilter, Db, Env, Expiry, FilterDecision, Keyspace, KeyspaceOptions, MergeOperator, Result,
};
use terrace_base::clock::ManualClock;

use super::expiry::{SECOND, open_at};
use crate::harness::{Engine, Machine, Setup, assert_clean};

/// A database that is opened again if it goes on refusing.
struct Stubborn<'a> {
    machine: &'a Machine,
    clock: &'a Arc<ManualClock>,
    db: Option<Db>,
}

impl Stubborn<'_> {
    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    /// Does `step`; if it fails, again on healthy media; if it fails then, too, in a new process.
    fn takes(&mut self, step: impl Fn(&Db) -> Result<()>) {
        if step(self.db()).is_ok() {
            return;
        }
        self.machine.world().heal();
        if step(self.db()).is_err() {
            self.reopen();
            step(self.db()).unwrap();
        }
    }

    /// Opens it in a new process, on healthy media if that fails.
    fn reopen(&mut self) {
        self.db = None;
        let env = || Env { clock: self.clock.clone(), ..self.machine.env() };
        let opened = Db::open_in(env(), self.machine.dir(), self.machine.options());
        self.db = Some(opened.unwrap_or_else(|_| {
            self.machine.world().heal();
            open_at(self.machine, self.clock)
        }));
    }
}

/// Entries hold the largest number they were given. A deferred operator keeps what is merged as operands, where the
/// engine has them.
fn largest(db: &Db, deferred: bool) -> Result<Keyspace> {
    let operator = MergeOperator::max();
    let merge = Some(if deferred { operator.deferred() } else { operator });
    db.keyspace_with("largest", KeyspaceOptions { merge, ..KeyspaceOptions::default() })
}

fn dated(db: &Db) -> Result<Keyspace> {
    let expiry = Some(Expiry::After(1000 * SECOND));
    db.keyspace_with("dated", KeyspaceOptions { expiry, ..KeyspaceOptions::default() })
}

/// A filter lets go of values that begin with `x`, in engines that have filters.
fn filtered(db: &Db, engine: &Engine) -> Result<Keyspace> {
    let decide = |goes| if goes { FilterDecision::Remove } else { FilterDecision::Keep };
    let filter = CompactionFilter::new(move |entry| decide(entry.value.starts_with(b"x")));
    let compaction_filter = (!engine.kind.keeps_all_in_memory()).then_some(filter);
    db.keyspace_with("filtered", KeyspaceOptions { compaction_filter, ..KeyspaceOptions::default() })
}

/// What must be there in the end.
fn judge(db: &Db, engine: &Engine, deferred: bool, what: &str) {
    let (largest, dated) = (largest(db, deferred).unwrap(), dated(db).unwrap());
    let filtered = filtered(db, engine).unwrap();
    for i in 0..12u8 {
        assert_eq!(largest.get([i]).unwrap().as_deref(), Some(&[i + 20][..]), "{what}: merged {i}");
        let is_there = i.is_multiple_of(2);
        assert_eq!(dated.get([i]).unwrap().is_some(), is_there, "{what}: dated {i}");
        let deadline = is_there.then(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1000));
        assert_eq!(dated.expires_at([i]).unwrap(), deadline, "{what}: dated {i}");
        if i % 3 != 0 {
            assert_eq!(filtered.get([i]).unwrap().as_deref(), Some(&b"kept"[..]), "{what}: filtered {i}");
        }
    }
    assert_eq!(dated.entries().unwrap().count(), 6, "{what}");
    assert_clean(db);
}

/// Must catch an operand, a deadline or an entry that goes, comes back or is there twice because a step was refused and
/// tried again.
pub fn merges_deadlines_and_filters_outlive_refusals(engine: &Engine) {
    for (nth, deferred) in (0..60).map(|nth| (nth, nth % 2 == 0)) {
        let machine = Machine::new(&Setup::tiny("refused", engine));
        let clock = Arc::new(ManualClock::default());
        let mut store = Stubborn { machine: &machine, clock: &clock, db: Some(open_at(&machine, &clock)) };
        machine.world().fail_nth(nth);
        for round in [5, 20, 11] {
            store.takes(|db| (0..12).try_for_each(|i| largest(db, deferred)?.merge([i], [i + round])));
            store.takes(|db| (0..12).try_for_each(|i| dated(db)?.put([i], [round; 40])));
            store.takes(|db| {
                (1..12).step_by(2).try_for_each(|i| dated(db)?.put_with_ttl([i], [round; 40], SECOND))
            });
            let value = |i: u8| if i.is_multiple_of(3) { "x" } else { "kept" };
            store.takes(|db| (0..12).try_for_each(|i| filtered(db, engine)?.put([i], value(i))));
            store.takes(Db::flush);
            if round == 20 {
                store.takes(|db| db.compact_range(..));
                store.reopen();
            }
        }
        clock.advance(2 * SECOND);
        store.takes(Db::sweep);
        store.takes(|db| db.compact_range(..));
        machine.world().heal();
        let what = format!("operation {nth} failed, deferred {deferred}");
        judge(store.db(), engine, deferred, &what);
        store.db().close().unwrap();
        store.reopen();
        judge(store.db(), engine, deferred, &format!("{what}, opened again"));
    }
}

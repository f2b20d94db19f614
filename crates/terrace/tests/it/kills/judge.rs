//! What must be in a database whose process was killed.

use terrace::Db;

use super::ops::{Op, Ops, SHARED, THREADS, own_prefix};
use crate::harness::{Contents, Map, assert_clean};

/// What the database held before a process, and what that process acknowledged.
#[derive(Debug)]
pub struct Expected<'a> {
    /// What the database held.
    pub before: &'a Map,
    /// The run's seed and the process's number.
    pub seed: u64,
    /// The process's number.
    pub session: u64,
    /// Operations that each thread was to do.
    pub ops: u64,
    /// Operations that each thread acknowledged.
    pub acknowledged: [u64; THREADS],
}

/// What a judge found.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What the database holds.
    pub found: Map,
    /// Operations in flight at the kill, and how many of them had been done.
    pub in_flight: u64,
    /// Operations in flight that are there.
    pub done: u64,
    /// Buckets, if the engine has any.
    pub buckets: u64,
}

/// One thread's view of what it wrote.
struct Told {
    /// Its own keys as the database has them, which says whether the operation in flight was done.
    done: bool,
    in_flight: bool,
    /// What the thread last put into the shared keys, if it did.
    shared: Option<Map>,
}

impl Expected<'_> {
    /// Judges `db`; panics where something is lost, torn or wrong.
    pub fn judge(&self, db: &Db) -> Verdict {
        let found: Map = db.all().into_iter().collect();
        let told: Vec<Told> = (0..THREADS).map(|thread| self.judge_thread(thread, &found)).collect();
        self.judge_shared(&told, &found);
        let own = (0..THREADS).map(|t| part(&found, &own_prefix(t)).len()).sum::<usize>();
        assert_eq!(own + part(&found, SHARED).len(), found.len(), "keys that nobody wrote");
        // By the other way to read, too.
        for (key, value) in &found {
            assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..]), "{}", key.escape_ascii());
        }
        assert_clean(db);
        let count = |of: fn(&Told) -> bool| told.iter().filter(|t| of(t)).count() as u64;
        let buckets = db.stats().buckets.buckets;
        Verdict { in_flight: count(|t| t.in_flight), done: count(|t| t.done), buckets, found }
    }

    fn judge_thread(&self, thread: usize, found: &Map) -> Told {
        let mut ops = Ops::new(self.seed, self.session, thread).take(self.ops as usize);
        let mut own = part(self.before, &own_prefix(thread));
        let mut shared = None;
        for op in ops.by_ref().take(self.acknowledged[thread] as usize) {
            apply(&op, &mut own, &mut shared);
        }
        let found = part(found, &own_prefix(thread));
        if found == own {
            return Told { done: false, in_flight: ops.next().is_some(), shared };
        }
        let without = own.clone();
        if let Some(op) = ops.next() {
            apply(&op, &mut own, &mut shared);
        }
        assert!(
            found == own,
            "thread {thread} acknowledged {}; without the next operation {:#?}, with it {:#?}",
            self.acknowledged[thread],
            differences(&without, &found),
            differences(&own, &found),
        );
        Told { done: true, in_flight: true, shared }
    }

    fn judge_shared(&self, told: &[Told], found: &Map) {
        let found = part(found, SHARED);
        let mut last: Vec<Map> = told.iter().filter_map(|t| t.shared.clone()).collect();
        if last.is_empty() {
            last.push(part(self.before, SHARED));
        }
        let differences: Vec<_> = last.iter().map(|map| differences(map, &found)).collect();
        assert!(last.contains(&found), "what the threads wrote together is torn or lost: {differences:#?}");
    }
}

/// Applies `op` to the thread's own keys; what it put into shared ones is all they hold.
fn apply(op: &Op, own: &mut Map, shared: &mut Option<Map>) {
    op.apply(own);
    let together = own.extract_if(SHARED.as_bytes().to_vec().., |key, _| key.starts_with(SHARED.as_bytes()));
    let together: Map = together.collect();
    if !together.is_empty() {
        *shared = Some(together);
    }
}

fn part(map: &Map, prefix: &str) -> Map {
    let of_part = |(key, _): &(&Vec<u8>, &Vec<u8>)| key.starts_with(prefix.as_bytes());
    map.iter().filter(of_part).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// What to show of two maps that should be the same.
fn differences(expected: &Map, found: &Map) -> Vec<String> {
    let show = |value: Option<&Vec<u8>>| match value {
        Some(value) => format!("{:.40}", value.escape_ascii().to_string()),
        None => "nothing".into(),
    };
    let keys = expected.keys().chain(found.keys().filter(|key| !expected.contains_key(*key)));
    keys.filter(|key| expected.get(*key) != found.get(*key))
        .map(|key| {
            let (wanted, got) = (show(expected.get(key)), show(found.get(key)));
            format!("{}: {wanted} expected, {got} found", key.escape_ascii())
        })
        .collect()
}

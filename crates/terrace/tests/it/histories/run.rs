//! Threads that ask at random, on a machine whose memtables and tables are tiny.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace::{Bytes, Db, DbIter, Env, Snapshot, WriteBatch};
use terrace_base::ErrorKind;
use terrace_base::clock::ManualClock;
use terrace_base::rng::Rng;

use super::judge::judge;
use super::record::{Action, Answer, Clock, Held, Later, Op, Recorder, State};
use super::target::Target;
use crate::harness::{Contents, Machine, Pausable, Setup, assert_clean, stepped};

/// Keys in play: few, so that threads meet.
const KEYS: u64 = 20;

/// How much is asked.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub threads: usize,
    /// Operations of a thread in one session.
    pub ops: usize,
    /// Times that the database is opened, killed or closed in between.
    pub sessions: usize,
    /// Whether entries can expire.
    pub expires: bool,
}

/// Runs the plan and judges what came out. Panics on a history that no order of commits explains.
pub fn run(setup: &Setup, plan: &Plan) {
    let mut machine = Machine::new(setup);
    let mut rng = Rng::new(plan.seed);
    let mut states = vec![State::new()];
    // It goes on while the database is closed.
    let (values, time) = (AtomicU64::new(1), Arc::<ManualClock>::default());
    for session in 0..plan.sessions {
        let told = || format!("under {}, seed {}, session {session}", setup.name, plan.seed);
        let threads = Arc::new(Pausable::new(2));
        let env = Env { clock: time.clone(), ..machine.env_on(threads.clone()) };
        let db =
            Db::open_in(env, machine.dir(), machine.options()).unwrap_or_else(|e| panic!("{e}, {}", told()));
        let target = Target::of(&db, plan.expires);
        let ops = session_of(&target, plan, rng.next_u64(), &values);
        states = judge(&states, &ops).unwrap_or_else(|why| panic!("{}: {why}", told()));
        let end = everything(&target.snapshot().unwrap());
        drop(target);
        assert!(states.contains(&end), "{}: {end:?} at the end is none of {states:?}", told());
        states = vec![end];
        if rng.one_in(3) {
            assert_clean(&db);
        }
        if rng.one_in(2) {
            db.close().unwrap();
        }
        threads.pause();
        machine = machine.kill();
        drop(db);
    }
}

/// One session: every thread's operations.
fn session_of(target: &Target<'_>, plan: &Plan, seed: u64, values: &AtomicU64) -> Vec<Op> {
    let clock = Clock::default();
    // What the session begins with.
    let mut first = Recorder::new(&clock, plan.threads);
    first.note(Action::ReadAll, || Answer::All(everything(&target.snapshot().unwrap())));
    let ops = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let clock = &clock;
                scope.spawn(move || {
                    let rng = Rng::new(seed ^ (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    let recorder = Recorder::new(clock, thread);
                    let ordered = target.iter().is_ok();
                    let mut asker = Asker { target, ordered, rng, recorder, values, views: Vec::new() };
                    (0..plan.ops).for_each(|_| asker.ask());
                    asker.end()
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    [first.ops, ops].concat()
}

/// A snapshot or an iterator that is kept for a while.
enum View {
    /// With what it held when it was first looked at.
    Snapshot(Later, Snapshot, Option<State>),
    /// Forward or backward, with what it has given so far.
    Walk(Later, Box<DbIter>, bool, State),
}

/// A thread that asks.
struct Asker<'a> {
    target: &'a Target<'a>,
    /// Whether there are iterators.
    ordered: bool,
    rng: Rng,
    recorder: Recorder<'a>,
    values: &'a AtomicU64,
    views: Vec<View>,
}

impl Asker<'_> {
    fn ask(&mut self) {
        match self.rng.below(100) {
            0..30 => self.put(),
            30..38 => self.delete(),
            38..44 => self.write_batch(),
            44..46 => self.delete_range(),
            46..54 => self.write_if(),
            54..64 => self.transact(),
            64..74 => self.get(),
            74..78 => self.contains(),
            78..82 => self.multi_get(),
            82..87 => self.take_view(),
            87..97 => self.look_at_view(),
            97 => self.tidy(Db::flush),
            98 if self.rng.one_in(4) => self.tidy(|db| db.compact_range(..)),
            98 if self.rng.one_in(2) => self.target.db().sweep().unwrap(),
            _ if self.rng.one_in(8) => assert_clean(self.target.db()),
            _ => self.target.db().sync().unwrap(),
        }
    }

    /// Flushes. Views keep flushed memtables, and large ones fill the pool: then this thread lets its own go.
    fn tidy(&mut self, flush: impl Fn(&Db) -> terrace::Result<()>) {
        if let Err(e) = flush(self.target.db()) {
            assert_eq!(e.kind(), ErrorKind::PoolFull, "{e}");
            self.let_go();
        }
    }

    fn let_go(&mut self) {
        for view in std::mem::take(&mut self.views) {
            self.read_out(view);
        }
    }

    fn key(&mut self) -> u8 {
        self.rng.below(KEYS) as u8
    }

    /// A value that no other write has.
    fn value(&mut self) -> (u64, Vec<u8>) {
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let padding = [10, 60, 200][self.rng.below(3) as usize];
        (value, encode(value, padding))
    }

    fn put(&mut self) {
        let (key, (value, bytes)) = (self.key(), self.value());
        let target = self.target;
        self.recorder.note(Action::Write(vec![(key, Some(value))]), || {
            target.put(&key_bytes(key), &bytes).unwrap();
            Answer::Done
        });
    }

    fn delete(&mut self) {
        let (target, key, is_due) = (self.target, self.key(), self.rng.one_in(2));
        self.recorder.note(Action::Write(vec![(key, None)]), || {
            target.delete(&key_bytes(key), is_due).unwrap();
            Answer::Done
        });
    }

    fn write_batch(&mut self) {
        let (target, mut batch, mut writes) = (self.target, WriteBatch::new(), Vec::new());
        for _ in 0..2 + self.rng.below(8) {
            let key = self.key();
            if self.rng.one_in(4) {
                target.add_delete(&mut batch, &key_bytes(key), self.rng.one_in(2));
                writes.push((key, None));
            } else {
                let (value, bytes) = self.value();
                target.add_put(&mut batch, &key_bytes(key), &bytes);
                writes.push((key, Some(value)));
            }
        }
        self.recorder.note(Action::Write(writes), || {
            target.db().write(batch).unwrap();
            Answer::Done
        });
    }

    /// Deletes a range, and perhaps puts a key into it.
    fn delete_range(&mut self) {
        let (a, b) = (self.key(), self.key());
        let (first, last) = (a.min(b), a.max(b));
        let mut writes: Vec<_> = (first..=last).map(|key| (key, None)).collect();
        let (target, mut batch) = (self.target, WriteBatch::new());
        target.add_delete_range(&mut batch, &key_bytes(first), &key_bytes(last));
        if self.rng.one_in(2) {
            let (key, (value, bytes)) = (self.key(), self.value());
            target.add_put(&mut batch, &key_bytes(key), &bytes);
            writes.push((key, Some(value)));
        }
        self.recorder.note(Action::Write(writes), || {
            target.db().write(batch).unwrap();
            Answer::Done
        });
    }

    fn write_if(&mut self) {
        let (target, exists) = (self.target, self.rng.one_in(2));
        let (key, (value, bytes)) = (self.key(), self.value());
        self.recorder.note(Action::WriteIf { exists, key, value }, || {
            Answer::Bool(target.write_if(exists, &key_bytes(key), &bytes).unwrap())
        });
    }

    /// Reads some keys, or everything, and writes some by what is there; it may be refused.
    fn transact(&mut self) {
        let (keys, reads_all) = ([0; 3].map(|_| self.key()), self.ordered && self.rng.one_in(4));
        let writes: Vec<_> = [0; 2].iter().map(|_| (self.key(), self.value())).collect();
        let target = self.target;
        self.recorder.note_whole(|| {
            let tx = target.db().transaction();
            let reads = keys.map(|key| (key, held(target.get_in(&tx, &key_bytes(key)).unwrap())));
            let all = reads_all.then(|| target.all_in(&tx).unwrap().into_iter().map(seen).collect());
            for (key, (_, bytes)) in &writes {
                target.put_in(&tx, &key_bytes(*key), bytes).unwrap();
            }
            let done = match tx.commit() {
                Ok(()) => true,
                Err(e) if e.kind() == ErrorKind::Conflict => false,
                Err(e) => panic!("{e}"),
            };
            let writes = writes.iter().map(|(key, (value, _))| (*key, Some(*value))).collect();
            (Action::Transact { reads: reads.into(), all, writes }, Answer::Bool(done))
        });
    }

    fn get(&mut self) {
        let (target, key) = (self.target, self.key());
        self.recorder.note(Action::Get(key), || Answer::Value(held(target.get(&key_bytes(key)).unwrap())));
    }

    fn contains(&mut self) {
        let (target, key) = (self.target, self.key());
        self.recorder
            .note(Action::Contains(key), || Answer::Bool(target.contains_key(&key_bytes(key)).unwrap()));
    }

    fn multi_get(&mut self) {
        let target = self.target;
        let keys: Vec<u8> = (0..1 + self.rng.below(6)).map(|_| self.key()).collect();
        self.recorder.note(Action::MultiGet(keys.clone()), || {
            let keys: Vec<[u8; 24]> = keys.iter().map(|key| key_bytes(*key)).collect();
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            Answer::Values(target.multi_get(&keys).unwrap().into_iter().map(held).collect())
        });
    }

    fn take_view(&mut self) {
        if self.views.len() == 3 {
            let i = self.rng.below(3) as usize;
            let view = self.views.swap_remove(i);
            self.read_out(view);
        }
        let target = self.target;
        let view = if self.rng.one_in(2) || !self.ordered {
            let (later, snapshot) = self.recorder.note_later(Action::ReadAll, || target.snapshot().unwrap());
            View::Snapshot(later, snapshot, None)
        } else {
            let (later, iter) = self.recorder.note_later(Action::ReadAll, || target.iter().unwrap());
            View::Walk(later, Box::new(iter), self.rng.one_in(2), State::new())
        };
        self.views.push(view);
    }

    /// Reads something of a view, or all of it.
    fn look_at_view(&mut self) {
        if self.views.is_empty() {
            return;
        }
        let i = self.rng.below(self.views.len() as u64) as usize;
        match &mut self.views[i] {
            View::Snapshot(_, snapshot, first) => {
                let all = everything(snapshot);
                let key = self.rng.below(KEYS) as u8;
                assert_eq!(
                    held(snapshot.get(&key_bytes(key)).unwrap()),
                    all.get(&key).copied(),
                    "of key {key}"
                );
                let first = first.get_or_insert_with(|| all.clone());
                assert_eq!(all, *first, "a snapshot has changed");
            }
            View::Walk(_, iter, backward, seen) => {
                for _ in 0..1 + self.rng.below(4) {
                    step(iter, *backward, seen);
                }
            }
        }
        if self.rng.one_in(4) {
            let view = self.views.swap_remove(i);
            self.read_out(view);
        }
    }

    /// Reads all that is left of a view and lets go of it.
    fn read_out(&mut self, view: View) {
        match view {
            View::Snapshot(later, snapshot, first) => {
                let mut all = State::new();
                match snapshot.iter() {
                    Ok(mut iter) => while step(&mut iter, true, &mut all) {},
                    Err(_) => all = everything(&snapshot),
                }
                assert!(first.is_none_or(|first| first == all), "a snapshot has changed");
                self.recorder.answer(later, Answer::All(all));
            }
            View::Walk(later, mut iter, backward, mut seen) => {
                while step(&mut iter, backward, &mut seen) {}
                self.recorder.answer(later, Answer::All(seen));
            }
        }
    }

    fn end(mut self) -> Vec<Op> {
        self.let_go();
        self.recorder.ops
    }
}

/// One step of an iterator into `seen`; false at its end.
fn step(iter: &mut DbIter, backward: bool, seen: &mut State) -> bool {
    let item = stepped(iter, backward, seen.len().is_multiple_of(2));
    let Some(item) = item else { return false };
    let (key, value) = item.unwrap();
    let in_order =
        if backward { seen.keys().next() > Some(&key[23]) } else { seen.keys().last() < Some(&key[23]) };
    assert!(seen.is_empty() || in_order, "an iterator gave {} after {seen:?}", key[23]);
    seen.insert(key[23], decode(&value));
    true
}

fn seen((key, value): (Bytes, Bytes)) -> (u8, u64) {
    (key[23], decode(&value))
}

fn everything(snapshot: &Snapshot) -> State {
    snapshot.all().into_iter().map(|(key, value)| (key[23], decode(&value))).collect()
}

/// Keys that differ in their last byte alone.
fn key_bytes(key: u8) -> [u8; 24] {
    let mut bytes = *b"keys of one long prefix\0";
    bytes[23] = key;
    bytes
}

/// A value's bytes: its number, over and over, so that a torn one shows.
fn encode(value: u64, padding: usize) -> Vec<u8> {
    value.to_be_bytes().repeat(1 + padding / 8)
}

fn decode(bytes: &[u8]) -> u64 {
    let value = u64::from_be_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes.chunks(8).all(|chunk| chunk == value.to_be_bytes()), "{bytes:?} is nobody's value");
    value
}

fn held(value: Option<Bytes>) -> Held {
    value.map(|value| decode(&value))
}

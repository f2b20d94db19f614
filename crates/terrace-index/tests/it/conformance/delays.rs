//! One thread is stopped at every step of an operation while another carries out whole operations beside it; the same
//! after a crash, when both meet what that has left.
//!
//! What both are told is judged as a history (`histories`). While the slow thread stands still the power goes, too:
//! what was acknowledged to the other is there, what the slow one was about is there or not.
//!
//! `TERRACE_DELAY_SEEDS` sets how many scenarios are drawn for each index.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::rng::Rng;
use terrace_index::PointIndex;
use terrace_pmem::{POff, Pool};
use terrace_sim::{Halting, Survival, World, WorldOptions};

use super::histories::{Action, Op, judge};
use super::{Case, Subject};
use crate::bed::{assert_marked, create_halting, create_in, open_halting, open_in};

/// Keys in play.
const KEYS: u64 = 26;

/// Power cuts tried at each event of the operation that others meet the rest of.
const SURVIVORS: u64 = 8;

/// Steps after which not each is stopped at.
const DENSE: u64 = 30;

/// What a thread asks.
#[derive(Debug, Clone, Copy)]
enum Ask {
    Get,
    Put(Option<u64>),
    /// From what was read just before.
    Exchange(Option<u64>),
    /// All keys, by a scan.
    Scan,
    /// The number of keys, which may make an index go through all of itself.
    Count,
}

/// An operation of a plan, on a key.
type Planned = (u64, Ask);

/// What a seed draws.
#[derive(Debug, Clone)]
struct Plan {
    before: Vec<Planned>,
    slow: Planned,
    beside: Vec<Planned>,
}

/// Keys of several lengths that lie close together.
fn name(n: u64) -> Vec<u8> {
    match n % 3 {
        0 => format!("k{n:02}").into_bytes(),
        _ => format!("k{:02}/with/a/tail/{n}", n / 3 * 3).into_bytes(),
    }
}

impl Plan {
    /// Every second key comes in order, so that nodes are split at the end; then somebody goes through all while the
    /// others come.
    fn ascending() -> Plan {
        let puts = |from: u64| (from..KEYS).step_by(2).map(|n| (n, Ask::Put(Some(100 + n)))).collect();
        Plan { before: puts(0), slow: (0, Ask::Count), beside: puts(1) }
    }

    fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let mut word = 1;
        let mut next = |rng: &mut Rng| {
            word += 1;
            (!rng.one_in(3)).then_some(word)
        };
        let filled = 4 + rng.below(KEYS * 2);
        let before = (0..filled).map(|i| {
            let put = if rng.one_in(5) { None } else { Some(1000 + i) };
            (rng.below(KEYS), Ask::Put(put))
        });
        let before: Vec<Planned> = before.collect();
        let key = rng.below(KEYS);
        let slow = match rng.below(12) {
            0 => Ask::Get,
            1 => Ask::Scan,
            2 => Ask::Count,
            3 | 4 => Ask::Exchange(next(&mut rng)),
            5 | 6 => Ask::Put(None),
            _ => Ask::Put(Some(500)),
        };
        let removes = rng.one_in(2);
        let beside = (0..2 + rng.below(14)).map(|_| {
            // On the same key, on its neighbours, anywhere.
            let near = match rng.below(3) {
                0 => key,
                1 => (key + rng.below(5)).saturating_sub(2).min(KEYS - 1),
                _ => rng.below(KEYS),
            };
            let ask = match rng.below(8) {
                0 | 1 => Ask::Get,
                2 => Ask::Exchange(next(&mut rng)),
                3 if rng.one_in(3) => Ask::Scan,
                3 if rng.one_in(2) => Ask::Count,
                4 | 5 if removes => Ask::Put(None),
                _ => Ask::Put(next(&mut rng)),
            };
            (near, ask)
        });
        Plan { before, slow: (key, slow), beside: beside.collect() }
    }
}

/// Notes of both threads, by key.
struct Notes {
    now: AtomicU64,
    ops: Mutex<Vec<Vec<Op>>>,
}

impl Notes {
    /// Every key begins as `start` says.
    fn new(start: &BTreeMap<u64, u64>) -> Notes {
        let notes = Notes { now: AtomicU64::new(0), ops: Mutex::new(vec![Vec::new(); KEYS as usize]) };
        for (key, word) in start {
            let (begin, end) = (notes.moment(), notes.moment());
            notes.add(*key, Op { begin, end, action: Action::Put(Some(*word)), before: None });
        }
        notes
    }

    fn moment(&self) -> u64 {
        self.now.fetch_add(1, Ordering::SeqCst)
    }

    fn add(&self, key: u64, op: Op) {
        self.ops.lock()[key as usize].push(op);
    }

    fn carry_out(&self, index: &impl Subject, (n, ask): Planned) {
        let key = name(n);
        match ask {
            Ask::Get => self.note(n, Action::Get, || index.get(&key).unwrap()),
            Ask::Put(Some(word)) => {
                self.note(n, Action::Put(Some(word)), || index.insert(&key, word).unwrap());
            }
            Ask::Put(None) => self.note(n, Action::Put(None), || index.remove(&key).unwrap()),
            Ask::Exchange(to) => {
                let mut from = None;
                self.note(n, Action::Get, || {
                    from = index.get(&key).unwrap();
                    from
                });
                self.note(n, Action::Exchange(from, to), || {
                    let told = index.compare_exchange(&key, from, to).unwrap();
                    told.map_or_else(|other| other, |()| from)
                });
            }
            Ask::Scan => self.scan(index),
            Ask::Count => assert!(index.len() <= KEYS),
        }
    }

    fn note(&self, n: u64, action: Action, ask: impl FnOnce() -> Option<u64>) {
        let begin = self.moment();
        let before = ask();
        self.add(n, Op { begin, end: self.moment(), action, before });
    }

    /// What a scan says of each key is an answer about that key, of some moment within the scan.
    fn scan(&self, index: &impl Subject) {
        let begin: Vec<u64> = (0..KEYS).map(|_| self.moment()).collect();
        let found: BTreeMap<Vec<u8>, u64> = index.contents(5).into_iter().collect();
        for n in 0..KEYS {
            let before = found.get(&name(n)).copied();
            self.add(n, Op { begin: begin[n as usize], end: self.moment(), action: Action::Get, before });
        }
    }

    fn judge(&self) -> Result<(), String> {
        let ops = self.ops.lock();
        ops.iter().enumerate().try_for_each(|(n, ops)| judge(ops).map_err(|e| format!("key {n}: {e}")))
    }

    /// The notes so far.
    fn so_far(&self) -> Notes {
        Notes { now: AtomicU64::new(self.moment()), ops: Mutex::new(self.ops.lock().clone()) }
    }

    /// Whether what was found after the power went is right, the slow thread having been about `pending`, which has no
    /// note yet.
    fn judge_survivor(&self, found: &BTreeMap<u64, u64>, pending: Planned) -> Result<(), String> {
        let ops = self.ops.lock().clone();
        for (n, mut ops) in ops.into_iter().enumerate() {
            let (begin, end, before) = (self.moment(), self.moment(), found.get(&(n as u64)).copied());
            ops.push(Op { begin, end, action: Action::Get, before });
            let without = judge(&ops);
            let Err(why) = without else { continue };
            let done = |new| {
                // With any answer: nobody has heard it.
                let answers = ops.iter().flat_map(|op| [op.before, written(op)]).chain([None]);
                answers.into_iter().any(|before| {
                    let slow = Op { begin, end, action: Action::Put(new), before };
                    judge(&shifted(&ops, slow)).is_ok()
                })
            };
            let may_be =
                pending.0 == n as u64 && matches!(pending.1, Ask::Put(new) | Ask::Exchange(new) if done(new));
            if !may_be {
                return Err(format!("key {n} is {before:?} after a power cut: {why}"));
            }
        }
        Ok(())
    }
}

/// The word that an operation writes, if it does.
fn written(op: &Op) -> Option<u64> {
    match op.action {
        Action::Put(new) | Action::Exchange(_, new) => new,
        Action::Get => None,
    }
}

/// `ops`, the last of which comes after everything, with `slow` beside all of them but the last, whatever its moments.
fn shifted(ops: &[Op], slow: Op) -> Vec<Op> {
    let (last, others) = ops.split_last().unwrap();
    let later = |op: &Op| Op { begin: op.begin + 1, end: op.end + 1, ..*op };
    let mut all: Vec<Op> = others.iter().map(later).collect();
    all.push(Op { begin: 0, end: last.begin + 1, ..slow });
    all.push(Op { begin: last.begin + 2, end: last.end + 2, ..*last });
    all
}

/// The words of an index by number of key.
fn contents(index: &impl Subject) -> BTreeMap<u64, u64> {
    let found: BTreeMap<Vec<u8>, u64> = index.contents(7).into_iter().collect();
    (0..KEYS).filter_map(|n| found.get(&name(n)).map(|word| (n, *word))).collect()
}

/// Opens the index of a survivor and looks at all of it.
fn survivor<C: Case>(world: &World) -> BTreeMap<u64, u64> {
    let pool = open_in(world).unwrap();
    let index = C::open(&pool).unwrap();
    let found = contents(&index);
    assert_eq!(index.check().unwrap(), Vec::<String>::new());
    found
}

/// Has `plan` carried out with the slow thread stopped at each of its steps; how many there were. `begin` makes the
/// world and the index anew each time and says what is in it.
fn stop_at_every_step<C: Case>(
    told: &str,
    plan: &Plan,
    begin: impl Fn() -> (World, Arc<Halting>, Pool, C::Index, BTreeMap<u64, u64>),
) -> u64 {
    let mut nth = 0;
    loop {
        let (world, media, pool, index, start) = begin();
        let notes = Notes::new(&start);
        let (index_ref, notes_ref) = (&index, &notes);
        let slow = move || notes_ref.carry_out(index_ref, plan.slow);
        let ((), stopped) = media.run(nth, slow, |stopped| {
            plan.beside.iter().for_each(|op| notes.carry_out(&index, *op));
            stopped.hold().then(|| (world.capture(), notes.so_far()))
        });
        let told = format!("{told}, stopped at step {nth}: {plan:?}");
        let Some(snapshot) = stopped else {
            assert_eq!(notes.judge(), Ok(()), "{told}");
            return nth;
        };
        if let Some((snapshot, so_far)) = snapshot {
            for survival in [Survival::Nothing, Survival::Seeded(nth)] {
                let found = survivor::<C>(&snapshot.power_cut(survival));
                assert_eq!(so_far.judge_survivor(&found, plan.slow), Ok(()), "{survival:?}, {told}");
            }
        }
        (0..KEYS).for_each(|n| notes.carry_out(&index, (n, Ask::Get)));
        notes.scan(&index);
        assert_eq!(notes.judge(), Ok(()), "{told}");
        assert_eq!(index.check().unwrap(), Vec::<String>::new(), "{told}");
        let end = contents(&index);
        assert_eq!(index.len(), end.len() as u64, "{told}");
        assert_eq!(survivor::<C>(&world.capture().power_cut(Survival::Nothing)), end, "{told}");
        index.close().unwrap();
        assert_marked(&pool, |marks| index.mark(marks));
        nth += 1 + nth / DENSE;
    }
}

fn seeds(usual: u64) -> u64 {
    std::env::var("TERRACE_DELAY_SEEDS").map_or(usual, |text| text.parse().unwrap())
}

/// A thread stopped at any step of an operation harms nobody, and nobody harms it.
pub fn bears_delays<C: Case>() {
    let mut steps = 0;
    for seed in 0..seeds(10) {
        let plan = Plan::draw(seed);
        steps += stop_at_every_step::<C>(&format!("seed {seed}"), &plan, || {
            let world = World::new(seed, WorldOptions::default());
            let (media, pool) = create_halting(&world);
            let index = C::create(&pool).unwrap();
            let fill = Notes::new(&BTreeMap::new());
            plan.before.iter().for_each(|op| fill.carry_out(&index, *op));
            let start = contents(&index);
            (world, media, pool, index, start)
        });
    }
    assert!(steps > 0, "nothing was stopped");
}

/// The same where both meet what a power cut has left of the operation that changes most.
pub fn bears_delays_after_a_crash<C: Case>() {
    for seed in 0..seeds(2) {
        let plan = if seed == 0 { Plan::ascending() } else { Plan::draw(1000 + seed) };
        for (i, survivor_of) in largest_change::<C>(seed, &plan).into_iter().enumerate() {
            let start = survivor::<C>(&survivor_of.kill());
            let mut plan = plan.clone();
            // Half of them through all of it, which finds what there is to be put right.
            plan.slow.1 = if i % 2 == 0 { Ask::Count } else { plan.slow.1 };
            stop_at_every_step::<C>(&format!("seed {seed}, survivor {i}"), &plan, || {
                let world = survivor_of.kill();
                let (media, pool) = open_halting(&world);
                let index = C::open(&pool).unwrap();
                (world, media, pool, index, start.clone())
            });
        }
    }
}

/// What is left when the power goes at any event of the operation that has most events, of the later half.
fn largest_change<C: Case>(seed: u64, plan: &Plan) -> Vec<World> {
    let (mut from, mut to) = (0, 0);
    fill::<C>(&World::new(seed, WorldOptions::default()), plan, &mut |i, first, end| {
        if i >= plan.before.len() / 2 && end - first >= to - from {
            (from, to) = (first, end);
        }
    });
    let left = Arc::new(Mutex::new(Vec::<(World, u64)>::new()));
    let found = left.clone();
    let world = World::new(seed, WorldOptions::default());
    world.on_event(Box::new(move |event, world| {
        if (from..to).contains(&event.index) {
            let snapshot = world.capture();
            let mut found = found.lock();
            for survivor in (0..SURVIVORS).map(|i| snapshot.power_cut(Survival::Seeded(i))) {
                let state = fingerprint(&survivor);
                if found.iter().all(|(_, other)| *other != state) {
                    found.push((survivor, state));
                }
            }
        }
    }));
    fill::<C>(&world, plan, &mut |_, _, _| ());
    world.ignore_events();
    std::mem::take(&mut *left.lock()).into_iter().map(|(world, _)| world).collect()
}

/// Makes an index and carries out what comes before; `each` is told of every operation's first event and its end.
fn fill<C: Case>(world: &World, plan: &Plan, each: &mut dyn FnMut(usize, u64, u64)) {
    let pool = create_in(world).unwrap();
    let index = C::create(&pool).unwrap();
    let notes = Notes::new(&BTreeMap::new());
    for (i, op) in plan.before.iter().enumerate() {
        let first = world.events();
        notes.carry_out(&index, *op);
        each(i, first, world.events());
    }
}

/// What tells the states of a world's persistent memory apart.
fn fingerprint(world: &World) -> u64 {
    let pool = open_in(&world.kill()).unwrap();
    let words = (0..pool.size() / 8).map(|i| pool.atomic(POff::new(i * 8)).load(Ordering::Relaxed));
    words.fold(0, |hash, word| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23))
}

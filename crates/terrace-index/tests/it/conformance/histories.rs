//! Histories: what threads asked of an index at the same time and what they were told, judged.
//!
//! Every operation is noted with the moments before and after it, from one counter. A history of independent keys is
//! linearizable if that of each key is (M. P. Herlihy and J. M. Wing, 1990), so each is judged by itself: there must be
//! one order of its operations, each at one moment between its two, in which every answer is right. The search
//! keeps every configuration that is possible so far: the key's word, and which of the operations under way have
//! taken place (G. Lowe, *Testing for linearizability*, 2017).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::rng::Rng;

use super::{Case, Subject};
use crate::bed::memory_pool_of;

const THREADS: u64 = 3;
const KEYS: u64 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Get,
    /// Makes it a word, or removes it; the answer is what was there.
    Put(Option<u64>),
    /// From one word to another.
    Exchange(Option<u64>, Option<u64>),
}

/// One operation on one key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Op {
    pub begin: u64,
    pub end: u64,
    pub action: Action,
    /// What was there.
    pub before: Option<u64>,
}

/// What `word` becomes if `op` takes place now; `None` if its answer would be wrong.
fn after(word: Option<u64>, op: &Op) -> Option<Option<u64>> {
    (word == op.before).then_some(match op.action {
        Action::Get => word,
        Action::Put(new) => new,
        Action::Exchange(from, to) => {
            if word == from {
                to
            } else {
                word
            }
        }
    })
}

type Configuration = (Option<u64>, BTreeSet<usize>);

/// Whether some order explains the operations on a key that was absent; else the first that none does.
pub(super) fn judge(ops: &[Op]) -> Result<(), String> {
    let ends = ops.iter().enumerate().map(|(i, op)| (op.end, (i, false)));
    let begins = ops.iter().enumerate().map(|(i, op)| (op.begin, (i, true)));
    let moments: BTreeMap<u64, (usize, bool)> = begins.chain(ends).collect();
    let mut possible: HashSet<Configuration> = HashSet::from([(None, BTreeSet::new())]);
    let mut under_way = BTreeSet::new();
    for (i, begins) in moments.into_values() {
        if begins {
            under_way.insert(i);
            continue;
        }
        let (mut open, mut seen): (Vec<_>, _) = (possible.iter().cloned().collect(), possible);
        let mut settled = HashSet::new();
        while let Some((word, mut done)) = open.pop() {
            if done.remove(&i) {
                settled.insert((word, done));
                continue;
            }
            for &next in under_way.difference(&done) {
                if let Some(word) = after(word, &ops[next]) {
                    let grown = (word, done.iter().copied().chain([next]).collect());
                    if seen.insert(grown.clone()) {
                        open.push(grown);
                    }
                }
            }
        }
        if settled.is_empty() {
            let near = |op: &&Op| op.end + 40 > ops[i].begin && op.begin < ops[i].end;
            return Err(format!("{:?} among {:#?}", ops[i], ops.iter().filter(near).collect::<Vec<_>>()));
        }
        under_way.remove(&i);
        possible = settled;
    }
    Ok(())
}

/// One thread's operations, by key.
fn act(index: &impl Subject, t: u64, seed: u64, now: &AtomicU64) -> Vec<(u64, Op)> {
    let mut rng = Rng::new(seed * THREADS + t);
    let moment = || now.fetch_add(1, Ordering::SeqCst);
    let mut ops = Vec::new();
    let mut seen = vec![None; KEYS as usize];
    for i in 0..150 {
        let n = rng.below(KEYS);
        let key = name(n);
        // Each word is written once, so that an answer tells whose it is.
        let new = (!rng.one_in(4)).then_some(i * THREADS + t + 1);
        let expected = seen[n as usize];
        let begin = moment();
        let (action, before) = match rng.below(5) {
            0 | 1 => (Action::Get, index.get(&key).unwrap()),
            2 | 3 => {
                let before = match new {
                    Some(word) => index.insert(&key, word).unwrap(),
                    None => index.remove(&key).unwrap(),
                };
                (Action::Put(new), before)
            }
            _ => {
                let told = index.compare_exchange(&key, expected, new).unwrap();
                (Action::Exchange(expected, new), told.map_or_else(|other| other, |()| expected))
            }
        };
        ops.push((n, Op { begin, end: moment(), action, before }));
        seen[n as usize] = match action {
            Action::Put(new) => new,
            Action::Exchange(from, to) if before == from => to,
            _ => before,
        };
        // Others come and go around them, so that nodes and shards change under the readers.
        let other = format!("around/{:03}", rng.below(120)).into_bytes();
        if rng.one_in(2) {
            index.insert(&other, 1).unwrap();
        } else {
            index.remove(&other).unwrap();
        }
    }
    ops
}

/// Of 8 bytes and of more.
fn name(n: u64) -> Vec<u8> {
    if n.is_multiple_of(2) {
        format!("around/{n}").into_bytes()
    } else {
        format!("around/a/longer/key/{n}").into_bytes()
    }
}

/// Whatever threads are told, there is an order in which it is right.
pub fn is_linearizable<C: Case>() {
    for seed in 0..12 {
        let index = C::create(&memory_pool_of(64 << 20)).unwrap();
        let now = AtomicU64::new(0);
        let mut ops = vec![Vec::new(); KEYS as usize];
        std::thread::scope(|s| {
            let threads: Vec<_> = (0..THREADS)
                .map(|t| {
                    let (index, now) = (&index, &now);
                    s.spawn(move || act(index, t, seed, now))
                })
                .collect();
            for (n, op) in threads.into_iter().flat_map(|t| t.join().unwrap()) {
                ops[n as usize].push(op);
            }
        });
        for (n, ops) in ops.iter().enumerate() {
            judge(ops).unwrap_or_else(|e| panic!("key {n} of seed {seed}: {e}"));
        }
    }
}

#[test]
fn wrong_histories_are_found() {
    let op = |begin, end, action, before| Op { begin, end, action, before };
    let put = |begin, end, word, before| op(begin, end, Action::Put(Some(word)), before);
    let get = |begin, end, before| op(begin, end, Action::Get, before);
    let passes = |ops: &[Op]| judge(ops).is_ok();
    // A stale read, and one beside the write.
    assert!(!passes(&[put(0, 1, 1, None), put(2, 3, 2, Some(1)), get(4, 5, Some(1))]));
    assert!(passes(&[put(0, 1, 1, None), put(2, 5, 2, Some(1)), get(3, 4, Some(1))]));
    // Going back in time.
    assert!(!passes(&[put(0, 9, 1, None), get(1, 2, Some(1)), get(3, 4, None)]));
    // Two exchanges from one word.
    let exchange = |begin, end, to, before| op(begin, end, Action::Exchange(None, Some(to)), before);
    assert!(!passes(&[exchange(0, 3, 1, None), exchange(1, 2, 2, None)]));
    assert!(passes(&[exchange(0, 3, 1, None), exchange(1, 2, 2, Some(1))]));
}

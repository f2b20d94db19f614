//! The checker of histories of transactions, by the graph of what depends on what.
//!
//! Every value that is written is another, so that a value tells who wrote it; and whoever writes a key has
//! read it, so that each version has one before it. A key that is absent has a version, too: a key that is
//! there at the beginning is removed once at most and stays away, another one is never removed. So an absence
//! tells its origin: a removal, or the beginning.
//!
//! A transaction comes after those whose versions it has seen or replaced, and before those who replaced a
//! version that it has seen; and after those that had ended when it began. If the graph of this has no
//! cycle, there is an order in which all of them could have run one by one, and a cycle is an anomaly.
//! (A. Adya, *Weak consistency*, 1999; K. Kingsbury and P. Alvaro, *Elle*, 2020.)

use std::collections::{BTreeMap, HashMap};

/// What a key holds: a value that no other write has, or nothing.
pub type Held = Option<u64>;

/// A transaction that has committed.
#[derive(Debug, Clone, Default)]
pub struct Committed {
    /// The moments between which it ran.
    pub begin: u64,
    pub end: u64,
    /// Every key that it has read, alone or in a range, absent ones included.
    pub reads: BTreeMap<u8, Held>,
    /// Every key that it has written, all of which it has read.
    pub writes: BTreeMap<u8, Held>,
}

/// Why one transaction comes before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Because {
    /// The later one has seen what it wrote.
    Read(u8),
    /// The later one has replaced what it wrote.
    Replaced(u8),
    /// The later one has replaced what it has seen.
    ReadBefore(u8),
    /// It had ended when the later one began.
    Time,
}

struct Graph {
    edges: Vec<Vec<(usize, Because)>>,
}

/// Whether one order explains `history`, which began with `first`; an anomaly in words otherwise.
pub fn judge(first: &BTreeMap<u8, u64>, history: &[Committed]) -> Result<(), String> {
    let writers = writers(first, history)?;
    // The transaction that replaced each version, by the key and what that held.
    let mut replaced: HashMap<(u8, Held), usize> = HashMap::new();
    for (i, transaction) in history.iter().enumerate() {
        for key in transaction.writes.keys() {
            let Some(seen) = transaction.reads.get(key) else {
                return Err(format!("transaction {i} writes key {key} and has not read it"));
            };
            if let Some(other) = replaced.insert((*key, *seen), i) {
                return Err(format!(
                    "lost update: transactions {other} and {i} both replaced {seen:?} of key {key}"
                ));
            }
        }
    }
    let mut graph = Graph { edges: vec![Vec::new(); history.len()] };
    for (i, transaction) in history.iter().enumerate() {
        for (key, seen) in &transaction.reads {
            let Some(writer) = writers.get(&(*key, *seen)) else {
                return Err(format!(
                    "transaction {i} has read {seen:?} of key {key}, which nobody committed"
                ));
            };
            if let Some(writer) = writer {
                graph.add(*writer, i, Because::Read(*key));
                if transaction.writes.contains_key(key) {
                    graph.add(*writer, i, Because::Replaced(*key));
                }
            }
            if let Some(next) = replaced.get(&(*key, *seen)) {
                graph.add(i, *next, Because::ReadBefore(*key));
            }
        }
        for (j, other) in history.iter().enumerate() {
            if transaction.end < other.begin {
                graph.add(i, j, Because::Time);
            }
        }
    }
    graph.cycle().map_or(Ok(()), Err)
}

/// The writer of each value that a key has held; nobody wrote what was there at the beginning.
fn writers(
    first: &BTreeMap<u8, u64>,
    history: &[Committed],
) -> Result<HashMap<(u8, Held), Option<usize>>, String> {
    let mut writers = HashMap::new();
    for key in 0..=u8::MAX {
        writers.insert((key, first.get(&key).copied()), None);
    }
    for (i, transaction) in history.iter().enumerate() {
        for (key, value) in &transaction.writes {
            if writers.insert((*key, *value), Some(i)).is_some() {
                return Err(format!("transaction {i} is not the first to write {value:?} under key {key}"));
            }
        }
    }
    Ok(writers)
}

impl Graph {
    fn add(&mut self, from: usize, to: usize, because: Because) {
        if from != to {
            self.edges[from].push((to, because));
        }
    }

    /// A cycle in words, if there is one.
    fn cycle(&self) -> Option<String> {
        // 0: not met yet, 1: on the path, 2: done.
        let mut states = vec![0u8; self.edges.len()];
        for start in 0..self.edges.len() {
            if states[start] != 0 {
                continue;
            }
            states[start] = 1;
            // Each with the number of its edges that have been followed.
            let mut path = vec![(start, 0)];
            while let Some((at, followed)) = path.last_mut() {
                let Some((to, _)) = self.edges[*at].get(*followed) else {
                    states[*at] = 2;
                    path.pop();
                    continue;
                };
                *followed += 1;
                match states[*to] {
                    0 => {
                        states[*to] = 1;
                        path.push((*to, 0));
                    }
                    1 => return Some(self.told(&path, *to)),
                    _ => {}
                }
            }
        }
        None
    }

    /// The cycle at the end of a path whose last edge leads back to `to`.
    fn told(&self, path: &[(usize, usize)], to: usize) -> String {
        let begin = path.iter().position(|(at, _)| *at == to).unwrap_or(0);
        let steps = path[begin..].iter().map(|(at, followed)| {
            let (next, because) = self.edges[*at][followed - 1];
            format!("{at} before {next} ({because:?})")
        });
        format!("no order explains this: {}", steps.collect::<Vec<_>>().join(", "))
    }
}

//! Random lists of operations: what they are drawn from, and the mixes that scenarios share.

use terrace_base::rng::Rng;

use super::ops::{Op, Write, key};

/// How often each kind of operation comes, out of the sum of all.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    pub put: u64,
    pub synced: u64,
    pub delete: u64,
    pub batch: u64,
    pub swap: u64,
    pub transact: u64,
    pub sync: u64,
    pub snapshot: u64,
    pub read: u64,
    pub release: u64,
    pub flush: u64,
    pub compact: u64,
    pub background: u64,
    pub reopen: u64,
    pub kill: u64,
    pub delete_range: u64,
    pub ingest: u64,
    pub junk: u64,
    /// Keys in use.
    pub keys: u64,
    /// Longest value.
    pub len: u64,
}

/// Operations that a seed draws from a mix: the same ones each time.
#[derive(Debug, Clone, Copy)]
pub struct Drawn {
    pub seed: u64,
    /// So many operations.
    pub ops: usize,
    pub mix: Mix,
}

/// Operations in order, and the seed of all that is drawn beside them.
#[derive(Debug, Clone)]
pub struct Script {
    pub seed: u64,
    pub ops: Vec<Op>,
}

impl From<Drawn> for Script {
    fn from(drawn: Drawn) -> Script {
        Script { seed: drawn.seed, ops: drawn.draw() }
    }
}

impl Drawn {
    /// The operations.
    pub fn draw(&self) -> Vec<Op> {
        let mut rng = Rng::new(self.seed);
        (0..self.ops).map(|_| one(&mut rng, self.mix)).collect()
    }
}

impl Mix {
    /// No operation at all.
    pub const NONE: Mix = Mix {
        put: 0,
        synced: 0,
        delete: 0,
        batch: 0,
        swap: 0,
        transact: 0,
        sync: 0,
        snapshot: 0,
        read: 0,
        release: 0,
        flush: 0,
        compact: 0,
        background: 0,
        reopen: 0,
        kill: 0,
        delete_range: 0,
        ingest: 0,
        junk: 0,
        keys: 0,
        len: 0,
    };

    /// Fills memtables, which are flushed now and then.
    pub const FLUSHES: Mix =
        Mix { put: 12, delete: 2, background: 2, flush: 1, keys: 40, len: 400, ..Mix::NONE };

    /// Fills tables with versions of a few dozen keys, which compactions merge.
    pub const COMPACTIONS: Mix = Mix {
        put: 8,
        delete: 3,
        batch: 2,
        flush: 2,
        compact: 1,
        background: 3,
        keys: 60,
        len: 400,
        ..Mix::NONE
    };

    /// Writes to logs, with many syncs.
    pub const LOGS: Mix = Mix {
        put: 8,
        synced: 4,
        sync: 1,
        delete: 1,
        background: 1,
        flush: 1,
        keys: 20,
        len: 500,
        ..Mix::NONE
    };

    /// Lives of a few writes each, of which half end in order and half with a kill.
    pub const OPENINGS: Mix = Mix {
        put: 8,
        delete: 2,
        synced: 1,
        background: 1,
        flush: 1,
        reopen: 3,
        kill: 3,
        keys: 20,
        len: 300,
        ..Mix::NONE
    };

    /// Values so large that the pool has to grow.
    pub const GROWTH: Mix =
        Mix { put: 6, delete: 1, background: 1, reopen: 1, keys: 8, len: 90_000, ..Mix::NONE };

    /// What is cut into buckets, and has them split.
    pub const BUCKETS: Mix =
        Mix { put: 12, batch: 1, delete: 1, background: 3, flush: 1, keys: 60, len: 900, ..Mix::NONE };

    /// Whatever a store can be asked for.
    pub const EVERYTHING: Mix = Mix {
        put: 12,
        synced: 2,
        delete: 5,
        batch: 4,
        swap: 0,
        transact: 0,
        sync: 1,
        snapshot: 2,
        read: 1,
        release: 1,
        flush: 2,
        compact: 1,
        background: 4,
        reopen: 1,
        kill: 1,
        delete_range: 0,
        ingest: 0,
        junk: 0,
        keys: 40,
        len: 300,
    };

    /// What filters let go beside everything else.
    pub const JUNK: Mix = Mix {
        put: 8,
        junk: 8,
        synced: 1,
        delete: 2,
        batch: 1,
        snapshot: 1,
        read: 1,
        release: 1,
        flush: 2,
        compact: 2,
        background: 6,
        reopen: 1,
        kill: 1,
        keys: 40,
        len: 300,
        ..Mix::NONE
    };

    /// Ingests beside everything else.
    pub const INGESTS: Mix = Mix {
        put: 10,
        synced: 1,
        delete: 3,
        batch: 1,
        ingest: 8,
        snapshot: 1,
        read: 1,
        release: 1,
        flush: 1,
        compact: 1,
        background: 4,
        reopen: 1,
        kill: 1,
        keys: 60,
        len: 200,
        ..Mix::NONE
    };
}

fn one(rng: &mut Rng, mix: Mix) -> Op {
    type Make = fn(&mut Rng, Mix) -> Op;
    let kinds: [(u64, Make); 18] = [
        (mix.put, |r, m| Op::Put { key: some_key(r, m), len: some_len(r, m) }),
        (mix.synced, |r, m| Op::PutSynced { key: some_key(r, m), len: some_len(r, m) }),
        (mix.delete, |r, m| Op::Delete { key: some_key(r, m) }),
        (mix.batch, |r, m| Op::Batch(some_batch(r, m))),
        (mix.sync, |_, _| Op::Sync),
        (mix.snapshot, |_, _| Op::Snapshot),
        (mix.read, |r, _| if r.one_in(2) { Op::ReadSnapshots } else { Op::Compare }),
        (mix.release, |_, _| Op::Release),
        (mix.flush, |_, _| Op::Flush),
        (mix.compact, |r, m| some_range(r, m)),
        (mix.background, |_, _| Op::Background),
        (mix.reopen, |_, _| Op::Reopen),
        (mix.kill, |_, _| Op::Kill),
        (mix.transact, |r, m| some_transaction(r, m)),
        (mix.delete_range, |r, m| Op::DeleteRange { from: some_key(r, m), to: some_key(r, m) }),
        (mix.ingest, |r, m| Op::Ingest(some_stream(r, m))),
        (mix.swap, |r, m| Op::Swap { key: some_key(r, m), len: some_len(r, m) }),
        (mix.junk, |r, m| Op::PutJunk { key: some_key(r, m), len: some_len(r, m) }),
    ];
    let mut at = rng.below(kinds.iter().map(|(weight, _)| weight).sum());
    for (weight, make) in kinds {
        if at < weight {
            return make(rng, mix);
        }
        at -= weight;
    }
    Op::Compare
}

fn some_key(rng: &mut Rng, mix: Mix) -> u16 {
    rng.below(mix.keys) as u16
}

fn some_len(rng: &mut Rng, mix: Mix) -> u32 {
    if rng.one_in(8) { rng.below(4) as u32 } else { rng.below(mix.len + 1) as u32 }
}

fn some_batch(rng: &mut Rng, mix: Mix) -> Vec<Write> {
    let some_write = |rng: &mut Rng| {
        let key = some_key(rng, mix);
        if rng.one_in(4) { Write::Delete { key } } else { Write::Put { key, len: some_len(rng, mix) } }
    };
    let len = 2 + rng.below(6);
    (0..len).map(|_| some_write(rng)).collect()
}

/// Keys in order: most of a stretch, or a few anywhere.
fn some_stream(rng: &mut Rng, mix: Mix) -> Vec<Write> {
    let (from, share) = (some_key(rng, mix), 1 + rng.below(4));
    let mut keys: Vec<u16> = (from..mix.keys as u16).filter(|_| rng.below(share) == 0).collect();
    keys.sort_by_key(|number| key(*number));
    keys.into_iter().map(|key| Write::Put { key, len: some_len(rng, mix) }).collect()
}

fn some_transaction(rng: &mut Rng, mix: Mix) -> Op {
    let reads = (0..rng.below(5)).map(|_| some_key(rng, mix)).collect();
    Op::Transact { reads, writes: some_batch(rng, mix) }
}

fn some_range(rng: &mut Rng, mix: Mix) -> Op {
    if rng.one_in(2) {
        Op::COMPACT_LONG_KEYS
    } else {
        Op::Compact { from: some_key(rng, mix), to: some_key(rng, mix) }
    }
}

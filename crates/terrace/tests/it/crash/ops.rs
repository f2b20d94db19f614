//! What a scenario does, and random lists of it.

use terrace_base::rng::Rng;

/// One operation. Keys are small numbers, values are lengths: see [`key`] and [`value`].
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    Put(u16, u32),
    /// A put that is acknowledged as power-safe.
    PutSynced(u16, u32),
    Delete(u16),
    /// Puts and deletes that take effect together.
    Batch(Vec<(u16, Option<u32>)>),
    /// Makes everything so far power-safe.
    Sync,
    /// Takes a snapshot.
    Snapshot,
    /// Compares every snapshot with what it saw when it was taken.
    ReadSnapshots,
    /// Lets go of the oldest snapshot.
    Release,
    /// Compares all contents, by iteration and by gets.
    Compare,
    Flush,
    /// Compacts the keys between two.
    Compact(u16, u16),
    /// Runs one background job.
    Background,
    /// Closes and opens again.
    Reopen,
    /// The process dies with whatever it was about to do; another opens the database.
    Kill,
    /// Leaves so many bytes of room on the disk.
    DiskFull(u32),
    /// Lets the pool grow by so many bytes.
    PoolFull(u32),
    /// Makes room on both media.
    Room,
}

/// The key called `number`: one is empty, some share a long beginning, some are beginnings of others.
pub fn key(number: u16) -> Vec<u8> {
    match number {
        0 => Vec::new(),
        n if n % 3 == 0 => {
            format!("a-long-beginning-that-many-keys-have-in-common/{:03}", n / 3).into_bytes()
        }
        n if n % 3 == 1 => format!("k{n}").into_bytes(),
        n => format!("k{}\0{n}", n - 1).into_bytes(),
    }
}

/// The `stamp`th value, of `len` bytes; no two of four bytes or more are the same.
pub fn value(stamp: u32, len: u32) -> Vec<u8> {
    let mut value = vec![(stamp % 251) as u8; len as usize];
    let stamp = stamp.to_le_bytes();
    let n = value.len().min(4);
    value[..n].copy_from_slice(&stamp[..n]);
    value
}

/// How often each kind of operation comes, out of the sum of all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mix {
    pub put: u64,
    pub synced: u64,
    pub delete: u64,
    pub batch: u64,
    pub sync: u64,
    pub snapshot: u64,
    pub read: u64,
    pub release: u64,
    pub flush: u64,
    pub compact: u64,
    pub background: u64,
    pub reopen: u64,
    pub kill: u64,
    /// Keys in use.
    pub keys: u64,
    /// Longest value.
    pub len: u64,
}

/// `count` operations drawn from `mix`.
pub fn draw(seed: u64, count: usize, mix: Mix) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| one(&mut rng, mix)).collect()
}

fn one(rng: &mut Rng, mix: Mix) -> Op {
    type Make = fn(&mut Rng, Mix) -> Op;
    let kinds: [(u64, Make); 13] = [
        (mix.put, |r, m| Op::Put(some_key(r, m), some_len(r, m))),
        (mix.synced, |r, m| Op::PutSynced(some_key(r, m), some_len(r, m))),
        (mix.delete, |r, m| Op::Delete(some_key(r, m))),
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

fn some_batch(rng: &mut Rng, mix: Mix) -> Vec<(u16, Option<u32>)> {
    let len = 2 + rng.below(6);
    (0..len).map(|_| (some_key(rng, mix), (!rng.one_in(4)).then(|| some_len(rng, mix)))).collect()
}

fn some_range(rng: &mut Rng, mix: Mix) -> Op {
    if rng.one_in(2) { Op::Compact(0, u16::MAX) } else { Op::Compact(some_key(rng, mix), some_key(rng, mix)) }
}

//! Removing the keys of dropped keyspaces, in steps, beside everything else.
//!
//! 1. A step belongs to an open database: closing waits for the one that runs, and no other begins.
//! 2. A number stays noted until a step has found no key of its keyspace. So an opening goes on where a process
//!    was killed.
//! 3. Where threads do background work, steps are jobs of theirs; where whoever waits does it, whoever drops a keyspace
//!    or opens the database does all steps.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_base::{ErrorKind, Result};
use terrace_table::Kind;

use crate::batch::{Op, WriteBatch};
use crate::db::Store;
use crate::keyspaces::Prefix;

/// Keys that one step removes.
const KEYS: usize = 256;

/// The same for an engine that has to look through all keys to find them.
const KEYS_WITHOUT_ORDER: usize = 16 << 10;

/// Steps of a database; locked by the one that runs.
#[derive(Debug, Default)]
pub(in crate::db) struct Sweeps {
    closed: Mutex<bool>,
}

impl Sweeps {
    /// Lets no further step begin, and waits for the one that runs.
    pub fn close(&self) {
        *self.closed.lock() = true;
    }
}

/// Begins to remove what dropped keyspaces have left, if there is something.
pub(in crate::db) fn resume(store: &Arc<Store>) -> Result<()> {
    if !store.read_only && !store.dropped()?.is_empty() {
        start(store);
    }
    Ok(())
}

pub(super) fn start(store: &Arc<Store>) {
    if store.core.env.executor.runs_beside() {
        return spawn(store);
    }
    while step(store) {}
}

fn spawn(store: &Arc<Store>) {
    let (sweeps, weak) = (store.sweeps.clone(), Arc::downgrade(store));
    store.core.env.executor.spawn(Box::new(move || run(&sweeps, weak)));
}

fn run(sweeps: &Sweeps, store: Weak<Store>) {
    let closed = sweeps.closed.lock();
    if *closed {
        return;
    }
    // Given back before the lock is: a closer goes on to what it frees.
    let Some(store) = store.upgrade() else { return };
    if step(&store) {
        spawn(&store);
    }
}

/// Removes some keys; returns whether there may be more to do.
fn step(store: &Store) -> bool {
    match store.sweep() {
        Ok(more) => more,
        Err(error) => {
            if error.kind() != ErrorKind::Closed {
                tracing::warn!(%error, "what a dropped keyspace has left stays until the next opening");
            }
            false
        }
    }
}

impl Store {
    fn sweep(&self) -> Result<bool> {
        let Some(number) = self.dropped()?.first().copied() else { return Ok(false) };
        let prefix = Prefix::of(number);
        let most = if self.engine.ordered().is_ok() { KEYS } else { KEYS_WITHOUT_ORDER };
        let mut places = Vec::new();
        self.visit(prefix, |key, _| {
            places.push([prefix.as_slice(), key].concat());
            Ok(places.len() < most)
        })?;
        if places.is_empty() {
            self.forget_dropped(number)?;
        }
        self.remove(&places)?;
        Ok(true)
    }

    /// Removes keys, fewer at a time if there is little room.
    fn remove(&self, places: &[Vec<u8>]) -> Result<()> {
        let (mut rest, mut together) = (places, places.len());
        while !rest.is_empty() {
            let mut batch = WriteBatch::new();
            let some = &rest[..together.min(rest.len())];
            some.iter().for_each(|key| batch.push(Op { kind: Kind::Delete, key, value: &[] }));
            match self.commit(batch, false, false, &|| Ok(true)) {
                Ok(_) => rest = &rest[some.len()..],
                Err(e) if together > 1 && matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::PoolFull) => {
                    together /= 2;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn forget_dropped(&self, number: u32) -> Result<()> {
        let _unchanged = self.catalog.hold();
        let mut dropped = self.dropped()?;
        dropped.retain(|other| *other != number);
        let mut batch = WriteBatch::new();
        Store::note_dropped(&mut batch, &dropped)?;
        self.commit(batch, false, false, &|| Ok(true)).map(drop)
    }
}

//! Comparing tables with their checksums: in the background, a piece at a time, and all at once for who asks.
//!
//! 1. A piece belongs to an open database: closing waits for the one that runs, and no other begins. It takes as long
//!    as reading [`PIECE_BYTES`].
//! 2. The background has no more than one job for a database, which does one piece. An alarm says when the next one is
//!    due: operations look at it that know the time, and a thread that has nothing to do wakes up for it. None is
//!    started only to wait.
//! 3. Damage is told and changes nothing else: what a read would find in the same place is an error for that reader
//!    alone. Nor does a file that cannot be read keep the others from being compared.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_base::alarm::Alarm;
use terrace_base::clock::Clock;
use terrace_base::exec::Executor;
use terrace_base::{Error, Result};

use crate::core::Core;
use crate::core::report::{ScrubReport, problem};
use crate::core::scrub::{LiveTables, Pace, Pass, Piece};
use crate::db::{Db, Store};
use crate::env::Env;
use crate::events::Event;
use crate::keyspaces::callbacks;

/// Bytes that are compared at once.
const PIECE_BYTES: usize = 256 << 10;

/// How long a database is open before the first piece: processes that end sooner compare nothing.
const FIRST: Duration = Duration::from_secs(600);

/// How long it takes to look again where somebody else compares a piece.
const AGAIN: Duration = Duration::from_secs(1);

/// And where there are no tables.
const NONE_THERE: Duration = Duration::from_secs(3600);

/// The scrubs of a database.
#[derive(Debug, Default)]
pub(in crate::db) struct Scrubs {
    closed: AtomicBool,
    /// Locked while a piece is compared.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The pass of the background, once it has begun.
    pass: Option<Pass>,
    /// Where passes begin, once there was one.
    from: Option<u64>,
    /// When its next piece is due.
    due: Duration,
}

impl Scrubs {
    /// Lets no further piece begin, and waits for the one that runs.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.state.lock());
    }

    /// The store, unless it is closed. The caller has locked the state, and gives the store back before the lock: a
    /// closer waits for that, and goes on to what the store needs.
    fn hold(&self, store: &Weak<Store>) -> Option<Arc<Store>> {
        self.check_open().ok().and_then(|()| store.upgrade())
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }
}

/// Has the tables of an opened database compared in the background, if that is wanted. A database that is opened to be
/// read does nothing by itself.
pub(in crate::db) fn begin(store: &Arc<Store>) {
    let core = &store.core;
    if core.options.scrub_days == 0 || store.read_only || store.unmasked.tables().is_none() {
        return;
    }
    let (scrubs, weak, wakes) = (store.scrubs.clone(), Arc::downgrade(store), Wakes::of(core));
    core.alarm.on_ring(move || {
        let Some(_none_is_compared) = scrubs.state.try_lock() else {
            return wakes.at(wakes.clock.now() + AGAIN);
        };
        if let Some(store) = scrubs.hold(&weak) {
            send(&store);
        }
    });
    let due = core.env.clock.now() + FIRST;
    store.scrubs.state.lock().due = due;
    Wakes::of(core).at(due);
}

/// Sends the job that is due, if there is something to do for it.
fn send(store: &Arc<Store>) {
    let core = &store.core;
    if store.unmasked.tables().is_none_or(|tables| tables.bytes() == 0) {
        return Wakes::of(core).at(core.env.clock.now() + NONE_THERE);
    }
    let (scrubs, weak) = (store.scrubs.clone(), Arc::downgrade(store));
    core.env.executor.spawn(Box::new(move || run(&scrubs, &weak)));
}

/// Sets the alarm of a database, which it does not keep open.
#[derive(Debug)]
struct Wakes {
    alarm: Weak<Alarm>,
    clock: Arc<dyn Clock>,
    executor: Arc<dyn Executor>,
}

impl Wakes {
    fn of(core: &Core) -> Wakes {
        let Env { clock, executor, .. } = &core.env;
        Wakes { alarm: Arc::downgrade(&core.alarm), clock: clock.clone(), executor: executor.clone() }
    }

    /// Sets it, and has a thread look at it then, if there is one.
    fn at(&self, due: Duration) {
        let Some(alarm) = self.alarm.upgrade() else { return };
        alarm.set(due);
        let (alarm, clock) = (self.alarm.clone(), self.clock.clone());
        let look = move || alarm.upgrade().iter().for_each(|alarm| alarm.look(clock.now()));
        self.executor.spawn_later(due.saturating_sub(self.clock.now()), Box::new(look));
    }
}

/// A job: compares the next piece, unless the database is closed.
fn run(scrubs: &Scrubs, weak: &Weak<Store>) {
    let mut state = scrubs.state.lock();
    let Some(store) = scrubs.hold(weak) else { return };
    let Some(tables) = store.unmasked.tables() else { return };
    let next = store.scrub_next(&mut state, tables);
    Wakes::of(&store.core).at(next);
}

impl Store {
    /// Compares the next piece of the background's pass; returns when the one behind it is to be compared.
    fn scrub_next(&self, state: &mut State, tables: &dyn LiveTables) -> Duration {
        let (clock, options) = (&self.core.env.clock, &self.core.options);
        let interval = Duration::from_secs(u64::from(options.scrub_days) * 24 * 60 * 60);
        let pace = Pace { interval, rate: options.scrub_rate_bytes };
        let from = *state.from.get_or_insert_with(|| pace.first(tables, clock.calendar()));
        let pass = state.pass.get_or_insert_with(|| Pass::begin(tables, from));
        let outcome = self.scrub_piece(pass, tables, &mut |_| {});
        if outcome.as_ref().is_ok_and(|piece| piece.is_none_or(|piece| piece.ends_pass)) {
            // The next one visits the tables that there are when it begins.
            state.pass = None;
        }
        let bytes = outcome.map(|piece| piece.map_or(0, |piece| piece.bytes)).unwrap_or_else(|error| {
            tracing::warn!(%error, "a table cannot be read, and is left out of this scrub");
            self.core.put_off(&error);
            0
        });
        let total = tables.bytes();
        // Where nothing could be read, as if some had been: it is not tried at once again, and again.
        let bytes = if bytes > 0 { bytes } else { (PIECE_BYTES as u64).min(total / 100).max(1) };
        let now = clock.now();
        state.due = pace.next_due(state.due, now, bytes, total);
        state.due.max(pace.earliest(now, bytes))
    }

    /// Compares the next piece of `pass`; `None` if nothing is left. Damage is told to listeners, counted, and shown to
    /// `see`.
    fn scrub_piece(
        &self,
        pass: &mut Pass,
        tables: &dyn LiveTables,
        see: &mut dyn FnMut(&Error),
    ) -> Result<Option<Piece>> {
        let figures = &self.core.scrub;
        let _loan = self.core.memory.lend(PIECE_BYTES);
        let outcome = pass.piece(tables, PIECE_BYTES, &mut |error| {
            tracing::warn!(%error, "a scrub has found damage");
            figures.count_damage();
            see(&error);
            self.core.events.tell(|| Event::Damaged { error });
        });
        match &outcome {
            Ok(piece) => {
                piece.iter().for_each(|piece| figures.count(*piece));
                if piece.map_or(pass.has_begun(), |piece| piece.ends_pass) {
                    figures.count_pass(self.core.env.clock.calendar());
                }
            }
            Err(_) => figures.count_unread(),
        }
        outcome
    }
}

impl Db {
    /// Compares every block of every table with its checksum, read from the file and past the caches: what a scrub in
    /// the background does in [`Options::scrub_days`](crate::Options::scrub_days), at once and as fast as it can be
    /// read. Others may read and write meanwhile; tables that are written meanwhile are left out. Damage is in the
    /// report, and told to listeners, and is no error. [`check`](Self::check) proves more, and keeps writers waiting.
    ///
    /// # Errors
    ///
    /// `Io` if a table cannot be read, `Closed` if the database is closed.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// db.put("apple", "red")?;
    /// db.flush()?;
    /// let report = db.scrub()?;
    /// assert!(report.is_clean() && report.tables == 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn scrub(&self) -> Result<ScrubReport> {
        let _span = tracing::info_span!("scrub").entered();
        callbacks::check_none_runs()?;
        let (store, mut report) = (&self.inner.store, ScrubReport::default());
        store.scrubs.check_open()?;
        let Some(tables) = store.unmasked.tables() else { return Ok(report) };
        let mut pass = Pass::begin(tables, 0);
        loop {
            let mut found = Vec::new();
            let piece = {
                let _one_at_a_time = store.scrubs.state.lock();
                store.scrubs.check_open()?;
                store.scrub_piece(&mut pass, tables, &mut |error| found.push(error.clone()))?
            };
            for error in found {
                report.problems.push(problem(error).unwrap_or_else(|error| error.to_string()));
            }
            let Some(piece) = piece else { return Ok(report) };
            report.bytes += piece.bytes;
            report.tables += u64::from(piece.ends_table);
            if piece.ends_pass {
                return Ok(report);
            }
        }
    }
}

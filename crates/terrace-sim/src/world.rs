//! One simulated world: persistent memory and a disk with one ordered list of events.
//!
//! Invariants:
//! 1. A world's history follows from its seed and from the calls on it; it has no other source of randomness.
//! 2. A survivor shares nothing that changes with the world it came from.
//! 3. The boot id changes at a power cut and not at a kill.
//!
//! Thread safety: a world may be used from any thread, but capture it only while no other thread stores to
//! its persistent memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_disk::SimFs;
use terrace_pmem::{Media, PoolOptions};

use crate::disk;
use crate::event::{Callback, EventKind, Gate, injected};
use crate::pm::{PmOp, PmOptions, PmSnapshot, SimPm, Survival};
use crate::refusal::{Operation, Refusal, Refusals, Trouble};
use crate::seed::{boot_id, mix};

/// No number of events: recovery has not been declared over.
const STILL: u64 = u64::MAX;

/// Small, so that a small pool has many.
const EXTENT_BYTES: u64 = 4096;

/// The properties of a world.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorldOptions {
    /// Its persistent memory.
    pub pm: PmOptions,
}

/// A simulated machine's durable parts. Cheap to clone; clones are the same world.
#[derive(Debug, Clone)]
pub struct World {
    inner: Arc<Inner>,
}

/// The origin of a world.
#[derive(Debug, Clone)]
struct Origin {
    seed: u64,
    boot_id: String,
    lost_power: bool,
}

#[derive(Debug)]
pub(crate) struct Inner {
    origin: Origin,
    /// Events until recovery was over; `STILL` while it is not.
    recovery: AtomicU64,
    pm: Arc<SimPm>,
    fs: SimFs,
    gate: Gate,
    refusals: Mutex<Refusals>,
}

/// In one of so many worlds no file has room behind what is appended to it, in one of so many nothing of a file can be
/// given back.
const PLAIN_ONE_IN: u64 = 4;

/// Bytes of sectors and blocks in worlds: those of most drives more often.
const SECTORS: [(u32, u32); 4] = [(512, 4096), (512, 4096), (512, 512), (4096, 4096)];
/// In one of so many worlds no file can be mapped.
const UNMAPPED_ONE_IN: u64 = 5;

impl World {
    /// A new world with empty media.
    pub fn new(seed: u64, options: WorldOptions) -> World {
        let origin = Origin { seed, boot_id: boot_id(mix(seed, 0)), lost_power: false };
        let fs = SimFs::new();
        fs.set_room(!seed.is_multiple_of(PLAIN_ONE_IN));
        let drawn = mix(seed, 8);
        let (sector_bytes, block_bytes) = SECTORS[(drawn % SECTORS.len() as u64) as usize];
        fs.set_sectors(sector_bytes, block_bytes);
        fs.set_holes(!(drawn >> 32).is_multiple_of(PLAIN_ONE_IN));
        fs.set_maps(!seed.wrapping_add(2).is_multiple_of(UNMAPPED_ONE_IN));
        World::assemble(origin, SimPm::new(options.pm), fs)
    }

    fn assemble(origin: Origin, pm: SimPm, fs: SimFs) -> World {
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| {
            let world = weak.clone();
            pm.set_hook(Box::new(move |op| World::before_pm(&world, op)));
            Inner {
                origin,
                recovery: AtomicU64::new(STILL),
                pm: Arc::new(pm),
                fs,
                gate: Gate::default(),
                refusals: Mutex::default(),
            }
        });
        disk::watch(&inner.fs, Arc::downgrade(&inner));
        World { inner }
    }

    /// The seed everything in this world comes from.
    pub fn seed(&self) -> u64 {
        self.inner.origin.seed
    }

    /// The contents of `/proc/sys/kernel/random/boot_id` in this world; for `PoolOptions::boot_id`.
    pub fn boot_id(&self) -> &str {
        &self.inner.origin.boot_id
    }

    /// Whether this world or one it came from lost its power.
    pub fn lost_power(&self) -> bool {
        self.inner.origin.lost_power
    }

    /// Options for a pool on this world's persistent memory: its size, its boot id, small extents.
    pub fn pool_options(&self) -> PoolOptions {
        PoolOptions {
            size: self.inner.pm.len(),
            max_size: self.inner.pm.capacity(),
            extent_bytes: EXTENT_BYTES,
            prefault: false,
            boot_id: Some(self.inner.origin.boot_id.clone()),
            ..PoolOptions::default()
        }
    }

    /// Its persistent memory.
    pub fn media(&self) -> Arc<SimPm> {
        self.inner.pm.clone()
    }

    /// Its disk.
    pub fn fs(&self) -> SimFs {
        self.inner.fs.clone()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.inner.gate.events()
    }

    /// Reports every event from now on to `callback`, before it takes effect. The callback may capture this world, make
    /// others and run whole stores on them. It replaces an earlier one.
    pub fn on_event(&self, callback: Callback) {
        self.inner.gate.set_callback(Some(callback));
    }

    /// Ends the reporting of events; they are still counted.
    pub fn ignore_events(&self) {
        self.inner.gate.set_callback(None);
    }

    /// Reports that the scenario is over, as an event of its own: the last chance to lose power.
    pub fn end(&self) {
        self.pass(EventKind::End);
    }

    /// Captures both media at this moment.
    pub fn capture(&self) -> Snapshot {
        Snapshot { origin: self.inner.origin.clone(), pm: self.inner.pm.capture(), fs: self.inner.fs.fork() }
    }

    /// The world after a power cut at this moment; an arbitrary part of the pending changes has survived. The world
    /// itself goes on.
    pub fn crash(&self, seed: u64) -> World {
        self.capture().power_cut(Survival::Seeded(seed))
    }

    /// The world after the process died at this moment: all stores and writes are there, as durable as they
    /// were, and the machine was not restarted. The world itself goes on.
    pub fn kill(&self) -> World {
        self.capture().kill()
    }

    /// Notes that recovery is over: an explorer makes no nested crashes after it. For a `verify` that goes on to change
    /// the store.
    pub fn recovery_done(&self) {
        let (recovery, events) = (&self.inner.recovery, self.events());
        // Only the first call counts.
        let _ = recovery.compare_exchange(STILL, events, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Events before [`recovery_done`](Self::recovery_done) was called; all so far if it was not.
    pub fn recovery_events(&self) -> u64 {
        self.inner.recovery.load(Ordering::Relaxed).min(self.events())
    }

    /// Makes the `nth` operation from now that can fail do so, counting from 0 and over both media: growing
    /// persistent memory fails with [`Error::NoSpace`], everything else with [`Error::Io`].
    pub fn fail_nth(&self, nth: u64) {
        self.inner.gate.fail(nth, false);
    }

    /// Makes the `nth` operation from now that can fail do so, and every later one.
    pub fn fail_from(&self, nth: u64) {
        self.inner.gate.fail(nth, true);
    }

    /// Takes back planned faults and refusals.
    pub fn heal(&self) {
        self.inner.gate.no_faults();
        self.inner.refusals.lock().plan(None);
    }

    /// Plans refusals of operations, in place of earlier plans. Unlike a fault this also affects operations that change
    /// nothing, and it ends by itself.
    pub fn refuse(&self, refusal: Refusal) {
        self.inner.refusals.lock().plan(Some(refusal));
    }

    /// Whether no operation is to be refused any more.
    pub fn is_well(&self) -> bool {
        self.inner.refusals.lock().is_over()
    }

    /// Operations refused so far.
    pub fn refused(&self) -> u64 {
        self.inner.refusals.lock().met()
    }

    /// Operations so far that `trouble` can affect: the bound for [`Refusal::after`] in a loop.
    pub fn befallen_by(&self, trouble: Trouble) -> u64 {
        self.inner.refusals.lock().seen(trouble)
    }

    /// The trouble with which `operation` is to fail, if any.
    pub(crate) fn refusal(&self, operation: Operation) -> Option<std::io::Error> {
        self.inner.refusals.lock().step(operation)
    }

    /// Operations so far that could have failed; the bound for [`fail_nth`](Self::fail_nth) in a loop.
    pub fn fallible_operations(&self) -> u64 {
        self.inner.gate.fallible()
    }

    /// Events up to and with the first operation that was made to fail, if one was.
    pub fn fault_met(&self) -> Option<u64> {
        self.inner.gate.fault_met()
    }

    /// Gives back the memory of both media, whose bytes are gone. For a world that is no longer used, but that a leaked
    /// object still holds, such as the database of a killed process.
    pub fn empty(&self) {
        self.ignore_events();
        self.inner.fs.empty();
        // A medium that nobody else holds goes with its world, and its buffer to the next one, which costs less.
        if Arc::strong_count(&self.inner) > 1 || Arc::strong_count(&self.inner.pm) > 1 {
            self.inner.pm.empty();
        }
    }

    /// The world behind `weak`, if anybody still holds it.
    pub(crate) fn upgrade(weak: &Weak<Inner>) -> Option<World> {
        Some(World { inner: weak.upgrade()? })
    }

    /// Numbers and reports an event; whether its operation must fail.
    pub(crate) fn pass(&self, kind: EventKind) -> bool {
        let fallible = !matches!(kind, EventKind::Drain | EventKind::End);
        self.inner.gate.pass(kind, self);
        fallible && self.inner.gate.fault()
    }

    /// The event of an operation of persistent memory.
    fn before_pm(weak: &Weak<Inner>, op: PmOp) -> Result<()> {
        // A medium that outlives its world has no events.
        let Some(world) = World::upgrade(weak) else { return Ok(()) };
        let full = || Error::NoSpace { path: SimPm::path() };
        let (kind, fault, operation) = match op {
            PmOp::Drain => (EventKind::Drain, None, None),
            PmOp::Sync => {
                (EventKind::PmSync, Some(injected(&SimPm::path(), "sync")), Some(Operation::PmSync))
            }
            PmOp::Grow { to } => (EventKind::PmGrow(to), Some(full()), Some(Operation::Grow)),
            PmOp::Reserve => return world.refusal(Operation::Reserve).map_or(Ok(()), |_| Err(full())),
        };
        let failed = world.pass(kind) | operation.is_some_and(|o| world.refusal(o).is_some());
        if failed { fault.map_or(Ok(()), Err) } else { Ok(()) }
    }
}

/// Both media of a world at one moment; any number of survivors come from it.
#[derive(Debug, Clone)]
pub struct Snapshot {
    origin: Origin,
    pm: PmSnapshot,
    fs: SimFs,
}

impl Snapshot {
    /// The seed of the captured world.
    pub fn seed(&self) -> u64 {
        self.origin.seed
    }

    /// The world after a power cut at the captured moment.
    pub fn power_cut(&self, survival: Survival) -> World {
        let salt = match survival {
            Survival::Nothing => 1,
            Survival::Everything => 2,
            Survival::Wiped => 3,
            Survival::OnlyPm => 4,
            Survival::OnlyDisk => 5,
            Survival::Seeded(seed) => mix(seed, 6),
        };
        let seed = mix(self.origin.seed, salt);
        let origin = Origin { seed, boot_id: boot_id(mix(seed, 0)), lost_power: true };
        let fs = disk::crashed(&self.fs, survival);
        World::assemble(origin, self.pm.power_cut(survival), fs)
    }

    /// The world after the process died at the captured moment.
    pub fn kill(&self) -> World {
        let origin = Origin { seed: mix(self.origin.seed, 7), ..self.origin.clone() };
        World::assemble(origin, self.pm.kill(), self.fs.fork())
    }
}

//! One simulated world over persistent memory and disk: power cuts, kills and faults at any chosen moment.
//!
//! [`World`] is a machine's durable parts with one ordered list of events; [`Explorer`] runs a scenario in one, crashes
//! it at every event and has the survivors verified; [`KvModel`] defines the allowed contents of a store after a crash.
//! `docs/simulator.md` explains how it works, what it models, and how to write and replay a scenario.

mod disk;
mod event;
mod explore;
mod keys;
mod model;
mod own;
mod pm;
mod refusal;
mod seed;
mod world;

pub use event::{Callback, Event, EventKind};
pub use explore::{Explorer, Failure, Recorder, Route, Scenario, Shrunk, Step, Summary, kv_scenario};
pub use keys::{colliding, hard};
pub use model::{Change, KvModel, Map};
pub use own::OwnWorld;
pub use pm::{Halting, MarkHook, PmHook, PmOp, PmOptions, PmSnapshot, SimPm, Stopped, Survival};
pub use refusal::{Refusal, Trouble};
pub use world::{Snapshot, World, WorldOptions};

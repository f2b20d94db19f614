//! One simulated world over persistent memory and disk: power cuts, kills and faults at any chosen moment.
//!
//! [`World`] is a machine's durable parts with one ordered list of events; [`Explorer`] runs a scenario in one,
//! crashes it at every event and has the survivors verified; [`KvModel`] says what a store may hold after a
//! crash. How it works, what it models and what not, and how to write a scenario and replay
//! one are told in `docs/simulator.md`.

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

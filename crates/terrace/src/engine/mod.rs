//! The engines, chosen by name. Each engine is one folder that assembles shared parts; what two engines need
//! becomes a part.

mod lab;
mod lsm;
mod pm;
mod slm;
mod split;
mod sptree;
mod tlsm;
mod turbo;
mod wip;

use std::sync::Arc;

use terrace_base::Result;

use crate::core::Core;
use crate::core::engine::Engine;
use crate::options::EngineKind;
use crate::pool;
use crate::salvage::Salvage;

use split::Split;
pub use split::{InSlots, SlotsFile};
pub(crate) use split::{decode_slots, sound_slots};
use sptree::Sptree;
use turbo::Turbo;

/// Opens an engine's data, or creates it.
type Open = fn(Arc<Core>) -> Result<(Arc<dyn Engine>, u64)>;
/// Repairs an engine's data.
type Repair = fn(Salvage) -> Result<Salvage>;

/// The registry: a row for each engine.
fn registered(engine: EngineKind) -> (Open, Repair) {
    match engine {
        EngineKind::Slm => (slm::open, slm::repair),
        EngineKind::Lsm => (lsm::open, lsm::repair),
        EngineKind::Lab => (lab::open, lab::repair),
        EngineKind::Tlsm => (tlsm::open, tlsm::repair),
        EngineKind::Turbo => (pm::open::<Turbo>, pm::repair::<Turbo>),
        EngineKind::Wip => (wip::open, wip::repair),
        EngineKind::Split => (pm::open::<Split>, pm::repair::<Split>),
        EngineKind::Sptree => (pm::open::<Sptree>, pm::repair::<Sptree>),
    }
}

/// Opens or creates the engine's data in `core.dir`; returns it and the last sequence number in it.
pub(crate) fn open(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    pool::refuse_headless(&core)?;
    registered(core.options.engine).0(core)
}

/// Recovers everything that is not itself damaged.
pub(crate) fn repair(base: Salvage) -> Result<Salvage> {
    registered(base.core.options.engine).1(base)
}

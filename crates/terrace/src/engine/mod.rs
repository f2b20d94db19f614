//! The designs, and the choice among them by name. Each engine is one folder that wires shared parts; what two need is a
//! part.

pub(crate) mod lsm;
pub(crate) mod pm;
pub(crate) mod slm;
pub(crate) mod sptree;
pub(crate) mod turbo;

use std::sync::Arc;

use terrace_base::Result;

use crate::core::Core;
use crate::core::engine::Engine;
use crate::options::EngineKind;
use crate::pool;
use crate::salvage::Salvage;

/// Opens or creates the engine's data in `core.dir`; returns it and the last sequence number in it.
pub(crate) fn open(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    pool::refuse_headless(&core)?;
    match core.options.engine {
        EngineKind::Slm => slm::open(core),
        EngineKind::Lsm => lsm::open(core),
        EngineKind::Turbo => pm::open::<turbo::TurboIndex>(core),
        EngineKind::Sptree => pm::open::<sptree::SptreeIndex>(core),
    }
}

/// Brings back all that is not itself damaged.
pub(crate) fn repair(base: Salvage) -> Result<Salvage> {
    match base.core.options.engine {
        EngineKind::Slm => slm::repair(base),
        EngineKind::Lsm => lsm::repair(base),
        EngineKind::Turbo => pm::repair::<turbo::TurboIndex>(base),
        EngineKind::Sptree => pm::repair::<sptree::SptreeIndex>(base),
    }
}

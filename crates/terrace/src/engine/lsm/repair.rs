//! Recovers everything that is not itself damaged: the [`repair`](logged::repair) for logged memtables, with
//! nothing beside.

use terrace_base::Result;

use super::open;
use crate::leveled::logged;
use crate::salvage::Salvage;

/// Repairs the database in the view that `base` works in.
pub(crate) fn repair(base: Salvage) -> Result<Salvage> {
    let core = base.core.clone();
    logged::repair(base, open::log_home(&core), &core.options.lsm, |_, _, _, _, _| Ok(()), open::assemble)
}

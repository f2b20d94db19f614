//! Histories: what threads asked of one database at the same time, what they were told, and in which order; and
//! whether one order of commits explains it all.
//!
//! Every operation is noted with the moments before and after it. A read through a snapshot or an iterator
//! counts as one read of everything, at the moment at which the snapshot was taken, whenever the rest of it was
//! read. The judge looks for one order of all operations, each at one moment between its two, in which every
//! answer is right. If there is one, single keys are linearizable, batches are atomic, transactions are serializable,
//! conditional writes judge what they replace, every snapshot is one prefix of the commits, and nobody has gone back in
//! time.

mod judge;
mod record;
mod run;
mod target;

pub use run::{Plan, run};

//! The benchmark of bare indexes: what `terrace-bench index` runs.
//!
//! | module | owns |
//! |---|---|
//! | [`pairs`] | keys of three shapes, made without allocation; the order of visits |
//! | [`subject`] | the trait that every measured index is put behind |
//! | [`list`] | the measured indexes by name, and how each is made |
//! | [`phase`] | one kind of operation by several threads, measured |
//! | [`mod@run`] | a list of steps on one index |
//! | [`table`], [`plot`] | how runs are printed and drawn |

pub mod list;
pub mod pairs;
pub mod phase;
mod phase_outcome;
pub mod plot;
pub mod run;
pub mod store;
pub mod subject;
pub mod table;

pub use pairs::Pairs;
pub use phase::Op;
pub use phase_outcome::PhaseOutcome;
pub use run::{Place, Run, Runner, Spec, Step};

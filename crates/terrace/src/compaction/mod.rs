//! Deciding what to compact, and how much to slow writers down meanwhile: pure functions of figures. Doing it is the engines'
//! business.
//!
//! | part | for |
//! |---|---|
//! | `buckets` | keys cut into buckets, each with three levels of tables that overlap |
//! | [`leveled`] | several levels of tables, apart from one another on all but the first |
//! | [`selective`] | one level of tables that overlap, under an index of all keys |
//! | [`backpressure`] | writers who are ahead of a flush, or near the pool's end |
//! | [`overlap`] | ranges of keys |

pub mod backpressure;
pub(crate) mod buckets;
pub mod leveled;
pub mod overlap;
pub mod selective;

//! Deciding what to compact, and how much to throttle writers meanwhile: pure functions of figures. The
//! engines carry it out.
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

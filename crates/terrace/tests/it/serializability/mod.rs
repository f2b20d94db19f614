//! Whether transactions are as if one had come after the other.
//!
//! | file | what it does |
//! |---|---|
//! | `graph.rs` | the checker: which transaction must come before which, and whether that is an order |
//! | `planted.rs` | anomalies, made by hand and by a store that allows them: the checker finds each |
//! | `run.rs` | transactions of many threads on every engine, checked |

mod graph;
mod planted;
mod run;

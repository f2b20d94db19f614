//! Workloads, latency histograms and reports, for `terrace bench` and for comparisons of engines and peers.
//!
//! The layers, each a module:
//!
//! | module | owns |
//! |---|---|
//! | [`store`] | the small trait that every measured store is put behind |
//! | [`db`] | Terrace behind that trait |
//! | [`peers`] | the stores people use behind it, with the feature `peers` |
//! | [`keys`], [`values`] | how a key number becomes bytes; where value bytes come from |
//! | [`distribution`] | which key number comes next: uniform, zipfian, latest |
//! | [`workload`] | the benchmarks as data: db_bench's names and YCSB's load and A to F |
//! | [`trace`] | recorded operations, as text |
//! | [`space`] | which key numbers exist while several threads insert, and which a read must find |
//! | [`stream`] | one thread's operations, drawn from a workload |
//! | [`run`](mod@run) | a workload on a store by several threads, measured; reads that miss due records end it |
//! | [`tally`] | the writes that were acknowledged to killed threads |
//! | [`suite`] | several workloads one after the other, with the databases they need |
//! | [`outcome`], [`report`] | measurements, and how they are printed |
//! | `compare` | engines and peers side by side, and the report: the `terrace-bench compare` command |
//! | `chart` | charts as SVG |
//! | `index` | bare indexes instead of stores: the `terrace-bench index` command |
//! | `media` | bare persistent memory, drives and slots: the `terrace-bench media` command |
//! | `memtables` | bare memtables: the `terrace-bench memtables` command |
//! | `regions` | keys whose distribution changes: the `terrace-bench regions` command |
//! | `reads_while_writing` | reads beside writes at a rate: the `terrace-bench reads-while-writing` command |
//! | `restart` | opening after a kill: the `terrace-bench restart` command |
//! | `file_sizes` | how large a store's tables are |
//! | `rest` | when a store is at rest |
//!
//! The last ten, and the command, are there with the feature `compare`, which is on by default.
//!
//! A run is repeatable up to the interleaving of threads: the same seed draws the same operations.

#[cfg(feature = "compare")]
pub mod chart;
#[cfg(feature = "compare")]
pub mod compare;
pub mod count;
pub mod db;
pub mod distribution;
mod draw;
#[cfg(feature = "compare")]
pub mod file_sizes;
#[cfg(feature = "compare")]
pub mod index;
pub mod keys;
#[cfg(feature = "compare")]
pub mod media;
#[cfg(feature = "compare")]
pub mod memtables;
pub mod outcome;
mod pace;
pub mod peers;
#[cfg(feature = "compare")]
pub mod reads_while_writing;
#[cfg(feature = "compare")]
pub mod regions;
pub mod report;
#[cfg(feature = "compare")]
pub mod rest;
#[cfg(feature = "compare")]
pub mod restart;
pub mod run;
pub mod space;
pub mod store;
pub mod stream;
pub mod suite;
pub mod tally;
pub mod trace;
pub mod values;
mod worker;
pub mod workload;

pub use db::TerraceStore;
pub use outcome::{Latency, Outcome};
pub use run::{Plan, Watch, run};
pub use space::KeySpace;
pub use store::{Batch, Direction, Store, StoreError, StoreResult, StoreStats};
pub use suite::{Provider, Suite};
pub use workload::Workload;

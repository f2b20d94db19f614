//! SplitKV (Han et al., 2021): small items go to persistent memory and later, sorted, to the SSD; large ones
//! go directly to the SSD; one ordered index covers all.
//!
//! ```text
//!   small ──▶ record in PM ─────migration────▶ sorted run ─┐
//!   large ──▶ slot in a file of sectors ───────────────────┤
//!                          key ──▶ SPTree ──▶ word ────────┴──▶ get: one record, one block, or one slot
//! ```
//!
//! Records, the index, groups of batches and snapshots are those of `engine/pm`; this folder is the home
//! outside the pool (`home.rs`).
//!
//! **Life of a key.** A put smaller than the boundary is a record in PM, durable before its word is
//! published. A put of the boundary or more is written to a slot, together with those of other waiting
//! writers, before its writer enters the gate; the word of the slot is published when it is durable. When PM
//! has become full, the records read and written least migrate, in key order, into a table; the table is
//! durable and in the manifest before any word leads there, and each word is replaced only if it still names
//! the record. An update of a migrated key is a record again. Dead entries of tables are counted; where there
//! are many, the live ones move into a new table in the same way. Large items leave
//! blocks that they hold for themselves (`pack.rs`). A slot is used again when nobody reads it,
//! no snapshot needs it and the word that replaced its own is durable.
//!
//! Invariants, beside those of `engine/pm` and its `elsewhere.rs`:
//!
//! 1. Every word of a place names a slot that is not retired, or a block of a table that is in the manifest and open.
//! 2. A table has at most one version of a key. It never changes, and leaves the manifest when no word leads
//!    to it.
//! 3. The number of live entries of a table is not stored: after an opening a walk along the index counts
//!    them (`census.rs`) and also finds the free slots. Before its end no slot is used again and no earlier
//!    table is rewritten.
//! 4. A move replaces a word by compare-and-swap, under the shared gate: a newer write wins, and no group
//!    runs meanwhile.
//! 5. Lock order: `moving`, then the gate, then what the parts lock. Nobody waits for a device while holding
//!    the gate, except for reads in `check`.
//!
//! `docs/engines/split.md` describes the paper's design, what is kept and what is changed;
//! `docs/formats/split.md` describes the bytes.

mod census;
mod check;
mod cut;
mod fuzzing;
mod home;
mod item;
mod look;
mod migrate;
mod pace;
mod pack;
mod place;
mod reclaim;
mod repair;
mod runs;
mod sift;
mod stamp;
mod together;
mod tree;
mod weights;

pub(crate) use fuzzing::{decode_slots, sound_slots};
pub use look::{InSlots, SlotsFile};
pub(crate) use tree::Split;

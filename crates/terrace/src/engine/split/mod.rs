//! SplitKV (Han et al., 2021): small items go to persistent memory and later, sorted, to the SSD; large ones go straight to
//! the SSD; one ordered index over all.
//!
//! ```text
//!   small ──▶ record in PM ─────migration────▶ sorted run ─┐
//!   large ──▶ slot in a file of sectors ───────────────────┤
//!                          key ──▶ SPTree ──▶ word ────────┴──▶ get: one record, one block, or one slot
//! ```
//!
//! Records, the index, groups of batches and snapshots are those of `engine/pm`; this is what lies elsewhere (`home.rs`).
//!
//! **Life of a key.** A put of less than the boundary is a record in PM, durable before its word is published. One of the
//! boundary or more is written to a slot, with those of others who wait, before its writer enters the gate; the word of
//! the slot is published when it is durable. When PM has become full, records that are read and written the least go, in
//! the order of keys, into a table; it is durable and in the manifest before any word leads there, and each word is
//! replaced only if it is still that of the record. An update of what has been migrated is a record again. What is dead in
//! tables is counted; where it is much, the rest goes into a new table in the same way. A slot is used again when nobody reads it,
//! no snapshot needs it and the word that replaced its own is durable.
//!
//! What always holds, beside what `engine/pm` and its `elsewhere.rs` say:
//!
//! 1. Every word of a place names a slot that is not retired, or a block of a table that is in the manifest and open.
//! 2. A table has one version of a key at most. It never changes, and leaves the manifest when no word leads to it.
//! 3. How many entries of a table are live is not kept: after an opening it is counted by a walk along the index (`census.rs`),
//!    which also finds which slots are free. Before its end no slot is used again and no table of before is rewritten.
//! 4. A move replaces a word by compare-and-swap, under the shared gate: a newer write wins, and no group goes on meanwhile.
//! 5. Lock order: `moving`, then the gate, then what the parts lock. Whoever waits for a device does not hold the gate, but
//!    for readers' sake in `check`.
//!
//! `docs/engines/split.md` says what the paper has, what is kept and what is changed; `docs/formats/split.md` what bytes
//! there are.

mod census;
mod check;
mod cut;
mod fuzzing;
mod home;
mod item;
mod look;
mod migrate;
mod pace;
mod place;
mod reclaim;
mod repair;
mod runs;
mod stamp;
mod tree;
mod weights;

pub(crate) use fuzzing::{decode_slots, sound_slots};
pub use look::{InSlots, SlotsFile};
pub(crate) use tree::SplitTree;

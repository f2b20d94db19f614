//! The store from outside: every engine against one conformance suite, and under simulated crashes.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, which the lint cannot see")]

mod conformance;
mod crash;
mod damage;
mod debts;
mod full;
mod harness;
mod heal;
mod histories;
mod kills;
mod largest;
mod limits;
mod lists;
mod lives;
mod log_damage;
mod logs;
mod mapped;
mod mapped_tables;
mod memory_engines;
mod opening;
mod pools;
mod races;
mod ready_logs;
mod sectors;
mod serializability;
mod shown;
mod shown_logs;
mod smoke;
mod sparse;
mod split;
mod split_repairs;
mod split_space;
mod strays;
mod tables;
mod unwritable;
mod values;

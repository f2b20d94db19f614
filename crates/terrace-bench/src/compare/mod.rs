//! Terrace's engines beside the stores people use, in one run on one machine: `terrace-bench compare`.
//!
//! Every store does every [`script`] in a process of its own, round after round, so that a drift of the machine affects
//! all of them. A [`session`] is one store doing one script; [`child`] is the parent's end of it.
//!
//! | module | owns |
//! |---|---|
//! | [`entrant`] | engines and peers by name, opened with equal settings |
//! | `nvm` | the file system of those whose files lie on persistent memory |
//! | [`contender`] | one of them with options of its own |
//! | [`script`] | what is done, as data |
//! | `suites` | the scripts of each suite |
//! | [`session`] | the child: runs a script on a store and says what came of it, a line of JSON each |
//! | [`child`] | the parent: starts, bounds, watches and kills it |
//! | [`machine`] | the kernel's counters, memory bounds, and the machine in words |
//! | [`results`] | every raw figure of a run, as JSON |
//! | [`summary`] | medians and spread over the rounds |
//! | [`changes`] | what differs between two runs beyond their noise |
//! | [`view`] | a run's two parts: the machine without persistent memory, and the one with it |
//! | [`figures`] | pictures of scripts that differ in one thing, and of the steps of one |
//! | [`page`] | the report: HTML files, the pictures in them, tables |

pub mod changes;
pub mod child;
pub mod contender;
pub mod entrant;
pub mod figures;
pub mod machine;
mod nvm;
pub mod page;
pub mod results;
pub mod run;
pub mod script;
pub mod session;
mod suites;
pub mod summary;
pub mod view;

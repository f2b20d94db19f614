//! The real binary, driven from outside.
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod admin;
mod bench;
mod clumsy;
mod damage;
mod descriptors;
mod engines;
mod keyspaces;
mod misplaced;
mod options;
mod pages;
mod points;
mod processes;
mod ranges;
mod repairs;
mod scans;
mod signals;
mod strangers;
mod support;
mod transfer;
mod unreadable;
mod unwritable;

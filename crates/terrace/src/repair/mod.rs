//! Repairs: what all engines share of them.

mod whose;

pub use whose::Whose;
pub(crate) use whose::{admit, admit_repair};

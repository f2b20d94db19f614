//! The `terrace` command: a Terrace database from the command line.
//!
//! | module | owns |
//! |---|---|
//! | [`escape`], [`size`], [`records`] | bytes as text and back; nothing here knows of a database |
//! | [`failure`] | exit codes, messages and what to do next |
//! | [`text`] | the records that the tour imports |

pub mod escape;
pub mod failure;
pub mod records;
pub mod size;
pub mod text;

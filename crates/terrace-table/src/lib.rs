//! Terrace: table.

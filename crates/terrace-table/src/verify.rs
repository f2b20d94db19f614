//! Checking every byte of a table.

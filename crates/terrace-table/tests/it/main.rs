//! Integration tests of terrace-table.

mod memfs;
mod smoke;

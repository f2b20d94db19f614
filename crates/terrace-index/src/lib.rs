//! Persistent indexes: ordered and hashed, each in a folder of its own.

pub mod limbo;

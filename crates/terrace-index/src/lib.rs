//! Terrace: index.

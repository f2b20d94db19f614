//! Terrace: bench.

//! Terrace: the store.

//! Describing a table to a human.

//! Terrace: sim.

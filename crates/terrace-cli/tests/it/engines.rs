//! The engines as the library lists them: a test that takes them from here goes through a new one, too.

use terrace::EngineKind;

/// A pool for every engine, on any machine.
pub const EMULATED: &str = "emulated:dram";

/// Every engine by its name.
pub fn names() -> impl Iterator<Item = &'static str> {
    EngineKind::ALL.iter().map(|engine| engine.name())
}

/// Every engine by its name, with a pool: emulated for those that need persistent memory.
pub fn with_pools() -> impl Iterator<Item = (&'static str, &'static str)> {
    names().map(|engine| (engine, pool_of(engine)))
}

/// The pool of a database of that engine on a machine without persistent memory.
pub fn pool_of(engine: &str) -> &'static str {
    if EngineKind::parse(engine).unwrap().needs_memory() { EMULATED } else { "auto" }
}

/// Whether its keys have an order.
pub fn is_ordered(engine: &str) -> bool {
    EngineKind::parse(engine).unwrap().is_ordered()
}

//! The engines under test: the one list of them, from which suites take theirs.

use terrace::EngineKind;

/// An engine, and what it promises beyond the store's semantics.
#[derive(Debug, Clone, Copy)]
pub struct Engine {
    /// The engine.
    pub kind: EngineKind,
    /// Drains that a group of writes costs on media flushed by cache line, where it is a fixed number.
    pub drains_per_group: Option<u64>,
}

/// Calls the macro that is named in brackets with what stands behind that, and a row for each engine: what its tests
/// are called, its kind, its drains for each group of writes. A new engine gets its row at the end: what
/// `crash/repairs.rs` draws follows from the places of those before it.
macro_rules! each_engine {
    ([$($with:tt)*] $($what:tt)*) => {
        $($with)*! {
            [$($what)*]
            slm: Slm, Some(2);
            lsm: Lsm, Some(1);
            wip: Wip, Some(1);
            turbo: Turbo, None;
            sptree: Sptree, None;
            split: Split, None;
            lab: Lab, Some(1);
            tlsm: Tlsm, Some(1);
        }
    };
}
pub(crate) use each_engine;

/// Makes the list, and finds rows of it.
macro_rules! list {
    ([] $($name:ident: $kind:ident, $drains:expr;)*) => {
        /// Every engine.
        pub const ENGINES: [EngineKind; EngineKind::ALL.len()] = [$(EngineKind::$kind),*];

        impl Engine {
            /// The engine of this kind.
            pub const fn of(kind: EngineKind) -> Engine {
                let drains_per_group = match kind {
                    $(EngineKind::$kind => $drains,)*
                    _ => panic!("an engine without a row"),
                };
                Engine { kind, drains_per_group }
            }
        }
    };
}
each_engine!([list]);

/// Makes a test of a function for each engine, of the engine's name.
macro_rules! test_each_engine {
    ($test:ident) => {
        crate::harness::each_engine!([crate::harness::test_rows] $test);
    };
}
pub(crate) use test_each_engine;

/// Makes the tests of [`test_each_engine`].
macro_rules! test_rows {
    ([$test:ident] $($name:ident: $kind:ident, $drains:expr;)*) => {
        $(#[test]
        fn $name() {
            $test(terrace::EngineKind::$kind);
        })*
    };
}
pub(crate) use test_rows;

/// The engines that need no persistent memory, real or emulated: their pool is an ordinary file, or their logs are
/// files.
pub fn engines_on_files() -> impl Iterator<Item = EngineKind> {
    ENGINES.into_iter().filter(|engine| !engine.needs_memory())
}

/// The engines that keep everything in persistent memory.
pub fn engines_in_memory() -> impl Iterator<Item = EngineKind> {
    ENGINES.into_iter().filter(|engine| engine.keeps_all_in_memory())
}

//! Values shown where they lie: who looks at one is told if what it was shown is not to be relied upon.

use terrace_base::Result;

use crate::core::Core;
use crate::core::engine::Engine;

/// What `f` makes of the value of `key`, at snapshot `at` or now.
pub(super) fn shown<T>(
    core: &Core,
    engine: &dyn Engine,
    key: &[u8],
    at: Option<u64>,
    f: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>> {
    shown_with_number(core, engine, key, at, |_, value| f(value))
}

/// The same of its version's number and the value.
pub(super) fn shown_with_number<T>(
    core: &Core,
    engine: &dyn Engine,
    key: &[u8],
    at: Option<u64>,
    f: impl FnOnce(u64, &[u8]) -> T,
) -> Result<Option<T>> {
    let (mut f, mut made) = (Some(f), None);
    let failures = || core.table_reader.maps().failures();
    let (failed_maps, mut has_failed) = (failures(), false);
    engine.get_with(key, at, &mut |value| {
        if value.failure().is_none() {
            made = f.take().map(|f| f(value.number, &value));
        }
        // As long as the value keeps its mapping.
        has_failed = value.is_own() && failures() != failed_maps;
    })?;
    engine.intact()?;
    if has_failed {
        return Err(core.shown_as_zeros());
    }
    Ok(made)
}

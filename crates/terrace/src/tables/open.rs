//! Opening the tables that the manifest names.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_table::Table;

use crate::core::Core;
use crate::manifest::{Manifest, State};

/// Opens table `number` of `state`, which must be this database's. Where the database is opened to be read only, one that
/// is missing stands for what is lost: whatever may have been in it is an error to ask for.
pub(crate) fn open_table(core: &Core, state: &State, number: u64) -> Result<Arc<Table>> {
    let path = core.files.table(number);
    let table = match core.files.open_table(number, core.cache()) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            let missing = missing_table(&path);
            let meta = state.tables.get(&number).filter(|_| reads_only(core));
            let Some(table) = meta else { return Err(missing) };
            tracing::warn!(error = %missing, "opened to be read without it");
            return Ok(Table::missing((*table.meta).clone(), missing, core.cache().clone()));
        }
        table => table?,
    };
    if table.origin() != state.identity.origin() {
        let expected = "a table of this database (try `repair`)";
        return Err(Error::corruption(&path, 0, expected, "another database's table"));
    }
    Ok(table)
}

/// An error that names a table which is missing, before anything is opened that would have to be closed in order. A
/// database that is opened to be read only goes without it.
pub(crate) fn refuse_missing(core: &Core, manifest: &Manifest) -> Result<()> {
    let missing = manifest.listing()?.missing_tables;
    match missing.first() {
        Some(number) if !reads_only(core) => Err(missing_table(&core.files.table(*number))),
        _ => Ok(()),
    }
}

fn missing_table(path: &Path) -> Error {
    Error::corruption(path, 0, "a table that the manifest names (try `repair`)", "no such file")
}

/// Whether nothing that is done here is kept, so that what is not there takes nothing with it.
fn reads_only(core: &Core) -> bool {
    core.options.read_only || core.is_scratch
}

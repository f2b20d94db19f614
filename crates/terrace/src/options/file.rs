//! Options from a TOML file: those of the store at the top, those of an engine in a table with its name.

use std::ops::Range;
use std::path::Path;

use terrace_base::{Error, Result};
use toml::de::{DeTable, DeValue};

use super::{EngineKind, Options};

impl Options {
    /// Takes the options that `text` sets, in TOML; the others keep their values. All are taken, or none.
    ///
    /// Options of the store stand at the top, those of an engine in a table with its name. Values are numbers, `true`,
    /// `false` or strings, each as [`set`](Self::set) takes it.
    ///
    /// # Errors
    /// `InvalidArgument` with the line: for what is no TOML, an option that does not exist, or a value that it cannot
    /// have. What contradicts is found by [`validate`](Self::validate), and by opening.
    ///
    /// ```
    /// let mut options = terrace::Options::default();
    /// options.set_toml(
    ///     r#"
    ///     engine = "lsm"
    ///     memory_budget = "64 MiB"
    ///     [lsm]
    ///     memtables = 3
    ///     "#,
    /// )?;
    /// assert_eq!((options.memory_budget, options.lsm.memtables), (64 << 20, 3));
    /// let refused = options.set_toml("[lsm]\nmemtables = 30").unwrap_err().to_string();
    /// assert!(refused.contains("line 2: lsm.memtables cannot be 30: it must be 2 to 7"), "{refused}");
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn set_toml(&mut self, text: &str) -> Result<()> {
        let at = |place: Option<Range<usize>>, what: String| {
            let before = place.and_then(|place| text.get(..place.start)).unwrap_or(text);
            Error::invalid(format!("line {}: {what}", before.matches('\n').count() + 1))
        };
        let table = DeTable::parse(text).map_err(|e| at(e.span(), e.message().to_string()))?;
        let mut changed = self.clone();
        for (name, place, value) in entries(table.get_ref(), "") {
            changed.set(&name, &value).map_err(|e| match e {
                Error::InvalidArgument(what) => at(Some(place), what),
                other => other,
            })?;
        }
        *self = changed;
        Ok(())
    }

    /// Takes the options that the file `path` sets: see [`set_toml`](Self::set_toml).
    ///
    /// # Errors
    /// `Io` if the file cannot be read; otherwise those of [`set_toml`](Self::set_toml), which name it.
    pub fn set_from_file(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, "read", e))?;
        self.set_toml(&text).map_err(|e| match e {
            Error::InvalidArgument(what) => Error::invalid(format!("{}, {what}", path.display())),
            other => other,
        })
    }
}

/// The names and values in `table`, each with its place in the text. Names in tables begin with the table's.
fn entries(table: &DeTable<'_>, prefix: &str) -> Vec<(String, Range<usize>, String)> {
    let mut all = Vec::new();
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) if inner.is_empty() && EngineKind::parse(&name).is_ok() => {}
            DeValue::Table(inner) if !inner.is_empty() => all.extend(entries(inner, &format!("{name}."))),
            value => all.push((name, key.span(), told(value))),
        }
    }
    // As they stand in the text: the first that is wrong is told.
    all.sort_by_key(|(_, place, _)| place.start);
    all
}

/// A value as `set` takes it. What no option can be becomes a text that none takes.
fn told(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(value) => value.to_string(),
            Err(_) => number.as_str().to_string(),
        },
        DeValue::Float(number) => number.as_str().to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(date) => date.to_string(),
        DeValue::Array(_) => "[a list]".to_string(),
        DeValue::Table(_) => "[a table]".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let (mut options, before) = (Options::default(), Options::default().list());
        let said = options.set_toml(text).unwrap_err().to_string();
        assert_eq!(options.list(), before, "all or none");
        said
    }

    #[test]
    fn names_are_written_in_every_way_that_toml_has() {
        let mut options = Options::default();
        let text =
            "slm.block_bytes = 0x1000\n'memory_budget' = '1_GiB'\n[wip]\nread_weight = 2\njitter = 1_0\n";
        options.set_toml(&text.replace("1_GiB", "1GiB")).unwrap();
        assert_eq!((options.slm.block_bytes, options.memory_budget), (4096, 1 << 30));
        assert_eq!((options.wip.read_weight, options.wip.jitter), (2.0, 10));
        options.set_toml("pool = 'emulated:cxl'\nsync = true\ncompression = 'lz4'\nengine = 'tlsm'").unwrap();
        assert_eq!((options.pool.to_string(), options.engine.name()), ("emulated:cxl".into(), "tlsm"));
        options.set_toml("").unwrap();
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_what_is_right() {
        assert!(
            refused("sync = true\nblock = 1").contains("line 2: there is no option block; there are: engine")
        );
        assert!(
            refused("[slm]\n\nblock = 1").contains("line 3: there is no option slm.block; there are: slm.")
        );
        assert!(refused("[rocks]\nx = 1").contains("there is no option rocks.x"));
        assert!(
            refused("slm.block_bytes = 0").contains("line 1: slm.block_bytes cannot be 0: it must be 1 to")
        );
        assert!(refused("slm.block_bytes = true").contains("cannot be true: it must be 1 to"));
        assert!(refused("slm.block_bytes = [1]").contains("cannot be [a list]"));
        assert!(refused("slm.block_bytes = 1.5").contains("cannot be 1.5"));
        assert!(refused("slm.block_bytes = 1979-05-27").contains("cannot be 1979-05-27"));
        assert!(refused("sync = 1").contains("sync cannot be 1: it must be true or false"));
        assert!(refused("engine = 'rocks'").contains("it must be slm, lsm, turbo"));
        assert!(refused("pool = ''").contains("pool cannot be : it must be auto, a path or"));
        assert!(refused("[slm]\n[rocks]").contains("line 2: there is no option rocks"));
        assert!(refused("engine = {}").contains("engine cannot be [a table]"));
        assert!(refused("sync = true\nsync = false").contains("line 2"));
        assert!(refused("sync = ").starts_with("invalid argument: line 1"), "{}", refused("sync = "));
        assert!(refused("a = 99999999999999999999999999999999999999999").contains("no option a"));
    }
}

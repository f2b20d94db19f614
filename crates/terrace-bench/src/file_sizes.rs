//! How large the tables of a store are (WipDB, figure 2.11): files that end in `.sst` or `.ldb`, by powers of two.

use std::path::Path;

use crate::report::{columns, grouped};

/// Table files of about one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SizeClass {
    /// Each of them has at least so many bytes, and less than twice as many. 0 is of files without any.
    pub from_bytes: u64,
    /// How many there are.
    pub files: u64,
}

/// The sizes of the table files below `dir`, ascending; classes without a file are left out.
///
/// # Errors
/// Those of reading the directory.
pub fn of(dir: &Path) -> std::io::Result<Vec<SizeClass>> {
    let mut sizes = Vec::new();
    gather(dir, &mut sizes)?;
    sizes.sort_unstable();
    let mut classes: Vec<SizeClass> = Vec::new();
    for size in sizes {
        let from_bytes = size.checked_ilog2().map_or(0, |power| 1 << power);
        match classes.last_mut() {
            Some(last) if last.from_bytes == from_bytes => last.files += 1,
            _ => classes.push(SizeClass { from_bytes, files: 1 }),
        }
    }
    Ok(classes)
}

fn gather(dir: &Path, sizes: &mut Vec<u64>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let is_table = path.extension().is_some_and(|kind| kind == "sst" || kind == "ldb");
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => gather(&path, sizes)?,
            Ok(meta) if is_table => sizes.push(meta.len()),
            Ok(_) => {}
            // The store, which is at work, has removed it meanwhile.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The sizes of several stores' tables side by side.
pub fn table(stores: &[(&str, &[SizeClass])]) -> String {
    let all = || stores.iter().flat_map(|(_, classes)| classes.iter().map(|class| class.from_bytes));
    let mut rows = vec![vec!["table files of".to_string()]];
    rows[0].extend(stores.iter().map(|(name, _)| name.to_string()));
    let mut classes: Vec<u64> = all().collect();
    classes.sort_unstable();
    classes.dedup();
    for from_bytes in classes {
        let mut row = vec![range(from_bytes)];
        row.extend(stores.iter().map(|(_, own)| {
            let class = own.iter().find(|class| class.from_bytes == from_bytes);
            class.map_or("-".to_string(), |class| grouped(class.files))
        }));
        rows.push(row);
    }
    columns(&rows)
}

/// The sizes of a class in words: `1 to 2 MiB`.
pub fn range(from_bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "bytes")];
    let Some(power) = from_bytes.checked_ilog2() else { return "no bytes".to_string() };
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| *unit <= power).unwrap_or((0, "bytes"));
    let least = 1u64 << (power - unit);
    format!("{least} to {} {name}", 2 * least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_counted_by_powers_of_two() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("0")).unwrap();
        for (name, bytes) in [("1.sst", 1023), ("2.sst", 1024), ("0/3.ldb", 2047), ("4.log", 9), ("5.sst", 0)]
        {
            std::fs::write(dir.path().join(name), vec![0; bytes]).unwrap();
        }
        let classes = of(dir.path()).unwrap();
        let pairs: Vec<_> = classes.iter().map(|class| (class.from_bytes, class.files)).collect();
        assert_eq!(pairs, [(0, 1), (512, 1), (1024, 2)]);
        let text = table(&[("wip", &classes), ("none", &[])]);
        assert!(text.contains("1 to 2 KiB") && text.contains("512 to 1024 bytes"), "{text}");
        assert_eq!(text.lines().count(), 4);
        assert!(of(&dir.path().join("absent")).is_err());
    }
}

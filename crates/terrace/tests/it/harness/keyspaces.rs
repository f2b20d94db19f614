//! Everything in a database with its keyspaces, as one map.

use terrace::{Bytes, Db, Entries, Result, Snapshot};

use super::Map;

/// The entry that says that there is a keyspace.
pub fn there_is(name: &str) -> Vec<u8> {
    [b"is ", name.as_bytes()].concat()
}

/// A key of a keyspace; `None` stands for the default one.
pub fn key_in(name: Option<&str>, key: &[u8]) -> Vec<u8> {
    match name {
        Some(name) => [b"of ", name.as_bytes(), b" ", key].concat(),
        None => [b"default ", key].concat(),
    }
}

fn add(map: &mut Map, name: Option<&str>, entries: Entries) -> Result<()> {
    for entry in entries {
        let (key, value): (Bytes, Bytes) = entry?;
        map.insert(key_in(name, &key), value.to_vec());
    }
    Ok(())
}

/// Everything that there is.
pub fn all_keyspaces(db: &Db) -> Result<Map> {
    let mut map = Map::new();
    add(&mut map, None, db.entries()?)?;
    for name in db.keyspaces()? {
        map.insert(there_is(&name), Vec::new());
        add(&mut map, Some(&name), db.keyspace(&name)?.entries()?)?;
    }
    Ok(map)
}

/// What a snapshot has of the default keyspace, in one map as above.
pub fn default_of(snapshot: &Snapshot) -> Result<Map> {
    let mut map = Map::new();
    add(&mut map, None, snapshot.entries()?)?;
    Ok(map)
}

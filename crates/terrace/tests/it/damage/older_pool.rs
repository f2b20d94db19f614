//! A pool that is an older copy of itself, from within the session of a process that was killed: its generation is the
//! same. `docs/formats/pool.md` says which engines tell.

use std::ops::Range;

use terrace::{EngineKind, WriteOptions};
use terrace_pmem::Granularity;

use super::image::{Image, options};
use super::sample::{key, value};
use crate::harness::{Contents, ENGINES, Map};

/// What was done since the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    Writes,
    SyncedWrites,
    Flush,
}

const SINCE: [Since; 3] = [Since::Writes, Since::SyncedWrites, Since::Flush];

/// What becomes of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It does not open.
    Refused,
    /// Reads and the check fail.
    Told,
    /// Writes are missing.
    Unseen,
}

/// What becomes of a database whose pool is an older copy; `None` if it has none.
fn outcome(engine: EngineKind, granularity: Granularity, since: Since) -> Option<Outcome> {
    let bed = Image::empty(options(engine), granularity).bed();
    let (db, mut map) = (bed.open().ok()?, Map::new());
    let sync = since == Since::SyncedWrites;
    let write = |map: &mut Map, keys: Range<u32>, version| {
        for i in keys {
            db.put_with(&key(i), &value(i, version), WriteOptions { sync }).unwrap();
            map.insert(key(i), value(i, version));
        }
    };
    write(&mut map, 0..60, 0);
    db.flush().unwrap();
    write(&mut map, 0..4, 1);
    let pool = bed.image().pool?;
    write(&mut map, 4..8, 1);
    if since == Since::Flush {
        db.flush().unwrap();
    }
    write(&mut map, 8..12, 1);
    let image = Image { pool: Some(pool), ..bed.image() };
    let Ok(db) = image.bed().open() else { return Some(Outcome::Refused) };
    let (found, checked) = (db.try_all(), db.check());
    let is_clean = checked.is_ok_and(|report| report.is_clean());
    assert_eq!(found.is_ok(), is_clean, "{engine:?}, {since:?}");
    let found: Option<Map> = found.ok().map(|entries| entries.into_iter().collect());
    assert!(found.as_ref() != Some(&map), "{engine:?}, {since:?}: nothing was missing");
    Some(if is_clean { Outcome::Unseen } else { Outcome::Told })
}

/// Must catch a page that names an engine wrongly: whoever restores files has nothing else to go by.
#[test]
fn older_pools_of_one_session_are_told_as_the_page_says() {
    use Outcome::{Refused, Told, Unseen};
    for engine in ENGINES {
        for granularity in [Granularity::CacheLine, Granularity::Page] {
            let found = SINCE.map(|since| outcome(engine, granularity, since));
            let expected = match (engine, granularity) {
                (EngineKind::Slm, Granularity::Page) => [Unseen, Refused, Refused].map(Some),
                (EngineKind::Slm, _) => [Unseen, Unseen, Refused].map(Some),
                // Their logs are files, or they cannot be there.
                (_, Granularity::Page) => [None; 3],
                (EngineKind::Tlsm, _) => [Unseen, Unseen, Told].map(Some),
                _ => [Some(Unseen); 3],
            };
            assert_eq!(found, expected, "{engine:?} on {granularity:?}");
        }
    }
}

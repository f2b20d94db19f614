//! Point reads through the index: a word, and the block that it names.
//!
//! A reader takes no lock. It may meet a word whose table is gone, because a compaction moved the record in
//! between; it then looks the word up again. An unchanged word whose table is gone is damage.

use bytes::Bytes;
use terrace_base::trail::{self, Touch};
use terrace_base::{Error, Result};
use terrace_index::PointIndex;
use terrace_table::{Entry, Position, Sought, find_many};

use super::{Chain, Located, Location, Version};

/// A reader's view of an index word: candidates for its version, newest first.
enum Candidates {
    One(Position),
    Many(Vec<Version>),
}

impl Located {
    /// Whether the newest indexed version of `key` is a put: the index alone knows (SLM-DB, section 4).
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        let _here = self.limbo.enter();
        let Some(word) = self.index.get(key)? else { return Ok(false) };
        Ok(match self.decode_word(word)? {
            Location::Position(_) => true,
            Location::Chain(offset) => {
                Chain::load(&self.pool, offset)?.versions.first().is_some_and(|v| v.position.is_some())
            }
        })
    }

    /// The value of `key` in tables for a reader at `at`.
    pub fn get(&self, key: &[u8], at: u64) -> Result<Option<Bytes>> {
        Ok(self.newest(key, at)?.and_then(Entry::into_value))
    }

    /// The version of `key` in tables that a reader at `at` sees.
    pub fn newest(&self, key: &[u8], at: u64) -> Result<Option<Entry>> {
        let mut before = None;
        loop {
            let Some((word, candidates)) = self.candidates(key, at)? else { return Ok(None) };
            match self.read_candidates(key, at, &candidates)? {
                Outcome::Found(entry) => return Ok(entry),
                Outcome::Moved(position) if before == Some((word, position)) => {
                    return Err(self.lost_table(position));
                }
                Outcome::Moved(position) => before = Some((word, position)),
            }
        }
    }

    /// The values of `keys` in tables for a reader at `at`, in their order. What has to be read is requested together.
    pub fn get_many(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        let mut words = Vec::new();
        self.index.get_many(keys, &mut words)?;
        let tables = self.tables.load();
        let (mut values, mut places, mut sought) = (vec![None; keys.len()], Vec::new(), Vec::new());
        for (i, (&key, word)) in keys.iter().zip(words).enumerate() {
            let Some(word) = word else { continue };
            let position = match self.decode_word(word)? {
                Location::Position(position) => Some(position),
                Location::Chain(_) => None,
            };
            match position.and_then(|position| tables.get(&position.number())) {
                Some(table) => {
                    places.push(i);
                    sought.push(Sought { table, key, position });
                }
                // Versions for snapshots, or a table that has been merged since: one key at a time.
                None => values[i] = self.get(key, at)?,
            }
        }
        for ((i, sought), found) in places.into_iter().zip(&sought).zip(find_many(&sought, u64::MAX)?) {
            let Some(found) = found else {
                let Some(position) = sought.position else { continue };
                return Err(self.misplaced(sought.key, position));
            };
            values[i] = Some(found).filter(|entry| entry.seq <= at).and_then(Entry::into_value);
        }
        Ok(values)
    }

    /// The value behind `word`, which a walk found for `key` some time ago.
    pub fn get_at_word(&self, key: &[u8], word: u64, at: u64) -> Result<Option<Bytes>> {
        if let Location::Position(position) = self.decode_word(word)?
            && let Outcome::Found(Some(entry)) = self.read_candidates(key, at, &Candidates::One(position))?
        {
            return Ok(entry.into_value());
        }
        // Since then a chain may have been retired, a table merged, or the version replaced: ask again.
        self.get(key, at)
    }

    fn candidates(&self, key: &[u8], at: u64) -> Result<Option<(u64, Candidates)>> {
        let _here = self.limbo.enter();
        let found = self.index.get(key)?;
        trail::note(|| Touch::Index { found: found.is_some() });
        let Some(word) = found else { return Ok(None) };
        let candidates = match self.decode_word(word)? {
            Location::Position(position) => Candidates::One(position),
            Location::Chain(offset) => {
                let versions = Chain::load(&self.pool, offset)?.visible(at).to_vec();
                trail::note(|| Touch::Versions { count: versions.len() as u64 });
                Candidates::Many(versions)
            }
        };
        Ok(Some((word, candidates)))
    }

    fn read_candidates(&self, key: &[u8], at: u64, candidates: &Candidates) -> Result<Outcome> {
        match candidates {
            Candidates::One(position) => self.read_version(key, u64::MAX, at, *position),
            Candidates::Many(versions) => {
                for version in versions {
                    let Some(position) = version.position else { break };
                    match self.read_version(key, version.seq, at, position)? {
                        Outcome::Found(None) => continue,
                        other => return Ok(other),
                    }
                }
                Ok(Outcome::Found(None))
            }
        }
    }

    /// The version that the index means by `position`, the newest there up to `seq`, if a reader at `at` sees it.
    /// An older one beside it is dead even if the reader would see it: the tombstone above it may be in
    /// another table.
    fn read_version(&self, key: &[u8], seq: u64, at: u64, position: Position) -> Result<Outcome> {
        let tables = self.tables.load();
        let Some(table) = tables.get(&position.number()) else { return Ok(Outcome::Moved(position)) };
        let Some(found) = table.get_at(position, key, seq)? else {
            return Err(self.misplaced(key, position));
        };
        let found = Some(found).filter(|entry| entry.seq <= at);
        trail::note(|| Touch::Table { number: position.number(), found: found.is_some() });
        Ok(Outcome::Found(found))
    }

    /// The location in an index word always holds some version of the key.
    fn misplaced(&self, key: &[u8], position: Position) -> Error {
        let path = self.core.files.table(position.number());
        let expected = format!("a block with the key {}, as the index has it", key.escape_ascii());
        Error::corruption(&path, position.offset(), expected, "a block without it")
    }

    fn lost_table(&self, position: Position) -> Error {
        let path = self.core.files.table(position.number());
        Error::corruption(&path, position.offset(), "a table that the index refers to", "no such table")
    }
}

enum Outcome {
    /// The version; `None` if this reader sees none.
    Found(Option<Entry>),
    /// The table is gone.
    Moved(Position),
}

//! Finds out which engine made a damaged database, and which database its files belong to.
//!
//! The manifest decides if it can be read. Otherwise the pool's owner decides, then the tables, then the logs. The
//! caller's choice must not contradict them. It decides where nothing else does, and where files that agree lie beside
//! another engine's pool.

use std::collections::BTreeMap;
use std::path::Path;

use terrace_base::{Error, Result};
use terrace_log::{LogReader, Origin};
use terrace_table::Table;

use crate::env::Env;
use crate::manifest::{FileName, Manifest};
use crate::options::{EngineKind, Options};
use crate::pool;
use crate::salvage::Owner;

/// The evidence of whose a database is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    /// The engine according to the manifest, as far as that can be read.
    manifest: Option<EngineKind>,
    /// The engine and the owner according to the pool.
    pool: Option<(EngineKind, u64)>,
    /// The number of tables that name each origin.
    tables: BTreeMap<u64, u64>,
    /// The number of logs that name each origin.
    logs: BTreeMap<u64, u64>,
}

/// The owner and the engine of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    pub engine: EngineKind,
    /// Its owner, if the manifest does not name it and another file does.
    pub owner: Option<Owner>,
}

/// What the files say of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    None,
    One(EngineKind),
    /// The pool and the files beside it say different things, and either may be foreign.
    Either {
        pool: EngineKind,
        files: EngineKind,
    },
}

impl Found {
    /// The engine, if `asked` decides what the files leave open and contradicts nothing.
    fn settle(self, dir: &Path, asked: Option<EngineKind>) -> Result<EngineKind> {
        match (self, asked) {
            (Found::One(found), Some(asked)) if found != asked => Err(Error::invalid(format!(
                "the database in {} belongs to engine {}, and not to {}",
                dir.display(),
                found.name(),
                asked.name()
            ))),
            (Found::One(engine), _) | (Found::None, Some(engine)) => Ok(engine),
            (Found::Either { pool, files }, Some(asked)) if [pool, files].contains(&asked) => Ok(asked),
            (Found::Either { pool, files }, _) => Err(Error::invalid(format!(
                "the pool of {} is one of engine {}, and the tables and logs there are of engine {}; name the \
                 engine with `--engine`",
                dir.display(),
                pool.name(),
                files.name()
            ))),
            (Found::None, None) => Err(Error::invalid(format!(
                "nothing in {} says which engine made it; name that with `--engine`",
                dir.display()
            ))),
        }
    }
}

impl Evidence {
    /// Looks at everything in `dir`, and at the pool where `options` place it.
    pub fn gather(env: &Env, dir: &Path, options: &Options) -> Result<Evidence> {
        let fs = &*env.fs;
        let salvaged = Manifest::salvage(fs, dir)?;
        let identity = salvaged.map(|salvaged| salvaged.state.identity);
        let manifest = identity.map(|identity| EngineKind::parse(&identity.engine)).transpose()?;
        let mut found = Evidence { manifest, ..Evidence::default() };
        if manifest.is_some() {
            return Ok(found);
        }
        found.pool = owner_of_pool(env, dir, options)?;
        for path in fs.list(dir)? {
            match FileName::parse(&path) {
                Some(FileName::Table(_)) => {
                    if let Ok((_, origin @ 1..)) = Table::identify(fs, &path) {
                        *found.tables.entry(origin).or_default() += 1;
                    }
                }
                Some(FileName::Log(_)) => {
                    if let Ok(Some(Origin { database: origin @ 1.., .. })) = LogReader::origin(fs, &path) {
                        *found.logs.entry(origin).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// The engine according to the files alone. Tables or logs that agree leave open whether they are foreign, or a pool
    /// of another engine that none of them belongs to.
    fn found(&self) -> Found {
        if let Some(engine) = self.manifest {
            return Found::One(engine);
        }
        let files = most(&self.tables).or(most(&self.logs));
        let count = |origin| [&self.tables, &self.logs].iter().filter_map(|of| of.get(&origin)).sum::<u64>();
        let by_files = files.and_then(EngineKind::of_origin);
        match (self.pool, by_files) {
            (None, Some(engine)) | (Some((engine, _)), None) => Found::One(engine),
            (Some((engine, owner)), Some(other)) if engine != other => {
                let is_confirmed = count(u64::from(engine.number()) << 56 | owner) > 0;
                match files.map_or(0, count) > 1 && !is_confirmed {
                    false => Found::One(engine),
                    true => Found::Either { pool: engine, files: other },
                }
            }
            (Some((engine, _)), Some(_)) => Found::One(engine),
            (None, None) => Found::None,
        }
    }

    /// Decides whose the database is; `asked` is the engine that the caller assumes.
    pub fn judge(&self, dir: &Path, asked: Option<EngineKind>) -> Result<Verdict> {
        let engine = self.found().settle(dir, asked)?;
        Ok(Verdict { engine, owner: self.owner(engine) })
    }

    /// The owner, among databases of `engine`. Files that agree outvote a pool; where two origins have
    /// equally many files, the pool decides, and is right if a table or log agrees with it. Without a pool
    /// such a tie stays undecided.
    fn owner(&self, engine: EngineKind) -> Option<Owner> {
        let mut files: BTreeMap<u64, u64> = BTreeMap::new();
        for (origin, count) in self.tables.iter().chain(&self.logs) {
            if EngineKind::of_origin(*origin) == Some(engine) {
                *files.entry(origin & ((1 << 48) - 1)).or_default() += count;
            }
        }
        let by_files =
            most(&files).map(|owner| match files.values().filter(|n| **n == files[&owner]).count() {
                1 => Owner::Told(owner),
                _ => Owner::Disputed(owner),
            });
        let pool = self.pool.filter(|(kind, _)| *kind == engine).map(|(_, owner)| owner);
        match (pool, by_files) {
            (None, by_files) => by_files,
            (Some(pool), Some(other)) if !files.contains_key(&pool) && files[&other.bytes()] > 1 => {
                Some(other)
            }
            (Some(pool), _) if files.contains_key(&pool) => Some(Owner::Told(pool)),
            (Some(pool), _) => Some(Owner::ByPool(pool)),
        }
    }
}

/// The owner according to the pool, which is looked at as it is.
fn owner_of_pool(env: &Env, dir: &Path, options: &Options) -> Result<Option<(EngineKind, u64)>> {
    let path = options.pool.path_from(dir);
    if !env.pm.exists(&path)? {
        return Ok(None);
    }
    match pool::look_at(env, &path, options.pool.media()) {
        Ok(pool) => Ok(pool::owner_in(&pool)),
        Err(e @ Error::Locked { .. }) => Err(e),
        // The repair deals with whatever is wrong with it.
        Err(_) => Ok(None),
    }
}

/// The origin of most files.
fn most(files: &BTreeMap<u64, u64>) -> Option<u64> {
    files.iter().max_by_key(|(_, count)| **count).map(|(origin, _)| *origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(evidence: &Evidence, asked: Option<EngineKind>) -> Option<(EngineKind, Option<u64>)> {
        let verdict = evidence.judge(Path::new("/d"), asked).ok()?;
        Some((verdict.engine, verdict.owner.map(Owner::bytes)))
    }

    #[test]
    fn files_decide_and_must_not_be_contradicted() {
        let (slm, lsm) = (EngineKind::Slm, EngineKind::Lsm);
        let none = Evidence::default();
        assert_eq!((judge(&none, None), judge(&none, Some(lsm))), (None, Some((lsm, None))));
        let tables = Evidence { tables: [(1 << 56 | 5, 2), (2 << 56 | 7, 3)].into(), ..none.clone() };
        assert_eq!(judge(&tables, None), Some((lsm, Some(7))));
        assert_eq!(judge(&tables, Some(slm)), None);
        let pool = Evidence { pool: Some((slm, 9)), ..tables };
        assert_eq!(judge(&pool, None), None, "it, or three tables, are foreign");
        assert_eq!(judge(&pool, Some(lsm)), Some((lsm, Some(7))));
        assert_eq!(judge(&pool, Some(slm)), Some((slm, Some(5))), "two tables outvote it");
        let confirmed = Evidence { logs: [(1 << 56 | 9, 1)].into(), ..pool.clone() };
        assert_eq!(judge(&confirmed, None), Some((slm, Some(9))), "a log confirms it");
        let logs = Evidence { logs: [(2 << 56 | 8, 1)].into(), ..none };
        assert_eq!(judge(&logs, None), Some((lsm, Some(8))));
    }

    /// Tables beside a pool of another engine are foreign, or the pool is.
    #[test]
    fn files_do_not_outvote_another_engines_pool() {
        let (turbo, lsm) = (EngineKind::Turbo, EngineKind::Lsm);
        let with = |count| Evidence {
            pool: Some((turbo, 9)),
            tables: [(2 << 56 | 7, count)].into(),
            ..Evidence::default()
        };
        assert_eq!(judge(&with(1), None), Some((turbo, Some(9))));
        assert_eq!((judge(&with(2), None), judge(&with(2), Some(EngineKind::Slm))), (None, None));
        assert_eq!(judge(&with(2), Some(lsm)), Some((lsm, Some(7))));
        assert_eq!(judge(&with(2), Some(turbo)), Some((turbo, Some(9))));
    }

    /// A log of the database and a table put in place of its own: nothing tells which of them is foreign.
    #[test]
    fn as_many_files_of_one_as_of_another_decide_nothing() {
        let lsm = EngineKind::Lsm;
        let of = |tables: &[(u64, u64)], logs: &[(u64, u64)], pool: Option<u64>| {
            let [tables, logs] =
                [tables, logs].map(|files| files.iter().map(|(o, n)| (2 << 56 | o, *n)).collect());
            Evidence { pool: pool.map(|owner| (lsm, owner)), tables, logs, manifest: None }.owner(lsm)
        };
        assert!(matches!(of(&[(5, 1)], &[(7, 1)], None), Some(Owner::Disputed(_))));
        assert!(matches!(of(&[(5, 2), (7, 2)], &[], Some(9)), Some(Owner::Disputed(_))));
        assert_eq!(of(&[(5, 1)], &[(7, 1)], Some(7)), Some(Owner::Told(7)));
        assert_eq!(of(&[(5, 1)], &[(7, 1)], Some(9)), Some(Owner::ByPool(9)));
        assert_eq!(of(&[(5, 2)], &[(7, 1)], None), Some(Owner::Told(5)));
    }

    #[test]
    fn a_pool_alone_may_be_anothers() {
        let slm = EngineKind::Slm;
        let with = |tables: &[(u64, u64)], logs: &[(u64, u64)]| {
            let [tables, logs] =
                [tables, logs].map(|files| files.iter().map(|(o, n)| (1 << 56 | o, *n)).collect());
            Evidence { pool: Some((slm, 9)), tables, logs, manifest: None }.owner(slm)
        };
        assert_eq!(with(&[], &[]), Some(Owner::ByPool(9)));
        assert_eq!(with(&[(5, 1)], &[]), Some(Owner::ByPool(9)));
        assert_eq!(with(&[(5, 1)], &[(9, 1)]), Some(Owner::Told(9)));
        assert_eq!(with(&[(5, 1)], &[(5, 1)]), Some(Owner::Told(5)));
        assert_eq!(with(&[(5, 3), (9, 1)], &[]), Some(Owner::Told(9)));
    }
}

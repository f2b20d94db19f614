//! A database with operands and after ingests, opened with other options each time.

use terrace::{Db, EngineKind, LogPlace, MergeOperator, Options};
use terrace_pmem::Granularity;

use super::merging::merging;
use crate::harness::{Engine, Machine, Map, Setup, all_keyspaces, assert_clean, key_in, setups, there_is};

const KEYS: u32 = 40;

/// All sets of options for the engine on one medium, and one with fewer levels.
fn all_options(engine: &Engine) -> Vec<Options> {
    let on_it = setups(engine).into_iter().filter(|setup| setup.granularity == Granularity::CacheLine);
    let mut all: Vec<Options> = on_it.map(|setup| setup.options()).collect();
    let mut few = Setup::tiny("few levels", engine).options();
    for levels in [&mut few.lsm, &mut few.lab.levels, &mut few.tlsm.levels] {
        (levels.levels, levels.l0_tables) = (2, 1);
    }
    all.push(few);
    all
}

/// Whether these options have the log where the database does not have it.
fn has_log_elsewhere(options: &Options) -> bool {
    match options.engine {
        EngineKind::Lsm => options.lsm.log == LogPlace::Ssd,
        EngineKind::Wip => options.wip.log == LogPlace::Ssd,
        _ => false,
    }
}

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

/// Merges into keys of a keyspace, and ingests others into the default one.
fn write(db: &Db, map: &mut Map, round: u32) {
    let space = merging(db, "log", MergeOperator::append().deferred());
    for part in 0..2 {
        for i in (0..KEYS).filter(|i| !(i + round).is_multiple_of(3)) {
            let operand = format!("{round}.{part} ");
            space.merge(key(i), &operand).unwrap();
            map.entry(key_in(Some("log"), &key(i))).or_default().extend(operand.into_bytes());
        }
        if part == 0 && round.is_multiple_of(2) {
            db.flush().unwrap();
        }
        let value = [round as u8; 50];
        let entries = || (0..KEYS).filter(|i| (i + round) % 4 < 2);
        db.ingest(|ingest| entries().try_for_each(|i| ingest.put(key(i), value))).unwrap();
        map.extend(entries().map(|i| (key_in(None, &key(i)), value.to_vec())));
    }
}

/// Must catch operands, or the tables of an ingest, that only the options of their own time can read.
pub fn operands_and_ingests_outlive_other_options(engine: &Engine) {
    let mut machine = Machine::new(&Setup::tiny("other options", engine));
    let (all, mut map) = (all_options(engine), Map::from([(there_is("log"), Vec::new())]));
    let db = machine.open().unwrap();
    write(&db, &mut map, 0);
    db.close().unwrap();
    drop(db);
    for (round, mut options) in (1..).zip(all.iter().chain(&all).cloned()) {
        if has_log_elsewhere(&options) {
            let refused = machine.open_with(options.clone()).unwrap_err();
            assert!(refused.to_string().contains("created with its log on PM"), "{refused}");
            (options.lsm.log, options.wip.log) = (LogPlace::Auto, LogPlace::Auto);
        }
        for read_only in [true, false] {
            let options = Options { read_only, ..options.clone() };
            let db = machine.open_with(options.clone()).unwrap_or_else(|e| panic!("{e}: {options:?}"));
            assert!(all_keyspaces(&db).unwrap() == map, "round {round}, only read: {read_only}, {options:?}");
            if read_only {
                continue;
            }
            write(&db, &mut map, round);
            assert!(all_keyspaces(&db).unwrap() == map, "round {round}, written, {options:?}");
            assert_clean(&db);
            if round.is_multiple_of(3) {
                db.close().unwrap();
            }
            machine = machine.kill();
        }
    }
}

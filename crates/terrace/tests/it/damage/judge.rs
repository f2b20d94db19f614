//! What a damaged database may do: answer rightly, or say what is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use terrace::{Db, Error, ErrorKind, Result};

use super::image::{Bed, Image};
use super::sample::{Sample, all_keys};
use super::spaces::{self, Reader, all_of};
use crate::harness::{Map, stepped};

/// What came of a damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Every answer was right and stayed right.
    Unharmed,
    /// `check` tells of it; no answer was wrong.
    Told,
    /// The database does not open, and says why.
    Refused,
    /// An answer was wrong, but `check` tells of it.
    Wrong,
}

/// What is wrong with what a damaged database did.
type Fault = String;

/// What a judge says where there is no fault.
type Judged<T> = std::result::Result<T, Fault>;

/// A judge of one damaged image.
pub struct Judge<'a> {
    /// What it was before.
    pub sample: &'a Sample,
    /// What it is now.
    pub image: &'a Image,
    /// Whether some of the newest writes may be missing: the damage is in what cannot be told from writes
    /// that were cut off.
    pub may_lose_the_newest: bool,
    /// Whether a wrong answer passes, as long as `check` tells of the damage.
    pub check_is_enough: bool,
    /// Whether a repair may put as a doubt what it does not bring back as it was: whether an ingest has taken place.
    pub may_doubt: bool,
}

impl Judge<'_> {
    /// Uses the database in every way; then repairs it and does so again.
    pub fn judge(&self) -> Judged<Outcome> {
        let outcome = whatever_happens(|| self.use_it())?;
        whatever_happens(|| self.repair_it())?;
        Ok(outcome)
    }

    fn use_it(&self) -> Judged<Outcome> {
        let bed = self.image.bed();
        let db = match bed.open() {
            Ok(db) => db,
            Err(e) => return typed(&e).map(|()| Outcome::Refused),
        };
        let mut right = self.sample.right.clone();
        if self.may_lose_the_newest {
            match all_of(&db) {
                Ok(found) => right = found,
                Err(e) => {
                    typed(&e)?;
                    return self.must_be_told(&db, &right, &e.to_string()).map(|_| Outcome::Told);
                }
            }
        }
        let errors = match compare(&db, &right) {
            Err(wrong) if self.check_is_enough => return self.must_be_told(&db, &right, &wrong),
            other => other?,
        };
        let problems = match db.check() {
            Ok(report) => report.problems,
            Err(e) => typed(&e).map(|()| vec![e.to_string()])?,
        };
        // A compaction that was under way may have put right what was wrong.
        if problems.is_empty() && !errors.is_empty() && !compare(&db, &right)?.is_empty() {
            return Err(format!("check finds nothing, but reading fails: {errors:?}"));
        }
        let spoilt = match go_on(&db, &mut right) {
            Err(_) if self.check_is_enough && !problems.is_empty() => return Ok(Outcome::Wrong),
            other => other?,
        };
        let closed = db.close().err();
        drop(db);
        if let (true, Some(e)) = (problems.is_empty(), spoilt.as_ref().or(closed.as_ref())) {
            return Err(format!("writing or closing fails after a clean check: {e}"));
        }
        let sure = spoilt.is_none() && (problems.is_empty() || !self.check_is_enough);
        self.use_again(&bed, &right, sure, problems.is_empty())
    }

    /// A writer, or what a crash left for the background, may have put it right meanwhile.
    fn must_be_told(&self, db: &Db, right: &Map, wrong: &str) -> Judged<Outcome> {
        match db.check() {
            Ok(report) if report.is_clean() => match compare(db, right) {
                Ok(errors) if errors.is_empty() => Ok(Outcome::Wrong),
                _ => Err(format!("check finds nothing, but {wrong}")),
            },
            Ok(_) => Ok(Outcome::Wrong),
            Err(e) => typed(&e).map(|()| Outcome::Wrong),
        }
    }

    fn use_again(&self, bed: &Bed, right: &Map, sure: bool, clean: bool) -> Judged<Outcome> {
        let db = match bed.open() {
            Ok(db) => db,
            Err(e) if clean => return Err(format!("opening again fails after a clean check: {e}")),
            Err(e) => return typed(&e).map(|()| Outcome::Told),
        };
        if sure {
            let errors = compare(&db, right).map_err(|e| format!("after opening again: {e}"))?;
            if clean && !errors.is_empty() {
                return Err(format!("reading fails later, after a clean check: {errors:?}"));
            }
        }
        Ok(if clean { Outcome::Unharmed } else { Outcome::Told })
    }

    fn repair_it(&self) -> Judged<()> {
        let bed = self.image.bed();
        let report = bed.repair().map_err(|e| format!("repair fails: {e}"))?;
        let db = bed.open().map_err(|e| format!("does not open after a repair: {e}"))?;
        let checked = || db.check().map_err(|e| format!("check fails after a repair: {e}"));
        // Of keyspaces whose names are lost.
        if !checked()?.is_clean() && !report.lost.is_empty() {
            db.recover_keyspaces().map_err(|e| format!("keyspaces are not recovered: {e}"))?;
        }
        let problems = checked()?.problems;
        if !problems.is_empty() {
            return Err(format!("after a repair: {problems:?}"));
        }
        let found = all_of(&db).map_err(|e| e.to_string())?;
        let differ = differing(&found, &self.sample.right);
        let told = || format!("; it did {:?}, lost {:?}", report.actions, report.lost);
        if let Some(key) = differ.iter().find(|key| !spaces::may_be(key, found.get(**key))) {
            return Err(format!("repair makes up a value of {}{}", key.escape_ascii(), told()));
        }
        let is_told = !report.lost.is_empty() || self.may_doubt && !report.doubts.is_empty();
        match differ.first() {
            Some(first) if !is_told && !self.may_lose_the_newest => Err(format!(
                "repair says nothing of {} keys that are gone, {} the first{}",
                differ.len(),
                first.escape_ascii(),
                told(),
            )),
            _ => Ok(()),
        }
    }
}

/// The outcome of `work`; a panic is a fault.
fn whatever_happens<T>(work: impl FnOnce() -> Judged<T>) -> Judged<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(format!(
            "panics: {}",
            text.or(panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default()
        ))
    })
}

/// An error that says what is damaged and where.
fn typed(error: &Error) -> Judged<()> {
    let cause = match error {
        Error::Poisoned { cause } => cause,
        error => error,
    };
    match cause.kind() {
        ErrorKind::Corruption | ErrorKind::InvalidFormat => Ok(()),
        // A file that is missing, by its name.
        ErrorKind::Io if error.to_string().contains("not found") => Ok(()),
        kind => Err(format!("an error of another kind, {kind:?}: {error}")),
    }
}

/// The keys that are in one of the maps alone, or have another value there.
pub fn differing<'a>(found: &'a Map, right: &'a Map) -> BTreeSet<&'a Vec<u8>> {
    let keys = found.keys().chain(right.keys());
    keys.filter(|key| found.get(*key) != right.get(*key)).collect()
}

/// Reads everything in every way. Errors are given back, wrong answers are faults.
fn compare(db: &Db, right: &Map) -> Judged<Vec<String>> {
    let mut errors = Vec::new();
    compare_keys(db, &spaces::default_of(right), &mut errors)?;
    for name in spaces::names(right) {
        let wrong = |e| format!("in {name}: {e}");
        match spaces::existing(db, name) {
            Ok(Some(space)) => {
                compare_keys(&space, &spaces::part_of(right, name), &mut errors).map_err(wrong)?;
            }
            Ok(None) => return Err(format!("keyspace {name} is gone")),
            Err(e) => {
                typed(&e).map_err(wrong)?;
                errors.push(e.to_string());
            }
        }
    }
    Ok(errors)
}

/// The same of one keyspace.
fn compare_keys(reader: &impl Reader, right: &Map, errors: &mut Vec<String>) -> Judged<()> {
    match reader.in_order().map(drop) {
        Ok(()) => compare_walks(reader, right, errors)?,
        Err(e) if e.kind() == ErrorKind::Unsupported => compare_unordered(reader, right, errors)?,
        Err(e) => return Err(e.to_string()),
    }
    for key in all_keys() {
        note(errors, reader.get(&key), &key, |found| found.as_deref() == right.get(&key).map(|v| &v[..]))?;
        note(errors, reader.contains_key(&key), &key, |found| *found == right.contains_key(&key))?;
    }
    Ok(())
}

/// A walk in no order gives every entry once, up to the first error.
fn compare_unordered(reader: &impl Reader, right: &Map, errors: &mut Vec<String>) -> Judged<()> {
    let mut left: BTreeMap<&[u8], &[u8]> = right.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    for entry in reader.in_any_order().map_err(|e| e.to_string())? {
        match entry {
            Ok((key, value)) if left.remove(&key[..]) == Some(&value[..]) => {}
            Ok((key, _)) => return Err(format!("a walk gives {} wrongly", key.escape_ascii())),
            Err(e) => {
                typed(&e)?;
                errors.push(e.to_string());
                return Ok(());
            }
        }
    }
    match left.keys().next() {
        Some(key) => Err(format!("a walk ends without {}", key.escape_ascii())),
        None => Ok(()),
    }
}

fn compare_walks(reader: &impl Reader, right: &Map, errors: &mut Vec<String>) -> Judged<()> {
    for backward in [false, true] {
        let mut expected: Vec<_> = right.iter().collect();
        if backward {
            expected.reverse();
        }
        let mut expected = expected.into_iter();
        let mut iter = reader.in_order().map_err(|e| e.to_string())?;
        loop {
            match stepped(&mut iter, backward, expected.len().is_multiple_of(2)) {
                Some(Ok((key, value))) => {
                    let wanted = expected.next();
                    if wanted.is_none_or(|(k, v)| **k != *key || **v != *value) {
                        let wanted = wanted.map(|(k, _)| k.escape_ascii().to_string());
                        return Err(format!(
                            "a walk gives {} wrongly, {wanted:?} expected",
                            key.escape_ascii()
                        ));
                    }
                }
                Some(Err(e)) => {
                    typed(&e)?;
                    errors.push(e.to_string());
                    break;
                }
                None => match expected.next() {
                    Some((key, _)) => return Err(format!("a walk ends before {}", key.escape_ascii())),
                    None => break,
                },
            }
        }
    }
    Ok(())
}

fn note<T>(
    errors: &mut Vec<String>,
    result: Result<T>,
    key: &[u8],
    is_right: impl Fn(&T) -> bool,
) -> Judged<()> {
    match result {
        Ok(found) if is_right(&found) => {}
        Ok(_) => return Err(format!("a wrong answer for {}", key.escape_ascii())),
        Err(e) => {
            typed(&e)?;
            errors.push(e.to_string());
        }
    }
    Ok(())
}

/// Writes, flushes, compacts; the first error, which may have been the fault of the damage.
fn go_on(db: &Db, right: &mut Map) -> Judged<Option<Error>> {
    let mut work = || -> Result<()> {
        for i in (0..150u32).step_by(3) {
            let key = super::sample::key(i);
            db.put(&key, &[b'z'; 60])?;
            right.insert(key, vec![b'z'; 60]);
        }
        for i in (0..150u32).step_by(7) {
            db.delete(&super::sample::key(i))?;
            right.remove(&super::sample::key(i));
        }
        spaces::go_on(db, right)?;
        db.flush()?;
        db.compact_range(..)
    };
    let outcome = work();
    if let Err(e) = &outcome {
        typed(e)?;
        return Ok(Some(e.clone()));
    }
    compare(db, right).map_err(|e| format!("after writing on: {e}"))?;
    Ok(None)
}

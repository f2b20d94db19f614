//! Checking the catalogue, that every key is some keyspace's, and that what can expire says when.

use terrace_base::Result;

use crate::core::report::CheckReport;
use crate::db::Store;
use crate::keyspaces::{DATED, Space, all_dated, deadline_of};

/// What brings back names and markers of keyspaces. A repair does not.
pub(super) const RECOVERS: &str = "`terrace keyspaces DIR --recover`, or Db::recover_keyspaces,";

impl Store {
    /// Checks the catalogue, that every key is some keyspace's, and that what can expire says when. `changing` is
    /// locked.
    pub(in crate::db) fn check_keyspaces(&self, report: &mut CheckReport) -> Result<()> {
        if self.catalog.default_space() == Space::Alone {
            let tell = |what| format!("{what} and the database has no marker of them; {RECOVERS} sets it");
            if report.note(self.has_unknown_operands())?.unwrap_or_default() {
                report.problems.push(tell("keyspaces have operands"));
            } else if report.note(self.has_lost_marker())?.unwrap_or_default() {
                report.problems.push(tell("keyspaces have names"));
            }
            return Ok(());
        }
        let read = || Ok((self.names()?, self.dropped()?, self.next_number()?));
        let Some((names, dropped, next)) = report.note(read())? else { return Ok(()) };
        let numbers = names.values().map(|named| named.number);
        let mut numbers: Vec<u32> = numbers.chain(dropped.iter().copied()).collect();
        numbers.sort_unstable();
        let mut given: Vec<u32> = numbers.iter().map(|number| number & !DATED).collect();
        given.sort_unstable();
        let beyond = |number: &&u32| **number == 0 || **number >= next;
        report.problems.extend(given.iter().filter(beyond).map(|number| {
            format!("keyspace {number} has a number that was not given yet: the next one is {next}")
        }));
        report.problems.extend(
            given
                .windows(2)
                .filter(|pair| pair[0] == pair[1])
                .map(|pair| format!("two keyspaces have number {}", pair[0])),
        );
        let known = |number| number == 0 || numbers.binary_search(&number).is_ok();
        let unknown = report.note(self.unknown(known))?.unwrap_or_default();
        report.problems.extend(unknown.into_iter().map(|(number, key)| match number {
            Some(number) => format!("keyspace {number} has keys and no name; {RECOVERS} gives it one"),
            None => format!("the key at \"{}\" belongs to no keyspace", key.escape_ascii()),
        }));
        let without_deadline = report.note(self.without_deadline())?.unwrap_or_default();
        let told = |place: Vec<u8>| {
            format!("the entry at \"{}\" can expire and has no deadline", place.escape_ascii())
        };
        report.problems.extend(without_deadline.into_iter().map(told));
        Ok(())
    }

    /// The places of dated keyspaces whose values are too short to begin with a deadline.
    fn without_deadline(&self) -> Result<Vec<Vec<u8>>> {
        let (from, end) = all_dated();
        let is_ordered = self.unmasked.ordered().is_ok();
        self.walk_from(&self.unmasked, &from, |walk| {
            let mut found = Vec::new();
            while let Some((place, value)) = walk.next()? {
                if is_ordered && *place >= *end {
                    break;
                }
                let is_known = walk.failure().is_none();
                if is_known && self.core.deadlines.is_dated(&place, None) && deadline_of(&value).is_none() {
                    found.push(place.to_vec());
                }
            }
            Ok(found)
        })
    }
}

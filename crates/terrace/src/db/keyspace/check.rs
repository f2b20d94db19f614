//! Checking the catalogue, and that every key is some keyspace's.

use terrace_base::Result;

use crate::core::report::CheckReport;
use crate::db::Store;
use crate::keyspaces::{DATED, Space};

impl Store {
    /// Checks the catalogue, and that every key is some keyspace's. `changing` is locked.
    pub(in crate::db) fn check_keyspaces(&self, report: &mut CheckReport) -> Result<()> {
        if self.catalog.default_space() == Space::Alone {
            if report.note(self.has_lost_marker())?.unwrap_or_default() {
                let what = "keyspaces have names and the database has no marker of them";
                report.problems.push(format!("{what}; recover_keyspaces sets it"));
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
            Some(number) => format!("keyspace {number} has keys and no name; recover_keyspaces gives it one"),
            None => format!("the key at \"{}\" belongs to no keyspace", key.escape_ascii()),
        }));
        Ok(())
    }
}

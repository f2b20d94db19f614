//! How the tables of keyspaces are written that have settings of their own.
//!
//! These are hints: whoever writes a table reads them once, and a table says itself how it was written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use terrace_table::TableOptions;

use crate::keyspaces::{ESCAPE, Prefix, TableSettings, is_high};

/// By the numbers of keyspaces.
type All = BTreeMap<u32, TableSettings>;

#[derive(Debug, Default)]
pub(crate) struct KeyspaceTables {
    all: RwLock<Arc<All>>,
    /// Whether tables may have been written by settings, even if there are none any more.
    were_any: AtomicBool,
}

/// The settings of all keyspaces at one moment, of which at least one has some.
#[derive(Debug, Clone)]
pub(crate) struct TableStyles {
    all: Arc<All>,
}

impl KeyspaceTables {
    /// The keyspace `number` has these settings from now on.
    pub fn set(&self, number: u32, settings: TableSettings) {
        let mut all = self.all.write();
        if all.get(&number).copied().unwrap_or_default() == settings {
            return;
        }
        self.note_any();
        let all = Arc::make_mut(&mut all);
        match settings.are_there() {
            true => all.insert(number, settings),
            false => all.remove(&number),
        };
    }

    /// Some keyspace may have had settings.
    pub fn note_any(&self) {
        self.were_any.store(true, Ordering::Release);
    }

    /// Whether some keyspace may have, or have had, settings.
    pub fn were_any(&self) -> bool {
        self.were_any.load(Ordering::Acquire)
    }

    /// What there is now, if there is anything.
    pub fn styles(&self) -> Option<TableStyles> {
        let all = self.all.read();
        (!all.is_empty()).then(|| TableStyles { all: all.clone() })
    }
}

impl TableStyles {
    /// Whether some keys may ask for a filter.
    pub fn may_filter(&self, all: &TableOptions) -> bool {
        all.filter_bits_per_key > 0 || self.all.values().any(|own| own.filter_bits_per_key > Some(0))
    }

    /// How the entry at `place` is written if others are written by `all`, and the place before which this holds, if it
    /// does not for all that follow.
    pub fn at(&self, place: &[u8], all: &TableOptions) -> (TableOptions, Option<Vec<u8>>) {
        if !is_high(place) {
            return (all.clone(), Some(vec![ESCAPE]));
        }
        match Prefix::number_at(place) {
            Some(number) => {
                let own = self.all.get(&number).copied().unwrap_or_default();
                (own.over(all), Some(Prefix::of(number).end()))
            }
            None => (all.clone(), None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_keyspace_has_its_own_up_to_the_next() {
        let (tables, all) = (KeyspaceTables::default(), TableOptions::default());
        assert!(tables.styles().is_none());
        tables.set(7, TableSettings { block_bytes: Some(100), ..TableSettings::default() });
        tables.set(300, TableSettings { filter_bits_per_key: Some(3), ..TableSettings::default() });
        let styles = tables.styles().unwrap();
        let at = |place: &[u8]| {
            let (options, until) = styles.at(place, &all);
            ((options.block_bytes, options.filter_bits_per_key), until)
        };
        let place = |number: u32| [Prefix::of(number).as_slice(), b"key"].concat();
        assert_eq!(at(b"key"), ((4096, 0), Some(vec![ESCAPE])));
        assert_eq!(at(&place(7)), ((100, 0), Some(Prefix::of(7).end())));
        assert_eq!(at(&place(8)), ((4096, 0), Some(Prefix::of(8).end())));
        assert_eq!(at(&place(300)), ((4096, 3), Some(Prefix::of(300).end())));
        assert_eq!(at(&[ESCAPE, ESCAPE, 1]), ((4096, 0), None));
        assert!(styles.may_filter(&all));
        for number in [7, 300] {
            tables.set(number, TableSettings::default());
        }
        assert!(tables.styles().is_none());
    }
}

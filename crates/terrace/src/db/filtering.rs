//! Deleting what compaction filters let go, in steps of the background's sweeps.
//!
//! A filter is asked once more about what lies at a place, with no lock held. The delete then takes place only if the
//! same version still lies there: nobody waits for a filter, and it cannot contradict itself for ever.

use std::collections::HashMap;

use terrace_base::{ErrorKind, Result};

use super::Store;
use super::removal::{KEYS, KEYS_SEEN};
use super::shown::shown_with_number;
use crate::core::filters::{Judge, Noted, Stretch};
use crate::keyspaces::Places;

impl Store {
    /// Merges all tables with keys at `places`, and deletes what filters let go.
    pub(super) fn compact(&self, (from, to): &Places) -> Result<()> {
        self.core.health.uncut()?;
        self.engine.compact(from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice))?;
        self.sweep_all_filtered()
    }

    /// Deletes some of what is `noted`; returns whether there may be more. What cannot be deleted is forgotten, and
    /// stays until a compaction meets it again.
    ///
    /// # Errors
    ///
    /// Only that the database is closed.
    pub(super) fn sweep_filtered(&self, noted: &mut Noted) -> Result<bool> {
        let outcome = match noted.take_places(KEYS) {
            Some((places, level)) => self.remove_let_go(places, level),
            None => match noted.take_stretch() {
                Some(stretch) => self.look_along(stretch, noted),
                None => return Ok(false),
            },
        };
        match outcome {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
            Err(error) => {
                if error.is_out_of_space() {
                    *noted = Noted::default();
                }
                tracing::warn!(%error, "what a compaction filter lets go stays until the next compaction");
            }
        }
        Ok(true)
    }

    /// Deletes what lies at `places`, as far as filters let go of it.
    fn remove_let_go(&self, places: Vec<Vec<u8>>, level: usize) -> Result<()> {
        let Some(judge) = self.core.filters.judge(level) else { return Ok(()) };
        let mut numbers = HashMap::new();
        for place in places {
            if let Some(number) = self.let_go_at(&place, &judge)? {
                numbers.insert(place, number);
            }
        }
        self.remove_versions(&numbers)
    }

    /// The number of the newest version at `place`, if filters let go of it.
    fn let_go_at(&self, place: &[u8], judge: &Judge<'_>) -> Result<Option<u64>> {
        let lets_go = |number, value: &[u8]| judge.lets_go(place, value).then_some(number);
        let shown = shown_with_number(&self.core, &*self.unmasked, place, None, lets_go)?;
        Ok(shown.flatten())
    }

    /// Deletes the versions with these numbers, by their places, as far as they are the newest.
    fn remove_versions(&self, numbers: &HashMap<Vec<u8>, u64>) -> Result<()> {
        let mut places: Vec<Vec<u8>> = numbers.keys().cloned().collect();
        places.sort_unstable();
        self.remove(places, &|place| {
            let mut found = None;
            self.unmasked.get_with(place, None, &mut |value| found = Some(value.number))?;
            Ok(found.is_some() && found.as_ref() == numbers.get(place))
        })
    }

    /// Deletes the first of what filters let go along `stretch`, and notes the rest of it.
    fn look_along(&self, stretch: Stretch, noted: &mut Noted) -> Result<()> {
        let Stretch { from, to, level } = stretch;
        let Some(judge) = self.core.filters.judge(level) else { return Ok(()) };
        let (mut places, mut seen, mut next) = (Vec::new(), 0, None);
        self.walk_from(&self.unmasked, &from, |walk| {
            while let Some((place, value)) = walk.next()? {
                if *place > *to {
                    return Ok(());
                }
                if places.len() == KEYS || seen == KEYS_SEEN {
                    next = Some(place.to_vec());
                    return Ok(());
                }
                seen += 1;
                if walk.failure().is_none() && judge.lets_go(&place, &value) {
                    places.push(place.to_vec());
                }
            }
            Ok(())
        })?;
        if let Some(from) = next {
            noted.put_back(Stretch { from, to, level });
        }
        self.remove_let_go(places, level)
    }
}

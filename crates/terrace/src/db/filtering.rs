//! Deleting what compaction filters let go, in steps of the background's sweeps.

use terrace_base::{ErrorKind, Result};

use super::Store;
use super::removal::{KEYS, KEYS_SEEN};
use crate::core::filters::Stretch;
use crate::keyspaces::Places;

impl Store {
    /// Merges all tables with keys at `places`, and deletes what filters let go.
    pub(super) fn compact(&self, (from, to): &Places) -> Result<()> {
        self.engine.compact(from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice))?;
        self.sweep_all_filtered()
    }

    /// Deletes some of what filters let go; returns whether there may be more. What cannot be deleted is forgotten, and
    /// stays until a compaction meets it again.
    ///
    /// # Errors
    ///
    /// Only that the database is closed.
    pub(super) fn sweep_filtered(&self) -> Result<bool> {
        let filters = &self.core.filters;
        let outcome = match filters.take(KEYS) {
            Some((places, level)) => self.remove(places, &|place| self.is_let_go(place, level)),
            None => match filters.take_beyond() {
                Some(stretch) => self.look_along(stretch),
                None => return Ok(false),
            },
        };
        match outcome {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
            Err(error) => {
                if error.is_out_of_space() {
                    filters.clear();
                }
                tracing::warn!(%error, "what a compaction filter lets go stays until the next compaction");
            }
        }
        Ok(true)
    }

    /// Whether filters let go of the newest version at `place`.
    fn is_let_go(&self, place: &[u8], level: usize) -> Result<bool> {
        let Some(judge) = self.core.judge(level) else { return Ok(false) };
        let mut is_let_go = false;
        self.unmasked.get_with(place, None, &mut |value| is_let_go = judge.lets_go(place, &value))?;
        Ok(is_let_go)
    }

    /// Deletes the first of what filters let go along `stretch`, and notes the rest of it.
    fn look_along(&self, stretch: Stretch) -> Result<()> {
        let Stretch { from, to, level } = stretch;
        let Some(judge) = self.core.judge(level) else { return Ok(()) };
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
                if judge.lets_go(&place, &value) {
                    places.push(place.to_vec());
                }
            }
            Ok(())
        })?;
        self.remove(places, &|place| self.is_let_go(place, level))?;
        if let Some(from) = next {
            self.core.filters.note_beyond(Stretch { from, to, level });
        }
        Ok(())
    }
}

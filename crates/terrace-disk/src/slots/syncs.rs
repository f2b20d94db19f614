//! Tracks which writes a sync covers.
//!
//! A sync that fails may lose all writes since the last successful one, and a later success proves nothing about them
//! (`block/mod.rs`, 4). So:
//!
//! 1. A writer notes how many syncs had failed before its write, and is refused if another one has failed since.
//! 2. Writes that are not made durable at once count as lost after the first sync that fails while some of them are
//!    unsynced: from then on nobody is told that they are durable. They may be there or not, as after a power cut.
//! 3. There is one sync at a time. A writer needs none of its own if a sync that was begun after the end of its write
//!    has succeeded.

use parking_lot::Mutex;
use terrace_base::{Error, Result};

use crate::block::BlockFile;

#[derive(Debug, Default)]
pub(super) struct Syncs {
    running: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Syncs begun, the number of the last that succeeded, and how many have failed.
    begun: u64,
    succeeded: u64,
    failed: u64,
    /// Those for which the device was asked.
    asked: u64,
    /// Writes that are not made durable at once: how many were begun, have ended, and are durable.
    plain_begun: u64,
    plain_ended: u64,
    plain_synced: u64,
    /// The reason why these writes may be lost.
    lost: Option<Error>,
}

/// A write that was begun.
#[derive(Debug)]
pub(super) struct Begun {
    failed: u64,
    is_durable: bool,
}

impl Syncs {
    /// Begins a write, which is to be made durable if it `is_durable`.
    pub(super) fn begin(&self, is_durable: bool) -> Begun {
        let mut state = self.state.lock();
        state.plain_begun += u64::from(!is_durable);
        Begun { failed: state.failed, is_durable }
    }

    /// Ends a write that was `written` or failed; makes it durable if that was asked for.
    pub(super) fn end(&self, file: &dyn BlockFile, write: &Begun, written: Result<()>) -> Result<()> {
        let begun = {
            let mut state = self.state.lock();
            state.plain_ended += u64::from(!write.is_durable);
            state.begun
        };
        written?;
        if !write.is_durable {
            return Ok(());
        }
        let _alone = self.running.lock();
        {
            let state = self.state.lock();
            if state.failed != write.failed {
                let lost = std::io::Error::other("a sync for others failed meanwhile");
                return Err(Error::io(file.path(), "sync", lost));
            }
            if state.succeeded > begun {
                return Ok(());
            }
        }
        self.sync_alone(file)
    }

    /// Makes all earlier writes durable.
    pub(super) fn sync(&self, file: &dyn BlockFile) -> Result<()> {
        let _alone = self.running.lock();
        if let Some(lost) = &self.state.lock().lost {
            return Err(lost.clone());
        }
        self.sync_alone(file)
    }

    fn sync_alone(&self, file: &dyn BlockFile) -> Result<()> {
        let (number, covered) = {
            let mut state = self.state.lock();
            state.begun += 1;
            (state.begun, state.plain_ended)
        };
        let done = file.sync();
        let mut state = self.state.lock();
        match done {
            Ok(was_asked) => {
                state.asked += u64::from(was_asked);
                (state.succeeded, state.plain_synced) = (number, covered);
                Ok(())
            }
            Err(e) => {
                state.failed += 1;
                if state.plain_begun > state.plain_synced {
                    state.lost.get_or_insert_with(|| e.clone());
                }
                Err(e)
            }
        }
    }

    /// Syncs for which the device was asked.
    pub(super) fn asked(&self) -> u64 {
        self.state.lock().asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, Fs, SimFs};
    use std::path::Path;

    #[test]
    fn one_sync_is_for_all_who_had_written_when_it_began() {
        let (fs, syncs) = (SimFs::new(), Syncs::default());
        let file = fs.open_blocks(Path::new("/f"), true).unwrap();
        let [one, two] = [syncs.begin(true), syncs.begin(true)];
        syncs.end(&*file, &one, Ok(())).unwrap();
        syncs.end(&*file, &two, Ok(())).unwrap();
        assert_eq!(syncs.asked(), 2, "the first began before the second was written");
        // It is written during a sync, which does not cover it, and before the next one, which does.
        let three = syncs.begin(true);
        let before = syncs.state.lock().begun;
        syncs.sync(&*file).unwrap();
        assert!(syncs.state.lock().succeeded > before);
        syncs.end(&*file, &three, Err(Error::invalid("not written"))).unwrap_err();
        assert_eq!(syncs.asked(), 3);
    }

    #[test]
    fn a_sync_that_fails_takes_along_what_others_were_writing() {
        let (fs, syncs) = (SimFs::new(), Syncs::default());
        let file = fs.open_blocks(Path::new("/f"), true).unwrap();
        let fail = || fs.inject(Some(Fault { after: 0, only_changes: true, sticky: false }));
        let [one, two] = [syncs.begin(true), syncs.begin(true)];
        fail();
        syncs.end(&*file, &one, Ok(())).unwrap_err();
        let refused = syncs.end(&*file, &two, Ok(())).unwrap_err();
        assert!(refused.to_string().contains("meanwhile"), "{refused}");
        // No write was unsynced; later writes are safe.
        syncs.sync(&*file).unwrap();
        let three = syncs.begin(true);
        syncs.end(&*file, &three, Ok(())).unwrap();
        // A write that is to be synced later is lost with another's failed sync, and stays lost.
        let plain = syncs.begin(false);
        syncs.end(&*file, &plain, Ok(())).unwrap();
        fail();
        syncs.sync(&*file).unwrap_err();
        syncs.sync(&*file).unwrap_err();
        let four = syncs.begin(true);
        syncs.end(&*file, &four, Ok(())).unwrap();
        syncs.sync(&*file).unwrap_err();
    }
}

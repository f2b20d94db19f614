//! The part of the header that changes from session to session: generation, clean flag, identities of the machine's
//! boot and of the mounted file, and digests.
//!
//! Two slots; the sound one with the higher sequence counts. A write goes to the other one, and not before the one that
//! counts is durable, so that at any moment one sound slot is there. A slot that is neither sound nor zero was left by
//! a crash during a write, or is damaged: then the pool does not count as closed in order, regardless of the other
//! slot.

use std::path::Path;

use terrace_base::checksum::hash64;
use terrace_base::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::format::Raw;
use super::{Known, Opened, PoolOptions};
use crate::layout::{STATE_AT, STATE_CLEAN, STATE_DISTRUSTED, STATE_POWER_SAFE, STATE_UNRECLAIMED, State};
use crate::media::Media;

/// No pool is opened so often: a larger count is damage.
const MOST_SESSIONS: u64 = 1 << 62;

/// The place of a session: the machine's boot, and the file with its device and mount. 0 for unknown parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub boot: u64,
    pub instance: u64,
}

impl Place {
    /// Whether pages that the system kept in memory in the other place are still there in this one.
    fn is(&self, other: Place) -> bool {
        let unknown = self.instance == 0 || other.instance == 0;
        self.boot != 0 && self.boot == other.boot && (unknown || self.instance == other.instance)
    }
}

/// The current session's view of the slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session {
    state: State,
    /// The slot that holds `state`.
    slot: usize,
    /// Whether the slots may be written: not in a torn pool, whose verdict must outlive the opening, and not in one
    /// that is only read.
    writable: bool,
    /// Whether the close writes nothing either.
    read_only: bool,
}

/// The slots' contents before the opening has written.
pub(super) struct Previous {
    state: State,
    slot: usize,
    damaged: bool,
}

impl Previous {
    /// Reads the slots.
    pub(super) fn read(raw: &Raw<'_>, name: &Path) -> Result<Previous> {
        let slots = STATE_AT.map(|at| {
            let bytes: [u8; 64] = raw.read(at);
            let counts = |state: &State| state.sequence < MOST_SESSIONS && state.generation < MOST_SESSIONS;
            let state = State::read_from_bytes(&bytes).ok().filter(State::is_sound).filter(counts);
            (state, bytes == [0; 64])
        });
        let damaged = slots.iter().any(|(state, zero)| state.is_none() && !zero);
        let newest =
            (0..2).filter_map(|i| slots[i].0.map(|state| (state, i))).max_by_key(|(state, _)| state.sequence);
        match newest {
            Some((state, slot)) => Ok(Previous { state, slot, damaged }),
            None => Err(Error::corruption(name, STATE_AT[0], "a sound state slot", "two damaged ones")),
        }
    }

    /// Makes the slot that counts durable. A killed process may have stored it without making it durable, and while the
    /// other slot is being written it is the only valid one.
    fn make_durable(&self, raw: &Raw<'_>) -> Result<()> {
        raw.write(STATE_AT[self.slot], self.state.as_bytes());
        raw.make_durable(STATE_AT[self.slot], 64)
    }

    /// How the previous session ended, seen from this place.
    pub(super) fn verdict(&self, place: Place) -> Opened {
        let before = Place { boot: self.state.boot, instance: self.state.instance };
        if self.state.has(STATE_CLEAN) && !self.damaged {
            Opened::Clean
        } else if place.is(before) && !self.state.has(STATE_DISTRUSTED) {
            Opened::SameBoot
        } else if self.state.has(STATE_POWER_SAFE) {
            Opened::Crashed
        } else {
            Opened::Torn
        }
    }

    /// The digest that a clean close left; 0 if there is none.
    pub(super) fn digest(&self) -> u64 {
        if self.state.has(STATE_CLEAN) && !self.damaged { self.state.digest } else { 0 }
    }

    /// Whether this is the pool that its owner knows; else the difference.
    pub(super) fn compare(&self, known: &Known) -> std::result::Result<(), String> {
        let State { generation, contents, .. } = self.state;
        // A damaged slot may be the newer one.
        let newest = generation + u64::from(self.damaged);
        let closed = self.state.has(STATE_CLEAN) || self.damaged;
        if newest < known.generation || generation == known.generation && known.closed && !closed {
            return Err(format!(
                "an older copy of it, of session {generation} where session {} is known",
                known.generation
            ));
        }
        if contents > known.generation {
            return Err(format!(
                "the pool of session {contents}; the manifest is an older copy, of session {}",
                known.generation
            ));
        }
        Ok(())
    }

    /// Whether active objects may have no owner.
    pub(super) fn unreclaimed(&self) -> bool {
        self.damaged || !self.state.has(STATE_CLEAN) || self.state.has(STATE_UNRECLAIMED)
    }
}

impl Session {
    /// A new pool's first session.
    pub(super) fn first(place: Place, power_safe: bool) -> Session {
        let flags = if power_safe { STATE_POWER_SAFE } else { 0 };
        let state = State {
            sequence: 1,
            generation: 1,
            boot: place.boot,
            flags,
            reserved: [0; 4],
            instance: place.instance,
            contents: 0,
            digest: 0,
            reserved2: [0; 4],
            crc: 0,
        };
        Session { state: state.sealed(), slot: 0, writable: true, read_only: false }
    }

    /// The session after `previous`; not yet written.
    pub(super) fn after(previous: &Previous, opened: Opened, place: Place, power_safe: bool) -> Session {
        // A damaged slot may have held the last generation: skip it.
        let step = 1 + u64::from(previous.damaged);
        let unreclaimed = if previous.unreclaimed() { STATE_UNRECLAIMED } else { 0 };
        let safe = if power_safe { STATE_POWER_SAFE } else { 0 };
        let state = State {
            sequence: previous.state.sequence + step,
            generation: previous.state.generation + step,
            boot: place.boot,
            flags: unreclaimed | safe,
            instance: place.instance,
            digest: 0,
            ..previous.state
        };
        let (slot, writable) = (1 - previous.slot, opened != Opened::Torn);
        Session { state: state.sealed(), slot, writable, read_only: false }
    }

    /// The session that only reads: its state is never written.
    pub(super) fn read_only(self) -> Session {
        Session { writable: false, read_only: true, ..self }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn generation(&self) -> u64 {
        self.state.generation
    }

    pub(super) fn is_closed(&self) -> bool {
        !self.writable
    }

    /// Marks the session closed in order, with the digest of the contents and whether they have changed.
    pub(super) fn close(
        &mut self,
        unreclaimed: bool,
        (digest, changed): (u64, bool),
        raw: &Raw<'_>,
    ) -> Result<()> {
        let mut next = *self;
        next.state.sequence += 1;
        next.state.digest = digest;
        if changed {
            next.state.contents = next.state.generation;
        }
        next.state.flags |= STATE_CLEAN;
        next.state.flags &= !STATE_UNRECLAIMED;
        next.state.flags |= if unreclaimed { STATE_UNRECLAIMED } else { 0 };
        next.state = next.state.sealed();
        next.slot = 1 - self.slot;
        next.write(raw)?;
        *self = Session { writable: false, ..next };
        Ok(())
    }

    /// Whether the system could not write back stores made since the pool was opened.
    pub(super) fn is_distrusted(&self) -> bool {
        self.state.has(STATE_DISTRUSTED)
    }

    /// Notes that the system could not write stores back: the pool is not to be trusted any more, not even in this
    /// boot. The note is as durable as possible: writing back may fail again.
    pub(super) fn distrust(&mut self, raw: &Raw<'_>) {
        if self.read_only || self.is_distrusted() {
            return;
        }
        self.state.sequence += 1;
        self.slot = 1 - self.slot;
        *self = self.distrusted();
        raw.write(STATE_AT[self.slot], self.state.as_bytes());
        let _ = raw.make_durable(STATE_AT[self.slot], 64);
    }

    /// The same for a session that could not begin: writing back has failed before it was written, or while it was.
    pub(super) fn distrust_after(self, previous: &Previous, raw: &Raw<'_>) {
        if self.writable {
            let _ = previous.make_durable(raw);
            let _ = self.distrusted().write(raw);
        }
    }

    fn distrusted(mut self) -> Session {
        self.state.flags |= STATE_DISTRUSTED;
        self.state = self.state.sealed();
        self
    }

    /// Writes the state of a session that begins after `previous` to its slot, durably.
    pub(super) fn write_after(&self, previous: &Previous, raw: &Raw<'_>) -> Result<()> {
        if self.writable {
            previous.make_durable(raw)?;
        }
        self.write(raw)
    }

    /// Writes the state to its slot, durably.
    pub(super) fn write(&self, raw: &Raw<'_>) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        raw.write(STATE_AT[self.slot], self.state.as_bytes());
        raw.make_durable(STATE_AT[self.slot], 64)
    }
}

/// Where a session on a medium runs.
pub(super) fn place(options: &PoolOptions, media: &dyn Media) -> Place {
    match &options.boot_id {
        Some(id) => Place { boot: hash64(id.as_bytes()).max(1), instance: 0 },
        None => {
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
            let boot = boot.map_or(0, |id| hash64(id.trim().as_bytes()).max(1));
            Place { boot, instance: media.instance() }
        }
    }
}

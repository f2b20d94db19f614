//! The part of the header that changes from session to session: generation, clean flag, boot id.
//!
//! Two slots; the sound one with the higher sequence counts, and a write goes to the other one, so that at any
//! moment one sound slot is there. A slot that is neither sound nor zero is what a crash during a write leaves,
//! or damage: then nothing is believed to have been closed in order, whatever the other slot says.

use std::path::Path;

use terrace_base::checksum::hash64;
use terrace_base::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::Opened;
use super::format::Raw;
use crate::layout::{STATE_AT, STATE_CLEAN, STATE_POWER_SAFE, STATE_UNRECLAIMED, State};

/// No pool has been opened so often: what counts so far is damaged.
const MOST_SESSIONS: u64 = 1 << 62;

/// The current session's view of the slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session {
    state: State,
    /// The slot that holds `state`.
    slot: usize,
    /// Whether the slots may be written: not in a torn pool, whose verdict must outlive this session, and not where
    /// the session is there only to read.
    writable: bool,
    /// Whether there is nothing to write at its end either.
    read_only: bool,
}

/// What the slots say before this session has written.
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

    /// How the previous session ended, seen from this boot.
    pub(super) fn verdict(&self, boot: u64) -> Opened {
        if self.state.has(STATE_CLEAN) && !self.damaged {
            Opened::Clean
        } else if boot != 0 && self.state.boot == boot {
            Opened::SameBoot
        } else if self.state.has(STATE_POWER_SAFE) {
            Opened::Crashed
        } else {
            Opened::Torn
        }
    }

    /// Whether something active may belong to nobody.
    pub(super) fn unreclaimed(&self) -> bool {
        self.damaged || !self.state.has(STATE_CLEAN) || self.state.has(STATE_UNRECLAIMED)
    }
}

impl Session {
    /// A new pool's first session.
    pub(super) fn first(boot: u64, power_safe: bool) -> Session {
        let flags = if power_safe { STATE_POWER_SAFE } else { 0 };
        let state = State { sequence: 1, generation: 1, boot, flags, reserved: [0; 32], crc: 0 };
        Session { state: state.sealed(), slot: 0, writable: true, read_only: false }
    }

    /// The session after `previous`; not yet written.
    pub(super) fn after(previous: &Previous, opened: Opened, boot: u64, power_safe: bool) -> Session {
        // A damaged slot may have held the last generation: skip it.
        let step = 1 + u64::from(previous.damaged);
        let unreclaimed = if previous.unreclaimed() { STATE_UNRECLAIMED } else { 0 };
        let safe = if power_safe { STATE_POWER_SAFE } else { 0 };
        let state = State {
            sequence: previous.state.sequence + step,
            generation: previous.state.generation + step,
            boot,
            flags: unreclaimed | safe,
            reserved: [0; 32],
            crc: 0,
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

    /// Marks the session closed in order.
    pub(super) fn close(&mut self, unreclaimed: bool, raw: &Raw<'_>) -> Result<()> {
        let mut next = *self;
        next.state.sequence += 1;
        next.state.flags |= STATE_CLEAN;
        next.state.flags &= !STATE_UNRECLAIMED;
        next.state.flags |= if unreclaimed { STATE_UNRECLAIMED } else { 0 };
        next.state = next.state.sealed();
        next.slot = 1 - self.slot;
        next.write(raw)?;
        *self = Session { writable: false, ..next };
        Ok(())
    }

    /// Writes the state to its slot, durably.
    pub(super) fn write(&self, raw: &Raw<'_>) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        raw.write(STATE_AT[self.slot], self.state.as_bytes());
        raw.settle(STATE_AT[self.slot], 64)
    }
}

/// The hash of the boot id in force; 0 if there is none.
pub(super) fn boot_hash(given: Option<&str>) -> u64 {
    match given {
        Some(id) => hash64(id.as_bytes()).max(1),
        None => std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_or(0, |id| hash64(id.trim().as_bytes()).max(1)),
    }
}

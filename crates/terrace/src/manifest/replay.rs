//! Reading a manifest back.
//!
//! A manifest file is a snapshot (the identity first, its end marked) and then one record for each group.
//! Only the last group can be torn, since each is synced before the next is written, and a failed sync ends
//! its file; a snapshot cannot, since it is synced before `CURRENT` names it. So a snapshot without its end
//! is damage, whatever the log's framing says of the tail.

use std::collections::BTreeSet;
use std::path::Path;

use terrace_base::{Error, Result};
use terrace_disk::Fs;
use terrace_log::{LogReader, Outline};

use super::codec::{Fault, FaultKind, decode_group};
use super::edit::Edit;
use super::files::FileName;
use super::state::State;

/// The log identity of manifest `number`: a record of one manifest is never valid in another.
pub(super) fn log_id(number: u64) -> u64 {
    // "manif" above the number, so that a commit log of the same number is not taken for one.
    0x6d61_6e69_6600_0000 ^ number
}

/// The readable part of a damaged manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Salvaged {
    /// The state before the first damage. Tables may have been added and removed since.
    pub state: State,
    /// Tables that were certainly removed; numbers are not used again.
    pub removed: BTreeSet<u64>,
}

/// A replay under way, or as far as it came.
struct Replay<'a> {
    path: &'a Path,
    state: Option<State>,
    /// Whether the snapshot's end has been seen.
    complete: bool,
}

/// Reads manifest `number` of `dir`: the resulting state, and whether it was sealed.
pub(super) fn read(fs: &dyn Fs, dir: &Path, number: u64) -> Result<(State, bool)> {
    read_seeing(fs, dir, number, &mut |_, _| ()).map(|(state, outline)| (state, outline.sealed))
}

/// [`read`], which also shows every edit with its record's number; also returns how the file ends.
pub(super) fn read_seeing(
    fs: &dyn Fs,
    dir: &Path,
    number: u64,
    see: &mut dyn FnMut(u64, &Edit),
) -> Result<(State, Outline)> {
    let path = FileName::Manifest(number).path(dir);
    let mut replay = Replay { path: &path, state: None, complete: false };
    let outline = replay.run(fs, number, see)?;
    match replay.state {
        Some(state) if replay.complete => Ok((state, outline)),
        _ => Err(Error::corruption(&path, 0, "a whole snapshot at the start", "its beginning; run repair")),
    }
}

/// The readable part of manifest `number` at `path`: the state up to the first damage, and the removed tables
/// according to every whole record; `None` if not even the store's identity can be read.
///
/// If the file exists and the system fails to read it, that is an error, since it proves no damage.
pub(super) fn salvage(fs: &dyn Fs, path: &Path, number: u64) -> Result<Option<Salvaged>> {
    if !fs.exists(path)? {
        return Ok(None);
    }
    let mut replay = Replay { path, state: None, complete: false };
    // The damage is why this is called; what precedes it is the result.
    match replay.run(fs, number, &mut |_, _| ()) {
        Err(e) if e.is_system_failure() => return Err(e),
        _ => {}
    }
    let Some(state) = replay.state else { return Ok(None) };
    let mut removed = BTreeSet::new();
    let data = fs.read(path)?;
    let _ = LogReader::salvage(&data, log_id(number), &mut |payload| {
        for edit in decode_group(payload).unwrap_or_default() {
            if let Edit::RemoveTable { number } = edit {
                removed.insert(number);
            }
        }
        Ok(())
    });
    Ok(Some(Salvaged { state, removed }))
}

impl Replay<'_> {
    fn run(&mut self, fs: &dyn Fs, number: u64, see: &mut dyn FnMut(u64, &Edit)) -> Result<Outline> {
        // From here on others act upon what a dead process left unsynced; it must stay.
        fs.sync_file(self.path)?;
        let data = fs.read(self.path)?;
        LogReader::outline(&data, self.path, log_id(number), &mut |lsn, payload| {
            let at = offset_in(&data, payload);
            let edits = decode_group(payload).map_err(|fault| self.refuse(at, fault))?;
            for edit in &edits {
                see(lsn, edit);
                self.step(edit)
                    .map_err(|found| Error::corruption(self.path, at, "an edit that fits", found))?;
            }
            Ok(())
        })
    }

    fn step(&mut self, edit: &Edit) -> Result<(), String> {
        match (edit, &mut self.state) {
            (Edit::Identity(identity), state @ None) => *state = Some(State::new(identity.clone())),
            (_, None) => return Err(format!("{edit} before the store's identity")),
            (Edit::SnapshotEnd, Some(_)) if !self.complete => self.complete = true,
            (_, Some(state)) => {
                state.apply(edit)?;
            }
        }
        Ok(())
    }

    /// The error for a record, whose payload begins at `at`.
    fn refuse(&self, at: u64, fault: Fault) -> Error {
        match fault.kind {
            FaultKind::Malformed(expected) => {
                Error::corruption(self.path, at + fault.at as u64, expected, "something else")
            }
            FaultKind::Foreign { found, supported, is_version: true } => {
                Error::other_version(self.path, found, supported)
            }
            FaultKind::Foreign { found, supported, .. } => Error::foreign(self.path, found, supported),
        }
    }
}

/// The offset of `part`, a slice of `data`, in it.
fn offset_in(data: &[u8], part: &[u8]) -> u64 {
    (part.as_ptr() as usize).saturating_sub(data.as_ptr() as usize) as u64
}

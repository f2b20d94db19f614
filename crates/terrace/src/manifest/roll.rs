//! Replacing the manifest file in force by a new one.

use terrace_base::Result;
use terrace_log::{FileSegment, LogWriter};

use super::listing::is_anothers;
use super::{Edit, FileName, Manifest, State, Writer, codec, files, replay};

/// The approximate size of a snapshot's records.
const SNAPSHOT_RECORD_BYTES: usize = 64 << 10;

impl Manifest {
    pub(super) fn start_file(&self) -> Result<()> {
        self.roll(&mut self.writer.lock(), &self.state.load())
    }

    /// Starts a new manifest file with a snapshot of `state` and puts it in force.
    pub(super) fn roll(&self, writer: &mut Writer, state: &State) -> Result<()> {
        (writer.number, writer.sealed, writer.in_force) = (writer.number + 1, false, None);
        let log = self.write_snapshot(writer.number, state).inspect_err(|_| {
            // Its room may be what lacks for the next try.
            let _ = self.fs.remove(&FileName::Manifest(writer.number).path(&self.dir));
        })?;
        files::set_current(&*self.fs, &self.dir, writer.number)?;
        writer.snapshot_bytes = log.len();
        writer.log = Some(log);
        // The file has a snapshot, and no group of the others.
        (writer.in_force, writer.others, writer.undecided) = (Some(writer.number), true, false);
        self.remove_others(writer);
        Ok(())
    }

    /// Writes a snapshot of `state` into a new file, durably.
    fn write_snapshot(&self, number: u64, state: &State) -> Result<LogWriter<FileSegment>> {
        let file = self.fs.create(&FileName::Manifest(number).path(&self.dir))?;
        let mut log = LogWriter::create(FileSegment(file), replay::log_id(number))?;
        for record in snapshot_records(state) {
            log.append(&record)?;
        }
        log.sync()?;
        self.fs.sync_dir(&self.dir)?;
        Ok(log)
    }

    /// Removes manifests that are no longer in force and could not be removed before.
    pub fn tidy(&self) {
        self.remove_others(&mut self.writer.lock());
    }

    /// Removes every manifest of the database but the one in force, once that has decided about its newest group. One
    /// that cannot be removed is a harmless leftover.
    fn remove_others(&self, writer: &mut Writer) {
        let Some(in_force) = writer.in_force.filter(|_| writer.others && !writer.undecided) else { return };
        writer.others = false;
        let removed: Result<()> = files::manifests(&*self.fs, &self.dir).and_then(|numbers| {
            let (dir, origin) = (&self.dir, self.state().identity.origin());
            let names = numbers.into_iter().filter(|n| *n != in_force).map(FileName::Manifest);
            let may_be_anothers =
                |name: &FileName| matches!(name, FileName::Manifest(n) if writer.unknown.contains(n));
            let mut others =
                names.filter(|name| !may_be_anothers(name) || !is_anothers(&*self.fs, dir, name, origin));
            others.try_for_each(|name| self.fs.remove(&name.path(dir)))
        });
        if let Err(error) = removed {
            // It is harmless beside the one in force, and the next group tries again.
            tracing::warn!(%error, "an old manifest stays for now");
            writer.others = true;
        }
    }
}

/// The snapshot's records: the identity first, then the state's edits, and the end mark last.
pub(super) fn snapshot_records(state: &State) -> Vec<Vec<u8>> {
    let mut records = vec![codec::encode_group(&[Edit::Identity(state.identity.clone())])];
    let edits = state.snapshot();
    for edit in edits.iter().chain([&Edit::SnapshotEnd]) {
        let bytes = codec::encode_group(std::slice::from_ref(edit));
        match records.last_mut() {
            Some(last) if last.len() + bytes.len() <= SNAPSHOT_RECORD_BYTES => last.extend(bytes),
            _ => records.push(bytes),
        }
    }
    records
}

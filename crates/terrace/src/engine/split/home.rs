//! The data of the engine `split` on the SSD: tables of migrated items and a file of slots with large ones.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::trail::{self, Touch};
use terrace_base::{Error, Result};
use terrace_disk::{Fs, Slot, SlotReads, Slots};
use terrace_pmem::Pool;
use terrace_table::{Position, ReadBuffers};

use super::item;
use super::pace::Pace;
use super::place::OnSsd;
use super::runs::TableCounts;
use super::stamp::{self, Stamps};
use super::weights::Weights;
use super::{census, check, migrate, pack, reclaim, repair, together};
use crate::compaction::selective::RangeScan;
use crate::core::Core;
use crate::core::files::missing_table;
use crate::core::report::CheckReport;
use crate::core::scrub::LiveTables;
use crate::engine::pm::{Elsewhere, Item, Loaded, Place, PmEngine, PmStore, Salvaged, Tell, VersionRef};
use crate::manifest::{FileName, Identity, Manifest, State};
use crate::salvage::Salvage;
use crate::stats::Stats;
use crate::tables::{TableStore, refuse_missing};
use crate::versions::RecordRef;

/// In the identity: bytes of a sector of the file of slots.
pub(super) const SECTOR_OPTION: &str = "split.sector_bytes";

/// The data on the SSD.
#[derive(Debug)]
pub(crate) struct Ssd {
    pub(super) core: Arc<Core>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) tables: Arc<TableStore>,
    pub(super) slots: Arc<Slots>,
    pub(super) stamps: Stamps,
    sector_bytes: u32,
    pub(super) cache_is_volatile: bool,
    /// The origin that items name.
    origin: u64,
    pub(super) runs: TableCounts,
    pub(super) weights: Weights,
    pub(super) pace: Pace,
    /// Held while migrating or reclaiming: where the next migration begins.
    pub(super) moving: Mutex<migrate::Moving>,
    /// Tables that existed at the opening and are not in the manifest: left by a killed migration.
    unknown: Mutex<Vec<u64>>,
    /// Held while walking along the index after the opening.
    pub(super) counting: Mutex<()>,
    /// Records that were migrated, and their bytes.
    pub(super) migrated: AtomicU64,
    pub(super) migrated_bytes: AtomicU64,
    /// A job that migrates is queued or running, and one that reclaims.
    pub(super) sent: AtomicBool,
    pub(super) reclaiming: AtomicBool,
    /// Tables over which ranges or leaf scans have found neighbouring keys scattered. Ranges find them again
    /// after an opening.
    pub(super) scattered: Mutex<BTreeSet<u64>>,
    /// A range was read since the last leaf scan.
    pub(super) range_was_read: AtomicBool,
    /// Nothing is written any more.
    pub(super) stays: AtomicBool,
    /// Bytes of slots retired since the last check.
    retired_bytes: AtomicU64,
    /// Bytes of slots written and freed, and how many there will be at the next look at the file.
    pub(super) changed_bytes: AtomicU64,
    pub(super) looked_at: AtomicU64,
    /// Slots that were freed since the opening, or are about to be.
    freed: AtomicU64,
    /// A job that packs large items is queued or running.
    pub(super) packing: AtomicBool,
}

/// Creates an empty file of slots in `dir`, and notes what it was made with.
pub(super) fn create(fs: &dyn Fs, dir: &Path, identity: &mut Identity) -> Result<()> {
    let path = FileName::Slots.path(dir);
    if fs.exists(&path)? {
        if !fs.open_blocks(&path, false)?.is_empty() {
            return Err(Error::invalid(format!(
                "{} is a database's, whose manifest is not there (try `repair`)",
                path.display()
            )));
        }
        // Left by a creation that was cut short.
        fs.remove(&path)?;
    }
    let file = fs.open_blocks(&path, true)?;
    identity.options.insert(SECTOR_OPTION.into(), file.geometry().sector_bytes.to_string());
    fs.sync_dir(dir)
}

/// Bytes of a sector of the file of slots of a database.
pub(super) fn sector_bytes(identity: &Identity) -> Option<u32> {
    identity.options.get(SECTOR_OPTION)?.parse().ok()
}

impl Ssd {
    /// Opens the data that the manifest names; with the pool it belongs to, if versions come from there.
    pub(super) fn open(core: &Arc<Core>, manifest: &Arc<Manifest>, pool: Option<&Pool>) -> Result<Ssd> {
        refuse_missing(core, manifest)?;
        let state = manifest.state();
        let path = FileName::Slots.path(&core.dir);
        if !core.fs().exists(&path)? {
            return Err(Error::corruption(
                &path,
                0,
                "the database's file of slots (try `repair`)",
                "no such file",
            ));
        }
        let sector_bytes = sector_bytes(&state.identity).ok_or_else(|| {
            Error::corruption(&core.dir, 0, format!("{SECTOR_OPTION} in the manifest"), "none")
        })?;
        let file = core.fs().open_blocks(&path, false)?;
        let cache_is_volatile = file.geometry().is_volatile;
        let slots = Arc::new(Slots::open(file, sector_bytes)?);
        stamp::verify(&slots, state.identity.origin(), state.stamp)?;
        let pool_bytes = pool.map_or(0, Pool::max_size);
        let listing = manifest.listing()?;
        manifest.pass_over(listing.unknown_numbers());
        let unknown = listing.dead_tables;
        Ok(Ssd {
            tables: Arc::new(TableStore::new(core, manifest)?),
            slots,
            stamps: Stamps::of(state.stamp),
            sector_bytes,
            cache_is_volatile,
            origin: state.identity.origin(),
            runs: TableCounts::new(&state),
            unknown: Mutex::new(unknown),
            weights: Weights::new(pool_bytes, core.options.memory_budget),
            pace: Pace::new(&core.options.split),
            moving: Mutex::default(),
            counting: Mutex::default(),
            migrated: AtomicU64::new(0),
            migrated_bytes: AtomicU64::new(0),
            sent: AtomicBool::new(false),
            reclaiming: AtomicBool::new(false),
            scattered: Mutex::default(),
            range_was_read: AtomicBool::new(false),
            stays: AtomicBool::new(false),
            retired_bytes: AtomicU64::new(0),
            changed_bytes: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            packing: AtomicBool::new(false),
            core: core.clone(),
            manifest: manifest.clone(),
        })
    }

    pub(super) fn origin(&self) -> u64 {
        self.origin
    }

    pub(super) fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    pub(super) fn slots_path(&self) -> std::path::PathBuf {
        FileName::Slots.path(&self.core.dir)
    }

    fn load_slot(&self, key: &[u8], slot: Slot) -> Result<Loaded> {
        let read = self.slots.read(slot)?;
        trail::note(|| Touch::Slot { bytes: self.slot_bytes(slot) });
        item::load(self.origin, key, read, &self.slots_path(), slot.first() * u64::from(self.sector_bytes))
    }

    fn load_run(&self, key: &[u8], position: Position) -> Result<Option<Loaded>> {
        let tables = self.tables.load();
        let Some(table) = tables.get(&position.number()) else { return Ok(None) };
        let found = table.get_at(position, key, u64::MAX)?;
        trail::note(|| Touch::Table { number: position.number(), found: found.is_some() });
        match found {
            Some(entry) => Ok(Some(Loaded { number: entry.seq, value: entry.value })),
            None => Err(self.misplaced(key, position)),
        }
    }

    /// A named place always holds a version of the key.
    fn misplaced(&self, key: &[u8], position: Position) -> Error {
        let path = self.core.files.table(position.number());
        let expected = format!("a block with the key {}, as the index has it", key.escape_ascii());
        Error::corruption(&path, position.offset(), expected, "a block without it")
    }

    /// Removes the files that no group of edits has made tables. The index, whose words lead to `named`, must
    /// not know any of them: if it does, the manifest has lost its newest group, and a repair needs the
    /// files.
    pub(super) fn remove_unknown(&self, named: &BTreeSet<u64>) -> Result<()> {
        if self.core.options.read_only || self.stays.load(Ordering::Acquire) {
            return Ok(());
        }
        let unknown = std::mem::take(&mut *self.unknown.lock());
        if let Some(number) = unknown.iter().find(|number| named.contains(number)) {
            let path = self.core.files.table(*number);
            let expected = "a table that the manifest names, as the index does (try `repair`)";
            return Err(Error::corruption(&path, 0, expected, "one that the manifest has lost"));
        }
        match self.manifest.try_decide()? {
            true => self.core.files.remove_tables(unknown),
            false => self.core.files.remove_when_decided(unknown),
        }
        Ok(())
    }

    /// Takes tables that nothing leads to out of the manifest, and releases their files.
    pub(super) fn drop_tables(&self, numbers: &[u64]) -> Result<()> {
        let edits: Vec<_> =
            numbers.iter().map(|&number| crate::manifest::Edit::RemoveTable { number }).collect();
        if edits.is_empty() {
            return Ok(());
        }
        self.manifest.apply(&edits)?;
        self.runs.remove(numbers);
        self.tables.remove(numbers);
        Ok(())
    }

    pub(super) fn slot_bytes(&self, slot: Slot) -> u64 {
        slot.sectors() * u64::from(self.sector_bytes)
    }

    /// Stamps the file before the first write of a session; nothing has had that number.
    pub(super) fn stamp(&self, number: u64) -> Result<()> {
        self.stamps.write((&self.slots, self.sector_bytes), &self.manifest, number)
    }
}

impl Elsewhere for Ssd {
    type Place = OnSsd;
    type Coming = SlotReads;
    const NUMBERS_EACH: bool = true;

    fn takes(&self, key: &[u8], value: &[u8]) -> bool {
        (key.len() + value.len()) as u64 >= self.core.options.split.boundary_bytes
            && !self.stays.load(Ordering::Relaxed)
    }

    fn store(&self, items: &[Item<'_>]) -> Result<Vec<OnSsd>> {
        // Before anything is acknowledged that lies only there.
        let number = items.first().map_or(0, |item| item.number);
        self.stamp(number)?;
        let buffers = items.iter().map(|item| item::encode(self.origin, item, self.sector_bytes)).collect();
        let slots = self.slots.write_all(buffers, true)?;
        let bytes = slots.iter().map(|slot| self.slot_bytes(*slot)).sum();
        self.changed_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(slots.into_iter().map(OnSsd::Slot).collect())
    }

    fn load(&self, key: &[u8], place: OnSsd) -> Result<Option<Loaded>> {
        match place {
            OnSsd::Slot(slot) => self.load_slot(key, slot).map(Some),
            OnSsd::Run(position) => self.load_run(key, position),
        }
    }

    fn begin(&self, places: &[OnSsd]) -> Option<SlotReads> {
        together::begin(self, places)
    }

    fn finish(
        &self,
        coming: Option<SlotReads>,
        wanted: &[(&[u8], OnSsd)],
        ahead: Option<&mut ReadBuffers>,
    ) -> Vec<Option<Loaded>> {
        together::finish(self, coming, wanted, ahead)
    }

    fn watch(&self) -> Option<RangeScan> {
        Some(RangeScan::new(&reclaim::options(&self.core.options.split)))
    }

    fn range_was_read<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>, scattered: Vec<u64>) {
        reclaim::range_was_read(store, scattered);
    }

    fn lost(&self, place: OnSsd) -> Error {
        match place {
            OnSsd::Run(position) => missing_table(&self.core.files.table(position.number())),
            OnSsd::Slot(slot) => {
                let at = slot.first() * u64::from(self.sector_bytes);
                Error::corruption(&self.slots_path(), at, "an item that the index names", "none")
            }
        }
    }

    fn retire(&self, key: &[u8], place: OnSsd) -> Result<()> {
        match place {
            OnSsd::Slot(slot) => {
                self.retired_bytes.fetch_add(self.slot_bytes(slot), Ordering::Relaxed);
                self.slots.retire(slot)
            }
            OnSsd::Run(position) => {
                self.runs.died(position.number(), key);
                Ok(())
            }
        }
    }

    fn free(&self, place: OnSsd) {
        let OnSsd::Slot(slot) = place else { return };
        self.changed_bytes.fetch_add(self.slot_bytes(slot), Ordering::Relaxed);
        // Before anybody can write there again.
        self.freed.fetch_add(1, Ordering::SeqCst);
        if let Err(error) = self.slots.free(slot) {
            tracing::warn!(%error, "a slot could not be freed");
            self.core.put_off(&error);
        }
    }

    fn tidy<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>) {
        // A limbo counts the items in it and not their bytes: a few large items may take more room than there
        // is.
        let most = self.slack_bytes();
        if self.retired_bytes.load(Ordering::Relaxed) >= most
            && self.retired_bytes.swap(0, Ordering::Relaxed) >= most
        {
            let _shared = store.gate.shared();
            if store.admit().is_ok() {
                store.give_back();
            }
        }
        if self.runs.is_due() {
            reclaim::send(store);
        }
        let Some(slots) = self.look_at_slots() else { return };
        pack::send_if_due(store, &slots);
    }

    fn freed(&self) -> u64 {
        self.freed.load(Ordering::SeqCst)
    }

    fn bytes_at(&self, place: OnSsd) -> u64 {
        match place {
            OnSsd::Slot(slot) => self.slot_bytes(slot),
            OnSsd::Run(position) => position.read_len() as u64,
        }
    }

    fn was_read(&self, record: RecordRef) {
        self.weights.count(record.offset());
    }

    fn was_written<P: Place>(&self, record: RecordRef, before: Option<VersionRef<P>>) {
        let inherited = match before {
            Some(VersionRef::Record(before)) => self.weights.get(before.offset()),
            _ => 0,
        };
        self.weights.set(record.offset(), inherited.saturating_add(1));
    }

    fn pace<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>, bytes: usize) {
        if !self.stays.load(Ordering::Relaxed) {
            migrate::pace(store, bytes as u64);
        }
    }

    fn relieve<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>) -> Result<bool> {
        if self.stays.load(Ordering::Relaxed) { Ok(false) } else { migrate::relieve(store) }
    }

    fn opened<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>) -> Result<()> {
        census::send(store);
        Ok(())
    }

    fn tables(&self) -> Option<&dyn LiveTables> {
        Some(&*self.tables)
    }

    fn compact<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>) -> Result<()> {
        census::wait(store)?;
        reclaim::all(store)?;
        let packed = pack::all(store);
        self.tidy_slots().and(packed)
    }

    fn check<E: PmEngine<Home = Self>>(
        &self,
        store: &PmStore<E>,
        named: &[OnSsd],
        report: &mut CheckReport,
    ) -> Result<()> {
        check::check(store, named, report)
    }

    fn still<T>(&self, work: impl FnOnce() -> T) -> T {
        let _still = self.moving.lock();
        work()
    }

    fn fill_stats(&self, stats: &mut Stats) {
        check::fill_stats(self, stats);
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn stay_as_it_is(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }

    fn salvage(base: &mut Salvage, known: Option<&State>, identity: &mut Identity) -> Result<Salvaged> {
        repair::salvage(base, known, identity)
    }

    fn gather(&self, take: &mut Tell<'_>) -> Result<()> {
        repair::gather(self, take)
    }
}

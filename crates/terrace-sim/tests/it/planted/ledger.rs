//! A small store: records in a persistent linked list, newest first, flushed into a table now and then.

use terrace_base::Result;
use terrace_pmem::{Granularity, Kind, POff, Pool};
use terrace_sim::{Change, KvModel, Map, Recorder, Scenario, World, kv_scenario};

use super::table::Tables;
use super::{Bug, explorer, must_catch, pool};

const HEADER: Kind = Kind(1);
const RECORD: Kind = Kind(2);
/// The header's word that links the newest record.
const ROOT: &str = "ledger";
/// Words of a record before its bytes: the link, and the lengths and kind.
const RECORD_HEAD_BYTES: u64 = 16;

#[derive(Debug, Clone)]
enum Op {
    Put(u8, usize),
    Delete(u8),
    Flush,
}

struct Ledger {
    pool: Pool,
    tables: Tables,
    header: u64,
    live: Map,
    bug: Option<Bug>,
}

impl Ledger {
    fn open(world: &World, bug: Option<Bug>) -> Result<Ledger> {
        let pool = pool(world)?;
        let (tables, live) = Tables::open(world.fs(), bug)?;
        let header = match pool.root(ROOT)? {
            Some(header) => header,
            None => Self::make_header(&pool)?,
        };
        let mut ledger = Ledger { pool, tables, header, live, bug };
        ledger.recover()?;
        Ok(ledger)
    }

    fn make_header(pool: &Pool) -> Result<u64> {
        let slot = pool.reserve(HEADER, 64)?;
        pool.zero(slot.offset, 64);
        pool.flush(slot.offset, 64);
        pool.activate(&slot);
        pool.drain();
        pool.set_root(ROOT, slot.offset)?;
        Ok(slot.offset)
    }

    fn head(&self) -> POff<u64> {
        POff::new(self.header)
    }

    /// Reads the list into `live`, oldest first, and gives back what belongs to nobody.
    fn recover(&mut self) -> Result<()> {
        let mut chain = Vec::new();
        let mut at = self.pool.atomic_checked(self.head())?.load(std::sync::atomic::Ordering::Acquire);
        while at != 0 {
            let (next, key, value) = self.read(at)?;
            chain.push((key, value));
            at = next;
        }
        for (key, value) in chain.into_iter().rev() {
            Change(vec![(key, value)]).apply(&mut self.live);
        }
        if self.pool.needs_reclaim() && self.bug != Some(Bug::NoReclaim) {
            let marks = self.marks()?;
            self.pool.reclaim(&marks)?;
        }
        Ok(())
    }

    fn word(&self, at: u64) -> Result<u64> {
        let word = self.pool.atomic_checked(POff::new(at))?;
        Ok(word.load(std::sync::atomic::Ordering::Acquire))
    }

    fn read(&self, at: u64) -> Result<(u64, Vec<u8>, Option<Vec<u8>>)> {
        let (next, meta) = (self.word(at)?, self.word(at + 8)?);
        let (key_len, value_len) = ((meta & 0xffff) as usize, (meta >> 16 & 0xffff) as usize);
        let mut bytes = Vec::new();
        while bytes.len() < key_len + value_len {
            bytes.extend(self.word(at + RECORD_HEAD_BYTES + bytes.len() as u64)?.to_le_bytes());
        }
        bytes.truncate(key_len + value_len);
        let value = bytes.split_off(key_len);
        Ok((next, bytes, (meta >> 32 == 1).then_some(value)))
    }

    fn write(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let body = [key, value.unwrap_or_default()].concat();
        let meta = key.len() as u64
            | (value.unwrap_or_default().len() as u64) << 16
            | u64::from(value.is_some()) << 32;
        let bytes = [&self.word(self.header)?.to_le_bytes()[..], &meta.to_le_bytes(), &body].concat();
        let slot = self.pool.reserve(RECORD, bytes.len() as u64 + 8)?;
        self.pool.write(slot.offset, &bytes);
        if self.bug == Some(Bug::PublishBeforePersist) {
            self.pool.publish(self.head(), slot.offset);
        }
        match self.bug {
            Some(Bug::MissingFlush) => {}
            Some(Bug::FirstLineOnly) => self.pool.flush(slot.offset, 8),
            _ => self.pool.flush(slot.offset, bytes.len() as u64),
        }
        self.pool.activate(&slot);
        self.pool.drain();
        self.pool.publish(self.head(), slot.offset);
        Change(vec![(key.to_vec(), value.map(<[u8]>::to_vec))]).apply(&mut self.live);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.tables.replace(&self.live)?;
        let mut at = self.word(self.header)?;
        self.pool.publish(self.head(), 0);
        while at != 0 && self.bug != Some(Bug::NeverFreed) {
            let next = self.word(at)?;
            self.pool.free(at, RECORD)?;
            at = next;
        }
        Ok(())
    }

    fn marks(&self) -> Result<terrace_pmem::Marks> {
        let mut marks = self.pool.marks();
        marks.slot(self.header)?;
        let mut at = self.word(self.header)?;
        while at != 0 {
            marks.slot(at)?;
            at = self.word(at)?;
        }
        Ok(marks)
    }

    fn check(&self) -> Result<Vec<String>> {
        let problems = self.pool.check(&self.marks()?);
        Ok(problems.iter().map(|problem| format!("{problem:?}")).collect())
    }
}

fn drive(world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op], bug: Option<Bug>) -> Result<()> {
    let mut ledger = Ledger::open(world, bug)?;
    for op in ops {
        match op {
            Op::Put(key, len) => {
                let value = vec![key.wrapping_mul(7).wrapping_add(*len as u8); *len];
                recorder.apply(Change::put([*key], value.clone()), || ledger.write(&[*key], Some(&value)))?;
            }
            Op::Delete(key) => recorder.apply(Change::delete([*key]), || ledger.write(&[*key], None))?,
            Op::Flush => ledger.flush()?,
        }
    }
    ledger.pool.close()
}

fn judge(world: &World, model: &KvModel, bug: Option<Bug>) -> Result<(), String> {
    let text = |e: terrace_base::Error| e.to_string();
    let mut ledger = Ledger::open(world, bug).map_err(text)?;
    model.accepts_in(world, &ledger.live)?;
    let problems = ledger.check().map_err(text)?;
    if let Some(first) = problems.first() {
        return Err(format!("{} problems, first {first}", problems.len()));
    }
    // It must go on working, too.
    world.recovery_done();
    ledger.write(b"probe", Some(b"after the crash")).map_err(text)?;
    ledger.flush().map_err(text)?;
    ledger.pool.close().map_err(text)?;
    drop(ledger);
    let again = Ledger::open(world, bug).map_err(text)?;
    let probe = again.live.get(&b"probe"[..]).map(Vec::as_slice);
    if probe == Some(b"after the crash") { Ok(()) } else { Err(format!("the probe reads {probe:?}")) }
}

fn ledger(bug: Option<Bug>) -> impl Scenario<Op = Op, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            drive(world, recorder, ops, bug).map_err(|e| e.to_string())
        },
        move |world, model| judge(world, model, bug),
    )
}

fn ops() -> Vec<Op> {
    let mut ops = Vec::new();
    for round in 0..3u8 {
        ops.extend((0..4).map(|i| Op::Put(round + i * 2, 20 + usize::from(i * 61 + round) % 200)));
        ops.push(Op::Delete(round + 2));
        ops.push(Op::Flush);
    }
    ops.push(Op::Put(9, 300));
    ops
}

#[test]
fn a_correct_ledger_passes() {
    for granularity in [Granularity::CacheLine, Granularity::Byte] {
        explorer(granularity).images(1500).must_pass(ledger(None), ops());
    }
}

#[test]
fn a_missing_flush_is_caught() {
    must_catch(ledger, &ops(), Bug::MissingFlush);
}

#[test]
fn flushing_the_first_line_only_is_caught() {
    must_catch(ledger, &ops(), Bug::FirstLineOnly);
}

#[test]
fn publishing_before_persisting_is_caught() {
    must_catch(ledger, &ops(), Bug::PublishBeforePersist);
}

#[test]
fn a_manifest_ahead_of_its_table_is_caught() {
    must_catch(ledger, &ops(), Bug::ManifestBeforeTable);
}

#[test]
fn a_missing_directory_sync_is_caught() {
    must_catch(ledger, &ops(), Bug::NoDirSyncAfterCreate);
    must_catch(ledger, &ops(), Bug::NoDirSyncAfterRename);
}

#[test]
fn what_a_crash_leaks_is_caught() {
    must_catch(ledger, &ops(), Bug::NoReclaim);
}

#[test]
fn what_is_never_freed_is_caught() {
    must_catch(ledger, &ops(), Bug::NeverFreed);
}

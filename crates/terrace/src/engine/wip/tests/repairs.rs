//! Repairs of damaged logs, where some buckets were flushed and others were not.

use std::collections::BTreeMap;

use terrace_base::rng::Rng;

use super::*;
use crate::repair::{RepairOptions, run};

/// Where buckets begin, and the number of keys in each.
const BUCKETS: [&[u8]; 3] = [b"a", b"i", b"r"];
const KEYS: u64 = 4;

fn env(fs: Arc<dyn Fs>) -> Env {
    let (pm, clock) = (Arc::new(RealPm::with_copies()), Arc::new(ManualClock::default()));
    Env { fs, pm, executor: Arc::new(Between::default()), clock, hash_seed: None }
}

/// One key's history: the value after each of its writes, and how many of these are in tables.
#[derive(Debug, Default)]
struct Fate {
    values: Vec<Option<Vec<u8>>>,
    flushed: usize,
}

impl Fate {
    /// Whether the key may have this value if the log has ended somewhere.
    fn admits(&self, found: Option<&[u8]>) -> bool {
        let later =
            self.values[self.flushed.saturating_sub(1)..].iter().any(|value| value.as_deref() == found);
        later || self.flushed == 0 && found.is_none()
    }
}

/// Writes and deletes, and flushes some buckets, which hold no other back. Returns each key's possible values
/// after that.
fn live(wip: &Wip, rng: &mut Rng) -> BTreeMap<Vec<u8>, Fate> {
    let mut fates: BTreeMap<Vec<u8>, Fate> = BTreeMap::new();
    // Otherwise they would be joined at once, since they are small.
    let _no_compaction = wip.jobs.all_slots();
    BUCKETS[1..].iter().for_each(|lower| split(wip, lower));
    for step in 0..60u32 {
        let lower = BUCKETS[rng.below(3) as usize];
        let key = [lower, b"-", &[b'0' + rng.below(KEYS) as u8]].concat();
        match rng.below(12) {
            0 => {
                wip.freeze(&[bucket(wip, lower)]);
                wip.wait_until_flushed().unwrap();
                let of_bucket = fates.iter_mut().filter(|(key, _)| key.starts_with(lower));
                of_bucket.for_each(|(_, fate)| fate.flushed = fate.values.len());
            }
            1..7 => {
                delete(wip, &key);
                fates.entry(key).or_default().values.push(None);
            }
            _ => {
                let value = format!("{step} {}", "v".repeat(rng.below(50) as usize)).into_bytes();
                put(wip, &key, &value);
                fates.entry(key).or_default().values.push(Some(value));
            }
        }
    }
    fates
}

/// A bucket without recent writes counted as flushed only to its old number, and after a join the other
/// bucket's log was replayed from there.
#[test]
fn a_bucket_without_memtables_is_flushed_as_far_as_what_it_is_joined_with() {
    let world = world();
    let wip = open(&world);
    split(&wip, b"m");
    put(&wip, b"n", b"1");
    flush(&wip);
    put(&wip, b"a", b"1");
    flush(&wip);
    join(&wip, b"a", b"n");
    assert_eq!(wip.manifest.state().buckets.values().map(|bucket| bucket.flushed).collect::<Vec<_>>(), [2]);
}

/// A put flushed together with its deletion was in no table: after a repair that could read the log only up
/// to the deletion it came back.
#[test]
fn what_tables_have_done_with_does_not_come_back_from_a_damaged_log() {
    let mut damaged = 0;
    for seed in 0..60 {
        let (world, mut rng) = (world(), Rng::new(seed));
        let wip = open(&world);
        let fates = live(&wip, &mut rng);
        let world = world.kill();
        let fs = world.fs();
        let logs = fs.list(Path::new("/")).unwrap();
        for path in logs.iter().filter(|path| path.extension().is_some_and(|kind| kind == "log")) {
            fs.damage(path, |bytes| {
                let at = rng.below(bytes.len().max(1) as u64) as usize;
                bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 0x10);
            })
            .unwrap();
        }
        let how = RepairOptions { engine: Some(options().engine), ..RepairOptions::default() };
        let report = run(&env(Arc::new(fs.clone())), Path::new("/"), options(), how).unwrap();
        damaged += u32::from(!report.lost.is_empty());
        let wip = open_on(Arc::new(fs), options());
        for (key, fate) in &fates {
            let found = wip.get(key, None).unwrap();
            assert!(
                fate.admits(found.as_deref()),
                "seed {seed}: {} is {found:?}, {fate:?}",
                key.escape_ascii()
            );
        }
        assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
    }
    assert!(damaged > 20, "{damaged} logs were damaged");
}

//! Storing straight to a world's medium, for tests that want no pool.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_disk::Fs;
use terrace_pmem::Media;
use terrace_sim::{Event, SimPm, World};

/// The aligned word at `at`.
fn word(pm: &SimPm, at: u64) -> &AtomicU64 {
    assert!(at.is_multiple_of(8) && at + 8 <= pm.len());
    // SAFETY: an aligned word inside the medium, as just asserted, which lives as long as `pm`.
    unsafe { AtomicU64::from_ptr(pm.base().add(at as usize).cast()) }
}

pub(crate) fn store(pm: &SimPm, at: u64, value: u64) {
    word(pm, at).store(value, Ordering::Release);
}

pub(crate) fn load(pm: &SimPm, at: u64) -> u64 {
    word(pm, at).load(Ordering::Acquire)
}

pub(crate) fn store_persist(pm: &SimPm, at: u64, value: u64) {
    store(pm, at, value);
    pm.flush(at, 8);
    pm.drain();
}

/// Every word of a medium that is not zero.
pub(crate) fn contents(pm: &SimPm) -> Vec<(u64, u64)> {
    (0..pm.len() / 8).map(|i| (i * 8, load(pm, i * 8))).filter(|&(_, word)| word != 0).collect()
}

/// A little of everything, on both media.
pub(crate) fn busy_work(world: &World) {
    let (pm, fs) = (world.media(), world.fs());
    let dir = Path::new("/db");
    fs.create_dir_all(dir).unwrap();
    for round in 0..6u64 {
        store(&pm, round * 72, round + 1);
        store_persist(&pm, round * 192, round + 1);
        let path = dir.join(format!("{round}.new"));
        let mut file = fs.create(&path).unwrap();
        file.append(&[round as u8; 700]).unwrap();
        file.append(&[!round as u8; 700]).unwrap();
        if round % 2 == 0 {
            file.sync().unwrap();
        }
        fs.rename(&path, &dir.join(format!("{round}"))).unwrap();
        fs.sync_dir(dir).unwrap();
        pm.grow(pm.len() + 4096).unwrap();
    }
    fs.remove(&dir.join("3")).unwrap();
    pm.sync().unwrap();
}

/// The events of `work`, and something seen at each.
pub(crate) fn at_events<T: Send + 'static>(
    world: &World,
    work: impl FnOnce(&World),
    mut see: impl FnMut(&Event, &World) -> T + Send + 'static,
) -> Vec<(Event, T)> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    world.on_event(Box::new(move |event, world| {
        let saw = see(&event, world);
        log.lock().push((event, saw));
    }));
    work(world);
    world.ignore_events();
    std::mem::take(&mut *seen.lock())
}

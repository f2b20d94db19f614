//! How many crash images a second this machine makes: `cargo run --release -p terrace-sim --example
//! images_per_second`.

use std::path::Path;

use terrace_base::Result;
use terrace_base::clock::{Clock, SystemClock};
use terrace_pmem::{Granularity, Kind, Media, POff, Pool};
use terrace_sim::{PmOptions, Snapshot, Survival, World, WorldOptions};

/// Images a measurement takes.
const IMAGES: u64 = 5000;
/// Pending records at the moment of the crash.
const PENDING: u64 = 100;

fn main() -> Result<()> {
    for mib in [1, 4] {
        let (world, pool) = prepare(mib << 20)?;
        println!("pool of {mib} MiB, {PENDING} records of 200 bytes pending");
        report("capture alone", || {
            world.capture();
            Ok(())
        })?;
        let snapshot = world.capture();
        report("survivor of one capture", || survivor(&snapshot).map(drop))?;
        report("capture and survivor", || survivor(&world.capture()).map(drop))?;
        report("survivor, pool opened", || open(&survivor(&snapshot)?).map(drop))?;
        pool.close()?;
    }
    Ok(())
}

fn prepare(bytes: u64) -> Result<(World, Pool)> {
    let pm = PmOptions { bytes, capacity: 64 << 20, granularity: Granularity::CacheLine };
    let world = World::new(1, WorldOptions { pm });
    let pool = Pool::create_on(world.media(), Path::new("pool"), &world.pool_options())?;
    while pool.size() - pool.used_bytes() > bytes / 4 {
        let slot = pool.reserve(Kind(1), 4096)?;
        pool.copy_flush(slot.offset, &[0xa5; 4096]);
        pool.activate(&slot);
        pool.drain();
    }
    for _ in 0..PENDING {
        let slot = pool.reserve(Kind(1), 200)?;
        pool.copy_flush(slot.offset, &[0x5a; 200]);
        pool.store_flush(POff::new(slot.offset), 1);
    }
    Ok((world, pool))
}

fn survivor(snapshot: &Snapshot) -> Result<World> {
    let world = snapshot.power_cut(Survival::Seeded(9));
    // Touched, as a recovery would.
    std::hint::black_box(world.media().base());
    Ok(world)
}

fn open(world: &World) -> Result<Pool> {
    Pool::open_on(world.media(), Path::new("pool"), &world.pool_options())
}

fn report(what: &str, mut work: impl FnMut() -> Result<()>) -> Result<()> {
    let clock = SystemClock::new();
    let start = clock.now();
    for _ in 0..IMAGES {
        work()?;
    }
    let seconds = (clock.now() - start).as_secs_f64();
    println!("  {what}: {:.0} a second", IMAGES as f64 / seconds);
    Ok(())
}

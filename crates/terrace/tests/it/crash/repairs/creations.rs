//! Repairs of databases that were killed while they were created.

use super::*;

/// Must catch a repair that speaks of losses, or keeps a pool for lost, where a creation was cut short: nothing was in it
/// yet, and the next opening begins it again.
#[test]
fn a_creation_that_was_cut_short_has_lost_nothing() {
    let media = [Granularity::CacheLine, Granularity::Page];
    let kinds = ENGINES.into_iter().flat_map(|engine| media.map(|media| (engine, media)));
    for (engine, granularity) in kinds.filter(|(engine, media)| crate::crash::env::runs_on(*engine, *media)) {
        let pm = PmOptions { bytes: 64 << 10, capacity: MEDIUM_BYTES, granularity };
        let world = World::new(11, WorldOptions { pm });
        let shots: Arc<Mutex<Vec<Snapshot>>> = Arc::default();
        let taken = shots.clone();
        world.on_event(Box::new(move |_: Event, world: &World| taken.lock().unwrap().push(world.capture())));
        drop(open(&world, engine).unwrap());
        world.ignore_events();
        let shots = std::mem::take(&mut *shots.lock().unwrap());
        let every = shots.len() / 40 + 1;
        for (i, shot) in shots.iter().enumerate().step_by(every) {
            let what = format!("{engine:?}, {granularity:?}, killed at event {i} of {}", shots.len());
            let opened = read_all(&shot.kill(), engine).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(opened.is_empty(), "{what}");
            let world = shot.kill();
            let repaired = repair(&world, engine);
            match &repaired {
                // Without a manifest nobody knows what there was.
                Ok(report) => {
                    assert!(report.lost.is_empty() || !report.doubts.is_empty(), "{what}: {report:?}");
                }
                // There is no database yet.
                Err(e) => assert!(
                    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument),
                    "{what}: {e}"
                ),
            }
            let found = read_all(&world, engine).unwrap_or_else(|e| panic!("{what}: {e}, {repaired:?}"));
            assert!(found.is_empty(), "{what}");
        }
    }
}

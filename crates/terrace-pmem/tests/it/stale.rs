//! Pieces of a closed pool that are older copies of themselves or copies of other pieces, and older copies of all of
//! it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::rng::Rng;
use terrace_base::{ErrorKind, Result};
use terrace_pmem::{Granularity, Kind, Known, Media, MemMedia, Opened, POff, Pool, PoolOptions};

use crate::support::{name, options};

const PAGE: usize = 4096;
const OBJECT: Kind = Kind(2);
const ARENA: Kind = Kind(3);

pub fn small() -> PoolOptions {
    PoolOptions { size: 256 << 10, max_size: 1 << 20, ..options() }
}

pub fn medium(image: &[u8]) -> Arc<MemMedia> {
    let media = MemMedia::new(image.len() as u64, small().max_size, Granularity::CacheLine).unwrap();
    // SAFETY: as long as the image, and nobody else knows it yet.
    unsafe { media.base().copy_from_nonoverlapping(image.as_ptr(), image.len()) };
    Arc::new(media)
}

pub fn bytes_of(media: &MemMedia) -> Vec<u8> {
    // SAFETY: mapped that far; nobody stores to it meanwhile.
    unsafe { std::slice::from_raw_parts(media.base(), media.len() as usize) }.to_vec()
}

/// All that the owner of the pool can read: names, places and bytes.
pub fn answers(pool: &Pool) -> Result<Vec<(String, u64, Vec<u8>)>> {
    let mut found = Vec::new();
    for (name, value) in pool.roots()? {
        found.push((name, value, Vec::new()));
    }
    let objects = pool.slots(OBJECT).map(|(at, _)| (at, 64));
    let arenas = pool.extents(ARENA).into_iter().map(|e| (e.offset, e.bytes));
    for (at, len) in objects.chain(arenas) {
        // SAFETY: nobody stores to it.
        found.push((String::new(), at, unsafe { pool.bytes(at, len) }?.to_vec()));
    }
    pool.intact()?;
    Ok(found)
}

/// One session: some objects and arenas come, go and change, and a root.
fn work(pool: &Pool, rng: &mut Rng, steps: u64) {
    for step in 0..steps {
        let mut bytes = [0; 64];
        rng.fill(&mut bytes);
        match rng.below(8) {
            0 => pool.set_root(&format!("root{}", rng.below(4)), rng.below(1 << 40)).unwrap(),
            1 => {
                let arena = pool.reserve_extent(ARENA, 5000).unwrap();
                pool.copy_flush(arena.offset, &vec![step as u8; arena.bytes as usize]);
                pool.copy_flush(arena.offset + 64 * rng.below(100), &bytes);
                pool.activate(&arena);
            }
            2 => {
                let arenas = pool.extents(ARENA);
                if arenas.len() > 3 {
                    pool.free_extent(arenas[rng.below(4) as usize].offset, ARENA).unwrap();
                }
            }
            3 => {
                let slots: Vec<_> = pool.slots(OBJECT).collect();
                if let Some((at, _)) = slots.get(step as usize % slots.len().max(1)) {
                    pool.publish(POff::new(at + 8 * rng.below(8)), rng.below(u64::MAX));
                }
            }
            _ => {
                let slot = pool.reserve(OBJECT, 64).unwrap();
                pool.copy_flush(slot.offset, &bytes);
                pool.activate(&slot);
            }
        }
    }
    pool.drain();
}

/// Images of a pool during its life, the last one closed in order.
pub fn life(seed: u64) -> Vec<Vec<u8>> {
    let o = small();
    let mut rng = Rng::new(seed);
    let media = Arc::new(MemMedia::new(o.size, o.max_size, Granularity::CacheLine).unwrap());
    let mut pool = Pool::create_on(media.clone(), name(), &o).unwrap();
    let mut images = Vec::new();
    for session in 0..4 {
        work(&pool, &mut rng, 40);
        images.push(bytes_of(&media));
        work(&pool, &mut rng, 10);
        pool.close().unwrap();
        images.push(bytes_of(&media));
        if session < 3 {
            pool = Pool::open_on(media.clone(), name(), &o).unwrap();
            assert_eq!(pool.altered(), []);
        }
    }
    images
}

/// Damage in what is to be reclaimed: nobody reads that before, and the next owner of its place finds what it stores.
#[test]
fn damage_in_what_is_given_up_is_no_matter() {
    let o = small();
    let media = Arc::new(MemMedia::new(o.size, o.max_size, Granularity::CacheLine).unwrap());
    let pool = Pool::create_on(media.clone(), name(), &o).unwrap();
    let arenas = [(); 2].map(|()| pool.reserve_extent(ARENA, 4096).unwrap());
    for arena in &arenas {
        pool.copy_flush(arena.offset, &[1; 4096]);
        pool.activate(arena);
    }
    let [kept, lost] = arenas.map(|arena| arena.offset);
    pool.leave_unreclaimed();
    pool.close().unwrap();
    let mut image = bytes_of(&media);
    image[lost as usize + 100] ^= 1;
    // Before the damage is met, and after that.
    for is_met in [false, true] {
        let media = medium(&image);
        let pool = Pool::open_on(media.clone(), name(), &o).unwrap();
        assert_eq!(if is_met { pool.altered().len() } else { 1 }, 1);
        let mut marks = pool.marks();
        marks.extent(kept).unwrap();
        assert_eq!(pool.reclaim(&marks).unwrap(), 4096);
        pool.release_reclaimed().unwrap();
        assert_eq!(pool.check(&marks), []);
        let mut taken = Vec::new();
        while let Ok(arena) = pool.reserve_extent(ARENA, 4096) {
            pool.copy_flush(arena.offset, &[2; 4096]);
            pool.activate(&arena);
            taken.push(arena.offset);
        }
        assert!(taken.contains(&lost));
        pool.intact().unwrap();
        pool.close().unwrap();
        let pool = Pool::open_on(media, name(), &o).unwrap();
        assert_eq!((pool.altered(), pool.needs_reclaim()), (Vec::new(), false));
    }
}

/// The same where the place is not yet given out again when the pool is closed: its next owner need not write all of
/// it.
#[test]
fn damage_in_what_was_reclaimed_is_no_matter_later() {
    let o = small();
    let unit = o.extent_bytes;
    let media = Arc::new(MemMedia::new(o.size, o.max_size, Granularity::CacheLine).unwrap());
    let pool = Pool::create_on(media.clone(), name(), &o).unwrap();
    let lost = pool.reserve_extent(ARENA, 2 * unit).unwrap();
    (0..2).for_each(|i| pool.copy_flush(lost.offset + i * unit, &[1; 4096]));
    pool.activate(&lost);
    pool.leave_unreclaimed();
    pool.close().unwrap();
    let mut image = bytes_of(&media);
    image[(lost.offset + unit) as usize + 100] ^= 1;
    let media = medium(&image);
    let pool = Pool::open_on(media.clone(), name(), &o).unwrap();
    assert_eq!(pool.altered().len(), 1);
    assert_eq!(pool.reclaim(&pool.marks()).unwrap(), 2 * unit);
    pool.close().unwrap();
    let pool = Pool::open_on(media.clone(), name(), &o).unwrap();
    let mut taken = Vec::new();
    while let Ok(arena) = pool.reserve_extent(ARENA, 2 * unit) {
        pool.copy_flush(arena.offset, &[2; 4096]);
        pool.activate(&arena);
        taken.push(arena.offset);
    }
    assert!(taken.contains(&lost.offset));
    pool.close().unwrap();
    assert_eq!(Pool::open_on(media, name(), &o).unwrap().altered(), Vec::new());
}

/// Opens an image and reads all of it; whether the damage was told.
fn judge(image: &[u8], right: &[(String, u64, Vec<u8>)], what: &str) -> bool {
    let pool = match Pool::open_on(medium(image), name(), &small()) {
        Ok(pool) => pool,
        Err(e) => {
            assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::InvalidFormat), "{what}: {e}");
            return true;
        }
    };
    let found = answers(&pool);
    let altered = !pool.altered().is_empty();
    match found {
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corruption, "{what}: {e}");
            assert!(altered, "{what}: {e}, and nothing is altered");
        }
        Ok(found) => assert!(found == right, "{what}: wrong answers, {}", pool.describe()),
    }
    // What is damaged stays so when the session is closed.
    pool.close().unwrap();
    altered
}

#[test]
fn no_page_of_another_time_or_place_is_taken_for_the_one_that_was_closed() {
    let mut told = 0;
    for seed in 0..3 {
        let images = life(seed);
        let last = images.last().unwrap();
        let right = answers(&Pool::open_on(medium(last), name(), &small()).unwrap()).unwrap();
        let pages = last.len() / PAGE;
        let page = |image: &[u8], i: usize| image.get(i * PAGE..(i + 1) * PAGE).map(<[u8]>::to_vec);
        for i in 0..pages {
            let older = images.iter().enumerate().map(|(n, image)| (format!("of image {n}"), page(image, i)));
            let others = [i + 1, i + 7, i ^ 1].map(|j| (format!("page {j}"), page(last, j)));
            let blank = [("zeroes".to_owned(), Some(vec![0; PAGE]))];
            for (from, bytes) in older.chain(others).chain(blank) {
                let Some(bytes) = bytes.filter(|bytes| page(last, i).as_ref() != Some(bytes)) else {
                    continue;
                };
                let mut image = last.clone();
                image[i * PAGE..][..PAGE].copy_from_slice(&bytes);
                told += u32::from(judge(&image, &right, &format!("seed {seed}: page {i} {from}")));
            }
        }
    }
    assert!(told > 300, "only {told} were told");
}

/// A session that meets damage and is closed leaves it to be told by the next one; a repair ends that.
#[test]
fn damage_outlives_sessions_until_it_is_taken_as_it_is() {
    let images = life(9);
    let mut image = images.last().unwrap().clone();
    let pool = Pool::open_on(medium(&image), name(), &small()).unwrap();
    let (at, _) = pool.slots(OBJECT).next().unwrap();
    drop(pool);
    image[at as usize + 5] ^= 1;
    let media = medium(&image);
    for _ in 0..3 {
        let pool = Pool::open_on(media.clone(), name(), &small()).unwrap();
        // A call that says nothing is found out afterwards.
        pool.intact().unwrap();
        let word = pool.atomic(POff::new(at)).load(Ordering::Relaxed);
        assert_eq!(pool.intact().unwrap_err().kind(), ErrorKind::Corruption);
        pool.publish(POff::new(at + 16), word);
        assert_eq!(pool.altered().len(), 1);
        pool.close().unwrap();
    }
    let pool = Pool::open_on(media.clone(), name(), &small()).unwrap();
    assert_eq!(pool.altered().len(), 1);
    pool.use_as_it_is();
    answers(&pool).unwrap();
    pool.close().unwrap();
    drop(pool);
    assert_eq!(Pool::open_on(media, name(), &small()).unwrap().altered(), []);
}

/// Verifying goes on beside threads that read and write what nobody has verified yet.
#[test]
fn threads_write_while_others_verify() {
    let images = life(4);
    for round in 0..20 {
        let media = medium(images.last().unwrap());
        let pool = Pool::open_on(media.clone(), name(), &small()).unwrap();
        let slots: Vec<u64> = pool.extents(ARENA).iter().map(|e| e.offset).collect();
        std::thread::scope(|scope| {
            for t in 0..3u64 {
                let (pool, slots) = (&pool, &slots);
                scope.spawn(move || {
                    for (i, at) in slots.iter().enumerate() {
                        pool.publish(POff::new(at + 8 * t), round << 32 | i as u64);
                    }
                });
            }
            scope.spawn(|| {
                let mut from = Some(0);
                while let Some(at) = from {
                    from = pool.verify_some(at, 1);
                }
            });
        });
        assert_eq!(pool.altered(), []);
        pool.close().unwrap();
        drop(pool);
        assert_eq!(Pool::open_on(media, name(), &small()).unwrap().altered(), []);
    }
}

/// The owner notes, before each close, which session it was.
#[test]
fn an_older_copy_of_the_whole_pool_is_told_by_who_knows_the_newest() {
    let images = life(5);
    // Images come in pairs: of the middle and of the end of sessions 1, 2, ...
    let uuid = Pool::open_on(medium(&images[7]), name(), &small()).unwrap().uuid();
    let open = |image: &[u8], generation, closed| {
        let known = Some(Known { uuid, generation, closed });
        Pool::open_on(medium(image), name(), &PoolOptions { known, ..small() }).map(|pool| pool.opened())
    };
    for generation in 1..=4u64 {
        for (i, image) in images.iter().enumerate() {
            let (session, ended) = (i as u64 / 2 + 1, i % 2 == 1);
            for closed in [false, true] {
                // The owner notes a session while it runs, or at its close; and may die before it notes the next.
                let older = session < generation || session == generation && closed && !ended;
                let owner_older = ended && session > generation || !ended && session > generation + 1;
                let opened = open(image, generation, closed);
                let what = format!("session {session}, ended: {ended}, known {generation}, closed: {closed}");
                match older || owner_older {
                    true => assert_eq!(opened.unwrap_err().kind(), ErrorKind::Corruption, "{what}"),
                    false => assert!(matches!(opened.unwrap(), Opened::Clean | Opened::SameBoot), "{what}"),
                }
            }
        }
    }
    let other = Some(Known { uuid: [7; 16], generation: 4, closed: true });
    let opened = Pool::open_on(medium(&images[7]), name(), &PoolOptions { known: other, ..small() });
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Corruption);
}

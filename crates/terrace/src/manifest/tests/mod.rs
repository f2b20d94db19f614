//! Tests of the manifest as a whole, on the simulated disk.

mod crash;
mod damage;
mod golden;
mod model;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_disk::{Fault, Fs, SimFs};
use terrace_table::TableMeta;

use super::{Edit, Identity, JobKind, Manifest};

const DIR: &str = "/db";

fn dir() -> &'static Path {
    Path::new(DIR)
}

fn identity() -> Identity {
    Identity {
        uuid: *b"0123456789abcdef",
        engine: "slm".into(),
        options: BTreeMap::from([("extent_bytes".into(), "65536".into())]),
    }
}

fn meta(number: u64) -> TableMeta {
    TableMeta {
        number,
        file_bytes: 4096 * number,
        entries: 100,
        deletes: 10,
        smallest: format!("a{number}").into_bytes(),
        largest: format!("z{number}").into_bytes(),
        min_seq: number,
        max_seq: number + 50,
        raw_bytes: 3000,
    }
}

fn add(number: u64) -> Edit {
    Edit::AddTable { level: 0, job: number, meta: meta(number) }
}

fn bucket(lower: &[u8], flushed: u64) -> Edit {
    Edit::SetBucket { lower: lower.to_vec(), flushed }
}

fn without_bucket(lower: &[u8]) -> Edit {
    Edit::RemoveBucket { lower: lower.to_vec() }
}

/// A disk with an empty directory, and the manifest of a new store in it.
fn fresh() -> (SimFs, Manifest) {
    let fs = SimFs::new();
    fs.create_dir_all(dir()).unwrap();
    let manifest = Manifest::create(Arc::new(fs.clone()), dir(), identity()).unwrap();
    (fs, manifest)
}

fn reopen(fs: &SimFs) -> Manifest {
    Manifest::open(Arc::new(fs.clone()), dir()).unwrap()
}

/// Groups with every kind of edit, each fitting the state that the previous ones make.
fn script() -> Vec<Vec<Edit>> {
    vec![
        vec![Edit::JobStarted { id: 1, kind: JobKind::Flush, inputs: vec![] }, Edit::NextFile(3)],
        vec![add(1), add(2), Edit::FlushedSeq(52), Edit::JobDone { id: 1 }, Edit::LogNumber(4)],
        vec![Edit::Counts { number: 1, live_delta: -30 }, Edit::Counts { number: 2, live_delta: -1 }],
        vec![Edit::Candidates(vec![1, 2])],
        vec![Edit::JobStarted { id: 2, kind: JobKind::Compaction, inputs: vec![1, 2] }],
        vec![
            Edit::RemoveTable { number: 1 },
            Edit::RemoveTable { number: 2 },
            add(3),
            Edit::JobDone { id: 2 },
        ],
        vec![add(7), Edit::Candidates(vec![7]), Edit::Counts { number: 7, live_delta: -90 }],
        vec![Edit::Counts { number: 7, live_delta: 5 }, Edit::Candidates(vec![])],
        vec![bucket(b"", 0)],
        vec![add(8), bucket(b"", 58), bucket(b"k", 58), bucket(b"q", 58)],
        vec![bucket(b"k", 40), without_bucket(b"q")],
    ]
}

#[test]
fn numbers_are_taken_durably_with_the_next_group() {
    let (fs, manifest) = fresh();
    assert_eq!(manifest.take_numbers(3), 1..4);
    assert_eq!(reopen(&fs).take_numbers(1), 1..2, "nothing was applied");
    manifest.apply(&[]).unwrap();
    assert_eq!(reopen(&fs).take_numbers(1), 4..5);
    manifest.apply(&[add(9)]).unwrap();
    assert_eq!(manifest.take_numbers(1), 10..11);
}

#[test]
fn an_edit_that_does_not_fit_changes_nothing() {
    let (fs, manifest) = fresh();
    manifest.apply(&[add(1)]).unwrap();
    let before = manifest.state();
    let image = fs.image();
    let mut upside_down = meta(5);
    upside_down.smallest = b"zz".to_vec();
    let refused = [
        add(1),
        Edit::AddTable { level: 0, job: 1, meta: upside_down },
        Edit::AddTable { level: 0, job: 1, meta: meta(0) },
        Edit::RemoveTable { number: 9 },
        Edit::Counts { number: 9, live_delta: 1 },
        Edit::Candidates(vec![9]),
        Edit::JobDone { id: 1 },
        bucket(b"k", 5),
        without_bucket(b"k"),
        without_bucket(b""),
        Edit::SnapshotEnd,
        Edit::Identity(identity()),
    ];
    for edit in refused {
        let error = manifest.apply(&[Edit::FlushedSeq(99), edit]).unwrap_err();
        assert!(matches!(error, terrace_base::Error::InvalidArgument(_)), "{error}");
    }
    assert_eq!(manifest.state(), before);
    assert_eq!(fs.image(), image);
}

#[test]
fn every_key_is_in_a_bucket_where_there_are_buckets() {
    let (fs, manifest) = fresh();
    manifest.apply(&[bucket(b"", 0), bucket(b"k", 9)]).unwrap();
    let longest = vec![b'z'; terrace_table::MAX_KEY_BYTES];
    manifest.apply(&[bucket(&longest, u64::MAX)]).unwrap();
    let before = manifest.state();
    for edit in [without_bucket(b""), without_bucket(b"j"), bucket(&[&longest[..], b"z"].concat(), 1)] {
        let error = manifest.apply(&[bucket(b"j", 1), without_bucket(b"j"), edit]).unwrap_err();
        assert!(matches!(error, terrace_base::Error::InvalidArgument(_)), "{error}");
    }
    assert_eq!(manifest.state(), before);
    // A bucket that takes over another's keys has flushed what both have.
    manifest.apply(&[without_bucket(&longest), bucket(b"k", 3)]).unwrap();
    let state = reopen(&fs).state();
    let buckets: Vec<_> = state.buckets.iter().map(|(lower, b)| (&lower[..], b.flushed)).collect();
    assert_eq!(buckets, [(&b""[..], 0), (b"k", 3)]);
}

#[test]
fn live_counts_stay_between_nothing_and_everything() {
    let (_, manifest) = fresh();
    let live = |delta| {
        manifest.apply(&[Edit::Counts { number: 1, live_delta: delta }]).unwrap();
        manifest.state().tables[&1].live()
    };
    manifest.apply(&[add(1)]).unwrap();
    assert_eq!(live(-1), 89);
    assert_eq!(live(-100), 0);
    assert_eq!(live(21), 10);
    assert_eq!(live(1000), 100);
    assert_eq!(live(i64::MIN), 0);
    assert_eq!(live(i64::MAX), 100);
}

#[test]
fn old_manifests_go_and_one_stays() {
    let (fs, manifest) = fresh();
    let manifest = manifest.with_rollover_bytes(0);
    for number in 1..200 {
        manifest.apply(&[add(number)]).unwrap();
        manifest.apply(&[Edit::RemoveTable { number }]).unwrap();
        let manifests = super::files::manifests(&fs, dir()).unwrap();
        assert_eq!(manifests.len(), 1);
    }
    let last = super::files::manifests(&fs, dir()).unwrap()[0];
    assert!(last > 20, "rolled over {last} times");
    let length = fs.read(&super::FileName::Manifest(last).path(dir())).unwrap().len();
    assert!(length < 4096, "a file starts anew when it is large for its snapshot");
}

#[test]
fn a_large_snapshot_is_written_in_pieces() {
    let (fs, manifest) = fresh();
    let group: Vec<Edit> = (1..2000)
        .map(|number| {
            let mut meta = meta(number);
            meta.largest = vec![b'z'; 500];
            Edit::AddTable { level: 0, job: 1, meta }
        })
        .collect();
    manifest.apply(&group).unwrap();
    let again = reopen(&fs);
    assert_eq!(again.state(), manifest.state());
    again.apply(&[Edit::FlushedSeq(5)]).unwrap();
    assert_eq!(reopen(&fs).state(), again.state());
}

/// Jobs look at the directory while others start a new manifest.
#[test]
fn a_listing_beside_a_new_manifest_is_of_one_of_the_two() {
    let (_fs, manifest) = fresh();
    let manifest = manifest.with_rollover_bytes(1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..400 {
                manifest.apply(&[Edit::NextFile(10 + number)]).unwrap();
            }
            is_over.store(true, Ordering::Release);
        });
        while !is_over.load(Ordering::Acquire) {
            let leftovers = manifest.listing().unwrap().leftovers;
            assert!(leftovers.is_empty(), "{leftovers:?}");
        }
    });
}

#[test]
fn the_listing_tells_files_apart() {
    let (fs, manifest) = fresh();
    manifest.apply(&[add(1), add(2), Edit::LogNumber(5)]).unwrap();
    for name in ["000001.sst", "000003.sst", "000004.log", "000006.log", "000005.log", "CURRENT.tmp"] {
        fs.plant(&dir().join(name), b"x").unwrap();
    }
    for name in ["MANIFEST-000009", "LOCK", "notes.txt"] {
        fs.plant(&dir().join(name), b"x").unwrap();
    }
    let listing = manifest.listing().unwrap();
    assert_eq!(listing.dead_tables, [3]);
    assert_eq!(listing.missing_tables, [2]);
    assert_eq!(listing.logs, [5, 6]);
    let name = |n: &str| dir().join(n);
    assert_eq!(listing.leftovers, [name("000004.log"), name("CURRENT.tmp"), name("MANIFEST-000009")]);
    assert_eq!(listing.foreign, [name("notes.txt")]);
    // The leftover manifest causes no trouble.
    let again = reopen(&fs);
    again.apply(&[Edit::FlushedSeq(1)]).unwrap();
    assert_eq!(super::files::manifests(&fs, dir()).unwrap(), [10]);
}

#[test]
fn a_manifest_works_on_real_files() {
    let temp = tempfile::tempdir().unwrap();
    let fs: Arc<dyn Fs> = Arc::new(terrace_disk::RealFs);
    let manifest = Manifest::create(fs.clone(), temp.path(), identity()).unwrap();
    for group in script() {
        manifest.apply(&group).unwrap();
    }
    manifest.seal().unwrap();
    let again = Manifest::open(fs.clone(), temp.path()).unwrap();
    assert_eq!(again.state(), manifest.state());
    assert!(Manifest::create(fs, temp.path(), identity()).is_err());
}

/// Whatever fails during a switch to another file, the one that a crash would find stays.
#[test]
fn tidying_leaves_the_manifest_in_force() {
    let (fs, manifest) = fresh();
    drop(manifest);
    let manifest = reopen(&fs);
    for after in 0..12 {
        fs.inject(Some(Fault { after, only_changes: true, sticky: true }));
        let applied = manifest.apply(&[add(after + 1)]);
        manifest.tidy();
        fs.inject(None);
        manifest.tidy();
        for disk in [fs.fork(), fs.crash_losing_all()] {
            let found = reopen(&disk).state().tables.contains_key(&(after + 1));
            assert!(found || applied.is_err(), "{after}");
        }
    }
    manifest.apply(&[Edit::FlushedSeq(7)]).unwrap();
    manifest.tidy();
    let manifests = fs.image().into_keys().filter(|path| path.to_string_lossy().contains("MANIFEST"));
    assert_eq!(manifests.count(), 1);
}

#[test]
fn numbers_up_to_the_highest_of_a_file_that_is_there_are_passed_over() {
    let (_, manifest) = fresh();
    let next_after = |highest| {
        manifest.pass_over(highest);
        manifest.take_numbers(1).start
    };
    assert_eq!(
        [
            next_after(None),
            next_after(Some(0)),
            next_after(Some(7)),
            next_after(Some(3)),
            next_after(Some(1 << 25))
        ],
        [1, 2, 8, 9, 10]
    );
}

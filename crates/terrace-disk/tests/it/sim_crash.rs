//! What the simulated disk keeps and what it may lose.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use terrace_base::rng::Rng;
use terrace_disk::{Fs, FsEvent, Observer, Room, SimFs, WriteFile};

const DIR: &str = "/d";

#[derive(Debug, Clone)]
enum Op {
    Create(u8),
    Append(u8, Vec<u8>),
    Sync(u8),
    Rename(u8, u8),
    Remove(u8),
    SyncDir,
}

fn op() -> impl Strategy<Value = Op> {
    let name = 0..4u8;
    let data = prop::collection::vec(1..=255u8, 1..2000);
    prop_oneof![
        2 => name.clone().prop_map(Op::Create),
        6 => (name.clone(), data).prop_map(|(n, d)| Op::Append(n, d)),
        2 => name.clone().prop_map(Op::Sync),
        1 => (name.clone(), name.clone()).prop_map(|(a, b)| Op::Rename(a, b)),
        1 => name.prop_map(Op::Remove),
        1 => Just(Op::SyncDir),
    ]
}

fn path(name: u8) -> PathBuf {
    Path::new(DIR).join(name.to_string())
}

/// A file as its writer knows it.
struct Written {
    handle: Box<dyn WriteFile>,
    bytes: Vec<u8>,
    synced: usize,
    /// Bytes of zeros that may lie behind.
    room: usize,
}

/// What the contract says of the disk: every file ever made, the names that are durable, and what each name may stand
/// for since the directory was last synced.
#[derive(Default)]
struct Model {
    files: Vec<Written>,
    names: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    possible: BTreeMap<PathBuf, BTreeSet<Option<usize>>>,
}

impl Model {
    fn apply(&mut self, fs: &SimFs, op: &Op) {
        match op {
            Op::Create(n) if !self.names.contains_key(&path(*n)) => {
                let has_room = n % 2 == 1;
                let handle = match has_room {
                    true => fs
                        .create_reserved(&path(*n), if n % 4 == 1 { Room::Mapped } else { Room::Called })
                        .unwrap(),
                    false => fs.create(&path(*n)).unwrap(),
                };
                self.names.insert(path(*n), self.files.len());
                let room = if has_room { 16 << 10 } else { 0 };
                self.files.push(Written { handle, bytes: Vec::new(), synced: 0, room });
            }
            Op::Append(n, data) => {
                if let Some(file) = self.named(*n) {
                    file.handle.append(data).unwrap();
                    file.bytes.extend_from_slice(data);
                }
            }
            Op::Sync(n) => {
                if let Some(file) = self.named(*n) {
                    file.handle.sync().unwrap();
                    file.synced = file.bytes.len();
                }
            }
            Op::Rename(a, b) if self.names.contains_key(&path(*a)) => {
                fs.rename(&path(*a), &path(*b)).unwrap();
                let file = self.names.remove(&path(*a)).unwrap();
                self.names.insert(path(*b), file);
            }
            Op::Remove(n) if self.names.remove(&path(*n)).is_some() => fs.remove(&path(*n)).unwrap(),
            Op::SyncDir => {
                fs.sync_dir(Path::new(DIR)).unwrap();
                self.durable = self.names.clone();
                self.possible.clear();
            }
            _ => {}
        }
        for path in (0..4u8).map(path) {
            let may = self.possible.entry(path.clone()).or_default();
            may.extend([self.durable.get(&path).copied(), self.names.get(&path).copied()]);
        }
    }

    fn named(&mut self, name: u8) -> Option<&mut Written> {
        let file = *self.names.get(&path(name))?;
        self.files.get_mut(file)
    }

    /// Whether a power cut may leave `image`.
    fn allows(&self, image: &BTreeMap<PathBuf, Vec<u8>>) -> bool {
        let is = |file: usize, found: &[u8]| {
            let file = &self.files[file];
            found.len() <= file.bytes.len() + file.room && found.starts_with(&file.bytes[..file.synced])
        };
        self.possible.iter().all(|(path, may)| match image.get(path) {
            Some(found) => may.iter().flatten().any(|&file| is(file, found)),
            None => may.contains(&None),
        })
    }
}

fn new_disk() -> (SimFs, Model) {
    let fs = SimFs::new();
    fs.create_dir_all(Path::new(DIR)).unwrap();
    (fs, Model::default())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_power_cut_keeps_what_was_promised(ops in prop::collection::vec(op(), 1..40), seed: u64) {
        let (fs, mut model) = new_disk();
        for op in &ops {
            model.apply(&fs, op);
            let mut rng = Rng::new(seed);
            for _ in 0..4 {
                let image = fs.crash(&mut rng).image();
                prop_assert!(model.allows(&image), "{:?}", image.keys());
            }
        }
        let least = fs.crash_losing_all();
        for (path, &file) in &model.durable {
            let file = &model.files[file];
            prop_assert_eq!(&least.read(path).unwrap(), &file.bytes[..file.synced]);
        }
    }

    #[test]
    fn a_killed_process_leaves_everything_as_it_was(ops in prop::collection::vec(op(), 1..40), seed: u64) {
        let (fs, mut model) = new_disk();
        ops.iter().for_each(|op| model.apply(&fs, op));
        let next = fs.fork();
        prop_assert_eq!(next.image(), fs.image());
        // What was pending still is: the same power cut takes the same of both.
        let (one, other) = (fs.crash(&mut Rng::new(seed)), next.crash(&mut Rng::new(seed)));
        prop_assert_eq!(one.image(), other.image());
    }

    #[test]
    fn survivors_are_repeatable_and_independent(ops in prop::collection::vec(op(), 1..30), seed: u64) {
        let (fs, mut model) = new_disk();
        ops.iter().for_each(|op| model.apply(&fs, op));
        let before = fs.image();
        let (one, other) = (fs.crash(&mut Rng::new(seed)), fs.crash(&mut Rng::new(seed)));
        prop_assert_eq!(one.image(), other.image());
        let survived = one.image();
        for path in survived.keys() {
            one.damage(path, |data| data.push(1)).unwrap();
        }
        prop_assert_eq!(other.image(), survived.clone());
        // What survived one power cut lies on the disk and survives the next.
        prop_assert_eq!(other.crash(&mut Rng::new(!seed)).image(), survived);
        prop_assert_eq!(fs.image(), before);
    }
}

#[test]
fn every_kind_of_loss_is_met() {
    let fs = SimFs::new();
    let old = vec![0xaa; 9000];
    fs.plant(Path::new("/old"), &old).unwrap();
    fs.remove(Path::new("/old")).unwrap();
    let mut file = fs.create(Path::new("/f")).unwrap();
    file.append(&[1; 5000]).unwrap();
    file.sync().unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    file.append(&[2; 20_000]).unwrap();
    let (mut lost, mut whole, mut short, mut zeros, mut stale, mut hole) = Default::default();
    let mut rng = Rng::new(3);
    for _ in 0..400 {
        let data = fs.crash(&mut rng).read(Path::new("/f")).unwrap();
        assert_eq!(data[..5000], [1; 5000]);
        let tail = &data[5000..];
        lost |= tail.is_empty();
        whole |= tail == [2; 20_000];
        short |= !tail.is_empty() && tail.len() < 20_000 && tail.iter().all(|&b| b == 2);
        zeros |= tail.last() == Some(&0);
        stale |= tail.windows(64).any(|w| w == [0xaa; 64]);
        hole |= tail.iter().position(|&b| b != 2).is_some_and(|at| tail[at..].ends_with(&[2; 64]));
    }
    let kinds: [bool; 6] = [lost, whole, short, zeros, stale, hole];
    assert_eq!(kinds, [true; 6]);
}

#[test]
fn names_are_lost_each_by_itself() {
    let fs = SimFs::new();
    for i in 0..4 {
        fs.create(&PathBuf::from(format!("/{i}"))).unwrap();
    }
    let mut rng = Rng::new(1);
    let survivors: BTreeSet<Vec<PathBuf>> =
        (0..400).map(|_| fs.crash(&mut rng).image().into_keys().collect()).collect();
    assert_eq!(survivors.len(), 16);
}

/// A rename may be durable where the name that the file had before never was, and a removal where what follows is not.
#[test]
fn changes_of_names_are_durable_out_of_order() {
    let fs = SimFs::new();
    let path = |name: &str| Path::new("/").join(name);
    fs.plant(&path("old"), b"old").unwrap();
    let mut file = fs.create(&path("new.tmp")).unwrap();
    file.append(b"new").unwrap();
    file.sync().unwrap();
    fs.rename(&path("new.tmp"), &path("new")).unwrap();
    fs.remove(&path("old")).unwrap();
    let mut rng = Rng::new(2);
    let seen: BTreeSet<Vec<String>> = (0..400)
        .map(|_| {
            let disk = fs.crash(&mut rng);
            let image = disk.image();
            for (path, bytes) in &image {
                assert!(path.ends_with(std::str::from_utf8(bytes).unwrap()) || path.ends_with("new.tmp"));
            }
            image.keys().map(|path| path.display().to_string()).collect()
        })
        .collect();
    let all = [
        vec![],
        vec!["/new"],
        vec!["/new", "/old"],
        vec!["/new.tmp"],
        vec!["/new.tmp", "/old"],
        vec!["/old"],
    ];
    assert_eq!(Vec::from_iter(seen), all);
}

#[test]
fn directories_lose_names_independently() {
    let fs = SimFs::new();
    let (a, b) = (Path::new("/a"), Path::new("/b"));
    fs.create_dir_all(a).unwrap();
    fs.create_dir_all(b).unwrap();
    fs.plant(&a.join("f"), b"moved").unwrap();
    fs.rename(&a.join("f"), &b.join("f")).unwrap();
    let mut rng = Rng::new(1);
    let seen: BTreeSet<(bool, bool)> = (0..100)
        .map(|_| {
            let disk = fs.crash(&mut rng);
            for path in disk.image().into_keys() {
                assert_eq!(disk.read(&path).unwrap(), b"moved");
            }
            (disk.exists(&a.join("f")).unwrap(), disk.exists(&b.join("f")).unwrap())
        })
        .collect();
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_removed_file_is_there_again_until_its_directory_is_synced() {
    let fs = SimFs::new();
    fs.plant(Path::new("/f"), b"bytes").unwrap();
    fs.remove(Path::new("/f")).unwrap();
    assert_eq!(fs.crash_losing_all().read(Path::new("/f")).unwrap(), b"bytes");
    fs.sync_dir(Path::new("/")).unwrap();
    assert!(fs.crash_losing_all().image().is_empty());
}

#[test]
fn locks_stay_with_their_process() {
    let fs = SimFs::new();
    let lock = fs.lock(Path::new("/LOCK")).unwrap();
    fs.fork().lock(Path::new("/LOCK")).unwrap();
    fs.crash(&mut Rng::new(1)).lock(Path::new("/LOCK")).unwrap();
    drop(lock);
}

/// How long a file with room is, is durable with a sync; before it a power cut leaves any length that it had. A kill
/// leaves it as it is, also within an append.
#[test]
fn room_may_survive_or_not() {
    let fs = SimFs::new();
    let path = Path::new("/f");
    let mut file = fs.create_reserved(path, Room::Mapped).unwrap();
    file.append(&[1; 100]).unwrap();
    file.sync().unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    let len = fs.read(path).unwrap().len();
    assert!(len > 100 && fs.used_bytes() == len as u64);
    assert_eq!(fs.fork().read(path).unwrap(), [vec![1; 100], vec![0; len - 100]].concat());
    file.append(&[2; 50]).unwrap();
    file.trim().unwrap();
    assert_eq!(fs.read(path).unwrap().len(), 150);
    let mut rng = Rng::new(3);
    let found: BTreeSet<usize> = (0..200).map(|_| fs.crash(&mut rng).read(path).unwrap().len()).collect();
    assert!(found.contains(&100) && found.contains(&150) && found.contains(&len), "{found:?}");
    file.sync().unwrap();
    for _ in 0..20 {
        assert_eq!(fs.crash(&mut rng).read(path).unwrap(), [[1; 100].as_slice(), &[2; 50]].concat());
    }
}

/// Looks at the disk, as the next process would find it, before each change.
#[derive(Debug)]
struct Looking(SimFs, Mutex<Vec<Vec<u8>>>);

impl Observer for Looking {
    fn before(&self, _event: FsEvent<'_>) {
        self.1.lock().unwrap().extend(self.0.fork().read(Path::new("/f")));
    }
}

#[test]
fn a_kill_may_come_within_an_append_to_a_file_with_room() {
    let fs = SimFs::new();
    let mut file = fs.create_reserved(Path::new("/f"), Room::Mapped).unwrap();
    let looking = Arc::new(Looking(fs.clone(), Default::default()));
    fs.observe(Some(looking.clone()));
    for _ in 0..20 {
        file.append(&[1; 100]).unwrap();
    }
    fs.observe(None);
    let mut halves = 0;
    for found in looking.1.lock().unwrap().iter() {
        let stored = found.iter().position(|&byte| byte == 0).unwrap_or(found.len());
        assert!(found[stored..].iter().all(|&byte| byte == 0));
        halves += usize::from(!stored.is_multiple_of(100));
    }
    assert!((1..20).contains(&halves), "{halves}");
}

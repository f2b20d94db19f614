//! What changes between two lives.

use std::path::{Path, PathBuf};

use terrace::{EngineKind, TieringKind};
use terrace_base::rng::Rng;
use terrace_disk::Fault;
use terrace_pmem::Granularity;

use crate::damage::image::{Bed, Image};
use crate::harness::with_memtables_of;

const PAGE: usize = 4096;

/// One change.
#[derive(Debug, Clone)]
pub enum Change {
    /// Media of another kind.
    Media(Granularity),
    /// The machine was started again, in order.
    Boot,
    /// Another engine is asked for.
    Engine(EngineKind),
    /// Buffers, tables and blocks of other sizes, and memtables of another kind.
    Sizes(u64),
    /// So little memory.
    Memory(u64),
    /// One operation of the file system fails.
    Fails(u64),
    /// The pool is that of an earlier image.
    OlderPool(usize),
    /// A page of the pool is that of an earlier image.
    OlderPage(usize, usize),
    /// A page of the pool holds another one's bytes.
    MisplacedPage(usize, usize),
    /// There is no pool.
    NoPool,
    /// A file is that of an earlier image, perhaps one that had been removed.
    OlderFile(usize, PathBuf),
    /// Two files have each other's names.
    Swapped(PathBuf, PathBuf),
    /// A file is not there.
    Missing(PathBuf),
}

impl Change {
    /// Some change that can be made.
    pub fn choose(rng: &mut Rng, image: &Image, earlier: &[Image]) -> Option<Change> {
        let files: Vec<&PathBuf> = image.files.keys().collect();
        let file = |rng: &mut Rng| files[rng.below(files.len() as u64) as usize].clone();
        let moment = |rng: &mut Rng| rng.below(earlier.len().max(1) as u64) as usize;
        let pages = image.pool.as_ref().map_or(0, |pool| pool.len() / PAGE) as u64;
        let change = match rng.below(14) {
            0 => Change::Media(*pick(rng, &[Granularity::Byte, Granularity::CacheLine, Granularity::Page])),
            1 => Change::Boot,
            2 => Change::Engine(*pick(rng, EngineKind::ALL)),
            3 => Change::Sizes(1 << rng.below(4)),
            4 => Change::Memory(1 << (12 + rng.below(10))),
            5 => Change::Fails(rng.below(60)),
            6 => Change::OlderPool(moment(rng)),
            7 | 8 if pages > 0 => Change::OlderPage(moment(rng), rng.below(pages) as usize),
            9 if pages > 0 => Change::MisplacedPage(rng.below(pages) as usize, rng.below(pages) as usize),
            10 => Change::NoPool,
            11 => {
                let moment = moment(rng);
                let then = &earlier.get(moment)?.files;
                let file = then.keys().nth(rng.below(then.len().max(1) as u64) as usize)?;
                Change::OlderFile(moment, file.clone())
            }
            12 => Change::Swapped(file(rng), file(rng)),
            _ => Change::Missing(file(rng)),
        };
        let changed = change.apply(image, earlier);
        let same = changed.files == image.files && changed.pool == image.pool;
        let itself = matches!(&change, Change::Swapped(one, two) if one == two);
        (!itself && (!change.is_of_files() || !same)).then_some(change)
    }

    /// What it is called in reports.
    pub fn sort(&self) -> String {
        let kind = |path: &Path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let sort = name.trim_matches(|c: char| c.is_ascii_digit() || c == '-' || c == '.');
            sort.to_owned()
        };
        match self {
            Change::Media(granularity) => format!("media {granularity:?}"),
            Change::Engine(engine) => format!("engine {engine:?}"),
            Change::OlderFile(_, path) => format!("older {}", kind(path)),
            Change::Swapped(one, two) => format!("swapped {} and {}", kind(one), kind(two)),
            Change::Missing(path) => format!("missing {}", kind(path)),
            other => format!("{other:?}").split('(').next().unwrap_or_default().to_owned(),
        }
    }

    /// Whether bytes of the database are not what it left; else only what is around it.
    pub fn is_of_files(&self) -> bool {
        !matches!(
            self,
            Change::Media(_)
                | Change::Boot
                | Change::Engine(_)
                | Change::Sizes(_)
                | Change::Memory(_)
                | Change::Fails(_)
        )
    }

    pub fn is_of_engine(&self) -> bool {
        matches!(self, Change::Engine(_))
    }

    pub fn is_of_limits(&self) -> bool {
        matches!(self, Change::Fails(_))
    }

    /// The database as the next life finds it.
    pub fn apply(&self, image: &Image, earlier: &[Image]) -> Image {
        let mut image = image.clone();
        match self {
            Change::Media(granularity) => image.granularity = *granularity,
            Change::Boot => image.boot = "a boot of its own",
            Change::Engine(engine) => image.options.engine = *engine,
            Change::Sizes(times) => {
                image.options.slm.memtable_bytes = 2048 * times;
                image.options.slm.table_bytes = 1024 * times;
                image.options.lsm.memtable_bytes = 2048 * times;
                image.options.lsm.table_bytes = 1024 * times;
                for levels in [&mut image.options.lab.levels, &mut image.options.tlsm.levels] {
                    levels.memtable_bytes = 2048 * times;
                    levels.table_bytes = 1024 * times;
                }
                image.options.lab.value_tree_bytes = 4096 * times;
                let tierings = [TieringKind::Lru, TieringKind::Leveled, TieringKind::None];
                let tiering = tierings[times.ilog2() as usize % 3];
                let is_bounded = tiering != TieringKind::None;
                image.options.tlsm.tiering = tiering;
                image.options.tlsm.list_bytes = if is_bounded { (16 << 10) * times } else { 0 };
                image.options.wip.memtable_bytes = 1024 * times;
                image.options.wip.most_memtable_bytes = 2048 * times;
                image.options.wip.bucket_bytes = 4096 * times;
                image.options.wip.split_into = 2 + *times as usize % 5;
                image.options.turbo.shards = 1 << times.ilog2();
                image.options.sptree.leaf_entries = 4 + *times as usize;
                image.options = with_memtables_of(*times, image.options);
            }
            Change::Memory(bytes) => image.options.memory_budget = *bytes,
            Change::Fails(_) => {}
            Change::OlderPool(moment) => image.pool = earlier.get(*moment).and_then(|then| then.pool.clone()),
            Change::OlderPage(moment, page) => {
                let then = earlier.get(*moment).and_then(|then| then.pool.as_ref());
                let bytes = then.and_then(|pool| pool.get(page * PAGE..(page + 1) * PAGE));
                if let (Some(bytes), Some(pool)) = (bytes, &mut image.pool) {
                    pool[page * PAGE..][..PAGE].copy_from_slice(bytes);
                }
            }
            Change::MisplacedPage(to, from) => {
                if let Some(pool) = &mut image.pool {
                    pool.copy_within(from * PAGE..(from + 1) * PAGE, to * PAGE);
                }
            }
            Change::NoPool => image.pool = None,
            Change::OlderFile(moment, path) => {
                if let Some(bytes) = earlier.get(*moment).and_then(|then| then.files.get(path)) {
                    image.files.insert(path.clone(), bytes.clone());
                }
            }
            Change::Swapped(one, two) => {
                if let (Some(a), Some(b)) = (image.files.remove(one), image.files.remove(two)) {
                    image.files.insert(one.clone(), b);
                    image.files.insert(two.clone(), a);
                }
            }
            Change::Missing(path) => drop(image.files.remove(path)),
        }
        image
    }

    /// Lays on the machine what is to fail.
    pub fn burden(&self, bed: &Bed) {
        if let Change::Fails(after) = self {
            bed.fs().inject(Some(Fault { after: *after, only_changes: false, sticky: false }));
        }
    }
}

/// Takes it away again.
pub fn relieve(bed: &Bed) {
    bed.fs().inject(None);
}

fn pick<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[rng.below(of.len() as u64) as usize]
}

//! Manifests: opened, dumped, salvaged, and made anew from what was read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use terrace::manifest::{Edit, Identity, JobKind, Manifest, dump};
use terrace_disk::{Fs, SimFs};
use terrace_table::TableMeta;

use crate::memory::{dir, files, typed};
use crate::patched;

fn path() -> PathBuf {
    dir().join("MANIFEST-000001")
}

fn meta(number: u64) -> TableMeta {
    TableMeta {
        number,
        file_bytes: 4096,
        entries: 20,
        deletes: 3,
        smallest: b"a".to_vec(),
        largest: b"zz".to_vec(),
        min_seq: 10 * number,
        max_seq: 10 * number + 19,
        raw_bytes: 4000,
    }
}

fn bucket(lower: &[u8], flushed: u64) -> Edit {
    Edit::SetBucket { lower: lower.to_vec(), flushed }
}

/// The files of a sound store's manifest.
fn sound() -> &'static (Vec<u8>, Vec<u8>) {
    static SOUND: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    SOUND.get_or_init(|| {
        let fs = Arc::new(files(&[]));
        let options = BTreeMap::from([("pool.media".to_string(), "page".to_string())]);
        let identity = Identity { uuid: [7; 16], engine: "slm".into(), options };
        let manifest = Manifest::create(fs.clone(), dir(), identity).unwrap();
        let groups = [
            vec![Edit::JobStarted { id: 1, kind: JobKind::Flush, inputs: Vec::new() }],
            vec![Edit::AddTable { level: 0, job: 1, meta: meta(2) }],
            vec![Edit::JobDone { id: 1 }, Edit::FlushedSeq(29), Edit::LogNumber(3)],
            vec![Edit::AddTable { level: 0, job: 4, meta: meta(5) }, Edit::Candidates(vec![2, 5])],
            vec![Edit::JobStarted { id: 6, kind: JobKind::Compaction, inputs: vec![2] }],
            vec![Edit::Counts { number: 5, live_delta: -4 }, Edit::RemoveTable { number: 2 }],
            vec![Edit::NextFile(9)],
            vec![bucket(b"", 29), bucket(b"k", 12), bucket(b"q", 300)],
            vec![Edit::RemoveBucket { lower: b"q".to_vec() }, bucket(b"k", 5)],
        ];
        groups.iter().for_each(|group| manifest.apply(group).unwrap());
        (fs.read(&path()).unwrap(), fs.read(&dir().join("CURRENT")).unwrap())
    })
}

pub fn manifest(data: &[u8]) {
    let (image, current) = sound();
    let fs: Arc<SimFs> =
        Arc::new(files(&[(path(), &patched(image, data)), (dir().join("CURRENT"), current)]));
    let salvaged = Manifest::salvage(&*fs, dir()).unwrap();
    let mut text = Vec::new();
    let dumped = dump(&*fs, dir(), &mut text);
    let Some(manifest) = typed(Manifest::open(fs.clone(), dir())) else {
        assert!(dumped.is_err(), "a manifest that does not open is dumped without a word");
        return;
    };
    assert!(dumped.is_ok(), "a manifest that opens is not dumped");
    let state = manifest.state();
    assert_eq!(salvaged.map(|s| s.state).as_ref(), Some(&*state), "salvage finds something else");
    typed(manifest.listing().map(drop));
    // A state that was read can be written and read again.
    let again: Arc<SimFs> = Arc::new(files(&[]));
    Manifest::rebuild(again.clone(), dir(), (*state).clone()).unwrap();
    assert_eq!(*Manifest::open(again, dir()).unwrap().state(), *state);
}

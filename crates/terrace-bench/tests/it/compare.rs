//! Comparisons: sessions in child processes, the report of stored results, what changed between runs.

use std::path::{Path, PathBuf};

use terrace_bench::compare::child::{self, Place};
use terrace_bench::compare::contender::Contender;
use terrace_bench::compare::entrant::{Entrant, PmSetup};
use terrace_bench::compare::results::{Results, Session};
use terrace_bench::compare::run::Comparison;
use terrace_bench::compare::script::Script;
use terrace_bench::compare::{changes, page};
use terrace_bench::outcome::Kind;
use terrace_bench::peers::{Peer, Setup};
use terrace_bench::{Batch, Direction, StoreResult};

fn place(root: &Path) -> Place {
    Place {
        program: PathBuf::from(env!("CARGO_BIN_EXE_terrace-bench")),
        work_dir: root.join("work"),
        pm_dir: root.join("pm"),
        profile: "dram".to_string(),
        seed: 1,
        trace: None,
    }
}

fn script(steps: &str) -> Script {
    Script {
        name: "tiny".to_string(),
        title: "a tiny script".to_string(),
        records: 2000,
        key_size: 16,
        value_size: 100,
        threads: 2,
        memory: 8 << 20,
        pm_bytes: 64 << 20,
        bound: None,
        sync: false,
        batch: 1,
        options: Vec::new(),
        steps: steps.split(',').map(str::to_string).collect(),
        seconds: 0.05,
        kill: false,
        rounds: 2,
        write_buffer: None,
        stores: Vec::new(),
        point: None,
    }
}

fn run(root: &Path, entrant: &str, script: &Script) -> Session {
    child::run(&place(root), entrant, script, 0, &mut || {})
}

#[test]
fn options_go_to_the_engines_that_have_them() {
    let root = tempfile::tempdir().unwrap();
    let option = ("wip.split_into".to_string(), "3".to_string());
    let script = Script { batch: 10, options: vec![option.clone()], ..script("load") };
    for entrant in ["wip", "lsm"] {
        let session = run(root.path(), entrant, &script);
        assert_eq!(session.error, None, "{entrant}");
        assert_eq!(session.settings.contains(&option), entrant == "wip");
        let step = &session.steps[0].outcome;
        assert_eq!(step.counts.operations, 2000);
        assert_eq!(step.by_kind.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [Kind::Batch]);
    }
}

#[test]
fn a_session_tells_of_every_step() {
    let root = tempfile::tempdir().unwrap();
    let ours = Entrant::all().into_iter().filter(|entrant| entrant.is_ours());
    for kind in ours {
        let session = run(root.path(), &kind.name(), &script("fillrandom,readrandom,load,a,load,e"));
        assert_eq!(session.error, None, "{kind:?}");
        let names: Vec<_> = session.steps.iter().map(|s| s.name.as_str()).collect();
        let all = ["fillrandom", "readrandom", "load", "a", "load (2)", "e"];
        // A store without an order of keys scans no ranges, and says so.
        assert_eq!(names, all[..5 + usize::from(kind.is_ordered())]);
        let without = session.settings.iter().find(|(name, _)| name.starts_with("without"));
        assert_eq!(without.map(|(_, steps)| steps.as_str()), (!kind.is_ordered()).then_some("e"));
        let load = &session.steps[2];
        assert_eq!((load.outcome.counts.operations, load.live_bytes), (2000, Some(2000 * 116)));
        assert!(load.ssd_bytes + load.pm_bytes > 0 && session.user_bytes > 2 * 2000 * 116);
        assert!(session.settings.iter().any(|(name, _)| name == "durability"));
        assert!(!root.path().join("work/tiny").exists());
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let root = tempfile::tempdir().unwrap();
    let script = Script { kill: true, ..script("load,overwrite") };
    for kind in Entrant::engines() {
        let session = run(root.path(), &kind.name(), &script);
        assert_eq!(session.error, None, "{kind:?}");
        let reopening = session.reopening.unwrap();
        let kept = reopening.kept;
        assert!(kept.updated > 0 && kept.sought() == 2000 && kept.lost() == 0, "{kind:?} {kept:?}");
    }
}

#[test]
fn a_session_that_fails_says_why() {
    let root = tempfile::tempdir().unwrap();
    let session = run(root.path(), "slm", &script("readrandom"));
    assert!(session.error.unwrap().contains("needs a database"));
    let session = run(root.path(), "dbase", &script("load"));
    assert!(session.error.unwrap().contains("no store \"dbase\""));
}

#[test]
fn a_comparison_saves_what_it_measures_and_draws_it() {
    let root = tempfile::tempdir().unwrap();
    let engines = Entrant::engines();
    let comparison = Comparison {
        suite: "quick".to_string(),
        entrants: engines.iter().copied().map(Contender::from).collect(),
        scripts: vec![script("load,c")],
        minutes: 60.0,
        place: place(root.path()),
        lock: Some(root.path().join("lock")),
    };
    let results = comparison.run(&mut |results| results.save(root.path())).unwrap();
    assert_eq!(results.sessions.len(), 2 * engines.len());
    let loaded = Results::load(root.path()).unwrap();
    assert_eq!(loaded.sessions.len(), results.sessions.len());
    let drawn = |results: &Results| {
        let files = page::write(results, root.path()).unwrap();
        files.into_iter().map(|path| std::fs::read_to_string(path).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(drawn(&loaded), drawn(&results));
    let (changed, compared) = changes::changes(&loaded, &loaded);
    assert!(changed.is_empty() && compared > 0);
}

/// Results of a real comparison, made smaller.
fn stored() -> Results {
    Results::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data")).unwrap()
}

#[test]
fn a_report_is_whole_and_needs_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let results = stored();
    let files = page::write(&results, dir.path()).unwrap();
    let names: Vec<_> = files.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    assert_eq!(names, ["index.html", "overview.svg", "pm.html", "overview-pm.svg", "figures.md"]);
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count(), "{path:?}");
        for outside in ["src=", "@import", "url(", "<link"] {
            assert!(!text.contains(outside), "{path:?} has {outside}");
        }
        let addresses = text.matches("http").count();
        assert_eq!(addresses, text.matches("http://www.w3.org/2000/svg").count(), "{path:?}");
        assert!(!text.replace("Number.isNaN", "").contains("NaN") && !text.contains("inf,"), "{path:?}");
        for tag in ["section", "details", "table", "div", "ul", "dl", "g"] {
            let opened =
                text.matches(&format!("<{tag}>")).count() + text.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, text.matches(&format!("</{tag}>")).count(), "{path:?} {tag}");
        }
    }
    let [ordinary, _, pm, _, tables] = [0, 1, 2, 3, 4].map(|i| std::fs::read_to_string(&files[i]).unwrap());
    for (page, ours, other) in [(&ordinary, ">lsm<", ">slm-pm<"), (&pm, ">slm-pm<", ">lsm<")] {
        assert!(page.contains(ours) && page.contains(">rocksdb<") && !page.contains(other));
        assert!(page.contains("At a glance") && page.contains("1.00×") && page.contains("had to"));
    }
    assert!(ordinary.contains("href=\"pm.html\"") && pm.contains("href=\"index.html\""));
    assert!(!ordinary.contains("emulated") && pm.contains("emulated as"));
    assert!(tables.contains("| 1k load | lsm ") && tables.contains("| 1k load | slm-pm "));
    assert!(tables.find("## Without persistent").unwrap() < tables.find("## With persistent").unwrap());
}

#[test]
fn a_run_that_became_slower_is_told_from_one_that_did_not() {
    let before = stored();
    let mut after = stored();
    assert!(changes::changes(&before, &after).0.is_empty());
    for session in after.sessions.iter_mut().filter(|s| s.entrant == "lsm") {
        for step in &mut session.steps {
            step.outcome.elapsed *= 3;
        }
    }
    let (found, compared) = changes::changes(&before, &after);
    assert!(
        !found.is_empty() && found.iter().all(|c| c.what[2] == "lsm" && c.what[3] == "ops/s" && !c.better)
    );
    let text = changes::table(&found, compared);
    assert!(text.contains("-67%") && text.contains("worse"), "{text}");
}

#[test]
fn results_of_another_version_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    Results { version: 99, ..stored() }.save(dir.path()).unwrap();
    assert!(Results::load(dir.path()).unwrap_err().to_string().contains("99"));
    assert!(Results::load(&dir.path().join("none")).is_err());
}

/// What the trait promises, of any store.
fn behaves(entrant: Entrant) -> StoreResult<()> {
    let root = tempfile::tempdir()?;
    let setup = Setup {
        dir: root.path().join("ssd"),
        pm_dir: root.path().join("pm"),
        memory: 8 << 20,
        buffer: None,
        sync: false,
        options: Vec::new(),
    };
    let pm = PmSetup { profile: "dram".to_string(), bytes: 64 << 20 };
    let opened = entrant.open(&setup, &pm)?;
    assert!(opened.settings.iter().any(|(name, _)| name == "version"), "{entrant:?}");
    let store = opened.store;
    let mut batch = Batch::default();
    for key in [&b"a"[..], b"b\xff", b"c", b"d"] {
        batch.put(key, &[key, b"!"].concat());
    }
    batch.delete(b"c");
    store.write_batch(&batch)?;
    store.put(b"e", &[7; 5000])?;
    store.delete(b"d")?;
    store.delete(b"never")?;
    store.flush()?;
    let scan = |from: Option<&[u8]>, direction| {
        let mut keys = Vec::new();
        store.scan(from, direction, &mut |key, _| {
            keys.push(key.to_vec());
            keys.len() < 10
        })?;
        StoreResult::Ok(keys)
    };
    if !entrant.is_ordered() {
        assert!(scan(None, Direction::Forward).unwrap_err().to_string().contains("order of keys"));
    }
    for (from, direction, expected) in [
        (None, Direction::Forward, vec![&b"a"[..], b"b\xff", b"e"]),
        (Some(&b"b"[..]), Direction::Forward, vec![b"b\xff", b"e"]),
        (Some(b"f"), Direction::Forward, vec![]),
        (None, Direction::Backward, vec![b"e", b"b\xff", b"a"]),
        (Some(b"d"), Direction::Backward, vec![b"b\xff", b"a"]),
        (Some(b"a"), Direction::Backward, vec![b"a"]),
        (Some(b"z"), Direction::Backward, vec![b"e", b"b\xff", b"a"]),
    ]
    .into_iter()
    .filter(|_| entrant.is_ordered())
    {
        assert_eq!(scan(from, direction)?, expected, "{entrant:?} {from:?} {direction:?}");
    }
    let mut seen = Vec::new();
    assert!(store.get(b"a", &mut |value| seen = value.to_vec())? && seen == b"a!");
    assert!(!store.get(b"c", &mut |_| {})?);
    drop(store);
    let again = entrant.open(&setup, &pm)?.store;
    assert!(again.get(b"e", &mut |value| seen = value.to_vec())? && seen == [7; 5000]);
    again.compact()
}

#[test]
fn every_store_behaves_as_the_trait_says() {
    for engine in Entrant::all().into_iter().filter(|entrant| entrant.is_ours()) {
        behaves(engine).unwrap();
    }
    for peer in Peer::ALL {
        let done = behaves(Entrant::Peer(peer));
        match peer.is_built() {
            true => done.unwrap(),
            false => assert!(done.unwrap_err().to_string().contains("make-peers")),
        }
    }
}

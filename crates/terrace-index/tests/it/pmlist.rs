//! Lists that are built in one go: contents, places without copies, what is given back when, crashes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use proptest::prelude::*;
use terrace_base::Kind;
use terrace_base::rng::Rng;
use terrace_index::kinds;
use terrace_index::pmlist::{About, Cover, ListBuilder, Lists, PmList, Style};
use terrace_pmem::Pool;
use terrace_sim::{Explorer, Recorder, Scenario, World};

use crate::bed::{assert_marked, create_in, memory_pool, memory_pool_of, open_in};

pub(crate) type Versions = BTreeMap<(Vec<u8>, Reverse<u64>), (Kind, Vec<u8>)>;

pub(crate) const ROOM: u64 = 32 << 20;
const STYLES: [Style; 3] = [
    Style { each: false, copies: false },
    Style { each: true, copies: false },
    Style { each: true, copies: true },
];

pub(crate) fn build(lists: &Lists, style: Style, versions: &Versions) -> terrace_base::Result<PmList> {
    let mut builder = lists.builder(style);
    for ((key, seq), (kind, value)) in versions {
        builder.add(key, seq.0, *kind, value)?;
    }
    finish(builder, Vec::new())
}

fn finish(builder: ListBuilder, inputs: Vec<u64>) -> terrace_base::Result<PmList> {
    let about =
        About { level: 2, inputs, cover: Cover { from: None, to: Some(b"z".to_vec()) }, ..About::default() };
    Ok(builder.finish(about, b"a filter")?.expect("not empty"))
}

/// Merges lists by their records' places, and says how many were copied.
fn merge(lists: &Lists, style: Style, from: &[&PmList]) -> terrace_base::Result<(PmList, u64)> {
    let mut places = BTreeMap::new();
    for list in from {
        let mut cursor = list.cursor();
        cursor.seek_first()?;
        while cursor.valid() {
            places.insert((cursor.key().to_vec(), Reverse(cursor.seq())), cursor.clone());
            cursor.next()?;
        }
    }
    let (mut builder, mut copied) = (lists.builder(style), 0);
    for ((key, seq), cursor) in places {
        if !builder.point(&key, seq.0, cursor.kind(), cursor.value_len(), cursor.offset())? {
            builder.add(&key, seq.0, cursor.kind(), cursor.value()?)?;
            copied += 1;
        }
    }
    Ok((finish(builder, vec![1, 2])?, copied))
}

pub(crate) fn contents(list: &PmList) -> Versions {
    let (mut out, mut cursor) = (Versions::new(), list.cursor());
    cursor.seek_first().unwrap();
    while cursor.valid() {
        let value = cursor.value().unwrap().to_vec();
        out.insert((cursor.key().to_vec(), Reverse(cursor.seq())), (cursor.kind(), value));
        cursor.next().unwrap();
    }
    out
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(0u8..3, 0..4),
        (0u32..50).prop_map(|i| format!("user{i:020}").into_bytes()),
        prop::collection::vec(any::<u8>(), 0..300),
    ]
}

fn versions() -> impl Strategy<Value = Versions> {
    let value = prop::collection::vec(any::<u8>(), 0..600);
    let version = (any::<bool>(), value)
        .prop_map(|(put, value)| if put { (Kind::Put, value) } else { (Kind::Delete, Vec::new()) });
    prop::collection::btree_map((key(), (1u64..60).prop_map(Reverse)), version, 1..120)
}

pub(crate) fn some_versions(seed: u64, count: u64) -> Versions {
    let mut rng = Rng::new(seed);
    let version = |i| {
        let key = format!("key{:04}", rng.below(300)).into_bytes();
        ((key, Reverse(seed * 1000 + i)), (Kind::Put, vec![i as u8; rng.below(200) as usize]))
    };
    (0..count).map(version).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn agrees_with_a_map_of_versions(
        model in versions(),
        probes in prop::collection::vec((key(), 0u64..60), 20),
        reopen in any::<bool>(),
        style in 0usize..3,
    ) {
        let lists = Lists::new(&memory_pool(), ROOM);
        let mut list = build(&lists, STYLES[style], &model).unwrap();
        if reopen {
            list = lists.open(list.head()).unwrap();
            prop_assert_eq!(list.filter().unwrap(), b"a filter");
        }
        list.name();
        list.verify().unwrap();
        prop_assert_eq!(&contents(&list), &model);
        prop_assert_eq!(list.figures().entries, model.len() as u64);
        prop_assert_eq!(&list.about().smallest, &model.keys().next().unwrap().0);
        let mut cursor = list.cursor();
        for (key, at) in &probes {
            let place = (key.clone(), Reverse(*at));
            let at_or_after = model.range(place.clone()..).next();
            let got = list.get(key, *at).unwrap();
            let want = at_or_after.filter(|((k, _), _)| k == key);
            prop_assert_eq!(got.map(|f| (f.seq, f.kind, f.value.to_vec())),
                want.map(|((_, s), (kind, v))| (s.0, *kind, v.clone())));
            cursor.seek(key, *at).unwrap();
            prop_assert_eq!(cursor.valid().then(|| (cursor.key().to_vec(), Reverse(cursor.seq()))),
                at_or_after.map(|(k, _)| k.clone()));
            cursor.seek_back(key, *at).unwrap();
            let mut before = model.range(..=place).rev();
            for _ in 0..3 {
                prop_assert_eq!(cursor.valid().then(|| (cursor.key().to_vec(), Reverse(cursor.seq()))),
                    before.next().map(|(k, _)| k.clone()));
                cursor.prev().unwrap();
            }
        }
        cursor.seek_last().unwrap();
        prop_assert_eq!(cursor.valid().then(|| (cursor.key().to_vec(), Reverse(cursor.seq()))),
            model.keys().next_back().cloned());
    }

    #[test]
    fn merged_lists_hold_what_their_inputs_held(a in versions(), b in versions(), style in 0usize..3) {
        let pool = memory_pool();
        let lists = Lists::new(&pool, ROOM);
        let before = pool.used_bytes();
        let inputs = [&a, &b].map(|versions| build(&lists, STYLES[style], versions).unwrap());
        inputs.iter().for_each(PmList::name);
        let (merged, copied) = merge(&lists, STYLES[style], &[&inputs[0], &inputs[1]]).unwrap();
        merged.name();
        for input in inputs {
            input.unname();
        }
        let mut both = a.clone();
        both.extend(b.clone());
        merged.verify().unwrap();
        prop_assert!(contents(&merged).keys().eq(both.keys()));
        prop_assert_eq!(copied, if STYLES[style].copies { both.len() as u64 } else { 0 });
        merged.unname();
        drop(merged);
        prop_assert_eq!((lists.bytes(), pool.used_bytes()), (0, before), "all is given back");
    }
}

#[test]
fn what_is_named_stays_and_what_is_held_stays_as_long() {
    let pool = memory_pool();
    let lists = Lists::new(&pool, ROOM);
    let list = build(&lists, Style::default(), &some_versions(1, 200)).unwrap();
    list.name();
    let (head, id) = (list.head(), list.id());
    drop(list);
    let list = lists.open(head).unwrap();
    assert_eq!(list.id(), id);
    list.name();
    let mut cursor = list.cursor();
    cursor.seek_first().unwrap();
    list.unname();
    drop(list);
    assert!(lists.bytes() > 0 && lists.has_unnamed());
    for _ in 0..100 {
        cursor.value().unwrap();
        cursor.next().unwrap();
    }
    drop(cursor);
    assert_eq!((lists.bytes(), lists.has_unnamed()), (0, false));
    assert!(pool.extents(kinds::PM_LIST).is_empty() && pool.extents(kinds::PM_BUFFER).is_empty());
}

#[test]
fn nothing_is_given_back_while_it_is_marked() {
    let pool = memory_pool();
    let lists = Lists::new(&pool, ROOM);
    let list = build(&lists, Style::default(), &some_versions(1, 200)).unwrap();
    let problems = lists.with_marked(pool.marks(), |marks| {
        drop(list);
        Ok(pool.check(&marks))
    });
    assert!(problems.unwrap().is_empty());
    assert_eq!(lists.bytes(), 0);
}

/// Most of what lists hold is replaced: what is left of their buffers is copied as they are merged, and room comes
/// back.
#[test]
fn buffers_that_are_mostly_dead_are_emptied() {
    let pool = memory_pool();
    let lists = Lists::new(&pool, ROOM);
    let all = some_versions(3, 2000);
    let whole = build(&lists, Style::default(), &all).unwrap();
    whole.name();
    let mut builder = lists.builder(Style::default());
    let mut cursor = whole.cursor();
    cursor.seek_first().unwrap();
    for i in 0..all.len() {
        if i % 10 == 0 {
            assert!(
                builder
                    .point(cursor.key(), cursor.seq(), cursor.kind(), cursor.value_len(), cursor.offset())
                    .unwrap()
            );
        }
        cursor.next().unwrap();
    }
    drop(cursor);
    let few = finish(builder, vec![1]).unwrap();
    few.name();
    whole.unname();
    drop(whole);
    assert!(lists.usage().live * 3 < lists.usage().bytes, "{:?}", lists.usage());
    assert_eq!(few.sparse_bytes(), few.figures().record_bytes);
    let (dense, copied) = merge(&lists, Style::default(), &[&few]).unwrap();
    dense.name();
    few.unname();
    assert_eq!(copied, few.figures().entries);
    assert_eq!(contents(&dense), contents(&few));
    drop(few);
    assert!(lists.usage().bytes <= lists.usage().live + 3 * pool.extent_bytes(), "{:?}", lists.usage());
}

#[test]
fn records_of_all_sizes() {
    let lists = Lists::new(&memory_pool(), ROOM);
    let mut model = Versions::new();
    for (i, len) in [0, 1, 7, 8, 300_000, 9, 2_000_000, 5].into_iter().enumerate() {
        let key = vec![i as u8; if i == 2 { 65_535 } else { i }];
        model.insert((key, Reverse(9)), (Kind::Put, vec![i as u8; len]));
    }
    for style in STYLES {
        let list = build(&lists, style, &model).unwrap();
        list.verify().unwrap();
        assert!(contents(&list) == model);
    }
}

#[test]
fn without_room_nothing_is_left_behind() {
    let pool = memory_pool_of(1 << 20);
    let lists = Lists::new(&pool, 256 << 10);
    let before = pool.used_bytes();
    let refused = build(&lists, Style::default(), &some_versions(1, 5000)).unwrap_err();
    assert!(refused.is_out_of_space(), "{refused}");
    assert_eq!((lists.bytes(), pool.used_bytes()), (0, before));
}

/// A list after the other, each merged from the one before and new records, and named by a root.
struct Chain;

#[derive(Default)]
struct Progress {
    acknowledged: Option<Versions>,
    in_flight: Versions,
}

fn chain(world: &World, recorder: &mut Recorder<Progress>, ops: &[u64]) -> terrace_base::Result<()> {
    let pool = create_in(world)?;
    let lists = Lists::new(&pool, ROOM);
    let mut last: Option<PmList> = None;
    let mut model = Versions::new();
    for seed in ops {
        let new = some_versions(*seed, 20);
        model.extend(new.clone());
        // Every other key is left out, so that buffers become sparse.
        model =
            model.into_iter().enumerate().filter(|(i, _)| i % 5 != 4).map(|(_, version)| version).collect();
        recorder.update(|m| m.in_flight = model.clone());
        let fresh = build(&lists, STYLES[(*seed % 3) as usize], &new)?;
        let mut builder = lists.builder(STYLES[(*seed % 2) as usize]);
        for ((key, seq), (kind, value)) in &model {
            let mut cursor = if new.contains_key(&(key.clone(), *seq)) {
                fresh.cursor()
            } else {
                last.as_ref().unwrap().cursor()
            };
            cursor.seek(key, seq.0)?;
            if !builder.point(key, seq.0, *kind, value.len(), cursor.offset())? {
                builder.add(key, seq.0, *kind, cursor.value()?)?;
            }
        }
        let list = finish(builder, vec![*seed])?;
        pool.set_root("list", list.head())?;
        list.name();
        recorder.update(|m| m.acknowledged = Some(std::mem::take(&mut m.in_flight)));
        last.iter().for_each(PmList::unname);
        last = Some(list);
    }
    Ok(())
}

impl Scenario for Chain {
    type Op = u64;
    type Model = Progress;

    fn model(&self) -> Progress {
        Progress::default()
    }

    fn run(&self, world: &World, recorder: &mut Recorder<Progress>, ops: &[u64]) -> Result<(), String> {
        chain(world, recorder, ops).map_err(|e| e.to_string())
    }

    fn verify(&self, world: &World, model: &Progress) -> Result<(), String> {
        let started = || -> Option<(Pool, u64)> {
            let pool = open_in(world).ok()?;
            let head = pool.root("list").ok()??;
            Some((pool, head))
        };
        let Some((pool, head)) = started() else {
            return if model.acknowledged.is_none() { Ok(()) } else { Err("the list is gone".into()) };
        };
        let lists = Lists::new(&pool, ROOM);
        let list = lists.open(head).map_err(|e| e.to_string())?;
        list.name();
        let found = contents(&list);
        if model.acknowledged.as_ref() != Some(&found) && model.in_flight != found {
            return Err(format!("{} versions are found that nobody wrote so", found.len()));
        }
        // Whatever says that it is whole is.
        for other in lists.heads().into_iter().filter(|at| *at != head) {
            if let Ok(other) = lists.open(other) {
                other.verify().map_err(|e| e.to_string())?;
            }
        }
        list.verify().map_err(|e| e.to_string())?;
        assert_marked(&pool, |marks| {
            let all = std::mem::replace(marks, pool.marks());
            lists.with_marked(all, |all| {
                *marks = all;
                Ok(())
            })
        });
        Ok(())
    }
}

/// Must catch a list that is named before all its records are durable, and records that no list has after a crash.
#[test]
fn lists_survive_crashes_wholly_or_not_at_all() {
    let summary = Explorer::new(17).images(1500).must_pass(Chain, (1..8).collect());
    assert!(summary.images > 300);
}

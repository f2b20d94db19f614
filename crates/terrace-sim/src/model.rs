//! The allowed contents of a key-value store after a crash, kept beside the running store.
//!
//! The model knows every acknowledged change and the one in flight. A recovered store must hold exactly the
//! acknowledged changes, with the one in flight wholly there or wholly not; on media that promise less
//! (`Page` media after a power cut), exactly the state after some prefix of the history that reaches at
//! least to the last synced change.
//!
//! A change that reported an error may have happened or not, but not in part. Once one of the two is seen the other is
//! excluded; until then the model carries both states.

use std::collections::BTreeMap;
use std::fmt::Write;

use terrace_pmem::{Granularity, Media};

use crate::World;

/// A store's contents.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The most states kept at once; beyond that too many changes have failed for a useful check.
const MAX_STATES: usize = 1024;

/// One atomic change: each key is put (`Some`) or deleted (`None`), in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change(pub Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl Change {
    /// A put.
    pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Change {
        Change(vec![(key.into(), Some(value.into()))])
    }

    /// A delete.
    pub fn delete(key: impl Into<Vec<u8>>) -> Change {
        Change(vec![(key.into(), None)])
    }

    /// Makes the change in `map`.
    pub fn apply(&self, map: &mut Map) {
        for (key, value) in &self.0 {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
    }

    fn applied(&self, map: &Map) -> Map {
        let mut map = map.clone();
        self.apply(&mut map);
        map
    }
}

/// A step of the history.
#[derive(Debug, Clone)]
enum Step {
    /// A change was acknowledged.
    Done(Change),
    /// A change reported an error.
    Failed(Change),
    /// The running store was seen in this one of several possible states.
    Seen(Map),
}

/// The model of one store.
#[derive(Debug, Clone)]
pub struct KvModel {
    /// The states that all completed changes allow; more than one only after failures.
    states: Vec<Map>,
    /// The same as of the last synced change.
    synced: Vec<Map>,
    /// The history since then.
    since_sync: Vec<Step>,
    in_flight: Option<Change>,
}

impl Default for KvModel {
    fn default() -> Self {
        KvModel::from(Map::new())
    }
}

impl From<Map> for KvModel {
    /// A model of a store that holds `map` durably.
    fn from(map: Map) -> Self {
        KvModel { states: vec![map.clone()], synced: vec![map], since_sync: Vec::new(), in_flight: None }
    }
}

impl KvModel {
    /// A model of an empty store.
    pub fn new() -> KvModel {
        KvModel::default()
    }

    /// A change is about to be made.
    ///
    /// # Panics
    /// When one is already in flight: the model follows one writer.
    pub fn begin(&mut self, change: Change) {
        assert!(self.in_flight.is_none(), "one change is in flight at a time");
        self.in_flight = Some(change);
    }

    /// The change in flight was acknowledged, without a promise about power cuts on `Page` media.
    pub fn acknowledge(&mut self) {
        if let Some(change) = self.in_flight.take() {
            self.states.iter_mut().for_each(|map| change.apply(map));
            self.since_sync.push(Step::Done(change));
        }
    }

    /// The change in flight, and with it everything before, was acknowledged as synced.
    pub fn acknowledge_synced(&mut self) {
        self.acknowledge();
        self.synced_so_far();
    }

    /// Everything acknowledged so far is now synced.
    pub fn synced_so_far(&mut self) {
        self.synced.clone_from(&self.states);
        self.since_sync.clear();
    }

    /// The change in flight reported an error: it is wholly there or wholly not.
    pub fn fail(&mut self) {
        if let Some(change) = self.in_flight.take() {
            self.states = either(&self.states, &change);
            self.since_sync.push(Step::Failed(change));
        }
    }

    /// The running store is seen to hold `map`: of several possible states, the others are out.
    pub fn observe(&mut self, map: &Map) -> Result<(), String> {
        if !self.states.contains(map) {
            return Err(self.explain(map));
        }
        if self.states.len() > 1 {
            self.states.retain(|state| state == map);
            self.since_sync.push(Step::Seen(map.clone()));
        }
        Ok(())
    }

    /// The contents that the store must have now, if no change has failed or is in flight.
    pub fn expected(&self) -> Option<&Map> {
        match (&self.states[..], &self.in_flight) {
            ([map], None) => Some(map),
            _ => None,
        }
    }

    /// The acknowledged contents; of several possible ones, those with every failed change undone.
    pub fn acknowledged(&self) -> &Map {
        &self.states[0]
    }

    /// Whether a store that lost nothing it acknowledged may hold `found`: the acknowledged changes,
    /// with or without the one in flight.
    pub fn accepts(&self, found: &Map) -> Result<(), String> {
        if self.ends().iter().any(|map| map == found) { Ok(()) } else { Err(self.explain(found)) }
    }

    /// Whether a store that may lose unsynced changes, but none from the middle, may hold `found`: the state after some
    /// prefix of the history, no shorter than the last synced change.
    pub fn accepts_prefix(&self, found: &Map) -> Result<(), String> {
        let mut states = self.synced.clone();
        if states.contains(found) {
            return Ok(());
        }
        let in_flight = self.in_flight.iter().cloned().map(Step::Failed);
        for step in self.since_sync.iter().cloned().chain(in_flight) {
            match step {
                Step::Done(change) => states.iter_mut().for_each(|map| change.apply(map)),
                Step::Failed(change) => states = either(&states, &change),
                Step::Seen(map) => states = vec![map],
            }
            if states.contains(found) {
                return Ok(());
            }
        }
        Err(format!("no prefix of the history from the last sync on; {}", self.explain(found)))
    }

    /// [`accepts`](Self::accepts) or [`accepts_prefix`](Self::accepts_prefix), depending on the history of `world`:
    /// only a power cut on `Page` media may lose acknowledged changes.
    pub fn accepts_in(&self, world: &World, found: &Map) -> Result<(), String> {
        if world.lost_power() && world.media().granularity() == Granularity::Page {
            self.accepts_prefix(found)
        } else {
            self.accepts(found)
        }
    }

    /// The states at the end of the history, with and without the change in flight.
    fn ends(&self) -> Vec<Map> {
        match &self.in_flight {
            Some(change) => either(&self.states, change),
            None => self.states.clone(),
        }
    }

    /// How `found` differs from the nearest state it might have had.
    fn explain(&self, found: &Map) -> String {
        let ends = self.ends();
        let diffs = ends.iter().map(|expected| differences(expected, found));
        let nearest = diffs.min_by_key(Vec::len).unwrap_or_default();
        let mut text = format!("{} keys differ from the nearest state allowed", nearest.len());
        for difference in nearest.iter().take(5) {
            let _ = write!(text, "; {difference}");
        }
        if let Some(change) = &self.in_flight {
            let _ = write!(text, "; in flight: {} keys", change.0.len());
        }
        text
    }
}

/// Each state without the change and with it, no state twice.
fn either(states: &[Map], change: &Change) -> Vec<Map> {
    let mut all = states.to_vec();
    for map in states {
        let with = change.applied(map);
        if !all.contains(&with) {
            all.push(with);
        }
    }
    assert!(all.len() <= MAX_STATES, "so many changes failed that the model allows anything");
    all
}

/// The keys on which two maps differ, in words.
fn differences(expected: &Map, found: &Map) -> Vec<String> {
    let keys = expected.keys().chain(found.keys().filter(|key| !expected.contains_key(*key)));
    keys.filter(|key| expected.get(*key) != found.get(*key))
        .map(|key| {
            let (want, have) = (short(expected.get(key)), short(found.get(key)));
            format!("key {} should be {want} and is {have}", short(Some(key)))
        })
        .collect()
}

/// At most 24 bytes of `bytes`, readable.
fn short(bytes: Option<&Vec<u8>>) -> String {
    let Some(bytes) = bytes else { return "absent".into() };
    let head = bytes[..bytes.len().min(24)].escape_ascii();
    if bytes.len() > 24 { format!("\"{head}\".. ({} bytes)", bytes.len()) } else { format!("\"{head}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map {
        pairs.iter().map(|(k, v)| (Vec::from(*k), Vec::from(*v))).collect()
    }

    fn done(model: &mut KvModel, change: Change) {
        model.begin(change);
        model.acknowledge();
    }

    #[test]
    fn the_change_in_flight_is_there_or_not_but_not_by_half() {
        let mut model = KvModel::new();
        done(&mut model, Change::put("a", "1"));
        let batch = vec![(b"a".to_vec(), None), (b"b".to_vec(), Some(b"2".to_vec()))];
        model.begin(Change(batch));
        model.accepts(&map(&[("a", "1")])).unwrap();
        model.accepts(&map(&[("b", "2")])).unwrap();
        model.accepts(&map(&[("a", "1"), ("b", "2")])).unwrap_err();
        model.accepts(&map(&[])).unwrap_err();
        model.acknowledge();
        model.accepts(&map(&[("b", "2")])).unwrap();
        let lost = model.accepts(&map(&[("a", "1")])).unwrap_err();
        assert!(lost.contains("key \"b\" should be \"2\" and is absent"), "{lost}");
    }

    #[test]
    fn a_failed_change_leaves_both_states_possible_until_one_is_seen() {
        let mut model = KvModel::new();
        model.begin(Change::put("a", "1"));
        model.fail();
        done(&mut model, Change::put("b", "2"));
        model.accepts(&map(&[("b", "2")])).unwrap();
        model.accepts(&map(&[("a", "1"), ("b", "2")])).unwrap();
        model.accepts(&map(&[("a", "1")])).unwrap_err();
        assert!(model.expected().is_none());
        model.observe(&map(&[("b", "2")])).unwrap();
        model.accepts(&map(&[("a", "1"), ("b", "2")])).unwrap_err();
        assert_eq!(model.expected(), Some(&map(&[("b", "2")])));
    }

    #[test]
    fn a_prefix_reaches_at_least_to_the_last_sync() {
        let mut model = KvModel::new();
        done(&mut model, Change::put("a", "1"));
        model.begin(Change::put("b", "2"));
        model.acknowledge_synced();
        done(&mut model, Change::put("c", "3"));
        done(&mut model, Change::delete("a"));
        model.begin(Change::put("d", "4"));
        let allowed: [&[_]; 4] = [
            &[("a", "1"), ("b", "2")],
            &[("a", "1"), ("b", "2"), ("c", "3")],
            &[("b", "2"), ("c", "3")],
            &[("b", "2"), ("c", "3"), ("d", "4")],
        ];
        for state in allowed {
            model.accepts_prefix(&map(state)).unwrap();
        }
        model.accepts_prefix(&map(&[("a", "1")])).unwrap_err();
        model.accepts_prefix(&map(&[("b", "2")])).unwrap_err();
        model.accepts_prefix(&map(&[("b", "2"), ("d", "4")])).unwrap_err();
    }

    #[test]
    fn what_was_seen_after_a_failure_is_what_history_goes_on_from() {
        let mut model = KvModel::new();
        for i in 0..30 {
            model.begin(Change::put("a", i.to_string()));
            model.fail();
            model.observe(&map(&[])).unwrap();
        }
        done(&mut model, Change::put("b", "2"));
        for state in [&[][..], &[("a", "7")], &[("b", "2")]] {
            model.accepts_prefix(&map(state)).unwrap();
        }
        model.accepts_prefix(&map(&[("a", "7"), ("b", "2")])).unwrap_err();
    }

    #[test]
    fn a_prefix_may_hold_a_failed_change_or_not() {
        let mut model = KvModel::new();
        model.begin(Change::put("a", "1"));
        model.fail();
        done(&mut model, Change::put("b", "2"));
        for state in [&[][..], &[("a", "1")], &[("b", "2")], &[("a", "1"), ("b", "2")]] {
            model.accepts_prefix(&map(state)).unwrap();
        }
    }
}

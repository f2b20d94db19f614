//! Random groups against an independent model, with reopens and constant rollovers.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Op {
    Add(u64),
    Remove(u64),
    Move(u64, u32),
    Count(u64, i8),
    Candidates(Vec<u64>),
    MoreCandidates(Vec<u64>),
    Start(u64, Vec<u64>),
    Done(u64),
    Flushed(u64),
    Next(u64),
    Log(u64),
    End(u64, u64),
    Bucket(u8, u64),
    NoBucket(u8),
}

/// Where bucket `n` begins; the first at the empty key.
fn lower(n: u8) -> Vec<u8> {
    vec![b'k'; n.into()]
}

impl Op {
    fn edit(&self) -> Edit {
        match self.clone() {
            Op::Add(number) => add(number),
            Op::Remove(number) => Edit::RemoveTable { number },
            Op::Move(number, level) => Edit::MoveTable { number, level },
            Op::Count(number, delta) => Edit::Counts { number, live_delta: delta.into() },
            Op::Candidates(numbers) => Edit::Candidates(numbers),
            Op::MoreCandidates(numbers) => Edit::AddCandidates(numbers),
            Op::Start(id, inputs) => Edit::JobStarted { id, kind: JobKind::Compaction, inputs },
            Op::Done(id) => Edit::JobDone { id },
            Op::Flushed(seq) => Edit::FlushedSeq(seq),
            Op::Next(number) => Edit::NextFile(number),
            Op::Log(number) => Edit::LogNumber(number),
            Op::End(number, bytes) => Edit::LogEnd { number, bytes },
            Op::Bucket(n, flushed) => bucket(&lower(n), flushed),
            Op::NoBucket(n) => without_bucket(&lower(n)),
        }
    }
}

/// The expected contents of the manifest, kept in the plainest way.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    live: BTreeMap<u64, i64>,
    levels: BTreeMap<u64, u32>,
    candidates: BTreeSet<u64>,
    jobs: BTreeMap<u64, Vec<u64>>,
    flushed: u64,
    next: u64,
    log: u64,
    end: Option<(u64, u64)>,
    buckets: BTreeMap<Vec<u8>, u64>,
}

impl Model {
    fn apply(&mut self, op: &Op) -> bool {
        match op.clone() {
            Op::Add(number) => {
                let fits = number > 0 && self.live.insert(number, 90).is_none();
                self.levels.insert(number, 0);
                self.next = self.next.max(number + 1);
                return fits;
            }
            Op::Remove(number) => {
                self.candidates.remove(&number);
                self.levels.remove(&number);
                return self.live.remove(&number).is_some();
            }
            Op::Count(number, delta) => match self.live.get_mut(&number) {
                Some(live) => *live += i64::from(delta),
                None => return false,
            },
            Op::Move(number, level) => match self.levels.get_mut(&number) {
                Some(old) => *old = level,
                None => return false,
            },
            Op::Candidates(numbers) => {
                self.candidates = numbers.into_iter().collect();
                return self.candidates.iter().all(|n| self.live.contains_key(n));
            }
            Op::MoreCandidates(numbers) => {
                self.candidates.extend(numbers);
                return self.candidates.iter().all(|n| self.live.contains_key(n));
            }
            Op::Start(id, inputs) => return self.jobs.insert(id, inputs).is_none(),
            Op::Done(id) => return self.jobs.remove(&id).is_some(),
            Op::Flushed(seq) => self.flushed = self.flushed.max(seq),
            Op::Next(number) => self.next = self.next.max(number),
            Op::End(number, bytes) => self.end = Some((number, bytes)),
            Op::Log(number) => self.log = self.log.max(number),
            Op::Bucket(n, flushed) => {
                self.buckets.insert(lower(n), flushed);
                return self.buckets.contains_key(&lower(0));
            }
            Op::NoBucket(n) => return self.buckets.remove(&lower(n)).is_some() && n > 0,
        }
        true
    }

    fn of(manifest: &Manifest) -> Model {
        let state = manifest.state();
        assert_eq!(state.identity, identity());
        for (number, table) in &state.tables {
            assert_eq!((*table.meta).clone(), meta(*number));
        }
        Model {
            live: state.tables.iter().map(|(n, t)| (*n, t.live_raw)).collect(),
            levels: state.tables.iter().map(|(n, t)| (*n, t.level)).collect(),
            candidates: state.candidates.iter().copied().collect(),
            jobs: state.jobs.iter().map(|(id, job)| (*id, job.inputs.clone())).collect(),
            flushed: state.flushed_seq,
            next: state.next_file,
            log: state.log_number,
            end: state.log_end,
            buckets: state.buckets.iter().map(|(lower, b)| (lower.clone(), b.flushed)).collect(),
        }
    }
}

fn ops() -> impl Strategy<Value = Op> {
    let table = 0u64..6;
    let tables = prop::collection::vec(1u64..6, 0..3);
    prop_oneof![
        4 => table.clone().prop_map(Op::Add),
        2 => table.clone().prop_map(Op::Remove),
        2 => (table.clone(), any::<i8>()).prop_map(|(n, d)| Op::Count(n, d)),
        2 => (table.clone(), 0u32..7).prop_map(|(n, l)| Op::Move(n, l)),
        1 => tables.clone().prop_map(Op::Candidates),
        1 => tables.clone().prop_map(Op::MoreCandidates),
        2 => (0u64..3, tables).prop_map(|(id, inputs)| Op::Start(id, inputs)),
        1 => (0u64..3).prop_map(Op::Done),
        1 => any::<u64>().prop_map(Op::Flushed),
        1 => (0u64..100).prop_map(Op::Next),
        1 => any::<u64>().prop_map(Op::Log),
        1 => (0u64..9, 0u64..999).prop_map(|(number, bytes)| Op::End(number, bytes)),
        2 => (0u8..4, any::<u64>()).prop_map(|(n, flushed)| Op::Bucket(n, flushed)),
        1 => (0u8..4).prop_map(Op::NoBucket),
    ]
}

proptest! {
    #[test]
    fn replay_equals_model(
        groups in prop::collection::vec((prop::collection::vec(ops(), 1..5), 0..4u8), 1..40), limit in 0u64..600,
    ) {
        let (fs, manifest) = fresh();
        let mut manifest = manifest.with_rollover_bytes(limit);
        let mut model = Model { next: 1, ..Model::default() };
        for (group, then) in groups {
            let mut next = model.clone();
            let fits = group.iter().all(|op| next.apply(op));
            let edits: Vec<Edit> = group.iter().map(Op::edit).collect();
            prop_assert_eq!(manifest.apply(&edits).is_ok(), fits);
            if fits {
                model = next;
            }
            match then {
                0 => manifest = reopen(&fs).with_rollover_bytes(limit),
                1 => manifest.seal().unwrap(),
                _ => (),
            }
            prop_assert_eq!(&Model::of(&manifest), &model);
            prop_assert_eq!(&Model::of(&reopen(&fs)), &model);
        }
    }
}

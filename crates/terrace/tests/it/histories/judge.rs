//! Looks for an order of commits that explains a history.
//!
//! The search goes from moment to moment and keeps every *configuration* that is possible so far: what the
//! database may hold, and which of the operations under way have taken place. When an operation ends, each
//! configuration grows by every order in which operations under way may take place until this one has; those
//! whose answers would be wrong are dropped. Few operations are under way at a time, so few configurations
//! are. (J. M. Wing and C. Gong, 1993; G. Lowe, *Testing for linearizability*, 2017.)

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::record::{Action, Answer, Op, State, Write};

/// Configurations beyond which a history is not judged but cut to one that is easier to decide.
const TOO_MANY: usize = 200_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Configuration {
    state: State,
    /// Operations under way that have taken place, by number.
    done: BTreeSet<usize>,
}

/// What the database may hold after `ops`, begun in one of `states`; or why no order explains them.
pub fn judge(states: &[State], ops: &[Op]) -> Result<Vec<State>, String> {
    let mut moments: BTreeMap<u64, (usize, bool)> = BTreeMap::new();
    for (i, op) in ops.iter().enumerate() {
        let before = [moments.insert(op.begin, (i, true)), moments.insert(op.end, (i, false))];
        assert_eq!(before, [None, None], "a moment is noted twice");
    }
    let begin = |state: &State| Configuration { state: state.clone(), done: BTreeSet::new() };
    let mut possible: HashSet<Configuration> = states.iter().map(begin).collect();
    let mut under_way: BTreeSet<usize> = BTreeSet::new();
    for (i, begins) in moments.into_values() {
        if begins {
            under_way.insert(i);
            continue;
        }
        let next = after_one(&possible, &under_way, ops, i);
        if next.is_empty() {
            return Err(explain(&possible, &under_way, ops, i));
        }
        under_way.remove(&i);
        possible = next;
        assert!(possible.len() < TOO_MANY, "too many orders are possible to judge this history");
    }
    Ok(possible.into_iter().map(|c| c.state).collect::<HashSet<_>>().into_iter().collect())
}

/// The configurations after operation `ending` has taken place in each of `possible`.
fn after_one(
    possible: &HashSet<Configuration>,
    under_way: &BTreeSet<usize>,
    ops: &[Op],
    ending: usize,
) -> HashSet<Configuration> {
    let mut ended = HashSet::new();
    let mut seen: HashSet<Configuration> = possible.clone();
    let mut open: Vec<Configuration> = possible.iter().cloned().collect();
    while let Some(configuration) = open.pop() {
        if configuration.done.contains(&ending) {
            let mut configuration = configuration;
            configuration.done.remove(&ending);
            ended.insert(configuration);
            continue;
        }
        for &i in under_way.difference(&configuration.done) {
            if let Some(state) = after(&configuration.state, &ops[i]) {
                let mut next = Configuration { state, done: configuration.done.clone() };
                next.done.insert(i);
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
    }
    ended
}

/// What `state` becomes if `op` takes place now; `None` if its answer would be wrong.
fn after(state: &State, op: &Op) -> Option<State> {
    let held = |key: &u8| state.get(key).copied();
    let right = match (&op.action, &op.answer) {
        (Action::Write(writes), Answer::Done) => return Some(written(state, writes)),
        // What was refused has done nothing, whatever it had read.
        (Action::Transact { .. }, Answer::Bool(false)) => true,
        (Action::Transact { reads, all, writes }, Answer::Bool(true)) => {
            let is_so = reads.iter().all(|(key, value)| held(key) == *value);
            return (is_so && all.as_ref().is_none_or(|all| all == state)).then(|| written(state, writes));
        }
        (Action::WriteIf { exists, key, value }, Answer::Bool(done)) => {
            if *done && held(key).is_some() == *exists {
                let mut state = state.clone();
                state.insert(*key, *value);
                return Some(state);
            }
            !*done && held(key).is_some() != *exists
        }
        (Action::Get(key), Answer::Value(value)) => held(key) == *value,
        (Action::Contains(key), Answer::Bool(there)) => held(key).is_some() == *there,
        (Action::MultiGet(keys), Answer::Values(values)) => keys.iter().map(held).eq(values.iter().copied()),
        (Action::ReadAll, Answer::All(all)) => state == all,
        (action, answer) => panic!("{answer:?} is no answer to {action:?}"),
    };
    right.then(|| state.clone())
}

/// `state` with `writes`, in order.
fn written(state: &State, writes: &[Write]) -> State {
    let mut state = state.clone();
    for (key, value) in writes {
        match value {
            Some(value) => state.insert(*key, *value),
            None => state.remove(key),
        };
    }
    state
}

fn explain(
    possible: &HashSet<Configuration>,
    under_way: &BTreeSet<usize>,
    ops: &[Op],
    ending: usize,
) -> String {
    let mut out = format!("no order of commits explains this answer:\n{}beside:\n", ops[ending]);
    under_way.iter().filter(|i| **i != ending).for_each(|i| out += &ops[*i].to_string());
    out += &format!("with one of {} possible states, such as:\n", possible.len());
    possible.iter().take(3).for_each(|c| out += &format!("  {:?}, done {:?}\n", c.state, c.done));
    let mut before: Vec<&Op> = ops.iter().filter(|op| op.begin < ops[ending].end).collect();
    before.sort_by_key(|op| op.begin);
    out += "after, at last:\n";
    before.iter().rev().take(30).rev().for_each(|op| out += &op.to_string());
    out
}

#[cfg(test)]
mod tests {
    use super::super::record::Held;
    use super::*;

    fn op(thread: usize, begin: u64, end: u64, action: Action, answer: Answer) -> Op {
        Op { thread, begin, end, action, answer }
    }

    fn put(thread: usize, begin: u64, end: u64, key: u8, value: u64) -> Op {
        op(thread, begin, end, Action::Write(vec![(key, Some(value))]), Answer::Done)
    }

    fn get(thread: usize, begin: u64, end: u64, key: u8, value: Option<u64>) -> Op {
        op(thread, begin, end, Action::Get(key), Answer::Value(value))
    }

    fn all(thread: usize, begin: u64, end: u64, state: &[(u8, u64)]) -> Op {
        op(thread, begin, end, Action::ReadAll, Answer::All(state.iter().copied().collect()))
    }

    fn passes(ops: &[Op]) -> bool {
        judge(&[State::new()], ops).is_ok()
    }

    #[test]
    fn a_stale_read_is_found() {
        assert!(passes(&[put(0, 0, 1, 1, 1), put(0, 2, 3, 1, 2), get(1, 4, 5, 1, Some(2))]));
        assert!(!passes(&[put(0, 0, 1, 1, 1), put(0, 2, 3, 1, 2), get(1, 4, 5, 1, Some(1))]));
        assert!(passes(&[put(0, 0, 1, 1, 1), put(0, 2, 5, 1, 2), get(1, 3, 4, 1, Some(1))]));
    }

    #[test]
    fn going_back_is_found() {
        let back = [put(0, 0, 9, 1, 1), get(1, 1, 2, 1, Some(1)), get(1, 3, 4, 1, None)];
        assert!(!passes(&back));
        assert!(passes(&[put(0, 0, 9, 1, 1), get(1, 1, 2, 1, None), get(1, 3, 4, 1, Some(1))]));
    }

    #[test]
    fn half_a_batch_is_found() {
        let batch = op(0, 0, 5, Action::Write(vec![(1, Some(1)), (2, Some(2))]), Answer::Done);
        assert!(!passes(&[batch.clone(), all(1, 1, 2, &[(1, 1)])]));
        assert!(passes(&[batch.clone(), all(1, 1, 2, &[])]));
        assert!(passes(&[batch, all(1, 1, 2, &[(1, 1), (2, 2)])]));
    }

    #[test]
    fn snapshots_that_disagree_on_the_order_are_found() {
        let writes = [put(0, 0, 9, 1, 1), put(1, 1, 8, 2, 2)];
        let crossed = [all(2, 2, 3, &[(1, 1)]), all(3, 4, 5, &[(2, 2)])];
        assert!(!passes(&[&writes[..], &crossed].concat()));
        let agreed = [all(2, 2, 3, &[(1, 1)]), all(3, 4, 5, &[(1, 1), (2, 2)])];
        assert!(passes(&[&writes[..], &agreed].concat()));
    }

    #[test]
    fn conditions_are_judged() {
        let absent = |begin, end, done| {
            let action = Action::WriteIf { exists: false, key: 1, value: begin };
            op(begin as usize, begin, end, action, Answer::Bool(done))
        };
        assert!(passes(&[absent(0, 3, true), absent(1, 2, false)]));
        assert!(!passes(&[absent(0, 3, true), absent(1, 2, true)]));
        assert!(!passes(&[absent(0, 3, false), absent(1, 2, false)]));
    }

    #[test]
    fn write_skew_and_phantoms_are_found() {
        let transact = |begin, end, reads: &[(u8, Held)], all: Option<State>, write| {
            let reads = reads.iter().copied().collect();
            let action = Action::Transact { reads, all, writes: vec![write] };
            op(begin as usize, begin, end, action, Answer::Bool(true))
        };
        let both = [(1, None), (2, None)];
        let skew = [transact(0, 2, &both, None, (1, Some(1))), transact(1, 3, &both, None, (2, Some(2)))];
        assert!(!passes(&skew));
        assert!(passes(&[skew[0].clone(), transact(1, 3, &both[1..], None, (2, Some(2)))]));
        let empty = || Some(State::new());
        let phantoms =
            [transact(0, 2, &[], empty(), (1, Some(1))), transact(1, 3, &[], empty(), (2, Some(2)))];
        assert!(!passes(&phantoms));
        let refused = Op { answer: Answer::Bool(false), ..phantoms[1].clone() };
        assert!(passes(&[phantoms[0].clone(), refused]));
    }

    #[test]
    fn every_possible_end_is_told() {
        let mut ends = judge(&[State::new()], &[put(0, 0, 2, 1, 1), put(1, 1, 3, 1, 2)]).unwrap();
        ends.sort();
        assert_eq!(ends, [State::from([(1, 1)]), State::from([(1, 2)])]);
    }
}

//! Group commit: writers queue, the first leads, and a whole group shares one pass through the engine.
//!
//! Who has led goes on with the groups that have come meanwhile, up to a bound. Their writers need not be awake for that:
//! a lead that is passed to a sleeping one would have everybody wait until the system wakes it. If one of these panics,
//! so does the thread that leads, after its own write.
//!
//! 1. There is at most one leader at a time, so the engine's `apply` is never entered twice.
//! 2. A writer leaves the queue exactly once, with its own outcome.
//! 3. A conditional write is a group of its own, and its writer leads that: its condition is judged against
//!    everything before it and nothing beside it, on the thread that has asked.
//! 4. A lack of room for one request, or a failed merge, affects no other: a group refused for lack of room is carried
//!    out request by request, in order, and one in which requests have failed without these; each request gets the
//!    outcome that it alone causes.

use std::collections::VecDeque;
use std::sync::Arc;

use terrace_base::{Error, Result};

use crate::core::request::Request;
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};

/// Bytes of batches that a group takes, unless its first one is larger.
const GROUP_BYTES: usize = 1 << 20;

/// Bytes of others' batches that a leader carries out after its own group.
const SERVED_BYTES: usize = 4 << 10;

/// Checks for its turn that a writer makes before it goes to sleep: about as long as a small group takes, and
/// less than falling asleep and being woken.
const LOOKS: u32 = if cfg!(terrace_model) { 1 } else { 300 };

#[derive(Debug)]
struct Writer {
    request: Request,
    turn: Mutex<Turn>,
    changed: Condvar,
    /// The turn is no longer `Waiting`. Only a hint to check it.
    called: AtomicBool,
}

#[derive(Debug)]
enum Turn {
    Waiting,
    Lead,
    Done(Result<bool>),
}

/// Why a group did not take place; nothing of it has.
#[derive(Debug)]
pub(super) enum Refusal {
    /// There is no room: each is tried by itself.
    NoRoom(Error),
    /// What the requests stand for is too much for one group: each half is tried by itself.
    TooLarge,
    /// These have failed, by their places in the group; the others are tried without them.
    OfSome(Vec<(usize, Error)>),
    OfAll(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        if error.is_out_of_space() { Refusal::NoRoom(error) } else { Refusal::OfAll(error) }
    }
}

impl Refusal {
    /// Why a single request was refused.
    fn into_error(self) -> Error {
        match self {
            Refusal::NoRoom(error) | Refusal::OfAll(error) => error,
            Refusal::OfSome(mut failed) if !failed.is_empty() => failed.swap_remove(0).1,
            Refusal::TooLarge | Refusal::OfSome(_) => Error::invalid("the batch is too large"),
        }
    }
}

/// What became of a group: whether it took place.
pub(super) type Outcome = Result<bool, Refusal>;

/// The queue of writers.
#[derive(Debug, Default)]
pub(crate) struct CommitQueue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Arc<Writer>>,
    leading: bool,
}

impl CommitQueue {
    /// Applies `request`, alone or with others, on this thread or another. `apply` gets the group's requests
    /// in order and returns for all of them whether they took place.
    pub fn commit(&self, request: Request, apply: impl Fn(&[&Request]) -> Outcome) -> Result<bool> {
        // With a condition of its own `apply` judges nobody else's requests.
        let room = if request.alone { 0 } else { SERVED_BYTES };
        if self.lead_at_once() {
            let lead = Lead { queue: self, group: Vec::new(), is_over: false };
            let outcome = apply(&[&request]).map_err(Refusal::into_error);
            request.batch.give_back();
            lead.go_on(room, Vec::new(), &apply);
            return outcome;
        }
        let writer = Arc::new(Writer {
            request,
            turn: Mutex::new(Turn::Waiting),
            changed: Condvar::new(),
            called: AtomicBool::new(false),
        });
        if !self.enter(&writer)
            && let Some(outcome) = writer.wait()
        {
            return outcome;
        }
        let group = self.state.lock().take_group(GROUP_BYTES, true);
        let mut lead = Lead { queue: self, group, is_over: false };
        let mut outcomes = lead.apply(&apply);
        // Its own is the first, for which nobody waits.
        lead.group.remove(0);
        let own = outcomes.remove(0);
        lead.go_on(room, outcomes, &apply);
        own
    }

    /// Takes the lead if nobody has it: then nobody waits either, and there is no group to form.
    fn lead_at_once(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().leading, true)
    }

    /// Queues `writer`; true if it leads at once.
    fn enter(&self, writer: &Arc<Writer>) -> bool {
        let mut state = self.state.lock();
        state.queue.push_back(writer.clone());
        !std::mem::replace(&mut state.leading, true)
    }

    /// The next group for the leader, if one waits for which it has `room`. Otherwise the lead is passed on.
    fn next_group(&self, room: usize) -> Vec<Arc<Writer>> {
        let mut state = self.state.lock();
        match state.queue.front() {
            Some(next) if next.request.alone || next.request.sync || next.bytes() >= room => {
                next.set(Turn::Lead);
                Vec::new()
            }
            waiting => {
                state.leading = waiting.is_some();
                state.take_group(room, false)
            }
        }
    }
}

impl State {
    /// Takes the group at the queue's head off it: one request, and others for which there is room in `most` bytes. What
    /// is to be synced is among them only if they `may_sync`.
    fn take_group(&mut self, most: usize, may_sync: bool) -> Vec<Arc<Writer>> {
        let (mut bytes, mut len) = (0, 0);
        for writer in &self.queue {
            let Request { alone, sync, .. } = writer.request;
            if len > 0 && (alone || bytes + writer.bytes() > most || sync && !may_sync) {
                break;
            }
            (bytes, len) = (bytes + writer.bytes(), len + 1);
            debug_assert!(!alone || len == 1, "a conditional write is a group of its own");
            if alone {
                break;
            }
        }
        self.queue.drain(..len).collect()
    }
}

/// The lead, and the writers of the group that is being applied.
struct Lead<'a> {
    queue: &'a CommitQueue,
    group: Vec<Arc<Writer>>,
    is_over: bool,
}

impl Lead<'_> {
    /// Applies the group; each has its outcome.
    fn apply(&self, apply: &impl Fn(&[&Request]) -> Outcome) -> Vec<Result<bool>> {
        let requests: Vec<&Request> = self.group.iter().map(|writer| &writer.request).collect();
        let outcomes = outcomes(&requests, apply);
        debug_assert_eq!(outcomes.len(), requests.len(), "each writer has its own outcome");
        outcomes
    }

    /// Tells the group its `outcomes`, and goes on with what has come meanwhile, as long as there is `room`. The lead is
    /// passed on before that is told: who leads next need not wait for it.
    fn go_on(
        mut self,
        mut room: usize,
        mut outcomes: Vec<Result<bool>>,
        apply: &impl Fn(&[&Request]) -> Outcome,
    ) {
        loop {
            let next = self.queue.next_group(room);
            self.is_over = next.is_empty();
            let told = std::mem::replace(&mut self.group, next);
            told.iter().zip(outcomes).for_each(|(writer, outcome)| writer.set(Turn::Done(outcome)));
            if self.is_over {
                return;
            }
            let bytes: usize = self.group.iter().map(|writer| writer.bytes()).sum();
            room = room.saturating_sub(bytes);
            outcomes = self.apply(apply);
        }
    }
}

/// Passes the lead on when `apply` panics.
impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.queue.next_group(0);
        let cause = Error::invalid("the thread that led this write panicked");
        self.group.iter().for_each(|writer| writer.set(Turn::Done(Err(cause.clone()))));
    }
}

/// Applies a group; returns each request's outcome. If a group fails, nothing of it has taken place.
fn outcomes(requests: &[&Request], apply: &impl Fn(&[&Request]) -> Outcome) -> Vec<Result<bool>> {
    match apply(requests) {
        Err(Refusal::NoRoom(_)) if requests.len() > 1 => {
            requests.iter().flat_map(|request| outcomes(std::slice::from_ref(request), apply)).collect()
        }
        Err(Refusal::TooLarge) if requests.len() > 1 => {
            let (first, second) = requests.split_at(requests.len() / 2);
            [outcomes(first, apply), outcomes(second, apply)].concat()
        }
        Err(Refusal::OfSome(failed)) if requests.len() > failed.len() => {
            let mut errors: Vec<Option<Error>> = vec![None; requests.len()];
            failed.into_iter().for_each(|(at, error)| errors[at] = Some(error));
            let others = requests.iter().zip(&errors).filter(|(_, error)| error.is_none());
            let others: Vec<&Request> = others.map(|(request, _)| *request).collect();
            let mut others = outcomes(&others, apply).into_iter();
            let outcome =
                |error: Option<Error>| error.map_or_else(|| others.next().unwrap_or(Ok(false)), Err);
            errors.into_iter().map(outcome).collect()
        }
        Err(Refusal::OfSome(failed)) => failed.into_iter().map(|(_, error)| Err(error)).collect(),
        outcome => vec![outcome.map_err(Refusal::into_error); requests.len()],
    }
}

impl Writer {
    fn bytes(&self) -> usize {
        self.request.batch.encoded().len()
    }

    fn set(&self, turn: Turn) {
        *self.turn.lock() = turn;
        self.called.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Waits for an outcome; `None` if it is this writer's turn to lead.
    fn wait(&self) -> Option<Result<bool>> {
        for _ in 0..LOOKS {
            if self.called.load(Ordering::Acquire) {
                break;
            }
            std::hint::spin_loop();
        }
        let mut turn = self.turn.lock();
        loop {
            match &*turn {
                Turn::Waiting => self.changed.wait(&mut turn),
                Turn::Lead => return None,
                Turn::Done(outcome) => return Some(outcome.clone()),
            }
        }
    }
}

#[cfg(all(test, not(terrace_model)))]
mod tests {
    use super::*;
    use crate::batch::WriteBatch;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn request(alone: bool) -> Request {
        let mut batch = WriteBatch::new();
        batch.put(b"k", b"v");
        Request { batch, alone, sync: false }
    }

    #[test]
    fn every_writer_gets_its_outcome_and_groups_form() {
        let queue = CommitQueue::default();
        let (applied, groups) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..500 {
                        let outcome = queue.commit(request(false), |group| {
                            applied.fetch_add(group.len(), Ordering::SeqCst);
                            groups.fetch_add(1, Ordering::SeqCst);
                            Ok(true)
                        });
                        assert!(outcome.unwrap());
                    }
                });
            }
        });
        assert_eq!(applied.load(Ordering::SeqCst), 4000);
        assert!(groups.load(Ordering::SeqCst) <= 4000);
    }

    /// One request of a group wants more room than there is: only its writer gets that error.
    #[test]
    fn a_refusal_is_for_him_who_asked_too_much() {
        let sized = |bytes: usize| {
            let mut batch = WriteBatch::new();
            batch.put(b"k", &vec![0; bytes]);
            Request { batch, alone: false, sync: false }
        };
        let (small, large) = (sized(1), sized(100));
        let applied = std::cell::RefCell::new(Vec::new());
        let apply = |group: &[&Request]| {
            let bytes: usize = group.iter().map(|r| r.batch.encoded().len()).sum();
            applied.borrow_mut().push(group.len());
            match bytes > 90 {
                true => Err(Error::NoSpace { path: "disk".into() }.into()),
                false => Ok(true),
            }
        };
        let told: Vec<bool> =
            outcomes(&[&small, &large, &small], &apply).into_iter().map(|outcome| outcome.is_ok()).collect();
        assert_eq!((told, applied.take()), (vec![true, false, true], vec![3, 1, 1, 1]));
        assert!(outcomes(&[&large], &apply)[0].is_err());
        assert_eq!(applied.take(), [1], "there is nobody to be told apart");
        let fails = |_: &[&Request]| Err(Error::invalid("closed").into());
        assert!(outcomes(&[&small, &small], &fails).iter().all(Result::is_err));
    }

    /// Some of a group fail by themselves, at first or when others have, and the rest is too large: what can stay
    /// together does.
    #[test]
    fn who_fails_leaves_the_others_together() {
        let requests: Vec<Request> = (0..8).map(|_| request(false)).collect();
        let group: Vec<&Request> = requests.iter().collect();
        let sizes = std::cell::RefCell::new(Vec::new());
        let apply = |some: &[&Request]| {
            sizes.borrow_mut().push(some.len());
            let at = |number: usize| some.iter().position(|r| std::ptr::eq(*r, group[number]));
            let fail = |numbers: &[usize]| {
                let failed = numbers.iter().map(|n| (at(*n).unwrap(), Error::invalid(n.to_string())));
                Err(Refusal::OfSome(failed.collect()))
            };
            match some.len() {
                8 => fail(&[1, 4]),
                5.. => Err(Refusal::TooLarge),
                _ if at(2).is_some() => fail(&[2]),
                _ => Ok(true),
            }
        };
        let told: Vec<String> = outcomes(&group, &apply)
            .into_iter()
            .map(|outcome| outcome.map_or_else(|e| e.to_string(), |_| String::new()))
            .collect();
        let of_failed = told.iter().enumerate().filter(|(_, told)| !told.is_empty());
        assert!(of_failed.clone().all(|(n, told)| told.ends_with(&n.to_string())), "{told:?}");
        assert!(of_failed.map(|(n, _)| n).eq([1, 2, 4]));
        assert_eq!(sizes.take(), [8, 6, 3, 2, 3]);
    }

    /// What is large, conditional or to be synced is left to its own writer.
    #[test]
    fn a_leader_carries_out_what_is_small() {
        let groups = |requests: &[(usize, bool, bool)], room: usize| -> Vec<usize> {
            let queue = CommitQueue::default();
            queue.state.lock().leading = true;
            for &(bytes, alone, sync) in requests {
                let mut batch = WriteBatch::new();
                batch.put(b"k", vec![0; bytes]);
                let (turn, changed) = (Mutex::new(Turn::Waiting), Condvar::new());
                let request = Request { batch, alone, sync };
                let writer = Writer { request, turn, changed, called: AtomicBool::new(false) };
                queue.state.lock().queue.push_back(Arc::new(writer));
            }
            let groups = std::iter::repeat_with(|| queue.next_group(room).len());
            let groups = groups.take_while(|len| *len > 0).collect();
            let state = queue.state.lock();
            let leads = state.queue.front().is_some_and(|next| matches!(*next.turn.lock(), Turn::Lead));
            assert_eq!((leads, state.leading), (!state.queue.is_empty(), !state.queue.is_empty()));
            groups
        };
        let small = (10, false, false);
        assert_eq!(groups(&[], 1000), []);
        assert_eq!(groups(&[small; 3], 1000), [3]);
        assert_eq!(groups(&[small; 3], 0), [0; 0]);
        assert_eq!(groups(&[(400, false, false); 3], 1000), [2, 1]);
        assert_eq!(groups(&[small, (5000, false, false), small], 1000), [1]);
        assert_eq!(groups(&[small, (10, true, false), small], 1000), [1]);
        assert_eq!(groups(&[small, (10, false, true), small], 1000), [1]);
    }

    #[test]
    fn conditional_writes_stand_alone() {
        let queue = CommitQueue::default();
        std::thread::scope(|s| {
            for i in 0..6 {
                let queue = &queue;
                s.spawn(move || {
                    for _ in 0..200 {
                        let (alone, me) = (i % 2 == 0, std::thread::current().id());
                        queue
                            .commit(request(alone), |group| {
                                assert!(group.iter().all(|r| !r.alone) || group.len() == 1);
                                assert!(!alone || std::thread::current().id() == me);
                                Ok(true)
                            })
                            .unwrap();
                    }
                });
            }
        });
    }
}

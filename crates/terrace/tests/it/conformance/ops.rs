//! Random operations on a database.

use std::ops::Bound;

use proptest::prelude::*;

use crate::harness::Span;

/// A step of an iterator.
#[derive(Debug, Clone)]
pub enum Move {
    Next,
    NextBack,
    Seek(Vec<u8>),
    SeekForPrev(Vec<u8>),
}

/// One operation. Numbers that name a snapshot or an iterator are taken modulo how many there are.
#[derive(Debug, Clone)]
pub enum Op {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Batch(Vec<(Vec<u8>, Option<Vec<u8>>)>),
    PutIfAbsent(Vec<u8>, Vec<u8>),
    UpdateIfExists(Vec<u8>, Vec<u8>),
    Get(Vec<u8>),
    MultiGet(Vec<Vec<u8>>),
    Range(Span, Vec<Move>),
    Prefix(Vec<u8>),
    Hold,
    ReadHeld(usize, Vec<u8>, Span),
    LetGo(usize),
    OpenIter(Span),
    Advance(usize, Vec<Move>),
    Flush,
    Compact(Span),
    Sync,
    Check,
    Reopen,
    KillAndReopen,
    PowerCutAndReopen(u64),
}

/// Keys that collide often, share long prefixes, are empty, or are odd bytes.
pub fn key() -> impl Strategy<Value = Vec<u8>> {
    let common = (0u8..40).prop_map(|n| format!("k{n:02}").into_bytes());
    let odd = prop::collection::vec(prop::sample::select(vec![0u8, 1, b'k', 0xfe, 0xff]), 0..4);
    let long =
        (0u8..12).prop_map(|n| [b"a prefix that is longer than eight bytes/".as_slice(), &[n]].concat());
    prop_oneof![6 => common, 1 => odd, 2 => long]
}

pub fn value() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![4 => 0usize..40, 2 => 40usize..300, 1 => 300usize..2500];
    (any::<u8>(), size).prop_map(|(seed, size)| (0..size).map(|i| seed.wrapping_add(i as u8)).collect())
}

pub fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        1 => Just(Bound::Unbounded),
        2 => key().prop_map(Bound::Included),
        2 => key().prop_map(Bound::Excluded),
    ]
}

pub fn span() -> impl Strategy<Value = Span> {
    (bound(), bound())
}

pub fn moves() -> impl Strategy<Value = Vec<Move>> {
    let step = prop_oneof![
        5 => Just(Move::Next),
        4 => Just(Move::NextBack),
        2 => key().prop_map(Move::Seek),
        2 => key().prop_map(Move::SeekForPrev),
    ];
    prop::collection::vec(step, 0..16)
}

/// A single operation; `crashes` allows deaths and power cuts.
pub fn op(crashes: bool) -> impl Strategy<Value = Op> {
    let write = prop::collection::vec((key(), prop::option::weighted(0.7, value())), 0..8);
    // Without crashes these become syncs.
    let death = if crashes { Op::KillAndReopen } else { Op::Sync };
    let cut = any::<u64>().prop_map(move |seed| if crashes { Op::PowerCutAndReopen(seed) } else { Op::Sync });
    prop_oneof![
        30 => (key(), value()).prop_map(|(k, v)| Op::Put(k, v)),
        10 => key().prop_map(Op::Delete),
        6 => write.prop_map(Op::Batch),
        4 => (key(), value()).prop_map(|(k, v)| Op::PutIfAbsent(k, v)),
        4 => (key(), value()).prop_map(|(k, v)| Op::UpdateIfExists(k, v)),
        8 => key().prop_map(Op::Get),
        2 => prop::collection::vec(key(), 0..6).prop_map(Op::MultiGet),
        5 => (span(), moves()).prop_map(|(s, m)| Op::Range(s, m)),
        1 => key().prop_map(|mut k| { k.truncate(2); Op::Prefix(k) }),
        4 => Just(Op::Hold),
        4 => (any::<usize>(), key(), span()).prop_map(|(n, k, s)| Op::ReadHeld(n, k, s)),
        3 => any::<usize>().prop_map(Op::LetGo),
        2 => span().prop_map(Op::OpenIter),
        4 => (any::<usize>(), moves()).prop_map(|(n, m)| Op::Advance(n, m)),
        4 => Just(Op::Flush),
        2 => span().prop_map(Op::Compact),
        1 => Just(Op::Sync),
        1 => Just(Op::Check),
        2 => Just(Op::Reopen),
        2 => Just(death),
        1 => cut,
    ]
}

/// A history of operations.
pub fn history(crashes: bool, length: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(crashes), 1..length)
}

//! Ranges of places, in order and apart from each other.

use std::ops::Bound;

use terrace_base::codec::{Reader, put_bytes, put_varint};

use super::Places;

/// A range that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    /// Its first place.
    pub from: Vec<u8>,
    /// The first place behind it; `None` if it has all that follow.
    pub end: Option<Vec<u8>>,
}

impl Span {
    /// `None` if the range is empty.
    pub fn of((from, to): Places) -> Option<Span> {
        let from = match from {
            Bound::Included(place) => place,
            Bound::Excluded(place) => after(&place),
            Bound::Unbounded => Vec::new(),
        };
        let end = match to {
            Bound::Included(place) => Some(after(&place)),
            Bound::Excluded(place) => Some(place),
            Bound::Unbounded => None,
        };
        let span = Span { from, end };
        span.holds(&span.from).then_some(span)
    }

    pub fn holds(&self, place: &[u8]) -> bool {
        *self.from <= *place && self.end.as_ref().is_none_or(|end| *place < **end)
    }
}

/// The next place behind `place`.
fn after(place: &[u8]) -> Vec<u8> {
    [place, &[0]].concat()
}

/// Such ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<Span>);

impl Spans {
    /// All places in some of `spans`.
    pub fn union(mut spans: Vec<Span>) -> Spans {
        spans.sort_unstable_by(|a, b| a.from.cmp(&b.from));
        let mut union: Vec<Span> = Vec::new();
        for span in spans {
            match union.last_mut() {
                Some(last) if last.end.as_ref().is_none_or(|end| *end >= span.from) => {
                    last.end = last.end.take().zip(span.end).map(|(a, b)| a.max(b));
                }
                _ => union.push(span),
            }
        }
        Spans(union)
    }

    /// Adds all places of `others`.
    pub fn add(&mut self, others: Spans) {
        if !others.is_empty() {
            let own = std::mem::take(&mut self.0);
            *self = Spans::union(own.into_iter().chain(others.0).collect());
        }
    }

    pub fn into_iter(self) -> std::vec::IntoIter<Span> {
        self.0.into_iter()
    }

    /// These without `places`, which are in order.
    pub fn without<'p>(self, places: impl IntoIterator<Item = &'p [u8]>) -> Spans {
        let mut places = places.into_iter().peekable();
        let mut rest = Vec::new();
        for mut span in self.0 {
            while places.next_if(|place| **place < *span.from).is_some() {}
            let mut is_left = true;
            while let Some(place) = places.next_if(|place| span.holds(place)) {
                let before = Span { from: span.from, end: Some(place.to_vec()) };
                rest.extend(Some(before).filter(|before| before.holds(&before.from)));
                span.from = after(place);
                is_left = span.holds(&span.from);
            }
            rest.extend(Some(span).filter(|_| is_left));
        }
        Spans(rest)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Span> {
        self.0.iter()
    }

    /// The range in which `place` lies.
    pub fn around(&self, place: &[u8]) -> Option<&Span> {
        let next = self.0.partition_point(|span| *span.from <= *place);
        self.0[..next].last().filter(|span| span.holds(place))
    }

    /// Each range: its first place, a byte 1 and the place behind it or a byte 0.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0.len() as u64);
        for span in &self.0 {
            put_bytes(out, &span.from);
            out.push(u8::from(span.end.is_some()));
            if let Some(end) = &span.end {
                put_bytes(out, end);
            }
        }
    }

    /// `None` if that is not what `encoded` is, to its end.
    pub fn decode(encoded: &[u8]) -> Option<Spans> {
        let mut reader = Reader::new(encoded);
        let count = reader.varint()?;
        let mut spans: Vec<Span> = Vec::new();
        for _ in 0..count {
            let from = reader.bytes()?.to_vec();
            let end = match reader.u8()? {
                0 => None,
                1 => Some(reader.bytes()?.to_vec()),
                _ => return None,
            };
            let span = Span { from, end };
            let is_behind =
                spans.last().is_none_or(|last| last.end.as_ref().is_some_and(|end| *end <= span.from));
            if !is_behind || !span.holds(&span.from) {
                return None;
            }
            spans.push(span);
        }
        reader.is_empty().then_some(Spans(spans))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..4, 0..4)
    }

    fn bounds() -> impl Strategy<Value = Bound<Vec<u8>>> {
        prop_oneof![
            places().prop_map(Bound::Included),
            places().prop_map(Bound::Excluded),
            Just(Bound::Unbounded)
        ]
    }

    fn is_in(place: &[u8], (from, to): &Places) -> bool {
        let above = match from {
            Bound::Included(from) => **from <= *place,
            Bound::Excluded(from) => **from < *place,
            Bound::Unbounded => true,
        };
        above
            && match to {
                Bound::Included(to) => *place <= **to,
                Bound::Excluded(to) => *place < **to,
                Bound::Unbounded => true,
            }
    }

    proptest! {
        #[test]
        fn a_place_is_in_the_union_if_it_is_in_some(
            ranges in prop::collection::vec((bounds(), bounds()), 0..5),
            without in prop::collection::btree_set(places(), 0..5),
            place in places(),
        ) {
            let spans = Spans::union(ranges.iter().cloned().filter_map(Span::of).collect());
            let is_in_some = ranges.iter().any(|range| is_in(&place, range));
            prop_assert_eq!(spans.around(&place).is_some(), is_in_some);
            let mut added = Spans::default();
            for range in ranges.iter().cloned().filter_map(Span::of) {
                added.add(Spans::union(vec![range]));
            }
            prop_assert_eq!(&added, &spans);
            let rest = spans.without(without.iter().map(Vec::as_slice));
            prop_assert_eq!(rest.around(&place).is_some(), is_in_some && !without.contains(&place));
            let mut encoded = Vec::new();
            rest.encode(&mut encoded);
            prop_assert_eq!(Spans::decode(&encoded), Some(rest));
            encoded.push(0);
            prop_assert_eq!(Spans::decode(&encoded), None);
        }
    }

    #[test]
    fn golden_bytes() {
        let of = |from: &[u8], end: Option<&[u8]>| Span { from: from.to_vec(), end: end.map(<[u8]>::to_vec) };
        let spans = Spans::union(vec![of(b"x", None), of(b"a", Some(b"bc"))]);
        let mut encoded = Vec::new();
        spans.encode(&mut encoded);
        assert_eq!(encoded, [2, 1, b'a', 1, 2, b'b', b'c', 1, b'x', 0]);
    }

    #[test]
    fn what_is_not_in_order_is_refused() {
        for encoded in [&[1, 1, b'b', 1, 1, b'a'][..], &[2, 0, 0, 1, b'a', 0], &[1, 0, 2], &[1, 0], &[]] {
            assert_eq!(Spans::decode(encoded), None, "{encoded:?}");
        }
    }
}

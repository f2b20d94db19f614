//! The spans of a thread: their names, and the bytes that they record.
//!
//! One subscriber serves all tests of the process, and listens on those threads alone that ask for it: whether a span
//! is wanted is decided once for all threads where the subscriber does not say otherwise.

use std::cell::RefCell;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Metadata, Subscriber};

/// A span's name, and what it has recorded as `bytes`.
pub type NamedSpan = (&'static str, u64);

thread_local! {
    static SPANS: RefCell<Option<Vec<NamedSpan>>> = const { RefCell::new(None) };
}

/// Does `work`, and returns the spans that were begun on this thread meanwhile, in that order.
pub fn spans_of<T>(work: impl FnOnce() -> T) -> (T, Vec<NamedSpan>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| set_global_default(Listening).unwrap());
    SPANS.set(Some(Vec::new()));
    let outcome = work();
    (outcome, SPANS.take().unwrap())
}

struct Listening;

struct Bytes(u64);

impl Visit for Bytes {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "bytes" {
            self.0 = value;
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for Listening {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        SPANS.with_borrow(Option::is_some)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        SPANS.with_borrow_mut(|spans| {
            let spans = spans.as_mut().unwrap();
            spans.push((span.metadata().name(), 0));
            Id::from_u64(spans.len() as u64)
        })
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut bytes = Bytes(0);
        values.record(&mut bytes);
        SPANS.with_borrow_mut(|spans| {
            if let Some((_, kept)) =
                spans.as_mut().and_then(|spans| spans.get_mut(id.into_u64() as usize - 1))
            {
                *kept = bytes.0;
            }
        });
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

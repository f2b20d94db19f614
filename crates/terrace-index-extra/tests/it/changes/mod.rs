//! Changes of these indexes' structures, cut off at every event.

mod buffered;
mod cceh;

//! Changes of indexes' structures, cut off at every event. Those of trees stand with the trees.

mod skiplist;
mod turbohash;

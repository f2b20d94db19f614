//! Versions of keys in a pool: one record each, with key and value, and the words by which indexes name them.

mod layout;
mod record;

pub(crate) use layout::{HEAD_BYTES as RECORD_BYTES_BEFORE_KEY, LINKED_KIND, RECORD_KIND, RecordRef};
pub(crate) use record::{NewRecord, Record, Version};

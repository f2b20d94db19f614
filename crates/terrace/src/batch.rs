//! A batch of writes: applied whole or not at all.
//!
//! A batch has the encoding of the commit log: for each operation the kind (0 delete, 1 put), the key and,
//! for a put, the value, both with a varint length before them.

use terrace_base::codec::{Reader, put_bytes};
use terrace_base::{Error, Result};
use terrace_table::Kind;

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 65_535;

/// Longest value in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// Operations that take effect together, in order.
///
/// ```
/// let mut batch = terrace::WriteBatch::new();
/// batch.put(b"a", b"1");
/// batch.delete(b"b");
/// assert_eq!(batch.len(), 2);
/// assert!(batch.bytes() > 3);
/// ```
#[derive(Debug, Clone, Default)]
pub struct WriteBatch {
    encoded: Vec<u8>,
    len: u32,
    error: Option<Error>,
}

/// One operation of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op<'a> {
    pub kind: Kind,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a put. A key or value over its limit makes the whole batch fail when it is written.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref());
        if value.len() > MAX_VALUE_BYTES {
            self.refuse(format!("a value of {} bytes is over the limit of {MAX_VALUE_BYTES}", value.len()));
        } else {
            self.encoded.reserve(key.len() + value.len() + 16);
            self.push(Kind::Put, key);
            put_bytes(&mut self.encoded, value);
        }
    }

    /// Adds a delete. A key over its limit makes the whole batch fail when it is written.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.push(Kind::Delete, key.as_ref());
    }

    /// Adds a put or a delete, as `kind` says; a delete has no value.
    pub(crate) fn add(&mut self, kind: Kind, key: &[u8], value: &[u8]) {
        match kind {
            Kind::Put => self.put(key, value),
            Kind::Delete => self.delete(key),
        }
    }

    /// Adds the operations of `other`, which was decoded.
    pub(crate) fn append(&mut self, other: &WriteBatch) {
        self.encoded.extend_from_slice(&other.encoded);
        self.len += other.len;
    }

    /// Operations in the batch.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes of the batch in memory and in the log: keys and values, and a few for each operation.
    pub fn bytes(&self) -> usize {
        self.encoded.len()
    }

    /// Whether the batch does nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.encoded.clear();
        self.len = 0;
        self.error = None;
    }

    fn push(&mut self, kind: Kind, key: &[u8]) {
        if key.len() > MAX_KEY_BYTES {
            self.refuse(format!("a key of {} bytes is over the limit of {MAX_KEY_BYTES}", key.len()));
            return;
        }
        self.encoded.push(kind as u8);
        put_bytes(&mut self.encoded, key);
        self.len += 1;
    }

    fn refuse(&mut self, message: String) {
        self.error.get_or_insert(Error::InvalidArgument(message));
    }

    /// The first refused argument, if there was one.
    pub(crate) fn validate(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// The operations, in order.
    pub(crate) fn ops(&self) -> impl Iterator<Item = Op<'_>> + Clone {
        let mut reader = Reader::new(&self.encoded);
        // The encoding is our own, so it decodes to its end.
        std::iter::from_fn(move || next_op(&mut reader))
    }

    /// Decodes a batch from a log record; `None` if it does not decode to its end.
    pub(crate) fn decode(encoded: &[u8]) -> Option<WriteBatch> {
        let mut reader = Reader::new(encoded);
        let mut len = 0;
        while !reader.is_empty() {
            let op = next_op(&mut reader)?;
            if op.key.len() > MAX_KEY_BYTES || op.value.len() > MAX_VALUE_BYTES {
                return None;
            }
            len += 1;
        }
        Some(WriteBatch { encoded: encoded.to_vec(), len, error: None })
    }

    /// The item that only a later version knows in a batch that does not [`decode`](Self::decode), if that is
    /// the reason.
    pub(crate) fn reserved(encoded: &[u8]) -> Option<&'static str> {
        let mut reader = Reader::new(encoded);
        loop {
            let mut next = reader.clone();
            match next_op(&mut next) {
                Some(_) => reader = next,
                None => return reader.u8().and_then(Kind::reserved),
            }
        }
    }
}

fn next_op<'a>(reader: &mut Reader<'a>) -> Option<Op<'a>> {
    let (kind, key) = (Kind::from_u8(reader.u8()?)?, reader.bytes()?);
    let value = match kind {
        Kind::Put => reader.bytes()?,
        Kind::Delete => &[],
    };
    Some(Op { kind, key, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_back_in_order() {
        let mut batch = WriteBatch::new();
        batch.put(b"k", b"v");
        batch.delete(b"");
        batch.put(b"", b"");
        let again = WriteBatch::decode(batch.encoded()).unwrap();
        let ops: Vec<_> = again.ops().collect();
        assert_eq!(ops.len(), 3);
        assert_eq!(ops[0], Op { kind: Kind::Put, key: b"k", value: b"v" });
        assert_eq!(ops[1], Op { kind: Kind::Delete, key: b"", value: b"" });
        assert_eq!(batch.encoded(), [1, 1, b'k', 1, b'v', 0, 0, 1, 0, 0]);
    }

    #[test]
    fn a_damaged_encoding_is_refused() {
        assert!(WriteBatch::decode(&[7]).is_none());
        assert!(WriteBatch::decode(&[1, 5, b'k']).is_none());
        assert_eq!(WriteBatch::reserved(&[1, 5, b'k']), None);
    }

    #[test]
    fn what_a_later_version_writes_is_named() {
        for byte in 2..=255 {
            let encoded = [1, 1, b'k', 1, b'v', byte, 1, b'k'];
            assert!(WriteBatch::decode(&encoded).is_none());
            assert_eq!(WriteBatch::reserved(&encoded), Kind::reserved(byte));
        }
    }

    #[test]
    fn an_over_long_key_spoils_the_batch() {
        let mut batch = WriteBatch::new();
        batch.put(&vec![0; MAX_KEY_BYTES + 1], b"");
        assert!(batch.validate().is_err());
        batch.clear();
        assert!(batch.validate().is_ok());
    }
}

//! A table's figures, kept in the table itself and in the store's manifest.

use terrace_base::codec::{Reader, put_bytes, put_varint};

/// Figures about one table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableMeta {
    /// The table's number.
    pub number: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Entries, tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub deletes: u64,
    /// The smallest key; empty if there are no entries.
    pub smallest: Vec<u8>,
    /// The largest key.
    pub largest: Vec<u8>,
    /// The smallest sequence number; 0 if there are no entries.
    pub min_seq: u64,
    /// The largest sequence number.
    pub max_seq: u64,
    /// Bytes of all keys and values.
    pub raw_bytes: u64,
}

impl TableMeta {
    /// Appends the encoded figures. The length does not depend on `file_bytes`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.file_bytes.to_le_bytes());
        for figure in [self.number, self.entries, self.deletes, self.min_seq, self.max_seq, self.raw_bytes] {
            put_varint(out, figure);
        }
        put_bytes(out, &self.smallest);
        put_bytes(out, &self.largest);
    }

    /// Reads the bytes of [`encode`](Self::encode); `None` if they are not of that form.
    pub fn decode(r: &mut Reader<'_>) -> Option<TableMeta> {
        Some(TableMeta {
            file_bytes: r.u64()?,
            number: r.varint()?,
            entries: r.varint()?,
            deletes: r.varint()?,
            min_seq: r.varint()?,
            max_seq: r.varint()?,
            raw_bytes: r.varint()?,
            smallest: r.bytes()?.to_vec(),
            largest: r.bytes()?.to_vec(),
        })
    }

    /// Counts one more entry; entries come in table order.
    pub(crate) fn count(&mut self, key: &[u8], seq: u64, deletes: bool, value_len: usize) {
        if self.entries == 0 {
            self.smallest = key.to_vec();
            self.min_seq = seq;
            self.max_seq = seq;
        }
        self.entries += 1;
        self.deletes += u64::from(deletes);
        self.min_seq = self.min_seq.min(seq);
        self.max_seq = self.max_seq.max(seq);
        self.raw_bytes += (key.len() + value_len) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_and_truncation() {
        let meta = TableMeta {
            number: 7,
            file_bytes: 0x1234,
            entries: 300,
            deletes: 1,
            smallest: b"a".to_vec(),
            largest: b"zz".to_vec(),
            min_seq: 5,
            max_seq: 9,
            raw_bytes: 100,
        };
        let mut out = Vec::new();
        meta.encode(&mut out);
        let golden = b"\x34\x12\0\0\0\0\0\0\x07\xac\x02\x01\x05\x09\x64\x01a\x02zz";
        assert_eq!(out, golden);
        assert_eq!(TableMeta::decode(&mut Reader::new(&out)), Some(meta));
        for len in 0..out.len() {
            assert_eq!(TableMeta::decode(&mut Reader::new(&out[..len])), None);
        }
    }
}

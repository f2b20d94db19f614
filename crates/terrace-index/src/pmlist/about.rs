//! A list's notes about its origin: enough to resume the merge that it is an output of.

use terrace_base::codec::{Reader, put_bytes, put_varint};

/// The range of keys that an output of a merge covers: all keys of the inputs from the first on, up to the second.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cover {
    /// The first key; none if there is no key before.
    pub from: Option<Vec<u8>>,
    /// The first key behind; none if there is no key behind.
    pub to: Option<Vec<u8>>,
}

/// The notes of a list's maker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// The level it was made for.
    pub level: u32,
    /// It holds versions beside the newest of their key.
    pub keeps_old: bool,
    /// The runs that it was merged from, together with other outputs of the same merge; empty for a flush.
    pub inputs: Vec<u64>,
    /// The range of their keys that it covers.
    pub cover: Cover,
    /// Its smallest key.
    pub smallest: Vec<u8>,
    /// Its largest key.
    pub largest: Vec<u8>,
}

/// A buffer as a list names it: offset, identity, bytes of the records that it leads to.
pub(super) type NamedPart = (u64, u64, u64);

fn put_bound(out: &mut Vec<u8>, bound: Option<&[u8]>) {
    out.push(u8::from(bound.is_some()));
    put_bytes(out, bound.unwrap_or_default());
}

fn bound(r: &mut Reader<'_>) -> Option<Option<Vec<u8>>> {
    let is_there = r.u8()?;
    let bytes = r.bytes()?.to_vec();
    Some((is_there == 1).then_some(bytes))
}

impl About {
    /// The bytes of it and of the list's buffers.
    pub(super) fn encode(&self, parts: &[NamedPart]) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, u64::from(self.level));
        out.push(u8::from(self.keeps_old));
        put_varint(&mut out, self.inputs.len() as u64);
        self.inputs.iter().for_each(|number| put_varint(&mut out, *number));
        put_bound(&mut out, self.cover.from.as_deref());
        put_bound(&mut out, self.cover.to.as_deref());
        put_bytes(&mut out, &self.smallest);
        put_bytes(&mut out, &self.largest);
        put_varint(&mut out, parts.len() as u64);
        for (offset, id, live) in parts {
            put_varint(&mut out, *offset);
            out.extend_from_slice(&id.to_le_bytes());
            put_varint(&mut out, *live);
        }
        out
    }

    /// Reads the bytes of [`encode`](Self::encode); `None` if they are not of that form.
    pub(super) fn decode(bytes: &[u8]) -> Option<(About, Vec<NamedPart>)> {
        let mut r = Reader::new(bytes);
        let level = u32::try_from(r.varint()?).ok()?;
        let keeps_old = r.u8()? == 1;
        let count = r.varint()?;
        // Each takes at least a byte, so a count that exceeds the remaining bytes is refused before memory is
        // allocated.
        let inputs = (0..count).map(|_| r.varint()).collect::<Option<Vec<u64>>>()?;
        let cover = Cover { from: bound(&mut r)?, to: bound(&mut r)? };
        let (smallest, largest) = (r.bytes()?.to_vec(), r.bytes()?.to_vec());
        let count = r.varint()?;
        let part = |r: &mut Reader<'_>| Some((r.varint()?, r.u64()?, r.varint()?));
        let parts = (0..count).map(|_| part(&mut r)).collect::<Option<Vec<NamedPart>>>()?;
        let about = About { level, keeps_old, inputs, cover, smallest, largest };
        (r.is_empty() && parts.is_sorted_by(|a, b| a.0 < b.0)).then_some((about, parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_about() {
        let about = About {
            level: 2,
            keeps_old: true,
            inputs: vec![7, 300],
            cover: Cover { from: None, to: Some(b"m".to_vec()) },
            smallest: b"a".to_vec(),
            largest: b"k".to_vec(),
        };
        let parts = vec![(0x1000, 9, 64), (0x2000, 10, 1)];
        let bytes = about.encode(&parts);
        let golden = b"\x02\x01\x02\x07\xac\x02\0\0\x01\x01m\x01a\x01k\x02\x80\x20\x09\0\0\0\0\0\0\0\x40\x80\x40\x0a\0\0\0\0\0\0\0\x01";
        assert_eq!(bytes, golden);
        assert_eq!(About::decode(&bytes), Some((about, parts)));
        assert!((0..bytes.len()).all(|len| About::decode(&bytes[..len]).is_none()));
    }
}

//! Compressing payloads, where it is worth it.

use std::fmt;

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

/// Shorter payloads are not tried: padding would use up the saved bytes.
const MIN_BYTES: usize = 64;

/// Compresses one payload after the other, keeping its memory from one to the next.
#[derive(Default)]
pub(crate) struct Compressor {
    table: Option<CompressTable>,
    out: Vec<u8>,
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor").field("out", &self.out.len()).finish()
    }
}

impl Compressor {
    /// `payload` in LZ4 block format; `None` unless that saves at least an eighth.
    pub fn compress(&mut self, payload: &[u8]) -> Option<&[u8]> {
        if payload.len() < MIN_BYTES {
            return None;
        }
        let bound = get_maximum_output_size(payload.len());
        if self.out.len() < bound {
            self.out.resize(bound, 0);
        }
        let table = self.table.get_or_insert_with(CompressTable::small);
        let len = compress_into_with_table(payload, &mut self.out, table).ok()?;
        (len <= payload.len() - payload.len() / 8).then(|| &self.out[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_base::rng::Rng;

    #[test]
    fn payloads_of_all_lengths_come_back_whole_or_are_not_compressed() {
        let mut compressor = Compressor::default();
        let mut rng = Rng::new(3);
        for len in [0, 1, 63, 64, 65, 1000, 65_534, 65_535, 65_536, 300_000, 100, 64] {
            let mut noise = vec![0; len];
            rng.fill(&mut noise);
            assert_eq!(compressor.compress(&noise), None);
            let dull: Vec<u8> = (0..len).map(|i| (i / 16) as u8).collect();
            let packed = compressor.compress(&dull).map(<[u8]>::to_vec);
            assert_eq!(packed.is_some(), len >= MIN_BYTES);
            if let Some(packed) = packed {
                assert_eq!(lz4_flex::block::decompress(&packed, len).unwrap(), dull);
            }
        }
    }
}

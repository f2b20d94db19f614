//! Keys that an attacker would choose.

/// The first word of XXH3's secret.
const XXH3_SECRET: u64 = 0xbe4b_a423_396c_feb8;

/// Key `i` of those that all have the same XXH3 with `seed`: a factor that XXH3 makes of their first eight bytes is 0,
/// so that the eight that it is multiplied with do not matter.
pub fn colliding(seed: u64, i: u64) -> Vec<u8> {
    let zero = XXH3_SECRET.wrapping_add(seed);
    [&zero.to_le_bytes()[..], &i.to_le_bytes(), &[7; 16]].concat()
}

/// Key `i` of every shape that is hard for some structure, and for one whose hash is XXH3 with `seed`.
pub fn hard(seed: u64, i: u64) -> Vec<u8> {
    let (shape, n) = (i % 8, i / 8);
    match shape {
        // Equal up to the last byte, of the greatest length.
        0 if n < 20 => [&vec![b'l'; 65_534][..], &[n as u8]].concat(),
        // Runs, of which each is the beginning of the next; the shortest is the empty key.
        1 => vec![0x00; n as usize],
        2 if n > 0 => vec![0xff; n as usize],
        // Equal up to the last bytes.
        3 => [&b"just/the/last/byte/differs/"[..], &n.to_be_bytes()].concat(),
        // Equal but for some bytes in the middle.
        4 => [&[b'm'; 100][..], &n.to_be_bytes(), &[b'm'; 100]].concat(),
        _ => colliding(seed, i),
    }
}

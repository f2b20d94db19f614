//! Seeds of seeds: every image of every event of every world has its own, fixed by its path from the root.

/// A well-mixed 64-bit value of `seed` and `salt` (splitmix64's finalizer over both).
pub(crate) fn mix(seed: u64, salt: u64) -> u64 {
    let mut z = seed
        .rotate_left(23)
        .wrapping_add(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(salt.wrapping_mul(0xd1b5_4a32_d192_ed03));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A boot id in the kernel's format (a lower-case UUID), fixed by `seed`.
pub(crate) fn boot_id(seed: u64) -> String {
    let (high, low) = (mix(seed, 0xb007), mix(seed, 0xb008));
    format!(
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_differ_in_about_half_their_bits() {
        for salt in 0..1000u64 {
            let apart = (mix(7, salt) ^ mix(7, salt + 1)).count_ones();
            assert!((8..=56).contains(&apart), "salt {salt}: {apart} bits");
        }
    }

    #[test]
    fn boot_ids_look_like_the_kernels() {
        let id = boot_id(1);
        assert_eq!(id.len(), 36);
        assert_eq!(id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert_ne!(id, boot_id(2));
    }
}

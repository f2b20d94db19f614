//! The keys of a merge's children in short: most comparisons need no look at the children.
//!
//! 1. All keys begin with `shared`. A key's head is what comes behind that: of two keys with different heads the one with
//!    the lesser head is the lesser key, and equal heads tell nothing.
//! 2. `shared` is found anew when a key does not begin so, and when heads have come to tell too little: keys go on, and
//!    may have more in common than they had before.

use std::cmp::Ordering;

use terrace_base::prefix;

use crate::entry::shared_prefix;

/// Fewest moves on which a head stayed the same before what keys share is looked at again.
const PATIENCE: u32 = 16;

#[derive(Debug, Default)]
pub(crate) struct Heads {
    shared: Vec<u8>,
    /// By child.
    heads: Vec<u64>,
    /// Moves on which a head stayed the same, and those after which that is too many.
    dull: u32,
    patience: u32,
}

impl Heads {
    /// Notes the keys of children, all that are compared from now on.
    pub fn take<'k>(&mut self, keys: impl Iterator<Item = (usize, &'k [u8])> + Clone) {
        let shared =
            keys.clone().map(|(_, key)| key).reduce(|shared, key| &shared[..shared_prefix(shared, key)]);
        let shared = shared.unwrap_or_default();
        // Where looking again tells no more it is done less often.
        let is_in_vain = self.patience > 0 && self.dull >= self.patience && shared.len() == self.shared.len();
        self.patience = if is_in_vain { self.patience.saturating_mul(2) } else { PATIENCE };
        self.dull = 0;
        self.shared.clear();
        self.shared.extend_from_slice(shared);
        for (child, key) in keys {
            if child >= self.heads.len() {
                self.heads.resize(child + 1, 0);
            }
            self.heads[child] = prefix::head(&key[self.shared.len()..]);
        }
    }

    /// Notes the key to which a child has moved. False: all are to be [taken](Self::take) again.
    pub fn moved(&mut self, child: usize, key: &[u8]) -> bool {
        let Some(rest) = key.strip_prefix(&self.shared[..]) else { return false };
        let head = prefix::head(rest);
        self.dull += u32::from(head == self.heads[child]);
        self.heads[child] = head;
        self.dull < self.patience
    }

    /// The order of two children's keys, as far as their heads tell.
    #[inline]
    pub fn order(&self, a: usize, b: usize) -> Ordering {
        self.heads[a].cmp(&self.heads[b])
    }
}

#[cfg(test)]
mod tests {
    use terrace_base::rng::Rng;

    use super::*;

    /// Keys of few bytes, with much in common, that go on together: whatever two heads tell is so, and they tell apart
    /// what is far apart.
    #[test]
    fn heads_tell_what_is_so() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut heads, children) = (Heads::default(), 1 + rng.below(4) as usize);
            let mut any_key = |near: u64| {
                let mut key = near.to_be_bytes()[rng.below(8) as usize..].to_vec();
                key.extend((0..rng.below(12)).map(|_| rng.below(2) as u8));
                key
            };
            let mut keys: Vec<Vec<u8>> = (0..children).map(|_| any_key(0)).collect();
            for step in 0..300_u64 {
                let child = step as usize % children;
                keys[child] = any_key(step * step);
                if step == 0 || !heads.moved(child, &keys[child]) {
                    heads.take(keys.iter().map(|key| &key[..]).enumerate());
                }
                for (a, b) in (0..children).flat_map(|a| (0..children).map(move |b| (a, b))) {
                    let told = heads.order(a, b);
                    assert!(
                        told == Ordering::Equal || told == keys[a].cmp(&keys[b]),
                        "seed {seed} at {step}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_keys_share_is_found_again() {
        let key = |n: u64| [&b"a long beginning/"[..], &n.to_be_bytes(), &n.to_be_bytes()].concat();
        let mut heads = Heads::default();
        let mut keys = [key(1 << 60), key(1)];
        heads.take(keys.iter().map(|key| &key[..]).enumerate());
        assert_eq!((heads.shared.len(), heads.order(0, 1)), (17, Ordering::Greater));
        assert!(!heads.moved(0, b"another beginning"), "heads would tell what is not so");
        // They come to share more, and in the end all but their last bytes.
        keys = [[&key(7)[..], b"/0"].concat(), [&key(7)[..], b"/9"].concat()];
        let mut taken = 0;
        for _ in 0..10 * PATIENCE {
            if !heads.moved(0, &keys[0]) || !heads.moved(1, &keys[1]) {
                heads.take(keys.iter().map(|key| &key[..]).enumerate());
                taken += 1;
            }
        }
        assert!((1..6).contains(&taken) && heads.order(0, 1) == Ordering::Less, "{taken}");
    }
}

//! Blocks of a file that are gone, or lie where they were not written: pages of a careless disk, units of persistent
//! memory, lines of a cache.

use std::ops::Range;

use terrace_base::rng::Rng;

/// What is zeroed, and where there is looked for something.
const PAGE: usize = 4096;

/// What is written to a wrong address.
const SIZES: [usize; 3] = [64, 256, PAGE];

/// Where there is something: most of a pool is empty.
pub fn used_byte(data: &[u8], rng: &mut Rng) -> Option<usize> {
    let used: Vec<usize> = (0..data.len().div_ceil(PAGE))
        .filter(|page| data[page * PAGE..data.len().min((page + 1) * PAGE)].iter().any(|&b| b != 0))
        .collect();
    let page = used.get(rng.below(used.len().max(1) as u64) as usize)?;
    let within = data.len().min((page + 1) * PAGE) - page * PAGE;
    Some(page * PAGE + rng.below(within as u64) as usize)
}

/// A block of `bytes` in which there is something.
fn used(data: &[u8], bytes: usize, rng: &mut Rng) -> Option<Range<usize>> {
    let from = used_byte(data, rng)? / bytes * bytes;
    Some(from..data.len().min(from + bytes))
}

/// Zeroes a page.
pub fn zero(data: &mut [u8], rng: &mut Rng) -> String {
    let Some(page) = used(data, PAGE, rng) else { return "nothing".into() };
    data[page.clone()].fill(0);
    format!("zeroed {page:?}")
}

/// Two blocks of one size: any two, or two pages' neighbours.
fn two(data: &[u8], rng: &mut Rng) -> Option<(Range<usize>, Range<usize>)> {
    let bytes = SIZES[rng.below(3) as usize];
    let from = used(data, bytes, rng)?;
    let to = if rng.one_in(3) { from.start + bytes..from.end + bytes } else { used(data, bytes, rng)? };
    let len = from.len().min(data.len().min(to.end).saturating_sub(to.start));
    Some((from.start..from.start + len, to.start..to.start + len))
}

/// Puts a block in the place of another.
pub fn repeat(data: &mut [u8], rng: &mut Rng) -> String {
    let Some((from, to)) = two(data, rng) else { return "nothing".into() };
    data.copy_within(from.clone(), to.start.min(data.len() - from.len()));
    format!("{} bytes at {} repeated at {}", from.len(), from.start, to.start)
}

/// Lets two blocks change places.
pub fn swap(data: &mut [u8], rng: &mut Rng) -> String {
    let Some((a, b)) = two(data, rng) else { return "nothing".into() };
    for (a, b) in a.clone().zip(b.clone()) {
        data.swap(a, b);
    }
    format!("{} bytes at {} and at {} swapped", a.len(), a.start, b.start)
}

/// Puts a block of another file in the place of what lies there in this one, unless that is all of it.
pub fn of_another(data: &mut [u8], other: &[u8], rng: &mut Rng) -> String {
    let bytes = SIZES[rng.below(3) as usize];
    let Some(block) = used(&other[..other.len().min(data.len())], bytes, rng) else {
        return "nothing".into();
    };
    if block.len() == data.len() {
        return "nothing".into();
    }
    data[block.clone()].copy_from_slice(&other[block.clone()]);
    format!("{block:?} of another database's in its place")
}

//! Edits of an image, as the fuzzer writes them.
//!
//! ```text
//! input := 0x00 image                  the image itself
//!        | other edit*                 the sound image, edited
//! edit  := u8(what) u24(offset) ...    little-endian; offsets wrap around the image's length
//! ```
//!
//! | what, lower three bits | follows | does |
//! |---|---|---|
//! | 0, 7 | u8 n, n mod 32 + 1 bytes | overwrites |
//! | 1 | 8 bytes | overwrites the aligned word |
//! | 2 | u24 | copies the aligned word at that offset |
//! | 3 | | cuts the image off |
//! | 4 | u8 n | zeroes 8 (n + 1) bytes |
//! | 5 | u8 n, n mod 32 + 1 bytes | inserts, shifting what follows |
//! | 6 | u8 n | takes n + 1 bytes out |

/// The image that `data` stands for, edited from `sound`.
pub fn patched(sound: &[u8], data: &[u8]) -> Vec<u8> {
    let Some((first, mut rest)) = data.split_first() else { return sound.to_vec() };
    if *first == 0 {
        return rest.to_vec();
    }
    let mut image = sound.to_vec();
    while edit(&mut image, &mut rest).is_some() {}
    image
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(n)?;
    *rest = left;
    Some(taken)
}

fn byte(rest: &mut &[u8]) -> Option<usize> {
    take(rest, 1).map(|b| usize::from(b[0]))
}

fn offset(rest: &mut &[u8], len: usize) -> Option<usize> {
    let bytes = take(rest, 3)?;
    let at = usize::from(bytes[0]) | usize::from(bytes[1]) << 8 | usize::from(bytes[2]) << 16;
    at.checked_rem(len)
}

fn overwrite(image: &mut [u8], at: usize, bytes: &[u8]) {
    let n = bytes.len().min(image.len() - at);
    image[at..at + n].copy_from_slice(&bytes[..n]);
}

fn edit(image: &mut Vec<u8>, rest: &mut &[u8]) -> Option<()> {
    let what = byte(rest)?;
    let at = offset(rest, image.len())?;
    let end = |n: usize| image.len().min(at + n);
    match what & 7 {
        1 => {
            let word = take(rest, 8)?;
            overwrite(image, at & !7, word);
        }
        2 => {
            let from = offset(rest, image.len())? & !7;
            let word = image[from..].first_chunk::<8>().copied()?;
            overwrite(image, at & !7, &word);
        }
        3 => image.truncate(at),
        4 => {
            let end = end(8 * (byte(rest)? + 1));
            image[at..end].fill(0);
        }
        5 => {
            let n = byte(rest)? % 32 + 1;
            let bytes = take(rest, n)?;
            image.splice(at..at, bytes.iter().copied());
        }
        6 => {
            let end = end(byte(rest)? + 1);
            image.drain(at..end);
        }
        _ => {
            let n = byte(rest)? % 32 + 1;
            let bytes = take(rest, n)?;
            overwrite(image, at, bytes);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_do_what_the_table_says() {
        let sound: Vec<u8> = (0..32).collect();
        assert_eq!(patched(&sound, &[]), sound);
        assert_eq!(patched(&sound, &[1]), sound);
        assert_eq!(patched(&sound, &[0, 7, 8]), [7, 8]);
        assert_eq!(patched(&sound, &[1, 0, 2, 0, 0, 0, 99])[..4], [0, 1, 99, 3]);
        assert_eq!(
            patched(&sound, &[1, 1, 33, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9])[..9],
            [9, 9, 9, 9, 9, 9, 9, 9, 8]
        );
        assert_eq!(patched(&sound, &[1, 2, 0, 0, 0, 16, 0, 0])[..3], [16, 17, 18]);
        assert_eq!(patched(&sound, &[1, 3, 5, 0, 0]), [0, 1, 2, 3, 4]);
        assert_eq!(patched(&sound, &[1, 4, 1, 0, 0, 0])[..10], [0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(patched(&sound, &[1, 5, 1, 0, 0, 0, 77])[..3], [0, 77, 1]);
        assert_eq!(patched(&sound, &[1, 6, 1, 0, 0, 1])[..3], [0, 3, 4]);
        assert_eq!(patched(&sound, &[1, 6, 0, 0, 0, 255, 0, 0, 0, 0, 0, 1]), [0u8; 0]);
    }
}

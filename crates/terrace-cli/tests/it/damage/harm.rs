//! What happens to files: decay, a careless restore, a careless hand.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use terrace_base::rng::Rng;

use super::blocks;
use super::image::Image;
use crate::engines;

/// Damages the database once or twice; says how.
pub fn harm(image: &Image, rng: &mut Rng) -> Vec<String> {
    (0..if rng.one_in(3) { 2 } else { 1 }).map(|_| harm_once(image, rng)).collect()
}

/// The files that there are to be harmed.
fn names(image: &Image) -> Vec<String> {
    image.files().into_keys().filter(|name| name != "LOCK").collect()
}

fn harm_once(image: &Image, rng: &mut Rng) -> String {
    let names = names(image);
    if names.is_empty() {
        return "nothing is left to harm".into();
    }
    if rng.one_in(3) {
        return misplace(image, &names, rng);
    }
    let name = &names[rng.below(names.len() as u64) as usize];
    let other = &names[rng.below(names.len() as u64) as usize];
    let path = image.dir.join(name);
    let mut data = std::fs::read(&path).unwrap();
    let what = match rng.below(11) {
        0 | 1 => flip(&mut data, rng),
        2 => blocks::zero(&mut data, rng),
        3 => blocks::repeat(&mut data, rng),
        4 => blocks::swap(&mut data, rng),
        9 => blocks::of_another(&mut data, &another(image, name, rng), rng),
        5 => cut(&mut data, rng),
        6 => return removed(path),
        7 => match older(image, name, rng) {
            Some(older) => {
                data = older;
                "an older copy in its place".into()
            }
            None => flip(&mut data, rng),
        },
        8 => {
            swap_names(&path, &image.dir.join(other));
            return format!("{name} and {other} swapped");
        }
        _ if rng.one_in(2) => {
            data.extend((0..1 + rng.below(5000)).map(|_| rng.below(256) as u8));
            "garbage appended".into()
        }
        _ => {
            data = foreign(image, other, rng);
            "a foreign file in its place".into()
        }
    };
    // In place: it remains the file that it is.
    std::fs::write(&path, data).unwrap();
    format!("{name}: {what}")
}

/// Puts what is no such file in a file's place.
fn misplace(image: &Image, names: &[String], rng: &mut Rng) -> String {
    let name = &names[rng.below(names.len() as u64) as usize];
    let path = image.dir.join(name);
    let what = match rng.below(6) {
        0 => of_another_database(image, image.engine, name, rng),
        1 => {
            let others: Vec<&str> = engines::names().filter(|engine| *engine != image.engine).collect();
            of_another_database(image, others[rng.below(3) as usize], name, rng)
        }
        2 => {
            std::fs::write(&path, b"").unwrap();
            "cut to nothing".into()
        }
        3 => {
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
            "a directory in its place".into()
        }
        4 => {
            std::fs::remove_file(&path).unwrap();
            symlink("nowhere", &path).unwrap();
            "a link that leads nowhere in its place".into()
        }
        _ => {
            let len = std::fs::metadata(&path).unwrap().len();
            std::fs::write(&path, b"").unwrap();
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
            format!("a hole of {len} bytes in its place")
        }
    };
    format!("{name}: {what}")
}

/// Puts a file of another database of `engine` in the place of `name`: the one of its name, or one of its kind.
fn of_another_database(image: &Image, engine: &'static str, name: &str, rng: &mut Rng) -> String {
    let other = Image::make_other(engine, rng).files();
    let kind = |name: &str| name.trim_matches(|c: char| c.is_ascii_digit()).to_string();
    let alike: Vec<&String> = other.keys().filter(|there| kind(there) == kind(name)).collect();
    let taken = match (other.contains_key(name), alike.len() as u64) {
        (true, _) if rng.one_in(2) => name.to_string(),
        (_, 0) => other.keys().find(|there| *there != "LOCK").unwrap().clone(),
        (_, count) => alike[rng.below(count) as usize].clone(),
    };
    std::fs::write(image.dir.join(name), &other[&taken]).unwrap();
    format!("{taken} of another database, of {engine}, in its place")
}

fn flip(data: &mut [u8], rng: &mut Rng) -> String {
    let mut places = Vec::new();
    for _ in 0..1 + rng.below(4) {
        if let Some(at) = blocks::used_byte(data, rng) {
            data[at] ^= 1 << rng.below(8);
            places.push(at);
        }
    }
    format!("bits flipped at {places:?}")
}

/// What another database of the engine has under this name; the whole of what it has if it has no such file.
fn another(image: &Image, name: &str, rng: &mut Rng) -> Vec<u8> {
    let mut files = Image::make_other(image.engine, rng).files();
    files.remove(name).unwrap_or_else(|| files.into_values().flatten().collect())
}

fn cut(data: &mut Vec<u8>, rng: &mut Rng) -> String {
    let len = rng.below(data.len().max(1) as u64) as usize;
    data.truncate(len);
    format!("cut to {len} bytes")
}

fn removed(path: PathBuf) -> String {
    std::fs::remove_file(&path).unwrap();
    format!("{} removed", path.file_name().unwrap().display())
}

fn older(image: &Image, name: &str, rng: &mut Rng) -> Option<Vec<u8>> {
    let copies: Vec<&Vec<u8>> = image.older.iter().filter_map(|files| files.get(name)).collect();
    copies.get(rng.below(copies.len().max(1) as u64) as usize).map(|copy| copy.to_vec())
}

fn swap_names(a: &PathBuf, b: &PathBuf) {
    if a == b {
        return;
    }
    let aside = a.with_extension("aside");
    std::fs::rename(a, &aside).unwrap();
    std::fs::rename(b, a).unwrap();
    std::fs::rename(&aside, b).unwrap();
}

fn foreign(image: &Image, other: &str, rng: &mut Rng) -> Vec<u8> {
    if rng.one_in(2) {
        return std::fs::read(image.dir.join(other)).unwrap();
    }
    (0..rng.below(20_000)).map(|_| rng.below(256) as u8).collect()
}

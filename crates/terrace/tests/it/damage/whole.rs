//! Whole files that are damaged: cut, missing, another's, of another version.

use std::path::Path;

use terrace_base::rng::Rng;

use super::image::Image;
use super::judge::Judge;
use super::sample::{Sample, samples};
use super::{Docket, number};

/// What a file is, by its name.
pub fn kind_of(path: &Path) -> &'static str {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap();
    match path.extension().and_then(|e| e.to_str()) {
        Some("sst") => "table",
        Some("log") => "log",
        _ if name.starts_with("MANIFEST-") => "manifest",
        _ if name == "CURRENT" => "CURRENT",
        _ => panic!("what is {name}?"),
    }
}

/// Judges `image`, in which the file at `path` (or the pool) is not what it was.
fn hear(docket: &mut Docket, sample: &Sample, path: Option<&Path>, place: &str, image: &Image) {
    let what = path.map_or("pool", kind_of);
    // A file that was not closed and ends early may always have ended there.
    let may_lose_the_newest = ["log", "manifest"].contains(&what);
    let judge = Judge { sample, image, may_lose_the_newest, check_is_enough: false };
    docket.hear(what, &format!("{}, {place}", path.unwrap_or(Path::new("pool")).display()), &judge);
}

#[test]
fn files_that_end_early_are_told_or_harmless() {
    let mut rng = Rng::new(number("TERRACE_DAMAGE_SEED", 1));
    let mut docket = Docket::default();
    for sample in samples() {
        for (path, bytes) in &sample.image.files {
            for _ in 0..4 * number("TERRACE_DAMAGE", 1) {
                let len = rng.below(bytes.len() as u64) as usize;
                let mut image = sample.image.clone();
                image.files.get_mut(path).unwrap().truncate(len);
                hear(&mut docket, &sample, Some(path), &format!("cut to {len}"), &image);
            }
        }
        for _ in 0..8 * number("TERRACE_DAMAGE", 1) {
            let mut image = sample.image.clone();
            let Some(pool) = image.pool.as_mut() else { continue };
            let len = rng.below(pool.len() as u64) as usize;
            pool.truncate(len.max(1));
            hear(&mut docket, &sample, None, &format!("cut to {len}"), &image);
        }
    }
    docket.close();
}

#[test]
fn missing_files_are_told_and_made_good() {
    let mut docket = Docket::default();
    for sample in samples() {
        for path in sample.image.files.keys() {
            let mut image = sample.image.clone();
            image.files.remove(path);
            hear(&mut docket, &sample, Some(path), "gone", &image);
        }
        let image = Image { pool: None, ..sample.image.clone() };
        hear(&mut docket, &sample, None, "gone", &image);
    }
    docket.close();
}

#[test]
fn foreign_files_are_told() {
    let mut docket = Docket::default();
    // Databases that were made in the same way, so that names and lengths agree.
    let others = samples();
    for (sample, other) in samples().iter().zip(&others) {
        let text = b"This is a letter to nobody in particular. ".repeat(100);
        for (path, own) in &sample.image.files {
            let theirs = other.image.files.get(path).filter(|bytes| *bytes != own);
            let neighbour = sample.image.files.iter().find(|(p, b)| kind_of(p) == kind_of(path) && *b != own);
            let strangers = [Some(&Vec::new()), Some(&text), theirs, neighbour.map(|(_, bytes)| bytes)];
            for (i, stranger) in strangers.into_iter().enumerate().filter_map(|(i, s)| Some((i, s?))) {
                let mut image = sample.image.clone();
                image.files.insert(path.clone(), stranger.clone());
                hear(&mut docket, sample, Some(path), &format!("stranger {i}"), &image);
            }
        }
        for pool in [Some(text.repeat(20)), other.image.pool.clone()].into_iter().flatten() {
            let image = Image { pool: Some(pool), ..sample.image.clone() };
            hear(&mut docket, sample, None, "a stranger", &image);
        }
    }
    docket.close();
}

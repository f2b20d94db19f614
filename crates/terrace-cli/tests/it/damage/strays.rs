//! What somebody has put beside a database's files, or in their place, and what must be left of it whatever the
//! commands do.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use terrace_base::rng::Rng;

use super::image::Image;
use crate::misplaced::{identity, record};

/// What was put somewhere.
#[derive(Debug, PartialEq, Eq)]
enum What {
    File(Vec<u8>),
    Link(PathBuf),
    /// A pipe, a folder.
    Other,
    Nothing,
}

/// Things that are somebody's.
pub struct Strays {
    /// In words.
    pub said: String,
    laid: Vec<(PathBuf, What)>,
}

impl Strays {
    /// Those that are not what they were.
    pub fn touched(&self) -> Vec<&Path> {
        self.laid.iter().filter(|(path, was)| found(path) != *was).map(|(path, _)| &**path).collect()
    }

    fn of(said: impl Into<String>, paths: impl IntoIterator<Item = PathBuf>) -> Strays {
        let laid = paths.into_iter().map(|path| (found(&path), path));
        Strays { said: said.into(), laid: laid.map(|(what, path)| (path, what)).collect() }
    }
}

fn found(path: &Path) -> What {
    match path.symlink_metadata() {
        Err(_) => What::Nothing,
        Ok(meta) if meta.is_symlink() => What::Link(std::fs::read_link(path).unwrap()),
        Ok(meta) if meta.is_file() => What::File(std::fs::read(path).unwrap()),
        Ok(_) => What::Other,
    }
}

/// Puts something beside the database's files, or in a file's place.
pub fn lay(image: &Image, rng: &mut Rng) -> Strays {
    let dir = &image.dir;
    match rng.below(7) {
        0 => beside_the_pool(image, rng),
        1 => {
            let (folder, names) = (dir.join("repair"), ["NOTE", "NOTE.new", "thesis", "000012.sst"]);
            let _ = std::fs::create_dir(&folder);
            let least = rng.below(2);
            let files = names.into_iter().filter(|name| *name == "thesis" || rng.below(2) == least);
            let paths: Vec<PathBuf> = files.map(|name| folder.join(name)).collect();
            paths.iter().for_each(|path| std::fs::write(path, bytes(rng)).unwrap());
            Strays::of("somebody's folder repair", paths)
        }
        2 => foreign_record(image, rng),
        3 => {
            let whole = record([7; 16], &[]);
            let cut = rng.below(whole.len() as u64) as usize;
            std::fs::write(dir.join("REPAIR"), &whole[..cut]).unwrap();
            Strays::of(format!("a record of a repair cut to {cut} bytes"), [dir.join("REPAIR")])
        }
        4 => {
            let names: Vec<String> = image.files().into_keys().filter(|name| name != "LOCK").collect();
            let Some(name) = names.get(rng.below(names.len().max(1) as u64) as usize) else {
                return Strays::of("nothing", []);
            };
            std::fs::remove_file(dir.join(name)).unwrap();
            let made = std::process::Command::new("mkfifo").arg(dir.join(name)).status().unwrap();
            assert!(made.success());
            Strays::of(format!("a pipe in the place of {name}"), [])
        }
        5 => behind_a_link(image, rng),
        _ => {
            let lost = dir.join("lost");
            match rng.one_in(2) {
                true => std::fs::write(&lost, bytes(rng)).unwrap(),
                false => std::fs::create_dir(&lost).unwrap(),
            }
            let paths =
                if lost.is_dir() { ["LIST", "thesis"].map(|name| lost.join(name)).to_vec() } else { vec![] };
            paths.iter().for_each(|path| std::fs::write(path, bytes(rng)).unwrap());
            Strays::of("something called lost", paths.into_iter().chain([lost]))
        }
    }
}

/// Under the names that pools have while they are made.
fn beside_the_pool(image: &Image, rng: &mut Rng) -> Strays {
    let name = ["pool.repair", "pool.new", "pool.repair.new"][rng.below(3) as usize];
    let path = image.dir.join(name);
    match rng.below(4) {
        0 => std::fs::create_dir(&path).unwrap(),
        1 => symlink("nowhere", &path).unwrap(),
        2 => std::fs::write(&path, bytes(rng)).unwrap(),
        _ => {
            let other = Image::make_other(image.engine, rng).files();
            let file = other.get("pool").or_else(|| other.values().next()).unwrap();
            std::fs::write(&path, file).unwrap();
        }
    }
    Strays::of(format!("something called {name}"), [path])
}

/// The record of another database's repair, which would remove every file; perhaps with its folder.
fn foreign_record(image: &Image, rng: &mut Rng) -> Strays {
    let (other, dir) = (Image::make_other(image.engine, rng), &image.dir);
    let there: Vec<PathBuf> = image.files().into_keys().map(PathBuf::from).collect();
    std::fs::write(dir.join("REPAIR"), record(identity(&other.dir), &there)).unwrap();
    let mut paths = vec![dir.join("REPAIR")];
    if rng.one_in(2) {
        let manifest = other.files().into_iter().find(|(name, _)| name.starts_with("MANIFEST")).unwrap();
        paths.push(dir.join("repair/MANIFEST-000009"));
        let _ = std::fs::create_dir(dir.join("repair"));
        std::fs::write(&paths[1], manifest.1).unwrap();
    }
    Strays::of(
        format!("the record of another database's repair with {} of its files", paths.len() - 1),
        paths,
    )
}

/// The pool on another medium, which may not be there.
fn behind_a_link(image: &Image, rng: &mut Rng) -> Strays {
    let (link, medium) = (image.dir.join("pool"), image.dir.with_file_name("medium"));
    if !link.is_file() || link.is_symlink() {
        return Strays::of("nothing", []);
    }
    std::fs::create_dir(&medium).unwrap();
    std::fs::rename(&link, medium.join("p")).unwrap();
    let target = if rng.one_in(2) { medium.join("p") } else { "../medium/p".into() };
    symlink(target, &link).unwrap();
    Strays::of("the pool behind a link", [link])
}

fn bytes(rng: &mut Rng) -> Vec<u8> {
    match rng.below(4) {
        0 => b"TERRNOTE".to_vec(),
        1 => b"TERRPOOL, I said".to_vec(),
        _ => (0..rng.below(9000)).map(|_| rng.below(256) as u8).collect(),
    }
}

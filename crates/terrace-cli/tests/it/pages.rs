//! The Markdown pages of the repository: lines that fit, and nothing named that is not there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Characters of a line, at most.
const WIDTH: usize = 100;

/// Folders of the repository that pages name files of.
const FOLDERS: [&str; 4] = ["crates/", "docs/", "fuzz/", "scripts/"];

/// A page, with its code blocks apart.
struct Page {
    path: PathBuf,
    /// Its lines outside code blocks, each with its number from 1.
    lines: Vec<(usize, String)>,
    /// All of it.
    text: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn pages() -> Vec<Page> {
    let mut found = Vec::new();
    gather(&repository(), &mut found);
    assert!(found.len() > 20, "the pages are not where they are looked for");
    found.into_iter().map(read).collect()
}

/// Every Markdown file under `folder` but for what is built or hidden.
fn gather(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                gather(&path, found);
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

fn read(path: PathBuf) -> Page {
    let text = fs::read_to_string(&path).unwrap();
    let mut in_code = false;
    let mut lines = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        if !in_code && !is_fence {
            lines.push((i + 1, line.to_string()));
        }
    }
    Page { path, lines, text }
}

/// Whether `line` may be as long as it is: a table, or a link that cannot be cut.
fn may_be_wide(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with('|') || line.starts_with("![") || line.starts_with('[') && line.ends_with(')')
}

/// The targets of the links in `line`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The files that `line` names by their paths from the top of the repository.
fn named_files(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-*".contains(c);
    line.split(move |c| !is_path(c))
        .filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder)))
        .filter(|word| !word.contains('*'))
        .map(|word| word.trim_end_matches('.'))
}

/// The places in a page that links may lead to.
fn anchors(page: &Page) -> BTreeSet<String> {
    let headings = page.lines.iter().filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// What `tell` has to say of each line of each page.
fn told(tell: impl Fn(&Page, &str) -> Vec<String>) -> Vec<String> {
    let top = repository();
    let mut all = Vec::new();
    for page in pages() {
        let name = page.path.strip_prefix(&top).unwrap().display().to_string();
        for (number, line) in &page.lines {
            all.extend(tell(&page, line).into_iter().map(|what| format!("{name}:{number}: {what}")));
        }
    }
    all
}

#[test]
fn lines_fit() {
    let mut wide = Vec::new();
    for page in pages() {
        for (i, line) in page.text.lines().enumerate() {
            let width = line.chars().count();
            if width > WIDTH && !may_be_wide(line) {
                wide.push(format!("{}:{}: {width} wide", page.path.display(), i + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let astray = told(|page, line| links(line).filter_map(|target| problem(page, target)).collect());
    assert!(astray.is_empty(), "{}", astray.join("\n"));
}

fn problem(page: &Page, target: &str) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (file, place) = target.split_once('#').map_or((target, None), |(file, place)| (file, Some(place)));
    let path = if file.is_empty() { page.path.clone() } else { page.path.parent().unwrap().join(file) };
    if !path.exists() {
        return Some(format!("no file {file}"));
    }
    let place = place?;
    let has = path.extension().is_some_and(|e| e == "md") && anchors(&read(path)).contains(place);
    (!has).then(|| format!("no heading for {target}"))
}

#[test]
fn named_files_exist() {
    let top = repository();
    let missing = told(|_, line| {
        let files = named_files(line).filter(|file| !top.join(file).exists());
        files.map(|file| format!("no file {file}")).collect()
    });
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Pages and scripts say how examples are run: `--example NAME`.
#[test]
fn named_examples_exist() {
    let top = repository();
    let scripts = fs::read_dir(top.join("scripts")).unwrap().map(|entry| entry.unwrap().path());
    let texts = pages().into_iter().map(|page| page.text);
    let texts = texts.chain(scripts.map(|path| fs::read_to_string(path).unwrap()));
    for text in texts {
        for rest in text.split("--example ").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let is_there = |folder: fs::DirEntry| folder.path().join(format!("examples/{name}.rs")).exists();
            let found = fs::read_dir(top.join("crates")).unwrap().any(|folder| is_there(folder.unwrap()));
            assert!(found, "no example is called {name}");
        }
    }
}

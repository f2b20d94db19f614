//! A full-text index: documents, and for each word the documents that have it.
//!
//! `cargo run --release --example full_text [DIR] -- WORD..`: reads the text files of this repository's `docs` into an
//! index in DIR, or brings it up to date, and prints the documents that have all words, the best first. A word that
//! ends in `*` stands for all that begin so. A document and its words change together, in one transaction.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use terrace::{Db, Keyspace, Options, Result};

/// Keyspaces of the index.
struct Index {
    db: Db,
    /// Name to text.
    documents: Keyspace,
    /// Word, a zero byte and the name of a document, to how often it has the word.
    words: Keyspace,
}

/// The words of a text, and how often each comes.
fn words_of(text: &str) -> BTreeMap<String, u32> {
    let mut words = BTreeMap::new();
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        *words.entry(word.to_lowercase()).or_default() += 1;
    }
    words
}

fn posting(word: &str, name: &str) -> Vec<u8> {
    [word.as_bytes(), &[0], name.as_bytes()].concat()
}

impl Index {
    fn open(dir: &Path) -> Result<Index> {
        let db = Db::open(dir, Options::default())?;
        Ok(Index { documents: db.keyspace("documents")?, words: db.keyspace("words")?, db })
    }

    /// Sets the text of a document, or removes it; returns whether that changes anything.
    fn set(&self, name: &str, text: Option<&str>) -> Result<bool> {
        self.db.transact(|tx| {
            let (documents, words) = (tx.keyspace(&self.documents)?, tx.keyspace(&self.words)?);
            let before = documents.get(name)?;
            if before.as_deref() == text.map(str::as_bytes) {
                return Ok(false);
            }
            let before = words_of(&String::from_utf8_lossy(before.as_deref().unwrap_or_default()));
            let after = words_of(text.unwrap_or_default());
            for word in before.keys().filter(|word| !after.contains_key(*word)) {
                words.delete(posting(word, name))?;
            }
            for (word, count) in after.iter().filter(|(word, count)| before.get(*word) != Some(*count)) {
                words.put(posting(word, name), count.to_le_bytes())?;
            }
            match text {
                Some(text) => documents.put(name, text)?,
                None => documents.delete(name)?,
            }
            Ok(true)
        })
    }

    /// Has the index hold exactly the documents of `source`; returns how many changed.
    fn bring_up_to_date(&self, source: &BTreeMap<String, String>) -> Result<usize> {
        let mut changed = 0;
        for entry in self.documents.iter()? {
            let name = String::from_utf8_lossy(&entry?.0).into_owned();
            if !source.contains_key(&name) {
                changed += usize::from(self.set(&name, None)?);
            }
        }
        for (name, text) in source {
            changed += usize::from(self.set(name, Some(text))?);
        }
        Ok(changed)
    }

    /// The documents that have all of `wanted`, with how often they have them, the best first: all at one moment.
    fn search(&self, wanted: &[&str]) -> Result<Vec<(String, u32)>> {
        let words = self.db.snapshot().keyspace(&self.words)?;
        let mut found: Option<BTreeMap<String, u32>> = None;
        for word in wanted {
            let lower = word.to_lowercase();
            let prefix = match lower.strip_suffix('*') {
                Some(beginning) => beginning.as_bytes().to_vec(),
                None => [lower.as_bytes(), &[0]].concat(),
            };
            let mut has = BTreeMap::new();
            for entry in words.prefix(prefix)? {
                let (key, count) = entry?;
                let Some(end) = key.iter().position(|byte| *byte == 0) else { continue };
                let name = String::from_utf8_lossy(&key[end + 1..]).into_owned();
                let count = (&count[..]).try_into().map_or(0, u32::from_le_bytes);
                *has.entry(name).or_insert(0) += count;
            }
            found = Some(match found {
                None => has,
                Some(before) => {
                    let both = before.into_iter().filter_map(|(name, count)| {
                        let more = *has.get(&name)?;
                        Some((name, count + more))
                    });
                    both.collect()
                }
            });
        }
        let mut found: Vec<_> = found.unwrap_or_default().into_iter().collect();
        found.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), name.clone()));
        Ok(found)
    }
}

/// The texts of the Markdown files under `dir`, by their paths.
fn texts_under(dir: &Path, into: &mut BTreeMap<String, String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            texts_under(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            into.insert(path.display().to_string(), std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let made = std::env::temp_dir().join("terrace-full-text");
    let dir = args.next().map_or(made, PathBuf::from);
    let mut wanted: Vec<String> = args.map(|word| word.to_string_lossy().into_owned()).collect();
    if wanted.is_empty() {
        wanted = vec!["power".into(), "snapshot*".into()];
    }
    let mut texts = BTreeMap::new();
    texts_under(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs"), &mut texts)?;
    let index = Index::open(&dir)?;
    let changed = index.bring_up_to_date(&texts)?;
    println!("{} documents in {}, {changed} of them new, changed or gone", texts.len(), dir.display());
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let found = index.search(&wanted)?;
    println!("{} have {}:", found.len(), wanted.join(" and "));
    for (name, count) in found.iter().take(10) {
        println!("{count:6}  {name}");
    }
    Ok(index.db.close()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(index: &Index, wanted: &[&str]) -> Vec<String> {
        index.search(wanted).unwrap().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn documents_are_found_as_they_are_now() {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::open(dir.path()).unwrap();
        let mut texts = BTreeMap::from([
            ("a".to_owned(), "The power goes, and the Power comes.".to_owned()),
            ("b".to_owned(), "A power cut".to_owned()),
        ]);
        assert_eq!(index.bring_up_to_date(&texts).unwrap(), 2);
        assert_eq!(index.bring_up_to_date(&texts).unwrap(), 0);
        assert_eq!(names(&index, &["power"]), ["a", "b"]);
        assert_eq!(names(&index, &["POWER", "cut"]), ["b"]);
        assert_eq!(names(&index, &["c*"]), ["a", "b"]);
        texts.insert("a".into(), "Nothing goes".into());
        texts.remove("b");
        assert_eq!(index.bring_up_to_date(&texts).unwrap(), 2);
        assert!(names(&index, &["power"]).is_empty() && names(&index, &["cut"]).is_empty());
        assert_eq!(names(&index, &["goes", "noth*"]), ["a"]);
        assert_eq!(index.words.iter().unwrap().count(), 2);
    }
}

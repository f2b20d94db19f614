//! The two machines that a comparison speaks of: the one that most people have, and one with persistent memory.

use super::contender::Contender;
use super::entrant::Entrant;
use super::results::Results;

/// The part of a comparison that is about one of them.
#[derive(Debug)]
pub struct View {
    /// The part of its files' names that tells them apart; empty for the first.
    pub suffix: &'static str,
    /// The machine, for people.
    pub title: &'static str,
    /// The results on it.
    pub results: Results,
}

impl View {
    /// The file of its page.
    pub fn file(&self) -> &'static str {
        if self.suffix.is_empty() { "index.html" } else { "pm.html" }
    }

    /// The file of the picture of it that a README shows.
    pub fn picture(&self) -> String {
        format!("overview{}.svg", self.suffix)
    }
}

/// The views of `results`, the ordinary machine first. Peers that know nothing of persistent memory are part of both.
pub fn views(results: &Results) -> Vec<View> {
    let entrants = || results.entrants.iter().filter_map(|name| Contender::entrant_of(name).ok());
    let is_ordinary = |entrant: Entrant| !entrant.is_on_pm();
    let has_pm = |entrant: Entrant| entrant.is_on_pm() || !entrant.is_ours();
    let mut views = Vec::new();
    if entrants().any(|e| is_ordinary(e) && e.is_ours()) || !entrants().any(Entrant::is_on_pm) {
        views.push(("Without persistent memory", results.only(is_ordinary)));
    }
    if entrants().any(Entrant::is_on_pm) {
        views.push(("With persistent memory", results.only(has_pm)));
    }
    let suffixes = ["", "-pm"];
    let views = views.into_iter().zip(suffixes);
    views.map(|((title, results), suffix)| View { suffix, title, results }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn viewed(names: &[&str]) -> Vec<(&'static str, &'static str, Vec<String>)> {
        let entrants = names.iter().map(|name| name.to_string()).collect();
        let views = views(&Results { entrants, ..Results::default() });
        views.into_iter().map(|view| (view.suffix, view.title, view.results.entrants)).collect()
    }

    #[test]
    fn the_ordinary_machine_comes_first() {
        let seen = viewed(&["slm", "slm-pm", "turbo", "rocksdb", "rocksdb-pm", "lmdb"]);
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[0].0, &seen[0].2[..]), ("", &["slm", "rocksdb", "lmdb"].map(String::from)[..]));
        let pm = ["slm-pm", "turbo", "rocksdb", "rocksdb-pm", "lmdb"].map(String::from);
        assert_eq!((seen[1].0, &seen[1].2[..]), ("-pm", &pm[..]));
    }

    #[test]
    fn one_machine_is_one_view() {
        assert_eq!(viewed(&["lsm", "redb"]).len(), 1);
        assert_eq!(viewed(&["redb", "rocksdb"]).len(), 1);
        let pm = viewed(&["turbo", "rocksdb"]);
        assert_eq!((pm.len(), pm[0].0, pm[0].1, pm[0].2.len()), (1, "", "With persistent memory", 2));
    }
}

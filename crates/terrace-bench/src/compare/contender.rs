//! A store with options of its own, and where its databases lie.

use std::path::PathBuf;

use super::entrant::{Entrant, PmSetup, has_option, parse_option};
use crate::peers::{Opened, Setup};
use crate::store::StoreResult;

/// An entrant, and the options that it is opened with beside the usual ones.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Contender {
    /// `wip`, or `wip+wip.read_aware=false`: the entrant and the options that it has and others have not.
    pub name: String,
    /// The entrant.
    pub entrant: String,
    /// Options by name.
    pub set: Vec<(String, String)>,
}

impl Contender {
    /// Reads `ENTRANT` or `ENTRANT+OPTION=VALUE+OPTION=VALUE`; an option may lack the name of its engine before the
    /// point.
    ///
    /// # Errors
    /// A text that says what is wrong with it, or that this build does not have it.
    pub fn parse(text: &str) -> Result<Contender, String> {
        let mut parts = text.trim().split('+');
        let name = parts.next().unwrap_or_default();
        let entrant = Entrant::parse(name)?;
        if !entrant.is_built() {
            return Err(format!("{name} is not in this build: scripts/make-peers.sh makes one that has it"));
        }
        let whole = |part: &str| match entrant {
            Entrant::Engine { kind, .. } if !part.split('=').next().unwrap_or_default().contains('.') => {
                format!("{}.{part}", kind.name())
            }
            _ => part.to_string(),
        };
        let set = parts.map(|part| parse_option(&whole(part))).collect::<Result<Vec<_>, _>>()?;
        let wrong = set.iter().find(|(option, _)| !is_of(option, entrant));
        if let Some((option, _)) = wrong {
            return Err(format!("{name} has no option {option}"));
        }
        Ok(Contender { name: text.trim().to_string(), entrant: name.to_string(), set })
    }

    /// The entrant.
    ///
    /// # Errors
    /// If this build does not know it.
    pub fn entrant(&self) -> Result<Entrant, String> {
        Entrant::parse(&self.entrant)
    }

    /// The entrant behind the name of a contender.
    ///
    /// # Errors
    /// If there is none.
    pub fn entrant_of(name: &str) -> Result<Entrant, String> {
        Entrant::parse(name.split('+').next().unwrap_or_default())
    }

    /// Those of a list of names separated by commas, each once.
    ///
    /// # Errors
    /// A text that says what is wrong with one of them, or that `is` refuses it: it is not a `kind`.
    pub fn parse_list(list: &str, kind: &str, is: fn(Entrant) -> bool) -> Result<Vec<Contender>, String> {
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        let mut found = Vec::new();
        for name in names {
            if !is(Contender::entrant_of(name)?) {
                return Err(format!("{name} is no {kind}"));
            }
            let contender = Contender::parse(name)?;
            if !found.contains(&contender) {
                found.push(contender);
            }
        }
        Ok(found)
    }

    /// Those of a list, to which `set` applies as well: each option to the engines that have it.
    ///
    /// # Errors
    /// A text that says what is wrong with a name or an option, or that none of them has an option.
    pub fn parse_all(list: &[String], set: &[String]) -> Result<Vec<Contender>, String> {
        let mut all = list.iter().map(|text| Contender::parse(text)).collect::<Result<Vec<_>, _>>()?;
        for text in set {
            let (option, value) = parse_option(text)?;
            let mut used = false;
            for contender in &mut all {
                if is_of(&option, Entrant::parse(&contender.entrant)?) {
                    // Its own options take precedence.
                    contender.set.insert(0, (option.clone(), value.clone()));
                    used = true;
                }
            }
            if !used {
                return Err(format!("none of the stores has the option {option}"));
            }
        }
        Ok(all)
    }

    /// Opens it in the directory `number` of `place`, making it if there is none.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(&self, place: &Place, number: usize) -> StoreResult<Opened> {
        let (dir, pm_dir) = place.dirs(number);
        let (memory, options) = (place.memory, self.set.clone());
        let setup = Setup { dir, pm_dir, memory, buffer: None, sync: false, options };
        let pm = PmSetup { profile: place.profile.clone(), bytes: place.pm_bytes };
        self.entrant()?.open_honest(&setup, &pm)
    }
}

impl From<Entrant> for Contender {
    fn from(entrant: Entrant) -> Contender {
        Contender { name: entrant.name(), entrant: entrant.name(), set: Vec::new() }
    }
}

/// Where databases lie, and their share of the machine.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Place {
    /// A directory on the SSD.
    pub dir: PathBuf,
    /// A directory for emulated persistent memory.
    pub pm_dir: PathBuf,
    /// The medium that it stands for.
    pub profile: String,
    /// Bytes to which a pool may grow.
    pub pm_bytes: u64,
    /// DRAM for write buffers and caches of a store.
    pub memory: u64,
}

impl Place {
    /// The directories of a store.
    pub fn dirs(&self, number: usize) -> (PathBuf, PathBuf) {
        (self.dir.join(number.to_string()), self.pm_dir.join(number.to_string()))
    }

    /// Removes what a store left there.
    pub fn clean(&self, number: usize) {
        let (dir, pm_dir) = self.dirs(number);
        // Files that cannot be removed stay.
        let _ = std::fs::remove_dir_all(dir);
        let _ = std::fs::remove_dir_all(pm_dir);
    }
}

/// Whether `option` is one of the engine of `entrant`.
fn is_of(option: &str, entrant: Entrant) -> bool {
    matches!(entrant, Entrant::Engine { kind, .. } if has_option(kind, option))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(list: &[&str], set: &[&str]) -> Result<Vec<Contender>, String> {
        let strings = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        Contender::parse_all(&strings(list), &strings(set))
    }

    #[test]
    fn options_go_to_the_engines_that_have_them() {
        let list = ["wip", "wip+wip.read_aware=false", "lsm"];
        let contenders = all(&list, &["wip.sublevels=6", "lsm.memtables=3"]).unwrap();
        let sets: Vec<Vec<&str>> =
            contenders.iter().map(|c| c.set.iter().map(|(name, _)| name.as_str()).collect()).collect();
        let [wip, own] = ["wip.sublevels", "wip.read_aware"];
        assert_eq!(sets, [vec![wip], vec![wip, own], vec!["lsm.memtables"]]);
        assert_eq!(contenders[1].name, "wip+wip.read_aware=false");
    }

    #[test]
    fn lists_hold_one_kind_each_once() {
        let names = |list, kind, is| {
            let found = Contender::parse_list(list, kind, is);
            found.map(|l| l.into_iter().map(|c| c.name).collect::<Vec<_>>())
        };
        let engines = |list| names(list, "engine", Entrant::is_ours);
        assert_eq!(engines(" slm, lsm,slm,"), Ok(vec!["slm".into(), "lsm".into()]));
        let two = "tlsm+tiering=none,tlsm+tlsm.tiering=lru";
        assert_eq!(engines(two), Ok(two.split(',').map(String::from).collect()));
        let peers = |list| names(list, "peer", |e| !e.is_ours());
        assert_eq!(peers(""), Ok(vec![]));
        assert!(peers("slm").unwrap_err().contains("no peer"));
    }

    #[test]
    fn what_cannot_be_set_is_told() {
        for (list, set, told) in [
            (&["lsm"][..], &["wip.sublevels=6"][..], "none of the stores has the option wip.sublevels"),
            (&["wip"], &["wip.sublevel=6"], "no engine has an option \"wip.sublevel\""),
            (&["wip"], &["wip.sublevels=many"], "wip.sublevels"),
            (&["wip"], &["wip.sublevels"], "NAME=VALUE"),
            (&["dbase"], &[], "there is no store \"dbase\""),
            (&["lsm+wip.sublevels=6"], &[], "lsm has no option wip.sublevels"),
        ] {
            let error = all(list, set).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}

//! The tour's records: users, articles and log lines made from word lists and a small grammar.
//!
//! Record `i` of revision `r` is always the same, so a check needs no stored copy.

use terrace_base::rng::Rng;

mod words;

use words::{ADJECTIVES, CITIES, FIRST_NAMES, LAST_NAMES, NOUNS, PLACES, SERVICES, VERBS};

/// Records of the tour.
pub const RECORDS: u64 = 100_000;

/// Prefix of the users' keys.
pub const USERS: &str = "user/";
/// Prefix of the articles' keys.
pub const ARTICLES: &str = "article/";
/// Prefix of the log lines' keys.
pub const LOGS: &str = "log/";

const SEED: u64 = 0x7e55_ace0;
/// 2026-01-05 06:00:00, where the log begins.
const LOG_START_SECONDS: u64 = 6 * 3600;

/// The key and value of record `index`; a revision above 0 has the same key and another value.
pub fn record(index: u64, revision: u64) -> (String, String) {
    let mut rng = Rng::new(SEED ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // The key is drawn first, so it does not depend on the revision.
    match index % 10 {
        0 => user(index, revision, &mut rng),
        1..=3 => article(index, revision, &mut rng),
        _ => log_line(index, revision, &mut rng),
    }
}

fn user(index: u64, revision: u64, rng: &mut Rng) -> (String, String) {
    let (first, last) = (pick(rng, FIRST_NAMES), pick(rng, LAST_NAMES));
    let handle = format!("{}.{}.{index}", ascii(first), ascii(last));
    let mut rng = revised(rng, revision);
    let value = format!(
        r#"{{"name":"{first} {last}","email":"{handle}@example.net","city":"{}","joined":"20{:02}-{:02}-{:02}","visits":{}}}"#,
        pick(&mut rng, CITIES),
        10 + rng.below(16),
        1 + rng.below(12),
        1 + rng.below(28),
        rng.below(5000) + revision,
    );
    (format!("{USERS}{handle}"), value)
}

fn article(index: u64, revision: u64, rng: &mut Rng) -> (String, String) {
    let title = format!("{} {} {}", pick(rng, ADJECTIVES), pick(rng, NOUNS), pick(rng, PLACES));
    let key = format!("{ARTICLES}{index:06}/{}", ascii(&title).replace(' ', "-"));
    let mut rng = revised(rng, revision);
    let mut text = format!("{}\n", capitalized(&title));
    if revision > 0 {
        text.push_str(&format!("(revision {revision})\n"));
    }
    for _ in 0..1 + rng.below(3) {
        text.push('\n');
        for _ in 0..2 + rng.below(4) {
            text.push_str(&sentence(&mut rng));
            text.push(' ');
        }
        text.pop();
        text.push('\n');
    }
    (key, text)
}

fn log_line(index: u64, revision: u64, rng: &mut Rng) -> (String, String) {
    let millis = LOG_START_SECONDS * 1000 + index * 713 + rng.below(700);
    let (second, host) = (millis / 1000, 1 + rng.below(12));
    let key = format!(
        "{LOGS}2026-01-{:02}T{:02}:{:02}:{:02}.{:03}Z/host-{host:02}",
        5 + second / 86_400,
        second / 3600 % 24,
        second / 60 % 60,
        second % 60,
        millis % 1000,
    );
    let mut rng = revised(rng, revision);
    let level = ["INFO", "INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR"][rng.below(7) as usize];
    let service = pick(&mut rng, SERVICES);
    let value = match level {
        "WARN" => format!("WARN {service}: {} ms waiting for {}", rng.below(9000), pick(&mut rng, SERVICES)),
        "ERROR" => format!("ERROR {service}: {} did not {}", pick(&mut rng, NOUNS), pick(&mut rng, VERBS)),
        _ => format!(
            "{level} {service}: request {:08x} served GET /{}/{} in {} ms",
            rng.below(1 << 32),
            pick(&mut rng, NOUNS),
            rng.below(100_000),
            rng.below(400),
        ),
    };
    (key, value)
}

fn sentence(rng: &mut Rng) -> String {
    let mut text = match rng.below(4) {
        0 => format!("{} the {} {}", pick(rng, PLACES), pick(rng, ADJECTIVES), pick(rng, NOUNS)),
        1 => format!("{} from {} and the {}", pick(rng, LAST_NAMES), pick(rng, CITIES), pick(rng, NOUNS)),
        2 => format!("every {} {}", pick(rng, ADJECTIVES), pick(rng, NOUNS)),
        _ => format!("the {} of {}", pick(rng, NOUNS), pick(rng, CITIES)),
    };
    text.push_str(&format!(" could {} a {} {}", pick(rng, VERBS), pick(rng, ADJECTIVES), pick(rng, NOUNS)));
    if rng.one_in(2) {
        text.push_str(&format!(" {}", pick(rng, PLACES)));
    }
    text.push('.');
    capitalized(&text)
}

/// A generator that goes on from `rng`, elsewhere for each revision.
fn revised(rng: &mut Rng, revision: u64) -> Rng {
    Rng::new(rng.next_u64() ^ revision)
}

fn pick<'a>(rng: &mut Rng, words: &[&'a str]) -> &'a str {
    words[rng.below(words.len() as u64) as usize]
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Lower case, with letters that ASCII lacks as the nearest it has.
fn ascii(text: &str) -> String {
    const NEAREST: [(&str, char); 12] = [
        ("áàâäãåāą", 'a'),
        ("çćč", 'c'),
        ("éèêëęě", 'e'),
        ("íìîïıİ", 'i'),
        ("łľ", 'l'),
        ("ñńň", 'n'),
        ("óòôöõøō", 'o'),
        ("řŕ", 'r'),
        ("šśş", 's'),
        ("úùûüů", 'u'),
        ("ýÿ", 'y'),
        ("žźż", 'z'),
    ];
    let nearest =
        |c: char| NEAREST.iter().find(|(letters, _)| letters.contains(c)).map(|(_, nearest)| *nearest);
    text.to_lowercase().chars().filter_map(|c| if c.is_ascii() { Some(c) } else { nearest(c) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn records_repeat_and_keys_differ() {
        let keys: BTreeSet<String> = (0..20_000).map(|i| record(i, 0).0).collect();
        assert_eq!(keys.len(), 20_000);
        assert_eq!(record(77, 0), record(77, 0));
    }

    #[test]
    fn a_revision_keeps_the_key_and_changes_the_value() {
        for i in 0..100 {
            let (before, after) = (record(i, 0), record(i, 1));
            assert_eq!(before.0, after.0);
            assert_ne!(before.1, after.1);
        }
    }

    #[test]
    fn handles_are_plain_ascii() {
        assert_eq!(ascii("Élodie Dąbrowski İzmir Søren Šimić Ğ"), "elodie dabrowski izmir soren simic ");
        assert!((0..2000).all(|i| record(i, 0).0.is_ascii()));
    }

    #[test]
    fn there_is_something_of_everything() {
        let records: Vec<_> = (0..100).map(|i| record(i, 0)).collect();
        for (prefix, count) in [(USERS, 10), (ARTICLES, 30), (LOGS, 60)] {
            assert_eq!(records.iter().filter(|(key, _)| key.starts_with(prefix)).count(), count);
        }
        let bytes: usize = records.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!((10_000..60_000).contains(&bytes), "{bytes}");
    }
}

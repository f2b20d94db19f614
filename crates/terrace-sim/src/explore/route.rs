//! The address of one crash image: from the seed, through each crash, to the world that was checked.

use std::fmt;
use std::str::FromStr;

use crate::event::EventKind;
use crate::own::OwnWorld;
use crate::pm::Survival;
use crate::seed::mix;
use crate::world::Snapshot;

/// The first image that is drawn; those below it are the fixed ones.
pub(super) const FIRST_DRAWN: u32 = 6;

/// One crash: the event before which it came, and which of its images.
///
/// Images are numbered alike everywhere: 0 keeps nothing that was pending, 1 keeps everything, 2 is a kill of
/// the process, 3 loses the persistent memory altogether, 4 keeps only what was pending in persistent
/// memory, 5 only what was pending on the disk, and from 6 on an arbitrary part is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The event's number in its world.
    pub event: u64,
    /// The image's number.
    pub image: u32,
}

impl Step {
    /// The world that this step leads to.
    pub(super) fn take(self, snapshot: &Snapshot) -> OwnWorld {
        OwnWorld(match self.image {
            0 => snapshot.power_cut(Survival::Nothing),
            1 => snapshot.power_cut(Survival::Everything),
            2 => snapshot.kill(),
            3 => snapshot.power_cut(Survival::Wiped),
            4 => snapshot.power_cut(Survival::OnlyPm),
            5 => snapshot.power_cut(Survival::OnlyDisk),
            drawn => {
                let seed = mix(mix(snapshot.seed(), self.event), u64::from(drawn));
                snapshot.power_cut(Survival::Seeded(seed))
            }
        })
    }

    /// A description of this step, before an event of `kind`.
    pub(super) fn describe(self, kind: &EventKind) -> String {
        let what = match self.image {
            0 => "a power cut that kept nothing pending",
            1 => "a power cut that kept everything pending",
            2 => "a kill",
            3 => "a power cut that wiped the persistent memory",
            4 => "a power cut that kept what was pending in persistent memory, and nothing of the disk's",
            5 => "a power cut that kept what was pending on the disk, and nothing of persistent memory's",
            _ => "a power cut",
        };
        format!("{what} before event {} ({kind})", self.event)
    }
}

/// Everything needed to make one crash image again, given the same scenario and operations.
///
/// Its text, `seed=7 event=41 image=4`, parses back. Crashes within recovery are further parts,
/// `event=41/3 image=4/0`; a planned fault is `fault=9`. Without events, `seed=7 fault=9`, it is the
/// scenario itself, with no crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The explorer's seed.
    pub seed: u64,
    /// The operation that was made to fail, if one was, counted as [`World::fail_nth`](crate::World::fail_nth) counts.
    pub fault: Option<u64>,
    /// The crash, and the crashes within its recovery.
    pub steps: Vec<Step>,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |part: fn(&Step) -> u64| {
            self.steps.iter().map(|step| part(step).to_string()).collect::<Vec<_>>().join("/")
        };
        write!(f, "seed={}", self.seed)?;
        if let Some(fault) = self.fault {
            write!(f, " fault={fault}")?;
        }
        if self.steps.is_empty() {
            return Ok(());
        }
        write!(f, " event={} image={}", list(|s| s.event), list(|s| s.image.into()))
    }
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |what: &str| format!("\"{text}\" is no crash image: {what}");
        let number = |s: &str| s.parse::<u64>().map_err(|e| bad(&format!("\"{s}\": {e}")));
        let numbers = |s: &str| s.split('/').map(number).collect::<Result<Vec<_>, _>>();
        let (mut seed, mut fault, mut events, mut images) = (None, None, Vec::new(), Vec::new());
        for part in text.split_whitespace() {
            match part.split_once('=') {
                Some(("seed", value)) => seed = Some(number(value)?),
                Some(("fault", value)) => fault = Some(number(value)?),
                Some(("event", value)) => events = numbers(value)?,
                Some(("image", value)) => images = numbers(value)?,
                _ => return Err(bad(part)),
            }
        }
        let seed = seed.ok_or_else(|| bad("seed= is missing"))?;
        if events.len() != images.len() {
            return Err(bad("as many images as events are needed"));
        }
        let step = |(event, image): (u64, u64)| {
            let image = u32::try_from(image).map_err(|_| bad("image numbers have 32 bits"))?;
            Ok(Step { event, image })
        };
        let steps = events.into_iter().zip(images).map(step).collect::<Result<_, String>>()?;
        Ok(Route { seed, fault, steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_read_back_what_they_print() {
        for text in [
            "seed=7 event=41 image=4",
            "seed=0 fault=9 event=1/2/3 image=0/1/2",
            "seed=8 fault=521",
            "seed=1",
        ] {
            assert_eq!(text.parse::<Route>().unwrap().to_string(), text);
        }
        for text in
            ["", "seed=1 event=1", "seed=1 event=1/2 image=3", "seed=x event=1 image=1", "fault=1", "7"]
        {
            text.parse::<Route>().unwrap_err();
        }
    }
}

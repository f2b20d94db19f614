//! `terrace options`.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};
use terrace::OptionInfo;

use crate::failure::{CommandResult, Failure};
use crate::open::OpenArgs;

/// Lists every option, its value and the values that it may have.
///
/// A value is what --config, --set and the other flags make of the default; they are checked, and what
/// contradicts is refused. Options of an engine begin with its name; the others are the store's.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  terrace options slm\n  terrace options lsm.l0 memory_budget\n  terrace options --engine wip --toml > wip.toml\n  terrace options --config wip.toml --changed"
)]
pub struct ListOptions {
    /// Only those whose names begin so, such as `slm` or `lsm.log`
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Only those that differ from their defaults
    #[arg(long)]
    pub changed: bool,
    /// Print a file for --config: the store's options and those of the engine, unless names are given
    #[arg(long, conflicts_with = "json")]
    pub toml: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The values to show.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl ListOptions {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let options = self.open.options();
        options.validate()?;
        let mut list = options.list();
        if let Some(stranger) =
            self.names.iter().find(|name| !list.iter().any(|o| o.name.starts_with(&***name)))
        {
            return Err(Failure::usage(format!("no option begins with {stranger}"))
                .hint("`terrace options` lists them all"));
        }
        let engine = options.engine.name();
        list.retain(|option| {
            let is_named = match self.names.is_empty() {
                true => !self.toml || option.engine().is_none_or(|of| of == engine),
                false => self.names.iter().any(|name| option.name.starts_with(&**name)),
            };
            is_named && (!self.changed || option.value != option.default)
        });
        let text = match (self.toml, self.json) {
            (true, _) => OptionInfo::to_toml(&list),
            (_, true) => json(&list)?,
            _ => table(&list),
        };
        Ok(out.write_all(text.as_bytes())?)
    }
}

/// A line for each: its name, its value and what it may be.
fn table(list: &[OptionInfo]) -> String {
    let width = list.iter().map(|option| option.name.len()).max().unwrap_or(0);
    let line = |option: &OptionInfo| {
        let (name, value, allowed) = (option.name, &option.value, &option.allowed);
        let usual = match option.value == option.default {
            true => String::new(),
            false => format!("; by default {}", option.default),
        };
        format!("{name:<width$}  {value:<14}  {allowed}{usual}\n")
    };
    list.iter().map(line).collect()
}

fn json(list: &[OptionInfo]) -> CommandResult<String> {
    let one = |o: &OptionInfo| json!({"name": o.name, "value": o.value, "default": o.default, "allowed": o.allowed});
    let all: Vec<Value> = list.iter().map(one).collect();
    let text = serde_json::to_string_pretty(&all);
    text.map(|text| text + "\n").map_err(|e| Failure::error(format!("cannot write JSON: {e}")))
}

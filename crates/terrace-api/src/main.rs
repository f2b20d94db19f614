//! Prints the public API of the crate `terrace`, an item a line.
//!
//! `crates/terrace/api.txt` has what it printed last, and `.ci/run` compares the two, so that whoever changes the API
//! shows the change beside the code:
//!
//! ```sh
//! cargo run -p terrace-api > crates/terrace/api.txt
//! ```
//!
//! What the crate exports of others is listed after its own items, under the names that it has there.
//!
//! The items come from rustdoc's JSON, whose format goes with the compiler's version: `public-api` is chosen for the
//! one in `rust-version`. A stable rustdoc writes it only if it is asked to take itself for a nightly one. Nothing else
//! is to be built so, or cargo would build all of it again. So this program stands between cargo and rustdoc.

use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, exit};

/// Where it stands in for rustdoc: the path of that.
const RUSTDOC: &str = "TERRACE_API_RUSTDOC";

/// Packages whose items the crate exports.
const WITH_EXPORTED: [&str; 3] = ["terrace-base", "terrace-pmem", "terrace-table"];

fn main() -> ExitCode {
    let outcome = match std::env::var_os(RUSTDOC) {
        Some(rustdoc) => document(rustdoc),
        None => print(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Calls rustdoc as cargo has called this program.
fn document(rustdoc: OsString) -> Result<(), Box<dyn Error>> {
    let status =
        Command::new(rustdoc).args(std::env::args_os().skip(1)).env("RUSTC_BOOTSTRAP", "1").status()?;
    exit(status.code().unwrap_or(1))
}

fn print() -> Result<(), Box<dyn Error>> {
    let own = api_of("terrace")?;
    print!("{own}");
    let exported: Vec<&str> = own.lines().filter_map(|line| line.strip_prefix("pub use terrace::")).collect();
    for package in WITH_EXPORTED {
        let all = api_of(package)?;
        all.lines().filter(|line| exported.iter().any(|name| is_about(line, name))).for_each(|line| {
            println!("{line}");
        });
    }
    Ok(())
}

/// Whether a line tells the item `name`, or what belongs to it, and not what only uses it.
fn is_about(line: &str, name: &str) -> bool {
    let path = line.split_whitespace().find(|word| word.starts_with("terrace_")).unwrap_or_default();
    let path = path.split(['(', '<']).next().unwrap_or_default();
    path.trim_end_matches(':').split("::").any(|part| part == name)
}

/// The public items of a package, with all its features, a line each.
fn api_of(package: &str) -> Result<String, Box<dyn Error>> {
    let this = std::env::current_exe()?;
    let target = this.parent().and_then(Path::parent).ok_or("this program lies in no target directory")?;
    let rustdoc = std::env::var_os("RUSTDOC").unwrap_or_else(|| "rustdoc".into());
    let status = Command::new(env!("CARGO"))
        .current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .env("RUSTDOC", &this)
        .env(RUSTDOC, rustdoc)
        .args(["rustdoc", "--quiet", "--package", package, "--all-features", "--lib", "--target-dir"])
        .arg(target)
        .args(["--", "-Zunstable-options", "--output-format=json", "--cap-lints=allow"])
        .status()?;
    if !status.success() {
        return Err(format!("rustdoc failed: {status}").into());
    }
    let api = public_api::Builder::from_rustdoc_json(
        target.join(format!("doc/{}.json", package.replace('-', "_"))),
    )
    .omit_blanket_impls(true)
    .omit_auto_trait_impls(true)
    .omit_auto_derived_impls(true)
    .build()?;
    Ok(api.to_string())
}

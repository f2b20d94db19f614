//! Terrace: the command line.
fn main() {}

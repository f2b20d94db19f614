//! The parts that stand here leave out their own tests, and what a scheduler cannot be told of.

fn main() {
    println!("cargo:rustc-cfg=terrace_model");
}

//! The `terrace` command.

fn main() -> std::process::ExitCode {
    terrace_cli::main()
}

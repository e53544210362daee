//! The program `isograd`. Its commands are in the library, so that the tests build it with all features.

fn main() -> std::process::ExitCode {
    isograd_cli::main()
}

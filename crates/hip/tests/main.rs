//! AMD's libraries and compilers, and what goes wrong. What is missing is reported as ignored.

mod amd;
#[cfg(unix)]
mod failures;
mod rocblas;

use libtest_mimic::Arguments;

fn main() {
    #[cfg(unix)]
    if std::env::var_os(failures::CHILD).is_some() {
        return println!("{}", failures::use_device().unwrap_or_else(|error| error.to_string()));
    }
    let arguments = Arguments::from_args();
    let modules = [
        ("rocblas", rocblas::trials()),
        // The emulator is a library of Linux's.
        #[cfg(unix)]
        ("failures", failures::trials()),
        ("amd", amd::trials()),
    ];
    let trials = modules.into_iter().flat_map(|(module, trials)| trials.into_iter().map(move |t| t.with_kind(module)));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    amd::report();
    conclusion.exit();
}

/// Whether `ISOGRAD_REQUIRE` names this, without which tests then fail.
fn is_required(name: &str) -> bool {
    std::env::var("ISOGRAD_REQUIRE").is_ok_and(|all| all.split(',').any(|required| required.trim() == name))
}

//! NVIDIA's libraries and compiler. What is missing is reported as ignored.

mod blaslt;
mod cudnn;
mod failures;
mod nvrtc;

use libtest_mimic::Arguments;

fn main() {
    if std::env::var_os(failures::CHILD).is_some() {
        match failures::use_device() {
            Ok(said) => println!("{said}"),
            Err(error) => println!("{error}"),
        }
        return;
    }
    let arguments = Arguments::from_args();
    let modules = [
        ("blaslt", blaslt::trials()),
        ("cudnn", cudnn::trials()),
        ("failures", failures::trials()),
        ("nvrtc", nvrtc::trials()),
    ];
    let trials = modules.into_iter().flat_map(|(module, trials)| trials.into_iter().map(move |t| t.with_kind(module)));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    nvrtc::report();
    conclusion.exit();
}

/// Whether `ISOGRAD_REQUIRE` names this, without which tests then fail.
fn is_required(name: &str) -> bool {
    std::env::var("ISOGRAD_REQUIRE").is_ok_and(|all| all.split(',').any(|required| required.trim() == name))
}

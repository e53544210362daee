//! Ranks that are processes, or GPUs.

#[path = "../equality/mod.rs"]
mod equality;
mod gpus;
mod processes;

use libtest_mimic::Arguments;

fn main() {
    if let Ok(role) = std::env::var(processes::ROLE) {
        return processes::rank(&role).unwrap_or_else(|error| panic!("{role}: {error}"));
    }
    // Each has as many processes as there are cores, or more.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let modules = [("processes", processes::trials()), ("gpus", gpus::trials())];
    let trials = modules.into_iter().flat_map(|(module, trials)| trials.into_iter().map(move |t| t.with_kind(module)));
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

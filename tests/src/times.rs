//! How long tests run: a limit, and the slowest.

use std::cmp::Reverse;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds after which a test counts as one that hangs, unless `ISOGRAD_TEST_SECONDS` says otherwise.
const LIMIT: u64 = 600;
/// Tests that took so long are reported, at most so many.
const SLOW: Duration = Duration::from_secs(10);
const REPORTED: usize = 5;
/// How often the watch looks.
const PERIOD: Duration = Duration::from_millis(500);

/// When tests began, and how long those took that have ended.
struct Times {
    running: Vec<(String, Instant)>,
    ended: Vec<(String, Duration)>,
}

static TIMES: Mutex<Times> = Mutex::new(Times { running: Vec::new(), ended: Vec::new() });

fn times() -> MutexGuard<'static, Times> {
    TIMES.lock().unwrap_or_else(|e| e.into_inner())
}

/// A test that has begun and not ended.
pub struct Running(String);

/// A test begins.
pub fn begin(name: String) -> Running {
    times().running.push((name.clone(), Instant::now()));
    Running(name)
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut times = times();
        if let Some(at) = times.running.iter().position(|(name, _)| *name == self.0) {
            let (name, began) = times.running.swap_remove(at);
            times.ended.push((name, began.elapsed()));
        }
    }
}

/// From now on a test that runs longer than the limit ends the process, which tells its name.
pub fn watch() {
    let given = std::env::var("ISOGRAD_TEST_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let limit = Duration::from_secs(given.unwrap_or(LIMIT));
    thread::spawn(move || {
        loop {
            thread::sleep(PERIOD);
            let late = times().running.iter().find(|(_, began)| began.elapsed() > limit).map(|(name, _)| name.clone());
            if let Some(name) = late {
                eprintln!(
                    "{name} has not ended after {} s: it hangs (ISOGRAD_TEST_SECONDS is the limit)",
                    limit.as_secs()
                );
                // What hangs may also hang whatever runs at an ordinary exit.
                std::process::abort();
            }
        }
    });
}

/// Prints the slowest tests.
pub fn report() {
    let mut times = times();
    times.ended.sort_by_key(|(_, time)| Reverse(*time));
    let slow = times.ended.iter().take(REPORTED).filter(|(_, time)| *time >= SLOW);
    let slow: Vec<String> = slow.map(|(name, time)| format!("{name} {:.1} s", time.as_secs_f64())).collect();
    if !slow.is_empty() {
        println!("slowest: {}", slow.join(", "));
    }
}

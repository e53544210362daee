//! Ctrl-C, and other signals to end.

use isograd_core::{Error, Result};
use signal_hook::{consts, flag};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The exit code of a program that Ctrl-C stopped.
pub const INTERRUPTED: u8 = 130;

/// Signals that ask a program to end: Ctrl-C, another process, and a terminal that closes.
const SIGNALS: &[i32] = &[
    consts::SIGINT,
    consts::SIGTERM,
    #[cfg(unix)]
    consts::SIGHUP,
];

/// A flag that Ctrl-C sets, or another signal to end, for [`Trainer::stop_when`](crate::Trainer::stop_when). A second signal ends the
/// process at once with the code [`INTERRUPTED`]. Errors: `Value` if the system refuses.
pub fn interrupts() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for &signal in SIGNALS {
        let registered = flag::register_conditional_shutdown(signal, INTERRUPTED.into(), stop.clone());
        let registered = registered.and_then(|_| flag::register(signal, stop.clone()));
        registered.map_err(|e| Error::value("interrupts", format!("cannot listen for Ctrl-C: {e}")).with_source(e))?;
    }
    Ok(stop)
}

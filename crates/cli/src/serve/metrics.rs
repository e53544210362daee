//! What the server counts, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Numbers since the start of the server, and of now.
#[derive(Default)]
pub struct Metrics {
    pub prompt_tokens: AtomicU64,
    pub tokens: AtomicU64,
    /// Texts that are continued.
    pub running: AtomicU64,
    /// Requests that wait for a slot.
    pub waiting: AtomicU64,
    /// Requests whose client went before the end.
    cut: AtomicU64,
    /// Requests by path and status.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Metrics {
    pub fn cut(&self, count: u64) {
        self.cut.fetch_add(count, Ordering::Relaxed);
    }

    pub fn count(&self, path: &'static str, status: u16) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry((path, status)).or_default() += 1;
    }

    /// The page of `/metrics`.
    pub fn page(&self) -> String {
        let mut page = String::from(
            "# HELP isograd_requests_total Requests by path and status.\n# TYPE isograd_requests_total counter\n",
        );
        for ((path, status), count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(page, "isograd_requests_total{{path=\"{path}\",status=\"{status}\"}} {count}");
        }
        for (name, kind, help, value) in [
            ("prompt_tokens_total", "counter", "Tokens of prompts that were read.", &self.prompt_tokens),
            ("generated_tokens_total", "counter", "Tokens that were drawn.", &self.tokens),
            ("disconnected_total", "counter", "Requests whose client went before the end.", &self.cut),
            ("requests_running", "gauge", "Texts that are continued now.", &self.running),
            ("requests_waiting", "gauge", "Requests that wait for a slot.", &self.waiting),
        ] {
            let value = value.load(Ordering::Relaxed);
            let _ =
                write!(page, "# HELP isograd_{name} {help}\n# TYPE isograd_{name} {kind}\nisograd_{name} {value}\n");
        }
        page
    }
}

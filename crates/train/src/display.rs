//! A run on the terminal: one bar, and a line an epoch.

use crate::{Epoch, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use isograd_core::{Error, Result};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// What a run shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Display {
    /// Nothing.
    #[default]
    Quiet,
    /// A line an epoch on stdout, and, if stderr is a terminal, a bar there.
    Lines,
}

/// The least time between two messages of the bar.
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct Screen {
    display: Display,
    bar: ProgressBar,
    batches: u64,
    epochs: u64,
    /// The time and the samples of this run at the last message.
    last: Instant,
    /// Samples of this process, and when it began.
    samples: u64,
    started: Instant,
}

impl Screen {
    /// For a run of `epochs` epochs with `batches` batches each.
    pub fn new(display: Display, batches: u64, epochs: u64) -> Screen {
        let bar = ProgressBar::new(batches * epochs);
        if display == Display::Quiet {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let template = "{prefix} [{bar:24}] {percent:>3}% {msg}, {eta} left";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        let now = Instant::now();
        Screen { display, bar, batches, epochs, last: now, samples: 0, started: now }
    }

    /// The run goes on from here.
    pub fn begin(&self, progress: &Progress) {
        self.bar.set_position(progress.epoch * self.batches + progress.batch as u64);
        self.bar.reset_eta();
        self.bar.set_prefix(format!("epoch {}/{}", progress.epoch + 1, self.epochs));
    }

    /// True if it is time for another message.
    pub fn is_due(&self) -> bool {
        !self.bar.is_hidden() && self.last.elapsed() >= INTERVAL
    }

    /// Notes the samples of a step.
    pub fn step(&mut self, samples: u64) {
        self.samples += samples;
    }

    /// Shows the progress within an epoch.
    pub fn update(&mut self, progress: &Progress, learning_rate: f64) {
        if self.bar.is_hidden() {
            return;
        }
        self.last = Instant::now();
        self.bar.set_prefix(format!("epoch {}/{}", progress.epoch + 1, self.epochs));
        self.bar.set_position(progress.epoch * self.batches + progress.batch as u64);
        let metrics = progress.history.last().map(metrics).unwrap_or_default();
        let rate = self.samples as f64 / self.started.elapsed().as_secs_f64().max(1e-9);
        let (batch, loss) = (progress.batch, progress.mean_loss());
        let text = format!(
            "step {batch}/{}, loss {loss:.4}{metrics}, {rate:.0} samples/s, lr {learning_rate:.1e}",
            self.batches
        );
        self.bar.set_message(text);
    }

    /// Shows the results of an epoch. Errors: `Io` if stdout takes nothing.
    pub fn epoch(&self, epoch: &Epoch, is_best: bool) -> Result<()> {
        match self.display {
            Display::Quiet => Ok(()),
            Display::Lines => self.bar.suspend(|| print(&line(epoch, self.epochs, is_best))),
        }
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// One aligned line.
fn line(epoch: &Epoch, epochs: u64, is_best: bool) -> String {
    let width = epochs.to_string().len();
    let validation = epoch.validation_loss.map(|loss| format!("  validation {loss:<8.4}")).unwrap_or_default();
    let metrics: String = epoch.metrics.iter().map(|(name, value)| format!("  {name} {value:<8.4}")).collect();
    let best = if is_best { "  best" } else { "" };
    let Epoch { epoch: number, train_loss, learning_rate, seconds, .. } = epoch;
    format!(
        "epoch {number:>width$}/{epochs}  loss {train_loss:<8.4}{validation}{metrics}  lr {learning_rate:<8.2e}  {seconds:>7.1} s{best}"
    )
}

fn metrics(epoch: &Epoch) -> String {
    epoch.metrics.iter().map(|(name, value)| format!(", {name} {value:.4}")).collect()
}

/// The error that a closed pipe gives has the system's error as its source.
fn print(line: &str) -> Result<()> {
    writeln!(io::stdout(), "{line}").map_err(|e| Error::io(Path::new("stdout"), "writing", e))
}

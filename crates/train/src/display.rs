//! A run on the terminal: one bar, and a line an epoch.

use crate::{Epoch, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use isograd_core::{Error, Result};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// The output of a run on the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Display {
    /// Nothing.
    #[default]
    Quiet,
    /// A line an epoch on stdout, at most two a second besides the first and the last, and, if stderr is a terminal, a bar there.
    Lines,
}

/// The least time between two lines.
const LINES: Duration = Duration::from_millis(500);

/// The least time between two messages of the bar.
const INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct Screen {
    display: Display,
    bar: ProgressBar,
    /// True if there is a terminal to draw the bar on.
    is_drawn: bool,
    batches: u64,
    epochs: u64,
    /// The time of the last message.
    last: Instant,
    /// Samples of this process.
    samples: u64,
    /// The start of this process's part of the run.
    started: Instant,
    /// The time of the last line.
    printed: Option<Instant>,
    /// The line of an epoch that followed too soon, which is printed if it is the last.
    held: Option<String>,
}

impl Screen {
    /// For a run of `epochs` epochs with `batches` batches each.
    pub fn new(display: Display, batches: u64, epochs: u64) -> Screen {
        let target = match display {
            Display::Quiet => ProgressDrawTarget::hidden(),
            Display::Lines => ProgressDrawTarget::stderr(),
        };
        Screen::on(target, display, batches, epochs)
    }

    fn on(target: ProgressDrawTarget, display: Display, batches: u64, epochs: u64) -> Screen {
        let bar = ProgressBar::with_draw_target(Some(batches * epochs), target);
        let template = "{prefix} [{bar:24}] {percent:>3}% {msg}, {eta} left";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        let now = Instant::now();
        let is_drawn = !bar.is_hidden();
        let (printed, held) = (None, None);
        Screen { display, is_drawn, bar, batches, epochs, last: now, samples: 0, started: now, printed, held }
    }

    /// The run goes on from here.
    pub fn begin(&self, progress: &Progress) {
        self.bar.set_position(progress.epoch * self.batches + progress.batch as u64);
        self.bar.reset_eta();
        self.bar.set_prefix(format!("epoch {}/{}", progress.epoch + 1, self.epochs));
    }

    /// True if it is time for another message.
    pub fn is_due(&self) -> bool {
        self.is_drawn && self.last.elapsed() >= INTERVAL
    }

    /// Notes the samples of a step.
    pub fn step(&mut self, samples: u64) {
        self.samples += samples;
    }

    /// Shows the progress within an epoch.
    pub fn update(&mut self, progress: &Progress, learning_rate: f64) {
        if !self.is_drawn {
            return;
        }
        self.last = Instant::now();
        self.bar.set_prefix(format!("epoch {}/{}", progress.epoch + 1, self.epochs));
        let metrics = progress.history.last().map(metrics).unwrap_or_default();
        let rate = self.samples as f64 / self.started.elapsed().as_secs_f64().max(1e-9);
        let (batch, loss) = (progress.batch, progress.mean_loss());
        let text = format!(
            "step {batch}/{}, loss {}{metrics}, {rate:.0} samples/s, lr {learning_rate:.1e}",
            self.batches,
            shown_number(loss)
        );
        self.bar.set_message(text);
        self.bar.set_position(progress.epoch * self.batches + progress.batch as u64);
    }

    /// Shows the results of an epoch. Errors: `Io` if stdout takes nothing.
    pub fn epoch(&mut self, epoch: &Epoch, is_best: bool) -> Result<()> {
        if self.display == Display::Quiet {
            return Ok(());
        }
        let line = line(epoch, self.epochs, is_best);
        if self.printed.is_some_and(|at| at.elapsed() < LINES) {
            self.held = Some(line);
            return Ok(());
        }
        (self.printed, self.held) = (Some(Instant::now()), None);
        self.bar.suspend(|| print(&line))
    }

    /// Shows a warning on stderr.
    pub fn warn(&self, warning: &str) {
        if self.display == Display::Lines {
            // Nothing else could say that stderr is closed.
            self.bar.suspend(|| drop(writeln!(io::stderr(), "warning: {warning}")));
        }
    }

    /// Ends the bar, and shows the last epoch. Errors: `Io` if stdout takes nothing.
    pub fn end(&mut self) -> Result<()> {
        self.bar.finish_and_clear();
        self.held.take().map_or(Ok(()), |line| print(&line))
    }
}

/// One aligned line.
fn line(epoch: &Epoch, epochs: u64, is_best: bool) -> String {
    let width = epochs.to_string().len();
    let validation =
        epoch.validation_loss.map(|loss| format!("  validation {:<8}", shown_number(loss))).unwrap_or_default();
    let metrics: String =
        epoch.metrics.iter().map(|(name, value)| format!("  {name} {:<8}", shown_number(*value))).collect();
    let best = if is_best { "  best" } else { "" };
    let Epoch { epoch: count, train_loss, learning_rate, seconds, .. } = epoch;
    format!(
        "epoch {count:>width$}/{epochs}  loss {:<8}{validation}{metrics}  lr {learning_rate:<8.2e}  {seconds:>7.1} s{best}",
        shown_number(*train_loss)
    )
}

/// A loss or a metric in words: four digits after the point, or an exponent where these would be none or too many.
pub fn shown_number(value: f64) -> String {
    let is_plain = value == 0.0 || !value.is_finite() || (1e-4..1e6).contains(&value.abs());
    if is_plain { format!("{value:.4}") } else { format!("{value:.3e}") }
}

fn metrics(epoch: &Epoch) -> String {
    epoch.metrics.iter().map(|(name, value)| format!(", {name} {}", shown_number(*value))).collect()
}

/// The error that a closed pipe gives has the system's error as its source.
fn print(line: &str) -> Result<()> {
    writeln!(io::stdout(), "{line}").map_err(|e| Error::io(Path::new("stdout"), "writing", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::InMemoryTerm;
    use std::collections::BTreeMap;

    fn epoch(number: u64, train_loss: f64) -> Epoch {
        let metrics = BTreeMap::from([("accuracy".to_string(), 0.5)]);
        let validation_loss = Some(10.0 * train_loss);
        Epoch { epoch: number, steps: 1, train_loss, validation_loss, metrics, learning_rate: 2e-3, seconds: 1.5 }
    }

    #[test]
    fn the_bar_has_progress_losses_metrics_speed_and_time_left() {
        let terminal = InMemoryTerm::new(4, 160);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let mut screen = Screen::on(target, Display::Lines, 10, 4);
        let history = vec![epoch(1, 1.0)];
        let progress = Progress { epoch: 1, batch: 5, loss_sum: 24.0, samples: 32, history, ..Progress::default() };
        screen.begin(&progress);
        screen.step(32);
        screen.update(&progress, 1e-3);
        screen.bar.tick();
        let shown = terminal.contents();
        let parts =
            ["epoch 2/4 [", "38% step 5/10", "loss 0.7500", "accuracy 0.5000", " samples/s", "lr 1.0e-3", "s left"];
        assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");
        screen.end().unwrap();
        assert_eq!(terminal.contents(), "");
    }

    #[test]
    fn epochs_that_follow_at_once_have_no_lines_but_the_last() {
        let mut screen = Screen::on(ProgressDrawTarget::hidden(), Display::Lines, 10, 4);
        screen.epoch(&epoch(1, 1.0), true).unwrap();
        assert!(screen.printed.is_some() && screen.held.is_none());
        (2..4).for_each(|i| screen.epoch(&epoch(i, 1.0), false).unwrap());
        assert!(screen.held.as_ref().unwrap().starts_with("epoch 3/4"));
        screen.end().unwrap();
        assert!(screen.held.is_none());
    }

    #[test]
    fn large_and_small_losses_have_an_exponent() {
        let numbers = [3e32, -2.5e6, 1.5e-5, 0.0, 12.5, f64::NAN].map(shown_number);
        assert_eq!(numbers, ["3.000e32", "-2.500e6", "1.500e-5", "0.0000", "12.5000", "NaN"]);
    }

    #[test]
    fn the_lines_of_epochs_are_aligned_and_the_best_is_marked() {
        let lines = [line(&epoch(9, 12.5), 10, true), line(&epoch(10, 0.25), 10, false)];
        assert_eq!(
            lines,
            [
                "epoch  9/10  loss 12.5000   validation 125.0000  accuracy 0.5000    lr 2.00e-3       1.5 s  best",
                "epoch 10/10  loss 0.2500    validation 2.5000    accuracy 0.5000    lr 2.00e-3       1.5 s",
            ]
        );
    }
}

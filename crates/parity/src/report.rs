//! The report of a run.

use crate::cases::CALLS;
use crate::compare::Distance;
use crate::options::{Check, Extent, Options};
use crate::registry::find;
use crate::speed::{Pass, Speed, number};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All cases are within their bounds.
    Passed,
    /// This case exceeds its bound.
    Failed(String),
    /// The check does not apply, for this reason.
    Skipped(String),
    /// The library does not support the call, for this reason. Nothing was computed.
    Refused(String),
}

/// The case with the largest error in units of its bound, or the failed case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    /// Its error in units of its bound.
    #[serde(deserialize_with = "number")]
    pub bounds: f64,
    /// Its error in units of the last place; 0 for numbers near 0.
    #[serde(deserialize_with = "number")]
    pub ulps: f64,
    /// The case.
    pub case: String,
}

fn yes() -> bool {
    true
}

impl From<Distance> for Worst {
    fn from(distance: Distance) -> Worst {
        Worst { bounds: distance.bounds, ulps: distance.ulps, case: String::new() }
    }
}

/// A check of an op in a dtype on a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The op.
    pub op: String,
    /// The device.
    pub device: String,
    /// The dtype of the floats.
    pub dtype: String,
    /// The check.
    pub check: Check,
    /// Its outcome.
    pub outcome: Outcome,
    /// Cases that ran.
    pub cases: usize,
    /// The case with the largest error in units of its bound, or the failed case.
    pub worst: Option<Worst>,
    /// Its duration.
    pub seconds: f64,
    /// The folder of a case from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

impl Finding {
    /// The command that runs the worst case again.
    pub fn command(&self) -> Option<String> {
        let Finding { op, device, dtype, check, .. } = self;
        let case = &self.worst.as_ref()?.case;
        if let Some(folder) = &self.folder {
            let (folder, filter) = (quoted(folder), quoted(&format!("^{}$", regex::escape(case))));
            return Some(format!("isograd parity --device {device} --cases {folder} --filter {filter}"));
        }
        // The command does not know an op of another program.
        find(op)?;
        Some(format!("isograd parity --device {device} --repeat {op}:{check}:{dtype}:{case}"))
    }

    /// True if the check has failed.
    pub fn has_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_))
    }
}

/// A word of a command line, quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A device of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceRun {
    /// The string that selects it.
    pub name: String,
    /// The hardware in words.
    pub hardware: String,
    /// Driver and compiler with their versions.
    pub driver: String,
    /// True if it computes in f64.
    pub has_f64: bool,
    /// Bytes per second that a copy reads and writes, if speeds were measured.
    pub bandwidth: Option<f64>,
}

/// The report of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The version of this library.
    pub version: String,
    /// The commit of the program.
    pub commit: Option<String>,
    /// True if the run is complete; otherwise this is its last saved state.
    #[serde(default = "yes")]
    pub complete: bool,
    /// The time of its end, in UTC.
    pub date: String,
    /// Its duration.
    pub seconds: f64,
    /// The extent of the checks.
    pub extent: Extent,
    /// The pattern of the names of ops, if there was one.
    #[serde(default)]
    pub filter: Option<String>,
    /// The seed of drawn cases.
    pub seed: u64,
    /// The devices.
    pub devices: Vec<DeviceRun>,
    /// All checks.
    pub findings: Vec<Finding>,
    /// Times, if they were measured.
    pub speeds: Vec<Speed>,
}

/// The progress of a run.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// The number of finished items.
    pub done: usize,
    /// The number of all items.
    pub total: usize,
    /// The last finished item.
    pub what: String,
    /// The report so far.
    pub report: &'a Report,
}

impl Report {
    pub(crate) fn new(options: &Options, devices: Vec<DeviceRun>) -> Report {
        Report {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: options.commit.clone(),
            complete: false,
            date: String::new(),
            seconds: 0.0,
            extent: options.extent,
            filter: options.filter.as_ref().map(|re| re.to_string()),
            seed: options.seed,
            devices,
            findings: Vec::new(),
            speeds: Vec::new(),
        }
    }

    /// Sets date and duration to the current time.
    pub(crate) fn set_time(&mut self, started: Instant) {
        self.seconds = started.elapsed().as_secs_f64();
        self.date = now();
    }

    /// The numbers of checks that passed, failed, were skipped and were refused.
    pub fn counts(&self) -> [usize; 4] {
        let count = |f: fn(&Outcome) -> bool| self.findings.iter().filter(|finding| f(&finding.outcome)).count();
        [
            count(|o| *o == Outcome::Passed),
            count(|o| matches!(o, Outcome::Failed(_))),
            count(|o| matches!(o, Outcome::Skipped(_))),
            count(|o| matches!(o, Outcome::Refused(_))),
        ]
    }

    /// The reasons of skipped checks, the most frequent first, such as `: the device has no f64 (3), unknown op foo (1)`.
    fn reasons(&self) -> String {
        let mut counts = BTreeMap::new();
        for finding in &self.findings {
            if let Outcome::Skipped(why) = &finding.outcome {
                *counts.entry(why).or_insert(0) += 1;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        let counts: Vec<String> = counts.into_iter().map(|(why, count)| format!("{why} ({count})")).collect();
        if counts.is_empty() { String::new() } else { format!(": {}", counts.join(", ")) }
    }

    /// True if the run is complete, nothing failed, and something was checked (unless only speeds were measured).
    pub fn passed(&self) -> bool {
        let [passed, failed, ..] = self.counts();
        self.complete && failed == 0 && (passed > 0 || self.extent == Extent::Speeds)
    }

    /// The table of ops, devices and dtypes; the failures; and the last line, `N passed, 0 failed`.
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        let head = ["op", "device", "dtype", "checks", "worst", "ulps", "speed", "back"];
        let [op, device, dtype, checks, worst, ulps, speed, back] = head;
        lines.push(format!("{op:<22} {device:<9} {dtype:<5} {checks:>6} {worst:>6} {ulps:>8} {speed:>6} {back:>6}"));
        let checked = self.findings.iter().map(|f| (&f.op, &f.device, &f.dtype));
        let mut rows: Vec<_> = match self.extent {
            Extent::Speeds => self.speeds.iter().map(|s| (&s.op, &s.device, &s.dtype)).collect(),
            _ => checked.collect(),
        };
        rows.dedup();
        for (op, device, dtype) in rows {
            let of_op: Vec<&Finding> =
                self.findings.iter().filter(|f| (&f.op, &f.device, &f.dtype) == (op, device, dtype)).collect();
            let worsts = || of_op.iter().filter_map(|f| f.worst.as_ref());
            let largest = |f: fn(&Worst) -> f64| worsts().map(f).fold(0.0, f64::max);
            let passed = of_op.iter().filter(|f| f.outcome == Outcome::Passed).count();
            let failed = of_op.iter().filter(|f| f.has_failed()).count();
            let speed = self.speeds.iter().find(|s| (&s.op, &s.device, &s.dtype) == (op, device, dtype));
            let shown = |pass: Option<&Pass>| pass.map_or("-".to_string(), |pass| format!("{:.2}", pass.fraction));
            let back = shown(speed.and_then(|s| s.backward.as_ref()));
            let speed = shown(speed.map(|s| &s.forward));
            let checks = if failed > 0 { format!("{failed} BAD") } else { passed.to_string() };
            let (bounds, ulps) = (largest(|w| w.bounds), largest(|w| w.ulps));
            // Errors of numbers near 0 alone are not in units of the last place.
            let ulps = if bounds > 0.0 && ulps == 0.0 { "-".into() } else { format!("{ulps:.1}") };
            lines.push(format!(
                "{op:<22} {device:<9} {dtype:<5} {checks:>6} {bounds:>6.2} {ulps:>8} {speed:>6} {back:>6}"
            ));
        }
        self.end(&mut lines);
        lines.join("\n")
    }

    /// A line for each family of ops on a device, with its worst error and the medians of its speeds; and the end of
    /// [`text`](Report::text).
    pub fn summary(&self) -> String {
        let family = |op: &str| find(op).map_or("own", |op| op.category.name());
        let has_speeds = !self.speeds.is_empty();
        let mut lines = vec![format!(
            "{:<15} {:<9} {:>4} {:>7}{}  {:>5}  of",
            "group",
            "device",
            "ops",
            "checks",
            if has_speeds { "  speed   back" } else { "" },
            "worst"
        )];
        let checked = self.findings.iter().map(|f| (f.op.as_str(), f.device.as_str()));
        let timed = self.speeds.iter().map(|s| (s.op.as_str(), s.device.as_str()));
        let mut groups: Vec<(&str, &str)> = Vec::new();
        for (op, device) in checked.chain(timed) {
            if !groups.contains(&(family(op), device)) {
                groups.push((family(op), device));
            }
        }
        for (group, device) in groups {
            let findings: Vec<&Finding> =
                self.findings.iter().filter(|f| family(&f.op) == group && f.device == device).collect();
            let speeds: Vec<&Speed> =
                self.speeds.iter().filter(|s| family(&s.op) == group && s.device == device).collect();
            let of_group = findings.iter().map(|f| f.op.as_str()).chain(speeds.iter().map(|s| s.op.as_str()));
            let ops: BTreeSet<&str> = of_group.collect();
            let passed = findings.iter().filter(|f| f.outcome == Outcome::Passed).count();
            let failed = findings.iter().filter(|f| f.has_failed()).count();
            let checks = if failed > 0 { format!("{failed} BAD") } else { passed.to_string() };
            let bounds = |finding: &Finding| finding.worst.as_ref().map_or(0.0, |worst| worst.bounds);
            let worst = findings.iter().max_by(|a, b| bounds(a).total_cmp(&bounds(b)));
            let worst =
                worst.map_or_else(String::new, |f| format!("{:>5.2}  {} {} {}", bounds(f), f.op, f.check, f.dtype));
            let forward = median(speeds.iter().map(|s| s.forward.fraction).collect());
            let back = median(speeds.iter().filter_map(|s| s.backward.as_ref()).map(|pass| pass.fraction).collect());
            let speeds = if has_speeds { format!(" {forward:>6} {back:>6}") } else { String::new() };
            let line = format!("{group:<15} {device:<9} {:>4} {checks:>7}{speeds}  {worst}", ops.len());
            lines.push(line.trim_end().to_string());
        }
        self.end(&mut lines);
        lines.join("\n")
    }

    /// The failures, the devices and the counts.
    fn end(&self, lines: &mut Vec<String>) {
        lines.push(String::new());
        for finding in &self.findings {
            let Finding { op, device, dtype, check, .. } = finding;
            let (word, why) = match &finding.outcome {
                Outcome::Failed(why) => ("FAILED", why),
                Outcome::Refused(why) => ("REFUSED", why),
                _ => continue,
            };
            // A case of several calls goes by its own name.
            let chain = finding.worst.as_ref().filter(|_| op == CALLS).map_or("", |worst| &worst.case);
            let space = if chain.is_empty() { "" } else { " " };
            lines.push(format!("{word} {op}{space}{chain} {check} {dtype} on {device}: {why:.600}"));
            lines.extend(finding.command().map(|command| format!("  repeat it with: {command}")));
        }
        let [passed, failed, skipped, refused] = self.counts();
        for run in &self.devices {
            let bandwidth = run.bandwidth.map(|b| format!(", copies {:.1} GB/s", b * 1e-9)).unwrap_or_default();
            lines.push(format!("{}: {}{bandwidth}", run.name, run.hardware));
        }
        lines.push(format!("{:.0} s, seed {}", self.seconds, self.seed));
        if refused > 0 {
            lines.push(format!("{refused} refused"));
        }
        lines.push(format!("{skipped} skipped{}", self.reasons()));
        lines.push(format!("{passed} passed, {failed} failed"));
    }
}

/// The median of fractions, or `-` if there are none.
fn median(mut fractions: Vec<f64>) -> String {
    fractions.sort_by(f64::total_cmp);
    fractions.get(fractions.len() / 2).map_or("-".into(), |v| format!("{v:.2}"))
}

/// The current time in UTC, such as `2026-01-31 12:00:00`.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date(seconds)
}

/// The date of a time in seconds since 1970. The calendar repeats every 400 years. Years are counted from March, so that the leap
/// day is the last day.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400 + 719_468, seconds % 86400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let year = 400 * era + year + u64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    let [hour, minute, second] = [rest / 3600, rest / 60 % 60, rest % 60];
    format!("{year:04}-{month:02}-{day_of_month:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(date(1_767_225_599), "2025-12-31 23:59:59");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00:00");
    }
}

//! The status page: one row per kernel, one column per backend.

use crate::kernels::{KERNELS, Kernel, checks, ops, planned};
use crate::report::{Finding, Outcome, Report};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The backends: names of devices, and titles on the page.
const BACKENDS: [(&str, &str); 4] = [("cpu", "CPU"), ("cuda", "CUDA"), ("hip", "HIP"), ("opencl", "OpenCL")];

/// The longest filter that the page shows, in bytes.
const LONGEST: usize = 40;

const HEAD: &str = "# Kernel status

Every kernel of [kernels.toml](kernels.toml) on every backend, as `isograd parity` found it. `isograd parity --status FILE`
writes this page.

| Symbol | Meaning |
|--------|---------|
| ✅ | Every check passed; beside it the worst error, in units of its bound |
| ❌ | A check failed |
| · | Not run |
| 🔧 | Planned: no op has it yet |
";

/// The page for the results of some runs. If several runs are of the same backend, all of them count.
pub fn status(reports: &[Report]) -> String {
    let mut page = HEAD.to_string();
    page += "\n## Runs\n\n| Device | Hardware | Driver | Date (UTC) | Version | Commit | Extent | Passed | Failed |\n";
    page += "|--------|----------|--------|------------|---------|--------|--------|--------|--------|\n";
    for report in reports {
        for run in &report.devices {
            let of = |f: &&Finding| f.device == run.name;
            let passed = report.findings.iter().filter(of).filter(|f| f.outcome == Outcome::Passed).count();
            let failed = report.findings.iter().filter(of).filter(|f| f.has_failed()).count();
            let commit = report.commit.as_deref().unwrap_or("unknown");
            let part = if report.complete { "" } else { ", did not end" };
            let of_ops = report.filter.as_ref().map(|re| match re.len() {
                ..=LONGEST => format!(", of `{}`", re.replace('|', "\\|")),
                _ => format!(", of {} ops", report.findings.iter().map(|f| &f.op).collect::<BTreeSet<_>>().len()),
            });
            let of_ops = of_ops.unwrap_or_default();
            let extent = format!("{}{of_ops}{part}", report.extent);
            let (name, hardware, driver) = (&run.name, &run.hardware, &run.driver);
            let (date, version) = (&report.date, &report.version);
            let start = format!("| {name} | {hardware} | {driver} | {date} | {version} | {commit}");
            let _ = writeln!(page, "{start} | {extent} | {passed} | {failed} |");
        }
    }
    let findings: Vec<&Finding> = reports.iter().flat_map(|report| &report.findings).collect();
    let mut summary = String::new();
    for (number, of_category) in KERNELS.chunk_by(|a, b| a.category == b.category).enumerate() {
        let title = of_category[0].category.replace('_', " ");
        let _ = writeln!(page, "\n## {}. {title}\n", number + 1);
        page += "| Kernel | CPU | CUDA | HIP | OpenCL | Notes |\n|--------|-----|------|-----|--------|-------|\n";
        for kernel in of_category {
            let cells: Vec<String> = BACKENDS.iter().map(|(backend, _)| cell(kernel, backend, &findings)).collect();
            let _ = writeln!(page, "| {} | {} | {} |", kernel.name, cells.join(" | "), note(kernel));
        }
        let done = of_category.iter().filter(|kernel| !ops(kernel).is_empty()).count();
        let total = of_category.len();
        let _ = writeln!(summary, "| {title} | {total} | {done} | {} | {}% |", total - done, 100 * done / total);
    }
    page +=
        "\n## Summary\n\n| Category | Kernels | Built | Planned | % |\n|----------|---------|-------|---------|---|\n";
    page += &summary;
    let (total, planned) = (KERNELS.len(), planned().count());
    let built = total - planned;
    let share = 100 * built / total;
    let _ = writeln!(page, "| **Total** | **{total}** | **{built}** | **{planned}** | **{share}%** |");
    page
}

fn cell(kernel: &Kernel, backend: &str, findings: &[&Finding]) -> String {
    let ops = ops(kernel);
    if ops.is_empty() {
        return "🔧".into();
    }
    let runs = |f: &Finding| {
        let mut of_op = ops.iter().filter(|op| op.name == f.op);
        of_op.any(|op| checks(op, kernel).any(|check| check == f.check))
    };
    let of = |f: &&&Finding| f.device.split(':').next() == Some(backend) && runs(f);
    let found: Vec<_> = findings.iter().filter(of).collect();
    if found.iter().any(|f| f.has_failed()) {
        return "❌".into();
    }
    match found.iter().any(|f| f.outcome == Outcome::Passed) {
        true => {
            let worst = found.iter().filter_map(|f| f.worst.as_ref()).map(|w| w.bounds).fold(0.0, f64::max);
            format!("✅ {worst:.2}")
        }
        false => "·".into(),
    }
}

/// The op that covers a kernel of another name.
fn note(kernel: &Kernel) -> String {
    let ops = ops(kernel);
    let names: Vec<&str> = ops.iter().map(|op| op.name).filter(|name| *name != kernel.name).collect();
    match (names.is_empty(), kernel.backward_of.is_empty()) {
        (true, _) => String::new(),
        (false, false) => format!("gradient of {}", names.join(", ")),
        (false, true) => format!("by {}", names.join(", ")),
    }
}

//! Running the checks on devices.

use crate::apart::{self, Processes, Task, Work, is_apart, task};
use crate::case::{Case, Gen};
use crate::cases::{Folder, Recorded};
use crate::check::{self, Found, caught};
use crate::compare::Distance;
use crate::devices::{describe, lasting, opened};
use crate::finite;
use crate::golden::CASES;
use crate::options::{Check, Extent, Options, Repeat};
use crate::registry::{Category, Class, Derivative, OPS, Op, custom, find};
use crate::report::{DeviceRun, Finding, Outcome, Progress, Report, Worst};
use crate::speed::{self, Stand};
use crate::strategy::{Seeded, Tally, tally};
use crate::watch::provider;
use isograd_core::custom::CustomOp;
use isograd_core::{Checks, DType, Device, Error, Result};
use std::collections::VecDeque;
use std::io;
use std::iter;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Instant;

/// An op in a dtype on a device.
#[derive(Clone)]
struct Item<'a> {
    op: &'a Op,
    dtype: DType,
    device: usize,
}

/// Float dtypes, in the order of execution.
const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];
const INTEGERS: [DType; 2] = [DType::I64, DType::I32];

/// Primes above the threads of one group and of several groups, the second large enough for the check of the mean error; and sizes
/// around powers of two.
const LARGE: [&[usize]; 3] = [&[1009], &[101, 131], &[3, 61, 17]];
/// Seeds whose first choices cover all four pairs of two alternatives, and each of three. Other seeds may give other attributes.
const SEEDS: [u64; 4] = [3, 6, 24, 33];
const SIZES: [usize; 15] = [0, 1, 31, 32, 33, 64, 65, 127, 128, 129, 255, 257, 1000, 1024, 4097];
/// The largest number of timed calls that are drawn at once: each may have half a GiB of data.
const DRAWN: usize = 8;

fn golden(op: &str) -> impl Iterator<Item = &'static Recorded> {
    CASES.iter().filter(move |case| case.op() == op)
}

impl FromStr for Repeat {
    type Err = String;

    fn from_str(s: &str) -> Result<Repeat, String> {
        let parts: Vec<&str> = s.splitn(4, ':').collect();
        let [op, check, dtype, case] = parts[..] else {
            return Err(format!("{s:?} is no case such as softmax:forward:f16:2x3:7"));
        };
        let (check, dtype) = (check.parse()?, dtype.parse().map_err(|e: Error| e.message().to_string())?);
        find(op).ok_or_else(|| format!("the registry has no op {op:?}"))?;
        match check {
            Check::Golden if golden(op).any(|g| g.name() == case) => {}
            Check::Golden => return Err(format!("{op} has no golden case {case:?}")),
            _ => drop(case.parse::<Seeded>()?),
        }
        Ok(Repeat { op: op.into(), check, dtype, case: case.into() })
    }
}

/// Runs the checks of all ops that match the options on every device. Each finished item is reported to `progress`, with the report
/// so far.
///
/// Checks of a device run on several queues at once. A failed device, or a failed driver, is part of the report. Errors: `Device`
/// if a device does not open; `Value` if there is nothing to check.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Report> {
    run_ops(&OPS, options, progress)
}

/// Runs every check of an op defined by a program, in all dtypes, on the devices. `make` makes a valid call around the shape of the
/// generator, with f64 floats. Its attributes `ints` and `floats` are the numbers that the kernel gets. Errors: `Device` if a
/// device does not open.
///
/// ```no_run
/// # use isograd_core::{Device, Result, custom::CustomOp};
/// use isograd_parity::case::{Case, Domain};
///
/// fn is_right(op: &'static CustomOp, devices: &[Device]) -> Result<bool> {
///     let report = isograd_parity::check(op, |g| Case::of(vec![("x", g.x(Domain::Real))]), devices)?;
///     println!("{}", report.text());
///     Ok(report.passed())
/// }
/// ```
pub fn check(
    op: &'static CustomOp,
    make: impl Fn(&mut Gen) -> Case + Send + Sync + 'static,
    devices: &[Device],
) -> Result<Report> {
    run_ops(&[custom(op, make)], &Options { devices: devices.to_vec(), ..Options::default() }, &mut |_| ())
}

/// [`run`] with these ops instead of the registry's.
pub fn run_ops(ops: &[Op], options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Report> {
    let started = Instant::now();
    let runs = options.devices.iter().map(describe).collect::<Result<Vec<_>>>()?;
    let items = items(ops, options, &runs);
    if items.is_empty() {
        let why = "no op is left to check; in i64 and i32 results are compared with those of the CPU, on other devices";
        return Err(Error::value("parity", why));
    }
    let total = items.len();
    let speeds = if options.has_speeds() { total } else { 0 };
    let queue = Mutex::new(items.clone().into_iter().enumerate().collect::<VecDeque<_>>());
    let (sender, receiver) = mpsc::channel();
    let mut report = Report::new(options, runs.clone());
    // The position of the item of each finding.
    let mut positions = Vec::new();
    thread::scope(|scope| {
        // If a device cannot be opened once per item, launches of concurrent items are counted together.
        let is_shared = options.devices.iter().any(|device| provider(device).is_none());
        let most = if is_shared { 1 } else { 16 };
        let workers = thread::available_parallelism().map_or(1, usize::from).min(most);
        let start = |_: &usize| {
            let (sender, queue, runs) = (sender.clone(), &queue, &runs);
            thread::Builder::new().spawn_scoped(scope, move || work(options, runs, queue, &sender)).is_ok()
        };
        if (0..workers).filter(start).count() == 0 {
            work(options, &runs, &queue, &sender);
        }
        drop(sender);
        for (done, (position, item, findings)) in (1..).zip(receiver) {
            let what = format!("{} {} {}", options.devices[item.device], item.op.name, item.dtype);
            let at = positions.partition_point(|&before| before < position);
            positions.splice(at..at, iter::repeat_n(position, findings.len()));
            report.findings.splice(at..at, findings);
            report.set_time(started);
            progress(Progress { done, total: total + speeds, what, report: &report });
        }
    });
    if speeds > 0 {
        // Speeds are measured alone, so that nothing else uses the device.
        let mut done = total;
        for (k, device) in options.devices.iter().enumerate() {
            let stand = Stand::new(device)?;
            report.devices[k].bandwidth = Some(stand.bandwidth);
            let of_device: Vec<_> = items.iter().filter(|item| item.device == k).collect();
            let of_ops: Vec<_> = of_device.chunk_by(|a, b| a.op.name == b.op.name).collect();
            // Data are drawn before each chunk, outside of the measured time.
            for of_ops in of_ops.chunks(thread::available_parallelism().map_or(1, usize::from).min(DRAWN)) {
                let drawn = speed::cases(&of_ops.iter().map(|items| items[0].op).collect::<Vec<_>>(), device);
                for (items, case) in of_ops.iter().zip(drawn) {
                    let op = items[0].op;
                    let measured = items.iter().map(|item| item.dtype).filter(|&dtype| stand.measures(dtype));
                    if let Some(case) = case {
                        report.speeds.extend(stand.speeds(op, &case, &measured.collect::<Vec<_>>()));
                    }
                    done += items.len();
                    report.set_time(started);
                    let what = format!("{device} {} speed", op.name);
                    progress(Progress { done, total: total + speeds, what, report: &report });
                }
            }
        }
    }
    report.set_time(started);
    report.complete = true;
    Ok(report)
}

fn is_cpu(device: &str) -> bool {
    device == "cpu"
}

fn items<'a>(ops: &'a [Op], options: &Options, runs: &[DeviceRun]) -> Vec<Item<'a>> {
    let mut items = Vec::new();
    // Devices that compile slowly come first.
    let mut devices: Vec<usize> = (0..runs.len()).collect();
    devices.sort_by_key(|&device| is_cpu(&runs[device].name));
    for device in devices {
        for (position, op) in ops.iter().enumerate() {
            let chosen = match &options.repeat {
                Some(repeat) => repeat.op == op.name,
                None => options.filter.as_ref().is_none_or(|re| re.is_match(op.name)),
            };
            let wanted = options.repeat.as_ref().map(|repeat| repeat.dtype).or(options.dtype);
            let is_on_cpu = is_cpu(&runs[device].name);
            let dtypes = FLOATS.into_iter().chain(INTEGERS).filter(|&dtype| match (wanted, options.extent) {
                // The CPU is the reference for integers.
                _ if !dtype.is_float() && (is_on_cpu || options.extent == Extent::Speeds) => false,
                (Some(wanted), _) => dtype == wanted,
                (None, Extent::Quick) => is_in_quick(op, position, dtype, is_on_cpu),
                (None, Extent::Whole | Extent::Checks | Extent::Speeds) => true,
            });
            let dtypes = dtypes.filter(|&dtype| chosen && (dtype.is_float() || check::takes(op, dtype)));
            items.extend(dtypes.map(|dtype| Item { op, dtype, device }));
        }
    }
    items
}

/// A quick run covers all floats on the CPU. On other devices, where each program is compiled first, it covers f32. It also covers
/// a dtype of 16 bits for ops that are not pointwise functions, which differ in loads and stores only: f16 and bf16 by turns in the order
/// of the registry. Of pools, whose code is the same in all dimensions, it covers two dimensions.
fn is_in_quick(op: &Op, position: usize, dtype: DType, is_on_cpu: bool) -> bool {
    let is_whole = (op.fused || op.class == Class::Dense) && !op.is_pointwise() && op.wide.is_none();
    let narrow = if position.is_multiple_of(2) { DType::F16 } else { DType::BF16 };
    is_on_cpu || dtype == DType::F32 || (dtype == narrow && is_whole && !is_other_pool(op))
}

/// True for a pool over one or three dimensions.
fn is_other_pool(op: &Op) -> bool {
    op.category == Category::Pooling && !op.name.ends_with("2d")
}

type Sender<'a> = mpsc::Sender<(usize, Item<'a>, Vec<Finding>)>;

fn work<'a>(options: &Options, runs: &[DeviceRun], queue: &Mutex<VecDeque<(usize, Item<'a>)>>, sender: &Sender<'a>) {
    let mut processes = options.apart.as_ref().map(Processes::new);
    loop {
        let next = queue.lock().unwrap_or_else(|e| e.into_inner()).pop_front();
        let Some((position, item)) = next else { break };
        let run = &runs[item.device];
        let findings = match &mut processes {
            Some(processes) if is_apart(options, run) && options.repeat.is_none() => {
                elsewhere(options, &item, run, processes)
            }
            _ => here(options, &item, run.has_f64),
        };
        if sender.send((position, item, findings)).is_err() {
            break;
        }
    }
}

/// The checks of an item in this process.
fn here(options: &Options, item: &Item<'_>, has_f64: bool) -> Vec<Finding> {
    let shared = &options.devices[item.device];
    // Each item has its own queue and programs, for which some drivers keep much memory.
    match opened(shared) {
        Ok(device) => on(&device, options, item, has_f64),
        Err(why) => vec![Finding::new(shared, item, Check::Forward, Outcome::Failed(why.to_string()))],
    }
}

/// The checks of an item on an opened device.
fn on(device: &Device, options: &Options, item: &Item<'_>, has_f64: bool) -> Vec<Finding> {
    let findings = of_item(options, item, device, has_f64);
    if options.has_speeds() {
        // An op that fails here has no speed.
        let _ = caught(|| speed::prepare(item.op, item.dtype, device));
    }
    // Queued work must not run while the device is closed. Its errors belong to a check that has been reported.
    let _ = device.synchronize();
    findings
}

/// The checks of an item in another process.
fn elsewhere(options: &Options, item: &Item<'_>, run: &DeviceRun, processes: &mut Processes<'_>) -> Vec<Finding> {
    let Options { extent, cases, seed, .. } = *options;
    let (op, dtype) = (item.op.name.into(), item.dtype.to_string());
    processes.ask(&task(run, Work::Op { op, dtype, extent, cases, seed })).unwrap_or_else(|why| {
        vec![Finding::new(&options.devices[item.device], item, Check::Forward, Outcome::Failed(why.to_string()))]
    })
}

/// Runs the checks that another process requests on standard input, and answers on standard output, until the input ends. The
/// program of an [`Apart`] calls this; nothing else may write to standard output. Errors: the input is no task, or nobody reads the
/// answers.
pub fn serve() -> io::Result<()> {
    let listed = Device::list();
    let found =
        |name: &str| listed.iter().filter_map(|(_, found)| found.as_ref().ok()).flatten().find(|i| i.name == name);
    let mut folder: Option<Folder> = None;
    apart::answer(io::stdin().lock(), io::stdout().lock(), |Task { device, hardware, has_f64, work }| {
        let device: Device = device.parse().map_err(|e: Error| e.to_string())?;
        let listed = found(device.name()).map_or(String::new(), |info| lasting(&info.description, &info.driver));
        if listed != hardware {
            return Err(format!(
                "{} is {listed:?} in this process, and {hardware:?} in that of the run",
                device.name()
            ));
        }
        // The process has one thread, and all its tasks one device: to open one takes longer than the checks of most ops.
        device.set_checks(Checks::AtOnce);
        match work {
            Work::Op { op, dtype, extent, cases, seed } => {
                let op = find(&op).ok_or_else(|| format!("the registry has no op {op:?}"))?;
                let dtype = dtype.parse().map_err(|e: Error| e.to_string())?;
                let item = Item { op, dtype, device: 0 };
                let options = Options { devices: vec![device.clone()], extent, cases, seed, ..Options::default() };
                Ok(on(&device, &options, &item, has_f64))
            }
            Work::Cases { folder: path, names, dump } => {
                if folder.as_ref().is_none_or(|folder| folder.path != path) {
                    folder = Some(Folder::read(Path::new(&path))?);
                }
                let all = folder.iter().flat_map(|folder| &folder.cases);
                let chosen = all.filter(|case| names.iter().any(|name| name == case.name()));
                Ok(chosen.map(|case| case.finding(&path, &device, has_f64, dump.as_deref())).collect())
            }
        }
    })
}

/// The checks of an op in a dtype, one after another.
fn of_item(options: &Options, item: &Item<'_>, device: &Device, has_f64: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let checks = if options.extent == Extent::Speeds { &[][..] } else { &Check::ALL };
    for &check in checks {
        if options.repeat.as_ref().is_some_and(|repeat| repeat.check != check) {
            continue;
        }
        if !applies(item, check, device, options.extent) && options.repeat.is_none() {
            continue;
        }
        if item.dtype == DType::F64 && !has_f64 {
            let outcome = Outcome::Skipped("the device has no f64".into());
            findings.push(Finding::new(device, item, check, outcome));
            continue;
        }
        let started = Instant::now();
        let mut found = caught(|| finding(options, item, check, device))
            .unwrap_or_else(|why| Finding::new(device, item, check, Outcome::Failed(why)));
        found.seconds = started.elapsed().as_secs_f64();
        findings.push(found);
    }
    findings
}

/// True if a check applies. The CPU in f64 is the reference of all others, and its gradients in other dtypes are the measure of
/// their errors.
fn applies(item: &Item<'_>, check: Check, device: &Device, extent: Extent) -> bool {
    let (op, dtype) = (item.op, item.dtype);
    if !dtype.is_float() {
        return check == Check::Forward;
    }
    let has_gradient = !matches!(op.derivative, Derivative::None(_));
    let (is_f64, is_cpu) = (dtype == DType::F64, is_cpu(device.name()));
    // Pointwise functions share the code around them, so one dtype is enough.
    let is_in_all = extent.is_whole() && !op.is_pointwise();
    match check {
        Check::Golden => is_f64,
        Check::Forward | Check::Special => !(is_f64 && is_cpu),
        Check::Gradients => has_gradient && !(is_f64 && is_cpu),
        Check::Alone | Check::Twice => has_gradient && (dtype == DType::F32 || is_in_all),
        Check::Composite => op.fused && !is_cpu && (dtype == DType::F32 || extent.is_whole()),
        Check::Adjoint => op.linear && dtype == dtype.acc(),
        // Unary functions share the loads of functions of several tensors, and each layout is a kernel to compile.
        Check::Strided if extent == Extent::Quick && !is_cpu && op.is_pointwise() && !op.category.has_operands() => {
            false
        }
        Check::Strided | Check::Repeats | Check::Guards => dtype == DType::F32 || is_in_all,
        Check::Launches => !is_cpu && dtype == DType::F32,
        Check::Gradcheck => has_gradient && is_f64,
        Check::Gradgradcheck => op.derivative == Derivative::Twice && is_f64,
        Check::Unrecorded => !has_gradient && is_f64,
        Check::Anomalies => dtype == DType::F32,
        Check::Undefined => has_gradient && dtype == DType::F32,
        Check::Singular => op.derivative == Derivative::Twice && is_f64,
    }
}

fn finding(options: &Options, item: &Item<'_>, check: Check, device: &Device) -> Finding {
    let new = |outcome| Finding::new(device, item, check, outcome);
    let (op, dtype) = (item.op, item.dtype);
    if let (Some(why), 2) = (op.wide, dtype.size()) {
        return new(Outcome::Skipped(why.into()));
    }
    if check == Check::Golden {
        return of_golden(options, item, device);
    }
    let tally = of_cases(options, item, check, device);
    let worst = tally.case.map(|case| {
        let case = case.to_string();
        Worst { bounds: tally.worst.bounds, ulps: tally.worst.ulps, case }
    });
    let outcome = tally.failure.map_or(Outcome::Passed, Outcome::Failed);
    Finding { cases: tally.cases, worst, ..new(outcome) }
}

fn of_golden(options: &Options, item: &Item<'_>, device: &Device) -> Finding {
    let wanted = options.repeat.as_ref().map(|repeat| &repeat.case);
    let cases: Vec<&Recorded> = golden(item.op.name).filter(|g| wanted.is_none_or(|name| g.name() == name)).collect();
    let new = |outcome| Finding::new(device, item, Check::Golden, outcome);
    if cases.is_empty() {
        return new(Outcome::Skipped("there are no values from PyTorch".into()));
    }
    let mut worst = Worst::default();
    for case in &cases {
        let name = case.name().to_string();
        match case.check(device) {
            Ok(found) if found.bounds >= worst.bounds => worst = Worst { case: name, ..Worst::from(found) },
            Ok(_) => {}
            Err(fault) => {
                let worst = Some(Worst { case: name, ..Worst::from(fault.distance()) });
                return Finding { cases: cases.len(), worst, ..new(Outcome::Failed(fault.to_string())) };
            }
        }
    }
    Finding { cases: cases.len(), worst: Some(worst), ..new(Outcome::Passed) }
}

/// The fixed cases of a check, and the number of drawn ones.
fn counts(item: &Item<'_>, check: Check, extent: Extent, device: &Device) -> (Vec<Seeded>, u32) {
    let of = |shapes: &[&[usize]]| -> Vec<Seeded> {
        let seeded = |shape: &[usize]| SEEDS.map(|seed| Seeded { shape: shape.to_vec(), seed });
        shapes.iter().flat_map(|shape| seeded(shape)).collect()
    };
    // Each new shape may be a kernel to compile, again for each dtype.
    let is_first = item.dtype == DType::F32 || is_cpu(device.name());
    let saves = extent == Extent::Quick && !is_cpu(device.name());
    // Other ops check the code that pointwise functions share, in the other dtypes.
    let is_repeated = item.op.is_pointwise() && item.dtype != DType::F32;
    let large = match (item.dtype, extent) {
        (DType::F32, Extent::Whole | Extent::Checks) => {
            let sizes = SIZES.iter().flat_map(|&n| [vec![n], vec![2, n]]);
            of(&LARGE).into_iter().chain(sizes.map(|shape| Seeded { shape, seed: 1 })).collect()
        }
        (_, Extent::Whole | Extent::Checks) if !is_repeated => of(&LARGE[1..]),
        (DType::F32, _) if !saves => of(&LARGE[1..]),
        // The attributes vary with the first shape.
        (DType::F32, _) if !is_other_pool(item.op) => of(&LARGE[1..]).split_off(2),
        _ => of(&LARGE[1..2]),
    };
    let drawn = match extent {
        Extent::Whole | Extent::Checks if is_first && !is_repeated => 24,
        Extent::Whole | Extent::Checks => 6,
        Extent::Speeds => 0,
        Extent::Quick if saves && (!is_first || is_other_pool(item.op)) => 2,
        Extent::Quick if saves && item.op.is_pointwise() => 3,
        Extent::Quick if saves => 4,
        Extent::Quick => 12,
    };
    match check {
        // All strides of this shape differ, in every layout.
        Check::Strided if saves => (of(&[&[3, 2, 4]]).split_off(3), 0),
        Check::Forward | Check::Gradients => (large, drawn),
        Check::Composite | Check::Repeats | Check::Launches | Check::Guards if saves => {
            (of(&LARGE[1..2]).split_off(2), 1)
        }
        Check::Composite | Check::Repeats | Check::Guards if !is_first => (of(&LARGE[1..2]).split_off(2), drawn / 4),
        Check::Composite | Check::Repeats | Check::Launches | Check::Guards => (of(&LARGE[1..]), drawn / 3),
        Check::Alone | Check::Gradcheck | Check::Gradgradcheck => (Vec::new(), drawn / 2),
        Check::Unrecorded => (Vec::new(), 3),
        Check::Anomalies if saves => (of(&LARGE[1..2]).split_off(2), 2),
        Check::Anomalies | Check::Undefined | Check::Singular => (Vec::new(), drawn / 2),
        // Each layout may be a kernel to compile. Addresses do not depend on the dtype.
        Check::Strided if item.dtype != DType::F32 => (Vec::new(), drawn / 3),
        Check::Strided if !is_cpu(device.name()) => (Vec::new(), drawn / 2),
        Check::Twice if saves => (Vec::new(), drawn / 2),
        // Large shapes have whole words and groups, which are checked with special values too.
        Check::Special if extent.is_whole() && !is_repeated => {
            (of(&LARGE[1..2]).split_off(if is_first { 0 } else { 3 }), drawn)
        }
        Check::Twice | Check::Strided | Check::Adjoint | Check::Special => (Vec::new(), drawn),
        Check::Golden => unreachable!("its cases are those of the files"),
    }
}

fn of_cases(options: &Options, item: &Item<'_>, check: Check, device: &Device) -> Tally {
    let (op, dtype) = (item.op, item.dtype);
    let (mut fixed, mut drawn) = counts(item, check, options.extent, device);
    if let Some(repeat) = &options.repeat {
        (fixed, drawn) = (repeat.case.parse().into_iter().collect(), 0);
    } else if let Some(cases) = options.cases {
        drawn = cases;
    }
    let one = |seeded: &Seeded| -> Found {
        let cpu = Device::cpu().map_err(|e| e.to_string())?;
        let case = (op.make)(&mut Gen::new(&seeded.shape, seeded.seed, &cpu));
        match check {
            Check::Forward if !dtype.is_float() => check::integers(op, &case, dtype, device),
            Check::Forward => check::forward(op, &case, dtype, device),
            Check::Special => check::special(op, &case, dtype, device, seeded.seed),
            Check::Gradients => check::gradients(op, &case, dtype, device),
            Check::Alone => check::alone(op, &case, dtype, device),
            Check::Twice => check::twice(op, &case, dtype, device),
            Check::Composite => check::composite(op, &case, dtype, device),
            Check::Adjoint => check::adjoint(op, &case, dtype, device),
            Check::Strided => check::strided(op, &case, dtype, device),
            Check::Guards => check::guards(op, &case, dtype, device),
            Check::Repeats => check::repeats(op, &case, dtype, device),
            Check::Launches => check::budget(op, &case, dtype, device),
            Check::Gradcheck => check::gradcheck(op, &case, device),
            Check::Gradgradcheck => check::gradgradcheck(op, &case, device),
            Check::Unrecorded => check::unrecorded(op, &case, device),
            Check::Anomalies => finite::anomalies(op, &case, device),
            Check::Undefined => finite::undefined(op, &case, device, seeded.seed),
            Check::Singular => finite::singular(op, &case, device, seeded.seed),
            Check::Golden => Ok(Distance::default()),
        }
    };
    tally(&fixed, drawn, options.seed, one)
}

impl Finding {
    fn new(device: &Device, item: &Item<'_>, check: Check, outcome: Outcome) -> Finding {
        Finding {
            op: item.op.name.into(),
            device: device.name().into(),
            dtype: item.dtype.to_string(),
            check,
            outcome,
            cases: 0,
            worst: None,
            seconds: 0.0,
            folder: None,
        }
    }
}

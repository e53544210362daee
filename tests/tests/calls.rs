//! Calls of all ops of the registry that are changed at random: no panic, no hang, no abort, and an OpenCL device accepts what the CPU
//! accepts. `ISOGRAD_CALLS` is the number of calls, 20,000 by default and 1,000 with `ISOGRAD_QUICK=1`; `ISOGRAD_CALLS_FROM` is the first
//! seed.

use isograd::{DType, Device, Error, Tensor};
use isograd_parity::case::{Case, Gen};
use isograd_parity::registry::{OPS, Op};
use isograd_tests::cpu;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A call that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(120);

/// The call that runs, and its start.
static NOW: Mutex<Option<(String, Instant)>> = Mutex::new(None);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |n| n.parse().unwrap_or_else(|_| panic!("{name} is {n:?}, expected a number")))
}

/// Ends the program, with the name of the call, if it hangs.
fn watch() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let late = NOW.lock().unwrap().clone().filter(|(_, start)| start.elapsed() > LONGEST);
            if let Some((call, _)) = late {
                println!("hangs: {call}");
                std::process::exit(1);
            }
        }
    });
}

/// Values for attributes in place of their own.
fn value(g: &mut Gen) -> Value {
    match g.below(14) {
        0 => json!(0),
        1 => json!(-1),
        2 => json!(1),
        3 => json!(2),
        4 => json!(5),
        5 => json!(i64::MAX),
        6 => json!(i64::MIN),
        7 => json!(1e30),
        8 => json!(0.5),
        9 => json!("nan"),
        10 => Value::Null,
        11 => json!([]),
        12 => json!([1, 2]),
        _ => json!(g.coin()),
    }
}

/// Changes an attribute: all of it, an element of a list, or its presence.
fn change_attribute(g: &mut Gen, case: &mut Case) {
    let Value::Object(attributes) = &mut case.attributes else { return };
    let at = g.below(attributes.len());
    let Some(name) = attributes.keys().nth(at).cloned() else { return };
    match (g.below(4), &mut attributes[&name]) {
        (0, _) => drop(attributes.remove(&name)),
        (1 | 2, Value::Array(all)) if !all.is_empty() => {
            let at = g.below(all.len());
            all[at] = value(g);
        }
        (_, old) => *old = value(g),
    }
}

/// Another view, dtype or content of an input.
fn changed(g: &mut Gen, t: &Tensor) -> Result<Tensor, Error> {
    let rank = t.rank();
    let dim = g.below(rank) as isize;
    match g.below(10) {
        0 => t.cast(DType::ALL[g.below(DType::ALL.len())]),
        1 => t.unsqueeze(dim),
        2 if rank > 0 => t.select(dim, 0),
        3 if rank > 0 => t.narrow(dim, 0, g.below(t.dims()[dim as usize] + 1)),
        4 => t.reshape(t.numel()),
        5 if rank > 1 => t.transpose(dim, g.below(rank) as isize),
        6 if rank > 0 => Tensor::concat(&[t, t], dim),
        7 if rank > 0 => t.narrow(dim, 0, 1)?.expand(t.shape()),
        8 if t.dtype().is_float() => t.full_like([f64::NAN, f64::INFINITY, -0.0, 1e300][g.below(4)]),
        8 | 9 if t.dtype() == DType::I64 || t.dtype() == DType::I32 => {
            t.full_like([-1i64, 0, 7, i64::from(i32::MAX)][g.below(4)])
        }
        _ => t.flip(&[dim]),
    }
}

fn change(g: &mut Gen, case: &mut Case) {
    for _ in 0..g.below(4) {
        match g.below(5) {
            0 | 1 => change_attribute(g, case),
            2 if g.below(4) == 0 && !case.inputs.is_empty() => {
                let at = g.below(case.inputs.len());
                drop(case.inputs.remove(at));
            }
            _ if !case.inputs.is_empty() => {
                let at = g.below(case.inputs.len());
                if let Ok(Ok(t)) = catch_unwind(AssertUnwindSafe(|| changed(g, &case.inputs[at].1))) {
                    case.inputs[at].1 = t;
                }
            }
            _ => {}
        }
    }
}

/// The shapes and dtypes of the results and the gradients, or the kind of the error. Values are compared by the tests of the registry, which
/// know the domains of the ops.
fn run(op: &Op, case: &Case, device: &Device, dtype: DType, differentiates: bool) -> Result<String, Error> {
    let case = case.to(device)?.map_floats(|t| t.cast(dtype))?;
    let leaves =
        if differentiates && op.changes.is_none() { case.map_floats(|t| t.detach().require_grad())? } else { case };
    let outputs = op.call(&leaves)?;
    let mut said: Vec<String> = outputs.iter().map(|t| format!("{} {}", t.dtype(), t.shape())).collect();
    if let Some(y) = outputs.iter().find(|y| y.requires_grad() && y.dtype().is_float()) {
        y.sum(..)?.backward()?;
        let grads = leaves.inputs.iter().filter_map(|(name, t)| Some(format!("d{name} {}", t.grad()?.shape())));
        said.extend(grads);
    }
    // A device reports what went wrong at the latest when results are read.
    outputs.iter().filter(|t| t.numel() < 1 << 20).try_for_each(|t| t.to_f64_vec().map(drop))?;
    Ok(said.join(", "))
}

fn outcome(result: &Result<String, Error>) -> String {
    match result {
        Ok(said) => said.clone(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

#[test]
fn calls_of_all_ops() {
    let is_quick = std::env::var("ISOGRAD_QUICK").is_ok_and(|quick| quick == "1");
    let (count, from) =
        (number("ISOGRAD_CALLS", if is_quick { 1_000 } else { 20_000 }), number("ISOGRAD_CALLS_FROM", 0));
    let other = "opencl:0".parse::<Device>().ok();
    let is_required = std::env::var("ISOGRAD_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == "opencl"));
    assert!(other.is_some() || !is_required, "there is no OpenCL device");
    // A segment of number 2^31 - 1 is allowed, and makes as many rows.
    for device in [Some(&cpu()), other.as_ref()].into_iter().flatten() {
        device.limit_memory(Some(1 << 30)).expect("the device has a limit of memory");
    }
    watch();
    let (mut tally, mut wrong): (BTreeMap<String, u64>, Vec<String>) = (BTreeMap::new(), Vec::new());
    let mut skipped = 0;
    for seed in from..from + count {
        let op = &OPS[seed as usize % OPS.len()];
        let mut g = Gen::new(&[], seed, &cpu());
        g.shape = (0..g.below(5)).map(|_| g.below(4)).collect();
        let dtype = [DType::F64, DType::F32, DType::F16, DType::BF16][g.below(4)];
        let differentiates = g.coin();
        // The generated calls must be valid; ops that do not take such a shape say so elsewhere.
        let Ok(mut case) = catch_unwind(AssertUnwindSafe(|| (op.make)(&mut g))) else {
            skipped += 1;
            continue;
        };
        change(&mut g, &mut case);
        let name = format!("{} {dtype}, seed {seed}", op.name);
        let mut outcomes = Vec::new();
        for device in [Some(&cpu()), other.as_ref()].into_iter().flatten() {
            *NOW.lock().unwrap() = Some((format!("{name} on {device}"), Instant::now()));
            let result = catch_unwind(AssertUnwindSafe(|| run(op, &case, device, dtype, differentiates)));
            match result {
                Ok(result) => outcomes.push(outcome(&result)),
                Err(_) => wrong.push(format!("{name}: a panic on {device}")),
            }
        }
        let kind =
            if outcomes[..].first().is_some_and(|o| !o.contains('[')) { outcomes[0].clone() } else { "Ok".into() };
        *tally.entry(kind).or_default() += 1;
        if let [one, two] = &outcomes[..]
            && one != two
        {
            wrong.push(format!("{name}: {one} on the CPU, {two} on OpenCL"));
        }
    }
    let calls = count - skipped;
    println!("{calls} calls: {tally:?}; {skipped} seeds draw a shape that their op does not take");
    assert!(calls > 0 || count == 0, "no seed makes a call");
    wrong.iter().for_each(|what| println!("{what}"));
    assert!(wrong.is_empty(), "{} calls went wrong; the first: {}", wrong.len(), wrong[0]);
}

//! How a row is measured.

use super::rows::{Clock, Op};
use anyhow::Result;
use isograd::parity::bench::{Action, Call, Cost, Work};
use isograd::tape::{BackwardOptions, grad_with};
use isograd::{DType, Device, Tensor};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant};

/// Timed calls of a row, at least and at most.
const RUNS: (usize, usize) = (3, 60);
/// Calls that nobody waits for when launches are counted.
const LAUNCHES: usize = 1000;
/// Training steps between two waits.
const STEPS: usize = 50;
/// Calls that take longer, in seconds, hide their launches.
const SHORT: f64 = 0.3e-3;
/// Bytes of the inputs over which a recording of short calls goes, which no cache holds all of; and the most calls.
const COLD: usize = 128 << 20;
const RECORDED: usize = 64;

/// Which way through an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Pass {
    /// As in training: what the backward pass needs is saved.
    #[serde(rename = "fwd")]
    Forward,
    /// The backward pass alone, on a tape that is kept.
    #[serde(rename = "bwd")]
    Backward,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Pass::Forward => "fwd",
            Pass::Backward => "bwd",
        })
    }
}

/// How much a device is given to do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The bytes that one call moves.
    pub bytes: usize,
    pub flops: f64,
    /// Read between two calls, so that nothing of a call's inputs is left in a cache.
    pub flush: usize,
    /// Time for a row.
    pub time: Duration,
}

impl Op {
    fn shrunk(&self, divisor: usize) -> Vec<usize> {
        let shrunk = |(i, &n): (usize, &usize)| if i < self.bench.shrinks { (n / divisor).max(1) } else { n };
        self.bench.dims.iter().enumerate().map(shrunk).collect()
    }

    /// The least power of two by which the first extents are divided so that every row of the op is within the limits:
    /// dtypes and passes are compared at one shape.
    fn divisor(&self, device: &Device, limits: &Limits) -> usize {
        let fits = |divisor: &usize| {
            let dims = self.shrunk(*divisor);
            let is_least = dims[..self.bench.shrinks].iter().all(|&n| n == 1);
            is_least
                || Row::of(self).all(|row| {
                    let cost = row.cost(&Call::new(device, dims.clone(), row.dtype));
                    cost.bytes <= limits.bytes && cost.flops <= limits.flops
                })
        };
        (0..usize::BITS - 1).map(|shift| 1 << shift).find(fits).unwrap_or(1)
    }
}

/// One measurement to make: an op in a dtype and direction.
#[derive(Clone)]
pub struct Row {
    pub op: Op,
    pub dtype: DType,
    pub pass: Pass,
}

impl Row {
    /// The rows of an op.
    pub fn of(op: &Op) -> impl Iterator<Item = Row> {
        let passes = [Some(Pass::Forward), op.bench.backward.map(|_| Pass::Backward)];
        let pairs =
            op.bench.dtypes.iter().flat_map(move |&dtype| passes.into_iter().flatten().map(move |pass| (dtype, pass)));
        pairs.map(|(dtype, pass)| Row { op: op.clone(), dtype, pass })
    }

    /// What a filter looks at: `softmax [4096, 4096] bf16 bwd`.
    pub fn label(&self) -> String {
        format!("{} {:?} {} {}", self.op.name, self.op.bench.dims, self.dtype, self.pass)
    }

    /// What the row needs at a shape.
    pub fn cost(&self, case: &Call) -> Cost {
        match (self.pass, self.op.bench.backward) {
            (Pass::Backward, Some(backward)) => backward(case),
            _ => (self.op.bench.forward)(case),
        }
    }

    /// The row at its shape, with what its first extents are divided by.
    pub fn fit(&self, device: &Device, limits: &Limits) -> (Call, usize) {
        let divisor = self.op.divisor(device, limits);
        (Call::new(device, self.op.shrunk(divisor), self.dtype), divisor)
    }

    /// What is timed.
    fn work(&self, case: Call) -> Result<Work> {
        let (inputs, call) = match self.op.bench.action {
            Action::Work(work) => return Ok(work(&case)?),
            Action::Call { inputs, call } => (inputs(&case)?, call),
        };
        let is_leaf = |x: &Tensor| self.op.bench.backward.is_some() && x.dtype().is_float();
        let leaf = |x: Tensor| if is_leaf(&x) { x.require_grad() } else { Ok(x) };
        let inputs: Vec<Tensor> = inputs.into_iter().map(leaf).collect::<isograd::Result<_>>()?;
        if self.pass == Pass::Forward {
            return Ok(Box::new(move || call(&case, &inputs).map(drop)));
        }
        let y = call(&case, &inputs)?;
        let dy = case.normal(y.dims())?;
        let dy = if y.is_channels_last() { dy.to_channels_last()? } else { dy };
        Ok(Box::new(move || {
            let leaves: Vec<&Tensor> = inputs.iter().filter(|x| x.requires_grad()).collect();
            let options = BackwardOptions { gradient: Some(dy.clone()), retain: true, ..Default::default() };
            grad_with(&y, &leaves, &options).map(drop)
        }))
    }

    /// Seconds of each timed call.
    pub fn measure(&self, case: Call, bench: &Stand) -> Result<Vec<f64>> {
        let device = case.device.clone();
        let mut work = self.work(case)?;
        // The first call compiles, the second finds its memory in the pool.
        for _ in 0..2 {
            work()?;
        }
        device.synchronize()?;
        let started = Instant::now();
        let mut seconds = Vec::new();
        while seconds.len() < RUNS.0 || (seconds.len() < RUNS.1 && started.elapsed() < bench.limits.time) {
            seconds.push(match self.op.clock {
                Clock::Device => {
                    bench.flush()?;
                    device.time(&mut work)?
                }
                Clock::Launch => seconds_per_call(&device, &mut work, LAUNCHES)?.0,
                Clock::Steps => seconds_per_call(&device, &mut work, STEPS)?.1,
            });
        }
        device.synchronize()?;
        Ok(seconds)
    }
}

impl Row {
    /// The seconds of a short call: of one of many in a row by the host's clock, launches included, and, on a device that
    /// records, of one in a recording of calls with inputs that no cache holds all of.
    pub fn measure_in_a_row(&self, stand: &Stand, seconds: f64) -> Result<(Option<f64>, Option<f64>)> {
        let Action::Call { inputs, .. } = self.op.bench.action else { return Ok((None, None)) };
        if self.op.clock != Clock::Device || seconds > SHORT {
            return Ok((None, None));
        }
        let (case, _) = self.fit(&stand.device, &stand.limits);
        let bytes: usize = inputs(&case)?.iter().map(|x| x.numel() * x.dtype().size()).sum();
        let calls = (COLD / bytes.max(1)).clamp(1, RECORDED);
        let alike = || self.work(Call::new(&stand.device, case.dims.clone(), self.dtype));
        let mut all: Vec<Work> = (0..calls).map(|_| alike()).collect::<Result<_>>()?;
        let mut turn = 0;
        let mut in_turn: Work = Box::new(move || {
            turn = (turn + 1) % calls;
            all[turn]()
        });
        seconds_per_call(&stand.device, &mut in_turn, calls)?;
        let in_a_row = seconds_per_call(&stand.device, &mut in_turn, LAUNCHES)?.1;
        let mut step = stand.device.capture(|()| (0..calls).try_for_each(|_| in_turn()));
        (0..3).try_for_each(|_| step.run(()))?;
        if !step.is_recorded() {
            return Ok((Some(in_a_row), None));
        }
        let mut times = (0..9).map(|_| stand.device.time(|| step.run(()))).collect::<Result<Vec<_>, _>>()?;
        times.sort_by(f64::total_cmp);
        Ok((Some(in_a_row), Some(times[times.len() / 2] / calls as f64)))
    }
}

/// The host's time for one of many calls: without waiting for any, and with the wait for the last.
fn seconds_per_call(device: &Device, work: &mut Work, calls: usize) -> Result<(f64, f64)> {
    device.synchronize()?;
    let started = Instant::now();
    for _ in 0..calls {
        work()?;
    }
    let enqueued = started.elapsed().as_secs_f64();
    device.synchronize()?;
    Ok((enqueued / calls as f64, started.elapsed().as_secs_f64() / calls as f64))
}

/// A device with what its measurements share.
pub struct Stand {
    pub device: Device,
    pub limits: Limits,
    flushed: Tensor,
}

impl Stand {
    pub fn new(device: &Device, limits: Limits) -> Result<Stand> {
        let flushed = Tensor::zeros(limits.flush / DType::F32.size(), DType::F32, device)?;
        Ok(Stand { device: device.clone(), limits, flushed })
    }

    /// Without the rows that are at this device's shape what an earlier one is.
    pub fn distinct(&self, rows: Vec<Row>) -> Vec<Row> {
        let mut seen = HashSet::new();
        let mut is_new = |row: &Row| {
            let (case, _) = row.fit(&self.device, &self.limits);
            seen.insert((row.op.name.clone(), case.dims, row.dtype, row.pass))
        };
        rows.into_iter().filter(|row| is_new(row)).collect()
    }

    /// Takes the place of what caches hold. Lines that are only read need not be written back during the next call; and
    /// while this runs the host enqueues that call, so that its launches are not waited for.
    fn flush(&self) -> Result<()> {
        self.flushed.sum(..)?;
        Ok(())
    }
}

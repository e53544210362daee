//! Functions that users write in plain ops, as captured and as plain steps: their times, as JSON lines. `rows.txt` has the rows, and
//! `benches/plain_ops.py` times the same in PyTorch.
//!
//! `plain_ops DEVICE [WORD..]`: `small` for shapes that a CPU computes in seconds; `explain` for the program of each step; `only=A,B` for rows
//! whose names contain A or B; `once` runs each step twice only, for a profiler; `check` prints sums of the results from inputs that are the
//! same in PyTorch, instead of times.

mod functions;
mod table;

use isograd::prelude::*;
use std::time::Instant;
use table::{Pass, Row, Source};

/// Runs of a captured step that are timed together, and of a plain one; small shapes show that rows run, not how fast.
const REPS: [usize; 2] = [20, 5];

/// The words behind the device.
struct Options(Vec<String>);

impl Options {
    fn has(&self, word: &str) -> bool {
        self.0.iter().any(|w| w == word)
    }

    /// True if each `only=` has a part of the name.
    fn wants(&self, name: &str) -> bool {
        let mut lists = self.0.iter().filter_map(|word| word.strip_prefix("only="));
        lists.all(|list| list.split(',').any(|part| name.contains(part)))
    }
}

/// A row with its tensors.
struct Case<'a> {
    row: &'a Row,
    function: functions::Function,
    inputs: Vec<Tensor>,
    /// The gradients of the results, for [`Pass::Bwd`].
    given: Vec<Tensor>,
}

impl<'a> Case<'a> {
    fn new(row: &'a Row, source: Source, is_small: bool, device: &Device) -> Result<Case<'a>> {
        let function = functions::FUNCTIONS.iter().find(|(name, _)| *name == row.function);
        let function = function.unwrap_or_else(|| panic!("no function {}", row.function)).1;
        let inputs = row.inputs.iter().enumerate().map(|(k, input)| input.make(k, row.dtype, source, is_small, device));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let results = if row.pass == Pass::Bwd { no_grad(|| function(&inputs))? } else { vec![] };
        let given = results.iter().enumerate().map(|(k, y)| match y.rank() {
            0 => y.ones_like(),
            _ => table::uniform(y.dims(), 1000 + k, source, device)?.cast(y.dtype()),
        });
        let given = given.collect::<Result<_>>()?;
        Ok(Case { row, function, inputs, given })
    }

    fn step(&self) -> Result<Vec<Tensor>> {
        let leaves: Vec<&Tensor> = self.inputs.iter().filter(|t| t.requires_grad()).collect();
        match self.row.pass {
            Pass::Fwd | Pass::Step => no_grad(|| (self.function)(&self.inputs)),
            Pass::Own => (self.function)(&self.inputs),
            Pass::Sum => {
                let y = (self.function)(&self.inputs)?.remove(0);
                tape::grad(&if y.rank() == 0 { y } else { y.sum(..)? }, &leaves)
            }
            Pass::Bwd => {
                let y = (self.function)(&self.inputs)?;
                let roots: Vec<_> = y.iter().zip(self.given.iter().cloned()).collect();
                let gradients = tape::grad_from(&roots, &leaves, &Default::default())?;
                Ok([y, gradients].concat())
            }
        }
    }

    /// Prints of each result the sum, the sum of absolute values, and the sum of products with numbers that depend on the position;
    /// without results, of each input, since a step changed them.
    fn check(&self, device: &Device) -> Result<()> {
        let mut step = device.capture(|_: ()| self.step());
        (0..2).try_for_each(|_| step.run(()).map(drop))?;
        let mut results = step.run(())?;
        if results.is_empty() {
            results = self.inputs.clone();
        }
        let sums = results.iter().map(|y| {
            let (mut sum, mut size, mut weighted) = (0.0, 0.0, 0.0);
            for (i, v) in y.to_f64_vec()?.into_iter().enumerate() {
                sum += v;
                size += v.abs();
                weighted += v * (i % 1021 + 1) as f64 / 1021.0;
            }
            Ok(format!("[{sum:e}, {size:e}, {weighted:e}]"))
        });
        println!(r#"{{"name": "{}", "sums": [{}]}}"#, self.row.name, sums.collect::<Result<Vec<_>>>()?.join(", "));
        Ok(())
    }

    fn time(&self, options: &Options, device: &Device) -> Result<()> {
        let [captured_reps, reps] = if options.has("small") { [1; 2] } else { REPS };
        (0..3).try_for_each(|_| self.step().map(drop))?;
        let eager = best(device, reps, &mut || self.step().map(drop))?;
        let mut captured = device.capture(|_: ()| self.step());
        (0..4).try_for_each(|_| captured.run(()).map(drop))?;
        let best = best(device, captured_reps, &mut || captured.run(()).map(drop))?;
        println!(
            r#"{{"name": "{}", "eager_ms": {eager:.4}, "captured_ms": {best:.4}, "recorded": {}}}"#,
            self.row.name,
            captured.is_recorded()
        );
        if options.has("explain") {
            println!("{}", captured.explain().unwrap_or_default());
        }
        Ok(())
    }
}

/// The time of one of `reps` runs in ms, the best of three times.
fn best(device: &Device, reps: usize, run: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    device.synchronize()?;
    let mut best = f64::MAX;
    for _ in 0..3 {
        let t = Instant::now();
        (0..reps).try_for_each(|_| run())?;
        device.synchronize()?;
        best = best.min(t.elapsed().as_secs_f64() * 1e3 / reps as f64);
    }
    Ok(best)
}

fn main() -> Result<()> {
    let device: Device = std::env::args().nth(1).unwrap_or("cpu".into()).parse()?;
    let options = Options(std::env::args().skip(2).collect());
    let source = if options.has("check") { Source::Formula } else { Source::Random };
    let is_small = options.has("small");
    for row in table::rows(is_small).iter().filter(|row| options.wants(&row.name)) {
        let case = Case::new(row, source, is_small, &device)?;
        if options.has("check") {
            case.check(&device)?;
        } else if options.has("once") {
            let mut captured = device.capture(|_: ()| case.step());
            (0..2).try_for_each(|_| captured.run(()).map(drop)).and_then(|()| device.synchronize())?;
        } else {
            case.time(&options, &device)?;
        }
    }
    Ok(())
}

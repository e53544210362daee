//! Recurrent ops over sequences: one launch computes all steps. Each group keeps the weights of a slice of hidden units in local memory.

use crate::driver::{Address, Geometry, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::operands::start_of;
use crate::launch::pitch::{self, Pitched};
use crate::launch::words::fits;
use crate::memory::pool::Buffer;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, in_tf32};
use crate::ops::matrix::matmul::WIDEST;
use crate::program::source::{Variant, word};
use isograd_core::fused::Fused;
use isograd_core::ops::recurrent::kernel::{
    Cell, Recurrence, RecurrentBackward, RecurrentBackwardInputs, RecurrentForward, RecurrentGradients,
    RecurrentInputs, RecurrentOutputs,
};
use isograd_core::ops::{Nonlinearity, RecurrentSteps, RecurrentWeights, TimeOrder};
use isograd_core::{Call, DType, Device, Operand, Precision, Result};

pub const FAMILY: Family = Family {
    launchers: &[Launcher::of::<RecurrentForward>(), Launcher::of::<RecurrentBackward>()],
    examples: EXAMPLES,
};

/// Threads of a group.
const THREADS: usize = 256;
/// `[threads of a team, elements of K that it stages in local memory]` on tensor cores, which stage none.
const WAVE: [usize; 2] = [32, 0];
/// The teams without tensor cores, fastest first; the last needs the least shared memory.
const TEAMS: [[usize; 2]; 4] = [[16, 32], [16, 16], [32, 32], [32, 16]];
/// Rows of the batch that a group multiplies at once.
const ROWS: usize = 16;
/// Columns (N) of a tensor-core instruction.
const TILE: usize = 8;
/// Numbers of hidden units that a slice may have.
const UNITS: [usize; 3] = [16, 8, 4];
/// Number of slices that is always allowed; with fewer multiprocessors a group takes several.
const FEW: usize = 8;
/// The files of products: in f32, and by matrix units.
const LOADERS: [&str; 2] = ["recurrent/recurrent_fma.h", "recurrent/recurrent_mma.h"];
/// Hidden units from which on copies with whole words pay.
const LEAST_WIDENED: usize = 16;
/// Bytes of local memory besides the array that the launch gives.
const OTHERS: usize = 64;

/// The direction of a pass.
#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Forward,
    Backward,
}

/// How the work is divided.
#[derive(Clone, Copy, Debug)]
struct RecurrentPlan {
    /// Hidden units of a slice.
    units: usize,
    slices: usize,
    /// Groups that share the batch rows of a slice.
    lines: usize,
    /// Threads of a team. The teams of a group split K.
    team: usize,
    /// Elements of K of a team.
    share: usize,
    /// Elements of K of which the team stages rows in local memory at a time.
    chunk: usize,
    /// Columns of a thread.
    own: usize,
    /// Bytes of local memory.
    given: usize,
}

impl RecurrentPlan {
    /// The fastest one for which there is room.
    fn new(recurrence: &Recurrence, pass: Pass, limits: &Limits, on_matrix_units: bool) -> Option<RecurrentPlan> {
        let blocks = recurrence.extents[1].div_ceil(ROWS);
        let plans = || {
            UNITS
                .into_iter()
                .filter_map(|units| RecurrentPlan::with_units(recurrence, pass, limits, on_matrix_units, units))
        };
        // Smaller slices are faster, as long as each has a multiprocessor of its own.
        let is_spread = |plan: &RecurrentPlan| plan.units >= TILE && plan.slices * blocks <= limits.units;
        plans().rfind(is_spread).or_else(|| plans().next())
    }

    fn with_units(
        recurrence: &Recurrence,
        pass: Pass,
        limits: &Limits,
        on_matrix_units: bool,
        units: usize,
    ) -> Option<RecurrentPlan> {
        let ([_, batch, hidden], gates, size) = (recurrence.extents, recurrence.cell.gates(), recurrence.dtype.size());
        let (terms, columns) = match pass {
            Pass::Forward => (hidden, gates * units),
            Pass::Backward => (gates * hidden, units),
        };
        let slices = hidden.div_ceil(units);
        if slices > limits.units.max(FEW) || (on_matrix_units && columns % TILE != 0) {
            return None;
        }
        let lines = (limits.units / slices).clamp(1, batch.div_ceil(ROWS));
        let plan = |&[team, chunk]: &[usize; 2]| {
            let splits = THREADS / team;
            let share = terms.div_ceil(splits).next_multiple_of(if on_matrix_units { 64 / size } else { 4 });
            let region = if on_matrix_units { ROWS * columns } else { ROWS * columns.max(chunk + 4) };
            let given = splits * (share * columns * size + region * size_of::<f32>());
            // Forward: the columns of all gates of a unit. Backward: those of adjacent units, so few that all rows have a thread.
            let own = if pass == Pass::Forward { gates } else { columns.min(4).min(ROWS * columns / team) };
            RecurrentPlan { units, slices, lines, team, share, chunk, own, given }
        };
        let teams: &[[usize; 2]] = if on_matrix_units { &[WAVE] } else { &TEAMS };
        teams.iter().map(plan).find(|plan| plan.given + OTHERS <= limits.given_memory)
    }
}

fn takes(dtype: DType, limits: &Limits) -> bool {
    dtype.is_float() && dtype.acc() == DType::F32 && limits.has_shared_words && limits.max_group >= THREADS
}

/// Both passes need room: the backward pass reads what the kernel of the forward pass wrote.
fn has_room(recurrence: &Recurrence, limits: &Limits) -> bool {
    [Pass::Forward, Pass::Backward]
        .into_iter()
        .all(|pass| RecurrentPlan::new(recurrence, pass, limits, false).is_some())
}

/// Whether products are rounded to TF32.
fn is_tf32(gpu: &Gpu, dtype: DType) -> bool {
    dtype == DType::F32 && gpu.precision() != Precision::Exact
}

/// Whether there are matrix units for a dtype.
fn has_matrix_units(gpu: &Gpu, dtype: DType) -> bool {
    let has_loader = gpu.driver().dialect().files.iter().any(|(file, _)| *file == LOADERS[1]);
    gpu.driver().limits().has_mma && has_loader && (dtype.size() == 2 || is_tf32(gpu, dtype))
}

/// The operands of a pass. Where matrix units find no whole words in H hidden units they are copies for a few more, which zeros keep at 0:
/// their gates' arguments are 0, and so are their states and all gradients.
struct Operands<'g> {
    gpu: &'g Gpu,
    /// Of the kernel.
    recurrence: Recurrence,
    /// Hidden units of the operands.
    hidden: usize,
    copies: Vec<Buffer>,
    /// Copies of results, with the results' addresses, their rows, and bytes of an element.
    results: Vec<(Address, Address, usize, usize)>,
}

impl<'g> Operands<'g> {
    fn new(gpu: &'g Gpu, recurrence: &Recurrence) -> Operands<'g> {
        let ([steps, batch, hidden], limits) = (recurrence.extents, gpu.driver().limits());
        let units = hidden.next_multiple_of(WIDEST / recurrence.dtype.size());
        let wide = Recurrence { extents: [steps, batch, units], ..*recurrence };
        let has_plans = || {
            let has_plan = |pass| RecurrentPlan::new(&wide, pass, limits, true).is_some();
            has_plan(Pass::Forward) && has_plan(Pass::Backward)
        };
        let is_wide = hidden >= LEAST_WIDENED && has_matrix_units(gpu, recurrence.dtype) && has_plans();
        let recurrence = if is_wide { wide } else { *recurrence };
        Operands { gpu, recurrence, hidden, copies: Vec::new(), results: Vec::new() }
    }

    /// Hidden units of the kernel.
    fn units(&self) -> usize {
        self.recurrence.extents[2]
    }

    /// Memory for as many rows of hidden units as an operand has.
    fn place(&mut self, operand: &Operand<'_>) -> Result<(Address, usize)> {
        let rows = operand.layout.shape().numel() / self.hidden;
        let copy = self.gpu.scratch(rows * self.units() * operand.dtype.size())?;
        let address = copy.address;
        self.copies.push(copy);
        Ok((address, rows))
    }

    /// The address of an input; `or` where it is absent.
    fn read(&mut self, operand: Option<&Operand<'_>>, or: Address) -> Result<Address> {
        let Some(operand) = operand else { return Ok(or) };
        if self.units() == self.hidden {
            return start_of(operand);
        }
        let (place, rows) = self.place(operand)?;
        let shapes = [self.hidden, self.units()].map(|units| Pitched::dense(rows, units));
        let from = start_of(operand)?;
        pitch::copy(self.gpu, operand.dtype.size(), [from, place], shapes)?;
        Ok(place)
    }

    /// The address of the weight, `[G H, H]`.
    fn weight(&mut self, w: &Operand<'_>) -> Result<Address> {
        let (hidden, units, size) = (self.hidden, self.units(), w.dtype.size());
        if units == hidden {
            return start_of(w);
        }
        let (from, gates) = (start_of(w)?, self.recurrence.cell.gates());
        let copy = self.gpu.scratch(gates * units * units * size)?;
        for gate in 0..gates {
            let at = [
                from + (gate * hidden * hidden * size) as Address,
                copy.address + (gate * units * units * size) as Address,
            ];
            pitch::copy(self.gpu, size, at, [hidden, units].map(|units| Pitched::dense(units, units)))?;
        }
        let address = copy.address;
        self.copies.push(copy);
        Ok(address)
    }

    /// The address of an output; `or` where it is absent.
    fn write(&mut self, operand: Option<&Operand<'_>>, or: Address) -> Result<Address> {
        let Some(operand) = operand else { return Ok(or) };
        let to = start_of(operand)?;
        if self.units() == self.hidden {
            return Ok(to);
        }
        let (place, rows) = self.place(operand)?;
        self.results.push((place, to, rows, operand.dtype.size()));
        Ok(place)
    }

    /// Copies results to where they belong.
    fn finish(self) -> Result<()> {
        let units = self.units();
        self.results.iter().try_for_each(|&(place, to, rows, size)| {
            let from = Pitched { rows, columns: self.hidden, pitch: units };
            pitch::copy(self.gpu, size, [place, to], [from, Pitched::dense(rows, self.hidden)])
        })
    }
}

/// Launches a pass. Groups exchange values through the memory `shared`, of this many elements; `flags` say which operands are present.
fn launch<const N: usize>(
    gpu: &Gpu,
    recurrence: &Recurrence,
    pass: Pass,
    flags: [(&'static str, bool); N],
    (address, elements): (Address, usize),
    arguments: Arguments,
) -> Result<()> {
    let (limits, size) = (gpu.driver().limits(), recurrence.dtype.size());
    let [steps, batch, hidden] = recurrence.extents;
    let is_aligned = fits(WIDEST / size, [hidden], [(address, size)]);
    let on_matrix_units = RecurrentPlan::new(recurrence, pass, limits, true)
        .filter(|_| has_matrix_units(gpu, recurrence.dtype) && is_aligned);
    let plan = on_matrix_units
        .or_else(|| RecurrentPlan::new(recurrence, pass, limits, false))
        .expect("the op asked whether there is room");
    let (row, entry) = match pass {
        Pass::Forward => (recurrence.cell.row(), "recurrent_forward"),
        Pass::Backward => (recurrence.cell.backward_row(), "recurrent_backward"),
    };
    let variant = Variant::new("recurrent/recurrent.c")
        .stored(recurrence.dtype)
        .define("THREADS", THREADS)
        .define("AT_ONCE", 1usize)
        .define("BITS", if size == 2 { "u16" } else { "u32" })
        .define("QUAD", word(4 * size))
        .define("CELL", row.name())
        .define("GATES", recurrence.cell.gates())
        .define("SIZE", hidden)
        .define("UNITS", plan.units)
        .define("TEAM_THREADS", plan.team)
        .define("SHARE", plan.share)
        .define("GIVEN", plan.given / 16)
        .flags([
            ("LSTM", recurrence.cell == Cell::Lstm),
            ("GRU", recurrence.cell == Cell::Gru),
            ("QUADS", hidden.is_multiple_of(4)),
            ("TF32", on_matrix_units.is_some() && is_tf32(gpu, recurrence.dtype)),
            ("REVERSED", recurrence.order == TimeOrder::Reverse),
            ("BACKWARD", pass == Pass::Backward),
        ])
        .flags(flags)
        .optional("CHUNK", on_matrix_units.is_none().then_some(plan.chunk))
        .optional("OWN_COLUMNS", on_matrix_units.is_none().then_some(plan.own))
        .loading(LOADERS[usize::from(on_matrix_units.is_some())])
        .calling(row);
    gpu.driver().fill(address, 0xff, elements * size)?;
    let [words, _] = gpu.partials.starts(&gpu.pool)?;
    let arguments = arguments.pointer(words).numbers([steps, batch, plan.slices, plan.lines]);
    let groups = (plan.slices * plan.lines).min(limits.units.max(1));
    let geometry = Geometry { given: plan.given, ..Geometry::new([groups, 1, 1], THREADS) };
    gpu.launch(variant, entry, geometry, &arguments)
}

impl FusedLaunch for RecurrentForward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let RecurrentInputs { a, w, bias, h, c } = self.inputs(call);
        let RecurrentOutputs { states, products, cells } = self.outputs(call);
        let flags = [("HAS_BIAS", bias.is_some()), ("HAS_STATE", h.is_some()), ("HAS_CELL", c.is_some())];
        let mut of = Operands::new(gpu, &self.0);
        let a = of.read(Some(a), 0)?;
        let inputs = [a, of.weight(w)?, of.read(bias, a)?, of.read(h, a)?, of.read(c, a)?];
        let to = of.write(Some(states), 0)?;
        let outputs = [to, of.write(cells, to)?, of.write(Some(products), 0)?];
        let arguments = Arguments::new().pointers(inputs).pointers(outputs);
        let shared = (to, states.layout.shape().numel() / of.hidden * of.units());
        launch(gpu, &of.recurrence, Pass::Forward, flags, shared, arguments)?;
        of.finish()
    }

    fn takes(dtype: DType, limits: &Limits) -> bool {
        takes(dtype, limits)
    }

    fn has_room(&self, _dtype: DType, limits: &Limits) -> bool {
        has_room(&self.0, limits)
    }
}

impl FusedLaunch for RecurrentBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let RecurrentBackwardInputs { a, u, states, cells, w, dy, dh, dc } = self.inputs(call);
        let RecurrentGradients { a: da, u: du, c: dc0, h: dh0 } = self.outputs(call);
        let flags = [
            ("HAS_DY", dy.is_some()),
            ("HAS_DH", dh.is_some()),
            ("HAS_DC", dc.is_some()),
            ("STATE_WANTED", dh0.is_some()),
        ];
        let mut of = Operands::new(gpu, &self.0);
        let a = of.read(Some(a), 0)?;
        let saved = [a, of.read(u, a)?, of.read(Some(states), 0)?, of.read(cells, a)?, of.weight(w)?];
        let given = [of.read(dy, a)?, of.read(dh, a)?, of.read(dc, a)?];
        let of_da = of.write(Some(da), 0)?;
        let of_du = of.write(du, of_da)?;
        let (of_dc, of_dh) = (of.write(dc0, of_da)?, of.write(dh0, of_da)?);
        let [_, batch, units] = of.recurrence.extents;
        // A GRU carries over the term of the state's gradient that needs no matrix product.
        let carried = du.map(|_| gpu.scratch(batch * units * size_of::<f32>())).transpose()?;
        let carried = carried.as_ref().map_or(of_dc, |carried| carried.address);
        let arguments = Arguments::new().pointers(saved).pointers(given).pointers([of_da, of_du, of_dh, carried]);
        let shared = (of_du, du.unwrap_or(da).layout.shape().numel() / of.hidden * units);
        launch(gpu, &of.recurrence, Pass::Backward, flags, shared, arguments)?;
        of.finish()
    }

    fn takes(dtype: DType, limits: &Limits) -> bool {
        takes(dtype, limits)
    }

    fn has_room(&self, _dtype: DType, limits: &Limits) -> bool {
        has_room(&self.0, limits)
    }
}

/// An LSTM of four steps.
fn lstm(device: &Device, dtype: DType) -> Result<()> {
    differentiate(device, dtype, &[&[4, 64, 8], &[256, 8], &[256, 64], &[64, 64], &[64, 64]], |x| {
        let weights = RecurrentWeights::new(&x[1], &x[2]);
        Ok(x[0].lstm(Some(&x[3]), Some(&x[4]), weights, &RecurrentSteps::default())?.0)
    })
}

/// Calls that together launch every kernel of the family: steps, rows, and hidden units that have whole words, or not.
const EXAMPLES: &[Example] = &[
    lstm,
    |d, t| in_tf32(d, || lstm(d, t)),
    |d, t| {
        differentiate(d, t, &[&[4, 64, 8], &[192, 8], &[192, 64], &[192], &[64, 64]], |x| {
            let weights = RecurrentWeights { hidden_bias: Some(&x[3]), ..RecurrentWeights::new(&x[1], &x[2]) };
            let steps = RecurrentSteps { order: TimeOrder::Reverse, lengths: None };
            Ok(x[0].gru(Some(&x[4]), weights, &steps)?.0)
        })
    },
    |d, t| {
        differentiate(d, t, &[&[4, 3, 8], &[27, 8], &[27, 27]], |x| {
            let (weights, steps) = (RecurrentWeights::new(&x[1], &x[2]), RecurrentSteps::default());
            Ok(x[0].rnn(None, weights, Nonlinearity::Tanh, &steps)?.1)
        })
    },
];

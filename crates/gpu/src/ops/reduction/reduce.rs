//! Reductions and arg-reductions.
//!
//! Two kernels share the work. Where reduced elements lie side by side, a team of threads makes one result from a row;
//! where results do, neighbouring threads make neighbouring columns. If that leaves the device idle, the elements of each
//! result are cut into parts. Where groups see each other's writes during a launch, the last group of a row to begin joins
//! the results of the parts. Otherwise a further launch joins them, from scratch memory in the arithmetic's dtype. Cuts depend
//! on shapes and on the device alone, so every run adds in the same order.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Address, Geometry, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::group_size;
use crate::launch::layout::Joint;
use crate::launch::operands::{start_of, start_or};
use crate::launch::words::widest;
use crate::memory::last_group;
use crate::ops::elementwise::each::share_of;
use crate::ops::elementwise::group::Group;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::ops::reduction::reduce_prologue::{Found, Prologue};
use crate::program::source::{Variant, word};
use isograd_core::backend::Reduce;
use isograd_core::fused::Fused;
use isograd_core::operands::Input;
use isograd_core::ops::elementwise::pointwise_sum::PointwiseSum;
use isograd_core::ops::reduction::reduce::{LogSumExp, LogSumExpOutputs, Variance, VarianceOutputs};
use isograd_core::{Call, DType, Error, Kernel, Operand, Result};
use smallvec::{SmallVec, smallvec};
use std::iter;

/// The longest sum without a tree: threads take no more elements one after the other.
const TERMS: usize = 4000;
/// Bytes of a partial result of two numbers: (value, index) or (fraction, exponent).
const PAIR: usize = 16;
/// Bytes of a partial result of three numbers: (mean, M2, count).
const TRIPLE: usize = 24;
/// Most local memory of a group, so that several groups share a multiprocessor.
const LOCAL: usize = 16 << 10;
/// Most local memory of a group that adds up several sums.
const MOST_LOCAL: usize = 32 << 10;
/// Groups that keep a multiprocessor busy.
const BUSY_GROUPS: usize = 8;
/// Groups per multiprocessor of a long row: more than run together, so that faster multiprocessors take more of them.
const ROW_GROUPS: usize = 32;
/// Groups per multiprocessor of a long row where the last group joins the results of all others.
const JOINED_ROW_GROUPS: usize = 16;
/// Threads that keep a multiprocessor busy.
const BUSY_THREADS: usize = 1024;
/// The fewest lines of a part for each row of a group's threads.
const LINES: usize = 64;
/// The fewest lines of a part where parts of [`LINES`] would not fill the device.
const FEWEST_LINES: usize = 8;
/// Fewest columns of a group, in vectors: their memory is read in whole lines.
const FEWEST_COLUMNS: usize = 8;

/// The operation that joins the elements of one result, or the results of its parts.
#[derive(Clone, Copy)]
struct Fold {
    /// The flag of `reduce.c`.
    join: &'static str,
    is_squared: bool,
    /// Whether elements are scaled so that their sum is in range, as for a mean.
    is_shared: bool,
    finish: Option<&'static str>,
    /// Whether there is a second result.
    is_twofold: bool,
    /// Whether positions count.
    is_arg: bool,
    /// Whether partial products are fractions with exponents.
    is_scaled: bool,
    /// Bytes of a partial result that is more than a value.
    partial: Option<usize>,
    /// Whether the last NaN is the position, not the first.
    is_last_nan: bool,
}

impl Fold {
    fn plain(join: &'static str) -> Fold {
        Fold {
            join,
            is_squared: false,
            is_shared: false,
            finish: None,
            is_twofold: false,
            is_arg: false,
            is_scaled: false,
            partial: None,
            is_last_nan: false,
        }
    }

    /// The fold of `count` elements of a dtype, and the divisor of its mean, of their number or another.
    fn scaled(self, dtype: DType, count: f64, divisor: Option<f64>) -> (Fold, f64) {
        // A sum of f16 needs no scaling: the range of f32 has room for more elements than memory holds.
        let fold = Fold { is_shared: self.is_shared && dtype != DType::F16, ..self };
        let share = if fold.is_shared { share_of(count) } else { 1.0 };
        (fold, share * divisor.unwrap_or(count))
    }

    fn of(kernel: Kernel<'_>) -> Option<Fold> {
        let plain = Fold::plain;
        let arg = |join| Fold { is_arg: true, partial: Some(PAIR), ..plain(join) };
        Some(match kernel {
            Kernel::Reduce(Reduce::Sum) => plain("JOIN_SUM"),
            Kernel::Reduce(Reduce::Mean) => Fold { is_shared: true, finish: Some("FINISH_MEAN"), ..plain("JOIN_SUM") },
            Kernel::Reduce(Reduce::Norm) => {
                Fold { is_squared: true, finish: Some("FINISH_NORM"), ..plain("JOIN_SQUARES") }
            }
            Kernel::Reduce(Reduce::Prod) => plain("JOIN_PROD"),
            Kernel::Reduce(Reduce::Max) => plain("JOIN_MAX"),
            Kernel::Reduce(Reduce::Min) => plain("JOIN_MIN"),
            Kernel::ArgMax => arg("JOIN_ARGMAX"),
            Kernel::ArgMin => arg("JOIN_ARGMIN"),
            _ => return None,
        })
    }
}

/// A reduction of a view.
struct Task<'a> {
    op: &'static str,
    fold: Fold,
    acc: DType,
    /// Storage; none where elements or results are pairs.
    from: Option<DType>,
    to: Option<DType>,
    x: Address,
    y: Address,
    /// Where the second result goes, beside the first; y if there is none.
    second: Address,
    /// Strides in x and in y.
    kept: Joint,
    /// Strides in x.
    reduced: Joint,
    /// The divisor of a mean.
    divisor: f64,
    is_wide: bool,
    /// The pointwise function in front of it.
    prologue: Option<&'a Prologue>,
    /// Where the sums after the first go.
    others: SmallVec<[Address; 2]>,
    /// The order of the sums, if it is not this task's own.
    order: Option<Order>,
}

pub const FAMILY: Family = Family {
    launchers: &[Launcher::of::<LogSumExp>(), Launcher::of::<Variance>(), Launcher::of::<PointwiseSum>()],
    examples: EXAMPLES,
};

impl FusedLaunch for LogSumExp {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let fold = Fold { finish: Some("FINISH_LOG"), partial: Some(PAIR), ..Fold::plain("JOIN_POWERS") };
        let (Input { x }, LogSumExpOutputs { y, parts }) = (self.inputs(call), self.outputs(call));
        run_fold(gpu, call.op, fold, [x, y], parts, self.dims, None)
    }
}

impl FusedLaunch for Variance {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let fold = Fold { finish: Some("FINISH_MEAN"), partial: Some(TRIPLE), ..Fold::plain("JOIN_SPREAD") };
        let (Input { x }, VarianceOutputs { y, mean }) = (self.inputs(call), self.outputs(call));
        run_fold(gpu, call.op, fold, [x, y], Some(mean), self.dims, Some(self.divisor))
    }
}

impl FusedLaunch for PointwiseSum {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        pointwise_sum(gpu, call, self)
    }
}

/// Runs a primitive.
pub fn run(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    let input = &call.inputs[0];
    let refused = || Error::unsupported(call.op, format!("{} does not run on {}", call.kernel, input.dtype));
    let fold = Fold::of(call.kernel).ok_or_else(refused)?;
    if fold.finish.is_some() && !input.dtype.is_float() {
        return Err(refused());
    }
    let is_scaled = fold.join == "JOIN_PROD" && input.dtype.is_float();
    let fold = Fold { is_scaled, partial: if is_scaled { Some(PAIR) } else { fold.partial }, ..fold };
    let fold = Fold { is_last_nan: fold.is_arg && call.ints.get(1) == Some(&1), ..fold };
    run_fold(gpu, call.op, fold, [input, &call.outputs[0]], call.outputs.get(1), call.ints[0] as usize, None)
}

/// Folds the last `dims` dimensions of the input to the output, and to a second one; a mean divides by `divisor`, or else by the number of
/// elements.
fn run_fold(
    gpu: &Gpu,
    op: &'static str,
    fold: Fold,
    [input, output]: [&Operand<'_>; 2],
    second: Option<&Operand<'_>>,
    dims: usize,
    divisor: Option<f64>,
) -> Result<()> {
    let fold = match second.is_some() && !fold.is_arg {
        true => Fold { is_twofold: true, partial: fold.partial.or(Some(PAIR)), ..fold },
        false => fold,
    };
    let (input, output) = (found(input)?, found(output)?);
    let second = start_or(second, output.0)?;
    if output.2.shape().numel() == 0 {
        return Ok(());
    }
    reduce(gpu, fold_of(op, fold, [&input, &output], second, dims, divisor))
}

/// The fold of the last `dims` dimensions.
fn fold_of<'a>(
    op: &'static str,
    fold: Fold,
    [(x, dtype, of_x), (y, to, of_y)]: [&Found; 2],
    second: Address,
    dims: usize,
    divisor: Option<f64>,
) -> Task<'a> {
    let reduced = dims;
    let (dims, strides) = (of_x.shape().dims(), of_x.strides());
    let at = dims.len() - reduced;
    let kept = sorted(&dims[..at], &[&strides[..at], of_y.strides()]);
    let reduced = match fold.is_arg {
        // Positions are counted in the order that the dimensions have.
        true => Joint::of(&dims[at..], [&strides[at..]].into_iter()),
        false => sorted(&dims[at..], &[&strides[at..]]),
    };
    let (fold, divisor) = fold.scaled(*dtype, reduced.numel() as f64, divisor);
    Task {
        op,
        fold,
        acc: dtype.acc(),
        from: Some(*dtype),
        to: Some(*to),
        x: *x,
        y: *y,
        second,
        kept: kept.at_least_one(),
        reduced: reduced.at_least_one(),
        divisor,
        is_wide: false,
        prologue: None,
        others: SmallVec::new(),
        order: None,
    }
}

/// A pointwise row, one result of which is summed along the dimensions in which it has one element and the first input more.
fn pointwise_sum(gpu: &Gpu, call: &Call<'_>, sum: &PointwiseSum) -> Result<()> {
    let x = &call.inputs[0];
    let missing = || Error::backend(call.op, "no result of the row has fewer elements than its first input");
    let y = call.outputs.iter().find(|y| y.layout.shape() != x.layout.shape()).ok_or_else(missing)?;
    let prologue = Prologue::new(call, sum)?;
    reduce(gpu, sum_of(call.op, &prologue, x.dtype.acc(), &found(x)?, &found(y)?))
}

/// The steps of a group, some of which are sums in this order.
pub fn group(
    gpu: &Gpu,
    op: &'static str,
    group: &Group,
    order: Order,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
) -> Result<()> {
    let all = |operands: &[Operand<'_>]| operands.iter().map(found).collect::<Result<SmallVec<[_; 8]>>>();
    let (inputs, outputs) = (all(inputs)?, all(outputs)?);
    let missing = || Error::backend(op, "the operands of a sum are not as it reads them");
    let summed = group.reduced().ok_or_else(missing)?;
    let prologue = Prologue::of_group(group, &inputs, &outputs).ok_or_else(missing)?;
    let task = sum_of(op, &prologue, group.acc, &inputs[prologue.first()], &outputs[summed[0]]);
    let others = summed[1..].iter().map(|&m| outputs[m].0).collect();
    reduce(gpu, Task { others, order: Some(order), ..task })
}

fn found(operand: &Operand<'_>) -> Result<Found> {
    Ok((start_of(operand)?, operand.dtype, operand.layout.clone()))
}

/// The sum or mean of what a prologue makes, over the dimensions in which `y` has one element and `x` more.
fn sum_of<'a>(op: &'static str, prologue: &'a Prologue, acc: DType, x: &Found, y: &Found) -> Task<'a> {
    let (dims, summed) = (x.2.shape().dims(), y.2.shape().dims());
    let is_summed: SmallVec<[bool; 8]> = dims.iter().zip(summed).map(|(d, y)| d != y).collect();
    let of = |summed: bool, of: &[usize]| -> SmallVec<[usize; 8]> {
        of.iter().zip(&is_summed).filter(|(_, is)| **is == summed).map(|(v, _)| *v).collect()
    };
    let [from, to] = [x, y].map(|operand| operand.2.strides());
    let kept = Joint::of(&of(false, dims), [&of(false, from)[..], &of(false, to)[..]].into_iter());
    let reduced = Joint::of(&of(true, dims), [&of(true, from)[..]].into_iter());
    let (kind, dtype) = prologue.summed();
    let fold = Fold::of(Kernel::Reduce(kind)).unwrap_or_else(|| Fold::plain("JOIN_SUM"));
    let (fold, divisor) = fold.scaled(dtype, reduced.numel() as f64, None);
    Task {
        op,
        fold,
        acc,
        from: Some(x.1),
        to: Some(y.1),
        x: x.0,
        y: y.0,
        second: y.0,
        kept: kept.at_least_one(),
        reduced: reduced.at_least_one(),
        divisor,
        is_wide: false,
        prologue: Some(prologue),
        others: SmallVec::new(),
        order: None,
    }
}

/// The order in which a sum is added up. Two sums of equal orders have the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    is_columns: bool,
    vector: usize,
    threads: usize,
    team: usize,
    part: usize,
    parts: usize,
}

impl Order {
    fn of(limits: &Limits, task: &Task<'_>) -> Order {
        let Schedule { is_columns, vector, threads, team, part, parts, .. } = Schedule::new(limits, task);
        Order { is_columns, vector, threads, team, part, parts }
    }

    /// Whether the last group of a result joins the parts of so many sums.
    fn last_joins(&self, limits: &Limits, task: &Task<'_>, sums: usize) -> bool {
        let words = sums * task.partial_size().div_ceil(4);
        let is_one_team = !self.is_columns && self.parts > 1 && self.team == self.threads;
        is_one_team && limits.is_coherent && last_group::has_room(task.kept.numel(), self.parts, words)
    }
}

/// Whether sums of what a prologue makes can be added up in an order.
pub fn takes(limits: &Limits, prologue: &Prologue, acc: DType, x: &Found, ys: &[&Found], order: Order) -> bool {
    let task = sum_of("reduce", prologue, acc, x, ys[0]);
    let joins = |sums: usize| order.last_joins(limits, &task, sums);
    let room = if order.is_columns { order.threads / 2 * order.vector } else { order.threads };
    let steps = |y: &Found| -> SmallVec<[usize; 8]> {
        y.2.strides().iter().zip(y.2.shape().dims()).filter(|(_, d)| **d > 1).map(|(s, _)| *s).collect()
    };
    ys.iter().all(|y| y.1 == ys[0].1 && steps(y) == steps(ys[0]))
        && (order.vector == 1 || order.vector <= task.widest_vector(order.is_columns))
        && joins(1) == joins(ys.len())
        && room * ys.len() * acc.size() <= limits.local_memory.min(MOST_LOCAL)
}

/// The order of the sum of what a prologue makes.
pub fn order(limits: &Limits, prologue: &Prologue, acc: DType, x: &Found, y: &Found) -> Order {
    Order::of(limits, &sum_of("reduce", prologue, acc, x, y))
}

/// The order in which the last `dims` dimensions of `x` are reduced by a launch of its own.
pub fn order_alone(limits: &Limits, kind: Reduce, x: &Found, y: &Found, dims: usize) -> Option<Order> {
    let fold = Fold::of(Kernel::Reduce(kind))?;
    Some(Order::of(limits, &fold_of("reduce", fold, [x, y], y.0, dims, None)))
}

/// How threads add up a row: words of `vector` elements, `team` of them side by side, in groups of `threads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Team {
    pub vector: usize,
    pub team: usize,
    pub threads: usize,
}

/// How a launch of its own reduces `rows` rows of `count` elements side by side, if every row begins at a word. None if a row has several
/// parts, or ends within a word.
pub fn team(
    limits: &Limits,
    kind: Reduce,
    dtype: DType,
    prologue: Option<&Prologue>,
    [rows, count]: [usize; 2],
) -> Option<Team> {
    let task = Task {
        op: "reduce",
        fold: Fold::of(Kernel::Reduce(kind))?,
        acc: dtype.acc(),
        from: Some(dtype),
        to: Some(dtype),
        x: 0,
        y: 0,
        second: 0,
        kept: Joint::of(&[rows], [&[count][..], &[1]].into_iter()).at_least_one(),
        reduced: Joint::of(&[count], [&[1][..]].into_iter()).at_least_one(),
        divisor: 1.0,
        is_wide: false,
        prologue,
        others: SmallVec::new(),
        order: None,
    };
    let Schedule { is_columns, vector, threads, team, parts, .. } = Schedule::new(limits, &task);
    let is_one = !is_columns && parts == 1 && count.is_multiple_of(vector);
    is_one.then_some(Team { vector, team, threads })
}

/// Joint dimensions in descending order of the first operand's strides; repeated elements come first.
fn sorted(dims: &[usize], strides: &[&[usize]]) -> Joint {
    let mut order: SmallVec<[usize; 8]> = (0..dims.len()).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(strides[0][d].wrapping_sub(1)));
    let pick = |of: &[usize]| order.iter().map(|&d| of[d]).collect::<SmallVec<[usize; 8]>>();
    let strides: SmallVec<[SmallVec<[usize; 8]>; 2]> = strides.iter().map(|s| pick(s)).collect();
    Joint::of(&pick(dims), strides.iter().map(|s| &s[..]))
}

fn reduce(gpu: &Gpu, mut task: Task<'_>) -> Result<()> {
    let schedule = Schedule::new(gpu.driver().limits(), &task);
    task.is_wide |= task.needs_wide(&schedule);
    if schedule.parts == 1 || schedule.last_joins {
        return task.launch(gpu, &schedule);
    }
    let (rows, parts) = (task.kept.numel(), schedule.parts);
    let size = rows * parts * task.partial_size();
    let ys: SmallVec<[Address; 4]> = iter::once(task.y).chain(task.others.iter().copied()).collect();
    let scratch = gpu.scratch(ys.len() * size)?;
    let partials = |sum: usize| scratch.address + (sum * size) as Address;
    let partial = task.fold.partial.is_none().then_some(task.acc);
    let extents = task.kept.extents.clone();
    // Parts of a row lie side by side, and so do columns of a part.
    let (unit, step) = if schedule.is_columns { (1, rows) } else { (parts, 1) };
    let mut strides: SmallVec<[usize; 8]> = smallvec![unit; extents.len()];
    (1..extents.len()).rev().for_each(|d| strides[d - 1] = strides[d] * extents[d]);
    let second = |sum: usize| Task {
        from: partial,
        x: partials(sum),
        y: ys[sum],
        second: if sum == 0 { task.second } else { ys[sum] },
        others: SmallVec::new(),
        order: None,
        kept: Joint::of(&extents, [&strides[..], &task.kept.strides[1]].into_iter()).at_least_one(),
        reduced: Joint::of(&[parts], [&[step][..]].into_iter()).at_least_one(),
        fold: Fold { is_squared: false, is_shared: false, ..task.fold },
        prologue: None,
        ..task
    };
    let seconds: SmallVec<[Task<'_>; 1]> = (0..ys.len()).map(second).collect();
    let first = Task {
        to: partial,
        y: partials(0),
        others: (1..ys.len()).map(partials).collect(),
        kept: Joint { extents: extents.clone(), strides: smallvec![task.kept.strides[0].clone(), strides.clone()] },
        fold: Fold { finish: None, ..task.fold },
        reduced: task.reduced.clone(),
        ..task
    };
    first.launch(gpu, &schedule)?;
    seconds.into_iter().try_for_each(|second| reduce(gpu, second))
}

/// How a task is spread over the device.
struct Schedule {
    is_columns: bool,
    /// Elements that a thread reads at once, and such reads in flight together.
    vector: usize,
    unroll: usize,
    /// Groups of a multiprocessor, if the compiler must be told. Registers are shared among them so that all reads are in flight.
    at_once: Option<usize>,
    threads: usize,
    /// Threads for one row, or columns of a group in vectors.
    team: usize,
    /// Elements of a part, and how many parts there are.
    part: usize,
    parts: usize,
    /// Whether the last group of a result joins its parts, and whether threads read the remainder of a part at once.
    last_joins: bool,
    reads_rest: bool,
}

impl Schedule {
    fn new(limits: &Limits, task: &Task<'_>) -> Schedule {
        if let Some(order) = task.order {
            return Schedule::ordered(limits, task, order);
        }
        let inner = |joint: &Joint| joint.strides[0].last().map_or(0, |&s| s);
        let (kept, reduced) = (inner(&task.kept), inner(&task.reduced));
        let is_columns = task.reduced.numel() == 1 || (kept != 0 && (reduced == 0 || kept < reduced));
        if is_columns { Schedule::columns(limits, task) } else { Schedule::rows(limits, task) }
    }

    /// In an order that is given.
    fn ordered(limits: &Limits, task: &Task<'_>, order: Order) -> Schedule {
        let Order { is_columns, vector, threads, team, part, parts } = order;
        let last_joins = order.last_joins(limits, task, 1 + task.others.len());
        let (unroll, at_once) = match is_columns {
            true => (if vector > 1 { 4 } else { 8 }, None),
            false => task.reads(limits, vector, parts > 1),
        };
        Schedule { is_columns, vector, unroll, at_once, threads, team, part, parts, last_joins, reads_rest: false }
    }

    fn rows(limits: &Limits, task: &Task<'_>) -> Schedule {
        let (rows, count, threads) = (task.kept.numel(), task.reduced.numel(), group_size(limits));
        let vector = task.row_vector();
        let vectors = count.div_ceil(vector);
        // Joining within a wave is cheap, so that threads take few words each; beyond a wave they take more. Pairs cost more
        // to join, and pairs with positions cost more within a wave too.
        let short = (vectors / task.reads(limits, vector, false).0).min(limits.wave);
        let few = match task.fold {
            Fold { partial: None, .. } => short.max(vectors / 8),
            Fold { is_twofold: true, finish: None, .. } => vectors / 4,
            Fold { is_arg: true, .. } if task.size() == Some(2) && limits.is_coherent => short.max(vectors / 16),
            _ => vectors / 16,
        };
        let mut team = few.max(1).next_power_of_two().min(threads);
        while team < threads && team < vectors && rows * team < limits.units * BUSY_THREADS {
            team *= 2;
        }
        let least = threads * vector * if vector > 1 { 8 } else { 16 };
        let is_narrow = task.fold.partial.is_none() && task.size() == Some(2) && task.prologue.is_none();
        let groups = if is_narrow || limits.is_coherent { JOINED_ROW_GROUPS } else { ROW_GROUPS };
        let wanted = if team == threads { limits.units * groups / rows } else { 1 };
        let (part, parts) = cut(count, wanted, least, team * vector);
        let words = task.partial_size().div_ceil(4);
        let last_joins = parts > 1 && team == threads && limits.is_coherent && last_group::has_room(rows, parts, words);
        let (unroll, at_once) = task.reads(limits, vector, parts > 1);
        let is_deep = is_narrow && parts > 1 && part >= 16 * team * vector;
        let unroll = if is_deep { 8 } else { unroll };
        // For elements of 32 bits, the registers that this takes cost more than it gains.
        let reads_rest = last_joins && is_narrow;
        Schedule { is_columns: false, vector, unroll, at_once, threads, team, part, parts, last_joins, reads_rest }
    }

    fn columns(limits: &Limits, task: &Task<'_>) -> Schedule {
        let (count, threads) = (task.reduced.numel(), group_size(limits));
        let vector = task.column_vector(limits);
        let columns = task.kept.numel() / vector;
        // Few lines need few threads side by side, few columns need few lines.
        let most = (threads / 32).max(1);
        let height = ((count / 8).max(1).next_power_of_two()).min(most);
        let mut team = (threads / height).min(columns.next_power_of_two());
        let is_deep = |team: usize| threads / team * 16 <= count;
        while team > FEWEST_COLUMNS && columns.div_ceil(team) < limits.units && is_deep(team) {
            team /= 2;
        }
        let height = threads / team;
        let groups = columns.div_ceil(team);
        let wanted = limits.units * BUSY_GROUPS / groups;
        let (part, parts) = cut(count, wanted, height * LINES, height);
        // A device that is not filled has more from short parts than the launch costs that joins them, if parts are long.
        let (part, parts) = match groups * parts < limits.units && part >= height * LINES / 2 {
            true => cut(count, wanted.min((2 * limits.units).div_ceil(groups)), height * FEWEST_LINES, height),
            false => (part, parts),
        };
        let unroll = if vector > 1 { 4 } else { 8 };
        Schedule {
            is_columns: true,
            vector,
            unroll,
            at_once: None,
            threads,
            team,
            part,
            parts,
            last_joins: false,
            reads_rest: false,
        }
    }

    fn geometry(&self, task: &Task<'_>) -> Geometry {
        let x = match self.is_columns {
            true => (task.kept.numel() / self.vector).div_ceil(self.team),
            false => task.kept.numel().div_ceil(self.threads / self.team),
        };
        Geometry::new([x, self.parts, 1], self.threads)
    }
}

/// The length and the number of parts of `count` elements: `wanted` parts, if each has `least` elements. Threads step
/// through a part by `stride` elements, [`TERMS`] times at most.
fn cut(count: usize, wanted: usize, least: usize, stride: usize) -> (usize, usize) {
    let parts = wanted.min(count / least).max(count.div_ceil(stride * TERMS)).max(1);
    let part = count.div_ceil(parts).next_multiple_of(stride).max(1);
    (part, count.div_ceil(part).max(1))
}

impl Task<'_> {
    /// Reads of a row that a thread has in flight together, and of how many groups, so that a multiprocessor's registers
    /// suffice for them. A compiler that is not told uses fewer registers, for more groups, and waits in between: measured
    /// with CUDA's.
    fn reads(&self, limits: &Limits, vector: usize, is_cut: bool) -> (usize, Option<usize>) {
        let is_sum = matches!(self.fold.join, "JOIN_SUM" | "JOIN_PROD" | "JOIN_SQUARES");
        let dtype = self.from.filter(|_| limits.is_coherent && self.prologue.is_none());
        match (vector > 1, self.fold, dtype) {
            (false, ..) => (8, None),
            (_, Fold { is_arg: true, .. }, Some(DType::F16 | DType::BF16)) => (4, Some(5)),
            (_, Fold { is_arg: true, .. }, _) => (2, None),
            (_, Fold { partial: None, .. }, Some(DType::F16 | DType::BF16)) => match (is_cut, is_sum) {
                (true, _) => (8, Some(3)),
                (false, true) => (4, Some(6)),
                (false, false) => (4, None),
            },
            (_, Fold { partial: None, .. }, Some(DType::F32)) if is_cut => (8, Some(4)),
            _ => (4, None),
        }
    }

    /// Bytes of a partial result, or a little fewer in memory.
    fn partial_size(&self) -> usize {
        self.fold.partial.unwrap_or(self.acc.size())
    }

    /// The size of the largest elements that are read; none for pairs.
    fn size(&self) -> Option<usize> {
        self.from.map(|dtype| self.prologue.map_or(dtype.size(), Prologue::size))
    }

    /// The operands that are read or written in words, with the sizes of their elements.
    fn moved(&self, size: usize) -> SmallVec<[(Address, usize); 4]> {
        self.prologue.map_or(smallvec![(self.x, size)], Prologue::moved)
    }

    /// 16 bytes side by side; a single reduced dimension may begin and end anywhere.
    fn row_vector(&self) -> usize {
        let Some(size) = self.size() else { return 1 };
        let (count, inner) = (self.reduced.numel(), self.reduced.strides[0].last());
        if inner != Some(&1) || count < 4 {
            return 1;
        }
        let most = (16 / size).min(1 << (count / 2).ilog2());
        let outer = self.reduced.rank() - 1;
        if outer == 0 && self.prologue.is_none() {
            return most;
        }
        self.widest_vector(false).min(most)
    }

    /// Elements side by side in words of 16 bytes, where all operands lie in such words.
    fn widest_vector(&self, is_columns: bool) -> usize {
        let (Some(size), joint) = (self.size(), if is_columns { &self.kept } else { &self.reduced }) else { return 1 };
        let outer = joint.rank() - 1;
        if joint.strides[0][outer] != 1 {
            return 1;
        }
        let others = if is_columns { &self.reduced } else { &self.kept };
        let steps = joint.strides[0][..outer].iter().chain(&others.strides[0]).chain([&joint.extents[outer]]);
        widest(16 / size, steps.copied(), self.moved(size))
    }

    /// As many columns side by side as lie in 16 bytes, or fewer.
    fn column_vector(&self, limits: &Limits) -> usize {
        let local = LOCAL.min(limits.local_memory / 2);
        let room = local / (group_size(limits) / 2 * self.partial_size()).max(1);
        if room < 2 { 1 } else { self.widest_vector(true).min(1 << room.ilog2()) }
    }

    /// Whether a position or a number needs more than 31 bits, with room for a step beyond.
    fn needs_wide(&self, schedule: &Schedule) -> bool {
        let end = |joint: &Joint, operand: usize| -> usize {
            joint.strides[operand].iter().zip(&joint.extents).map(|(s, d)| s * d).sum()
        };
        let numbers = [
            end(&self.kept, 0) + end(&self.reduced, 0),
            end(&self.kept, 1),
            self.kept.numel() * schedule.parts,
            self.reduced.numel(),
        ];
        numbers.into_iter().any(|n| n > 1 << 30)
    }

    fn variant(&self, schedule: &Schedule) -> Variant {
        let Fold { join, is_squared, is_shared, finish, is_twofold, is_scaled, is_last_nan, .. } = self.fold;
        Variant::new("reduction/reduce.c")
            .define("THREADS", schedule.threads)
            .define("KEPT", self.kept.rank())
            .define("REDUCED", self.reduced.rank())
            .define("VECTOR", schedule.vector)
            .define("UNROLL", schedule.unroll)
            .arithmetic(self.acc)
            .define(join, true)
            .optional("X", self.from)
            .optional("Y", self.to)
            .optional("WORD", self.from.filter(|_| schedule.vector > 1).map(|from| word(schedule.vector * from.size())))
            .optional("AT_ONCE", schedule.at_once)
            .optional("SCALED", is_scaled.then_some("i64"))
            .optional("SUMS", (!self.others.is_empty()).then_some(1 + self.others.len()))
            .flags([
                ("PARTIAL_X", self.from.is_none()),
                ("PARTIAL_Y", self.to.is_none()),
                ("ROWS", !schedule.is_columns),
                ("SQUARES", is_squared),
                ("EDGES", is_squared && self.from != Some(DType::F16)),
                ("SHARES", is_shared),
                ("TWOFOLD", is_twofold),
                ("LAST_NAN", is_last_nan),
                ("WIDE", self.is_wide),
                ("LAST_JOINS", schedule.last_joins),
                ("READS_REST", schedule.reads_rest),
                (finish.unwrap_or("FINISH"), finish.is_some()),
            ])
    }

    fn launch(&self, gpu: &Gpu, schedule: &Schedule) -> Result<()> {
        let (mut kept, rows) = (self.kept.clone(), self.kept.numel());
        let (mut results, step) = (rows, if schedule.is_columns { rows } else { !schedule.last_joins as usize });
        if schedule.is_columns {
            kept.extents[self.kept.rank() - 1] /= schedule.vector;
            results /= schedule.vector;
        }
        let reduced = self.reduced.named(&["REDUCED_EXTENT", "REDUCED_X"]);
        let integers = kept.named(&["KEPT_EXTENT", "KEPT_X", "KEPT_Y"]).and(&reduced);
        // Words are read at their own alignment: x begins at one, `shift` elements before the first.
        let size = self.from.map_or(1, DType::size);
        let shift = if self.from.is_some() && self.prologue.is_none() { self.x % 16 } else { 0 };
        let numbers = [results, self.reduced.numel(), schedule.part, step, shift as usize / size, schedule.team];
        let arguments =
            Arguments::new().pointers([self.x - shift, self.y, self.second]).pointers(self.others.iter().copied());
        let arguments = arguments.named(integers).numbers(numbers);
        let mut arguments = arguments.float(self.divisor, self.acc);
        if schedule.last_joins {
            arguments = arguments.pointers(gpu.partials.starts(&gpu.pool)?);
        }
        let entry = if schedule.is_columns { "reduce_columns" } else { "reduce_rows" };
        tracing::trace!(op = self.op, entry, parts = schedule.parts, team = schedule.team, "reduction");
        let (variant, geometry) = (self.variant(schedule), schedule.geometry(self).following());
        let Some(prologue) = self.prologue else { return gpu.launch(variant, entry, geometry, &arguments) };
        let text = || prologue.text(schedule.vector, schedule.is_columns);
        gpu.generated(prologue.variant(variant, &text), entry, &text, geometry, &prologue.arguments(arguments))
    }
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| zeros(d, t, &[4096, 1024])?.sum(-1).map(drop),
    |d, t| zeros(d, t, &[4096, 1024])?.amax(-1).map(drop),
    |d, t| zeros(d, t, &[4096, 1024])?.sum(0).map(drop),
    // Parts that the last group joins: of one number, of two, of three.
    |d, t| zeros(d, t, &[1 << 24])?.sum(..).map(drop),
    |d, t| zeros(d, t, &[1 << 24])?.amax(..).map(drop),
    |d, t| zeros(d, t, &[1 << 24])?.argmax(0).map(drop),
    |d, t| zeros(d, t, &[1 << 24])?.logsumexp(0).map(drop),
    |d, t| zeros(d, t, &[1 << 24])?.var(0, 1.0).map(drop),
    // Gradients that are summed where an operand broadcasts.
    |d, t| differentiate(d, t, &[&[4096, 1024], &[1024]], |x| x[0].mul(&x[1])),
    |d, t| differentiate(d, t, &[&[4096, 1024], &[4096, 1]], |x| x[0].lerp(&x[0].sin()?, &x[1])),
    |d, t| differentiate(d, t, &[&[4096, 1024], &[1024]], |x| x[0].lt(&x[0])?.where_cond(&x[0], &x[1])),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].amax(-1)),
    |d, t| zeros(d, t, &[4096, 1024])?.prod(-1).map(drop),
    // Partial results that are more than a value.
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].logsumexp(-1)),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].var(-1, 1.0)),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].var(0, 1.0)),
];

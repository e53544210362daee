//! Gather and scatter. A scatter sorts the rows of the index by where they point, so that sums have a fixed order.

use crate::driver::{Driver, Geometry};
use crate::elementwise::{bits, word};
use crate::launch::{Arguments, group_size, in_groups};
use crate::layout::Joint;
use crate::sort::{self, Sorted};
use crate::source::Variant;
use crate::status::{Check, Slot};
use crate::{Gpu, place};
use isograd_core::backend::{Scatter, index_error};
use isograd_core::{Call, DType, Layout, Operand, Result};
use smallvec::SmallVec;

/// An index of at most this extent along the indexed dimension is not sorted: each row looks at the others itself.
const FEW: usize = 32;
/// A sum is cut into parts of about half the root of its length, within these bounds.
const PARTS: [usize; 2] = [32, 512];

type Strides = SmallVec<[usize; 8]>;

/// An index and what it points into.
struct Places<'a> {
    index: &'a Operand<'a>,
    dim: usize,
    /// Dimensions of the index's rows: behind them it does not change.
    rank: usize,
    rows: usize,
    /// Strides in what it points into, 0 along the indexed dimension, whose stride and extent follow.
    target: Strides,
    along: usize,
    extent: usize,
    /// Strides in what is written, if there is any.
    source: Option<Strides>,
    /// Elements of a word: along the last dimension everything is counted in words.
    vector: usize,
    /// Words that lie at a row.
    width: usize,
    /// Threads of a group.
    threads: usize,
}

impl<'a> Places<'a> {
    /// `starts` are the addresses of what is read and written.
    fn new(
        index: &'a Operand<'a>,
        target: &Layout,
        source: Option<&Layout>,
        dim: usize,
        size: usize,
        starts: [u64; 2],
        threads: usize,
    ) -> Places<'a> {
        let (dims, steps) = (index.layout.shape().dims(), index.layout.strides());
        let still = (dim + 1..dims.len()).rev().take_while(|&d| steps[d] == 0 || dims[d] == 1).count();
        let rank = dims.len() - still;
        let mut strides = Strides::from_slice(target.strides());
        let along = std::mem::take(&mut strides[dim]);
        let mut places = Places {
            index,
            dim,
            rank,
            rows: dims[..rank].iter().product(),
            target: strides,
            along,
            extent: target.shape()[dim],
            source: source.map(|layout| Strides::from_slice(layout.strides())),
            vector: 1,
            width: dims[rank..].iter().product(),
            threads,
        };
        places.take_words(size, starts);
        places
    }

    /// Counts in the largest words of which everything at a row consists.
    fn take_words(&mut self, size: usize, starts: [u64; 2]) {
        let inner = self.inner();
        if inner.rank() != 1 || inner.strides.iter().any(|s| s[0] != 1) {
            return;
        }
        let dims = self.index.layout.shape().dims();
        // The steps between rows: a stride along a dimension of size 1 is none.
        let of_rows = |s: &Strides| (0..self.rank).filter(|&d| dims[d] != 1).map(|d| s[d]).collect::<Strides>();
        let mut steps: Strides = self.source.iter().chain([&self.target]).flat_map(of_rows).collect();
        steps.extend([self.along, self.width]);
        let fits = |&vector: &usize| {
            let bytes = (vector * size) as u64;
            steps.iter().all(|s| s % vector == 0) && starts.iter().all(|start| start % bytes == 0)
        };
        let Some(vector) = [16, 8, 4, 2].into_iter().map(|bytes| bytes / size).filter(|&v| v > 1).find(fits) else {
            return;
        };
        self.vector = vector;
        self.width /= vector;
        self.along /= vector;
        for strides in self.source.iter_mut().chain([&mut self.target]) {
            strides[..self.rank].iter_mut().for_each(|s| *s /= vector);
        }
    }

    /// The index's rows, and along them the strides of the index, the target and the source.
    fn outer(&self) -> Joint {
        let operands = [self.index.layout.strides(), &self.target[..]].into_iter().chain(self.source.as_deref());
        self.joint(operands.map(|s| &s[..self.rank]))
    }

    fn joint<'b>(&self, operands: impl Iterator<Item = &'b [usize]>) -> Joint {
        Joint::of(&self.index.layout.shape().dims()[..self.rank], operands).at_least_one()
    }

    /// What lies at a row, and the strides of the target and the source.
    fn inner(&self) -> Joint {
        let operands = [&self.target].into_iter().chain(&self.source).map(|s| &s[self.rank..]);
        let mut inner = Joint::of(&self.index.layout.shape().dims()[self.rank..], operands).at_least_one();
        if self.vector > 1 {
            inner.extents[0] = self.width;
        }
        inner
    }

    /// How a kernel is compiled for these rows, and the integers that it takes.
    fn variant(&self, outer: &Joint, is_wide: bool) -> (Variant, SmallVec<[i64; 32]>) {
        let inner = self.inner();
        let ints: SmallVec<[i64; 32]> = outer.ints().into_iter().chain(inner.ints()).collect();
        let variant = Variant::new("index.c")
            .define("THREADS", self.threads)
            .define("I", self.index.dtype.name())
            .define("ROWS", outer.rank())
            .define("INNER", inner.rank())
            .define("INTS", ints.len());
        (if is_wide { variant.define("WIDE", true) } else { variant }, ints)
    }

    fn each(&self, n: usize) -> Geometry {
        in_groups(n, self.threads)
    }

    /// The numbers that say which word an index points to.
    fn reach(&self) -> [usize; 3] {
        [self.width, self.along, self.extent]
    }

    /// Ends a call that has looked at the index.
    fn check<D: Driver>(&self, gpu: &Gpu<D>, op: &'static str, slot: Slot) -> Result<()> {
        gpu.checked(slot, |row| {
            let value = gpu.element(self.index, self.rank, row)?.as_i64(op)?;
            Ok(index_error(op, row as i64, value, self.extent))
        })
    }
}

/// The bits that stand for what a bad index would have read: NaN, or 0.
fn bad(dtype: DType) -> i64 {
    match dtype {
        DType::F64 => f64::NAN.to_bits() as i64,
        DType::F32 => f32::NAN.to_bits() as i64,
        DType::F16 => 0x7e00,
        DType::BF16 => 0x7fc0,
        _ => 0,
    }
}

/// Whether 32 bits cannot count what an operand spans.
fn is_wide(operands: &[&Operand<'_>]) -> bool {
    operands.iter().any(|o| sort::is_wide(o.layout.end().max(o.layout.shape().numel())))
}

pub fn gather<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>) -> Result<()> {
    let ([x, index], y) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    if y.layout.shape().numel() == 0 {
        return Ok(());
    }
    let (from, at, to, size) = (place::<D>(x)?, place::<D>(index)?, place::<D>(y)?, x.dtype.size());
    let threads = group_size(gpu.driver().limits());
    let places = Places::new(index, x.layout, None, call.ints[0] as usize, size, [from, to], threads);
    let (variant, ints) = places.variant(&places.outer(), is_wide(&[x, index, y]));
    let variant = variant.define("GATHER", true).define("WORD", word(places.vector * size));
    let n = places.rows * places.width;
    let arguments = Arguments::new().pointer(from).pointer(at).pointer(to).ints(&ints).int(n as i64);
    let arguments = places.reach().iter().fold(arguments, |list, &v| list.int(v as i64));
    let pattern = bad(x.dtype).to_le_bytes()[..size].repeat(places.vector);
    let slot = gpu.status(call.op, Check::Index(places.extent))?;
    let arguments = arguments.bytes(&pattern).pointer(slot.address);
    gpu.launch(variant, "gather", places.each(n), &arguments)?;
    places.check(gpu, call.op, slot)
}

pub fn scatter<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>, mode: Scatter) -> Result<()> {
    let ([index, source], y) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    let dims = index.layout.shape().dims();
    if index.layout.shape().numel() == 0 {
        return Ok(());
    }
    let (from, to, dim) = (place::<D>(source)?, place::<D>(y)?, call.ints[0] as usize);
    let threads = group_size(gpu.driver().limits());
    let places = Places::new(index, y.layout, Some(source.layout), dim, y.dtype.size(), [from, to], threads);
    let onto = Onto::Values;
    let scatter = Scattering { call, places, mode, onto, is_wide: is_wide(&[index, source, y]), from, to };
    if dims[dim] <= FEW { scatter.few(gpu) } else { scatter.sorted(gpu) }
}

/// Sums the rows of an embedding's gradient by index, onto a table of zeros.
pub fn table_gradient<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>) -> Result<()> {
    let ([index, dy], table) = ([&call.inputs[0], &call.inputs[1]], &call.outputs[0]);
    let (from, to, size) = (place::<D>(dy)?, place::<D>(table)?, table.dtype.size());
    let threads = group_size(gpu.driver().limits());
    let places = Places::new(index, table.layout, Some(dy.layout), 0, size, [from, to], threads);
    let onto = Onto::Zeros { padding: call.ints[0], is_mean: call.ints[1] != 0 };
    let is_wide = is_wide(&[index, dy, table]);
    Scattering { call, places, mode: Scatter::Add, onto, is_wide, from, to }.sorted(gpu)
}

/// What a scatter finds where it writes.
#[derive(Clone, Copy)]
enum Onto {
    /// Anything.
    Values,
    /// Zeros, which are not read: one index may be left out, and sums divided by their number of rows.
    Zeros { padding: i64, is_mean: bool },
}

/// A scatter under way.
struct Scattering<'a> {
    call: &'a Call<'a>,
    places: Places<'a>,
    mode: Scatter,
    onto: Onto,
    is_wide: bool,
    from: u64,
    to: u64,
}

impl Scattering<'_> {
    /// How words are read, added and written.
    fn variant(&self, outer: &Joint) -> (Variant, SmallVec<[i64; 32]>) {
        let (variant, ints) = self.places.variant(outer, self.is_wide);
        let dtype = self.call.outputs[0].dtype;
        let bytes = self.places.vector * dtype.size();
        let variant = variant.define("SCATTER", true).define("WORD", word(bytes)).define("VECTOR", self.places.vector);
        let variant = match (self.mode, dtype.acc()) {
            (Scatter::Assign, _) => return (variant.define("T", bits(dtype)), ints),
            (Scatter::Add, DType::I64) => variant.define("ACC", "i64").define("INTEGER", true),
            (Scatter::Add, DType::F64) => variant.define("ACC", "f64").define("NEEDS_F64", true),
            (Scatter::Add, acc) => variant.define("ACC", acc.name()),
        };
        let variant = variant.define("T", dtype.name()).define("ADDING", true);
        let variant = match self.onto {
            Onto::Values => variant,
            Onto::Zeros { is_mean: false, .. } => variant.define("FRESH", true),
            Onto::Zeros { is_mean: true, .. } => variant.define("FRESH", true).define("MEAN", true),
        };
        (variant, ints)
    }

    fn few<D: Driver>(&self, gpu: &Gpu<D>) -> Result<()> {
        let Places { index, dim, rank, .. } = self.places;
        let (variant, ints) = self.variant(&self.places.outer());
        let dims = index.layout.shape().dims();
        let apart: usize = dims[dim + 1..rank].iter().product();
        let source_step = self.places.source.as_ref().map_or(0, |s| s[dim]);
        let n = self.places.rows * self.places.width;
        let arguments = Arguments::new().pointer(place::<D>(index)?).pointer(self.from).pointer(self.to);
        let steps = [dims[dim], apart, index.layout.strides()[dim], source_step];
        let numbers = [n].into_iter().chain(self.places.reach()).chain(steps);
        let arguments = numbers.fold(arguments.ints(&ints), |list, v| list.int(v as i64));
        let slot = gpu.status(self.call.op, Check::Index(self.places.extent))?;
        let arguments = arguments.pointer(slot.address);
        gpu.launch(variant.define("FEW", true), "few", self.places.each(n), &arguments)?;
        self.places.check(gpu, self.call.op, slot)
    }

    fn sorted<D: Driver>(&self, gpu: &Gpu<D>) -> Result<()> {
        let Places { rows, width, .. } = self.places;
        let key = if self.is_wide { "u64" } else { "u32" };
        let Sorted { keys, order } = self.sort(gpu, key)?;
        let source = self.places.source.as_deref().unwrap_or_default();
        let (variant, ints) = self.variant(&self.places.joint([&source[..self.places.rank]].into_iter()));
        let variant = variant.define("K", key);
        if self.mode == Scatter::Assign {
            let arguments = [keys.address, order.address, self.from, self.to].into_iter();
            let arguments = arguments.fold(Arguments::new(), Arguments::pointer).ints(&ints);
            return gpu.launch(
                variant,
                "assign",
                self.places.each(rows * width),
                &arguments.int(rows as i64).int(width as i64),
            );
        }
        let part = (rows.isqrt().next_power_of_two() / 2).clamp(PARTS[0], PARTS[1]);
        let n = rows.div_ceil(part) * width;
        let bytes = n * self.places.vector * self.call.outputs[0].dtype.acc().size();
        let (heads, tails) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
        let launch = |variant, entry, pointers: &[u64]| {
            let arguments = pointers.iter().copied().fold(Arguments::new(), Arguments::pointer).ints(&ints);
            let arguments = [rows, width, part].into_iter().fold(arguments, |list, v| list.int(v as i64));
            gpu.launch(variant, entry, self.places.each(n), &arguments)
        };
        let pointers = [keys.address, order.address, self.from, self.to, heads.address, tails.address];
        launch(variant.clone(), "sums", &pointers)?;
        if rows <= part {
            return Ok(());
        }
        launch(variant, "joins", &[keys.address, self.to, heads.address, tails.address])
    }

    /// Where rows point, in order. Only those that differ in the indexed dimension or behind it can meet: only they are
    /// sorted together.
    fn sort<D: Driver>(&self, gpu: &Gpu<D>, key: &'static str) -> Result<Sorted<D>> {
        let Places { index, dim, rows, .. } = self.places;
        let operands = [index.layout.strides(), &self.places.target[..]];
        let outer = self.places.joint(operands.into_iter().map(|s| &s[..self.places.rank]));
        let (variant, ints) = self.places.variant(&outer, self.is_wide);
        let keys = gpu.scratch(rows * if self.is_wide { 8 } else { 4 })?;
        let arguments = Arguments::new().pointer(place::<D>(index)?).pointer(keys.address).ints(&ints);
        let [_, along, extent] = self.places.reach();
        let arguments = [rows, along, extent].into_iter().fold(arguments, |list, v| list.int(v as i64));
        // No index is negative.
        let arguments = arguments.int(if let Onto::Zeros { padding, .. } = self.onto { padding } else { -1 });
        let slot = gpu.status(self.call.op, Check::Index(extent))?;
        let arguments = arguments.pointer(slot.address);
        gpu.launch(variant.define("K", key).define("KEYS", true), "keys", self.places.each(rows), &arguments)?;
        self.places.check(gpu, self.call.op, slot)?;
        let lists: usize = index.layout.shape().dims()[..dim].iter().product();
        sort::Plan::new(gpu.driver().limits(), [lists, rows / lists], key, self.is_wide).sort(gpu, keys.address)
    }
}

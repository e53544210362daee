//! Pointwise functions: each is compiled once for f32, f64 and i64, over blocks that fit the first cache.

use crate::access::{Acc, BLOCK, PARALLEL, Source, Strided, Target, View, in_vectors, load, store, with_scratch};
use isograd_core::backend::value_error;
use isograd_core::ops::elementwise::each::Each;
use isograd_core::ops::elementwise::fused_pointwise::Blocks;
use isograd_core::pointwise::{Pointwise, Row, Visitor};
use isograd_core::{Call, DType, Error, Kernel, Layout, Operand, Result, Shape, host};
use rayon::prelude::*;
use smallvec::SmallVec;
use std::marker::PhantomData;

pub fn run(call: &Call<'_>, function: Pointwise) -> Result<()> {
    let counts: SmallVec<[usize; 4]> = SmallVec::from_elem(1, call.outputs.len());
    compiled(call, function, call.floats, &counts)
}

/// A row whose results are side by side.
pub fn blocks(call: &Call<'_>, descriptor: &Blocks) -> Result<()> {
    compiled(call, descriptor.row, descriptor.attributes, descriptor.counts)
}

/// A row over many sets of tensors, which threads share.
pub fn each(call: &Call<'_>, descriptor: &Each) -> Result<()> {
    let written = descriptor.row.outputs();
    let sets = call.outputs.len() / written;
    let (own, shared) = call.inputs.split_at(call.inputs.len() - descriptor.shared);
    let read = own.len() / sets;
    let one = |set: usize| {
        let targets = &call.outputs[set * written..][..written];
        let (tensors, numbers) = own[set * read..][..read].split_at(read - descriptor.numbers);
        let flat = Shape::from(targets[0].layout.shape().numel());
        // Operands of a set have the same order in memory; numbers have one element.
        let dense = |operand: &Operand<'_>| Layout::contiguous(flat.clone()).shift(operand.layout.offset());
        let repeated =
            |operand: &Operand<'_>| Layout::contiguous(Shape::from(1)).shift(operand.layout.offset()).expand(&flat);
        let layouts = targets.iter().chain(tensors).map(dense).chain(numbers.iter().chain(shared).map(repeated));
        let layouts: SmallVec<[Layout; 12]> = layouts.collect();
        let all = targets.iter().chain(tensors).chain(numbers).chain(shared).zip(&layouts);
        let all: SmallVec<[Operand<'_>; 12]> = all.map(|(operand, layout)| Operand { layout, ..*operand }).collect();
        let (outputs, inputs) = all.split_at(written);
        let kernel = Kernel::Pointwise(descriptor.row);
        run(&Call { kernel, inputs, outputs, ints: &[], floats: &descriptor.attributes, ..*call }, descriptor.row)
    };
    let elements: usize = call.outputs.iter().map(|y| y.layout.shape().numel()).sum();
    match elements < PARALLEL {
        true => (0..sets).try_for_each(one),
        false => (0..sets).into_par_iter().try_for_each(one),
    }
}

/// Output k has `counts[k]` results, in blocks of the extent of the inputs' last dimension.
fn compiled(call: &Call<'_>, function: Pointwise, floats: &[f64], counts: &[usize]) -> Result<()> {
    let dtypes = || call.inputs.iter().chain(call.outputs).map(|o| o.dtype);
    let unsupported =
        || Error::unsupported(call.op, format!("`{}` does not run on {}", function.name(), call.outputs[0].dtype));
    if dtypes().any(|d| d == DType::F64) {
        let functions = function.visit_real::<f64, _>(Compiled::<f64>(PhantomData)).ok_or_else(unsupported)?;
        evaluate(call, function, functions, floats, counts)
    } else if dtypes().any(DType::is_float) {
        let attributes: SmallVec<[f32; 4]> = floats.iter().map(|&v| v as f32).collect();
        let functions = function.visit_real::<f32, _>(Compiled::<f32>(PhantomData)).ok_or_else(unsupported)?;
        evaluate(call, function, functions, &attributes, counts)
    } else {
        let functions = function.visit_integer(Compiled::<i64>(PhantomData)).ok_or_else(unsupported)?;
        evaluate(call, function, functions, call.ints, counts)
    }
}

/// Elements that are evaluated together.
const LANES: usize = 64;

/// A function of inputs and attributes that writes outputs.
pub type Eval<A> = fn(&[&[A]], &[A], &mut [&mut [A]]);

/// The function of a row of floats in f32.
pub fn real_f32(row: Pointwise) -> Option<Eval<f32>> {
    row.visit_real::<f32, _>(Compiled::<f32>(PhantomData)).map(|functions| functions.eval)
}

/// The function of a row of floats in f64.
pub fn real_f64(row: Pointwise) -> Option<Eval<f64>> {
    row.visit_real::<f64, _>(Compiled::<f64>(PhantomData)).map(|functions| functions.eval)
}

/// A pointwise function over slices of the same length. Only these two are compiled for every function. The other code is compiled
/// once for each arithmetic type.
struct Functions<A> {
    /// The number of inputs, including the outputs of an `inout` function.
    inputs: usize,
    eval: Eval<A>,
    /// The first element that fails the function's check.
    refused: fn(&[&[A]], &[A]) -> Option<usize>,
}

struct Compiled<A>(PhantomData<A>);

impl<A: Acc> Visitor<A::Number, bool> for Compiled<A> {
    type Output = Functions<A>;

    fn visit<R: Row<A::Number, bool, N, K, M>, const N: usize, const K: usize, const M: usize>(self) -> Functions<A> {
        Functions { inputs: N, eval: eval::<A, R, N, K, M>, refused: refused::<A, R, N, K, M> }
    }
}

/// An input, as the blocks read it.
struct Input<'a> {
    view: View<'a>,
    layout: Strided,
    /// The start of the elements, if they are adjacent and in the arithmetic's type.
    direct: Option<usize>,
    /// All elements are the same element.
    is_scalar: bool,
}

impl<'a> Input<'a> {
    fn new<A: Acc>(source: &'a Source<'_>) -> Input<'a> {
        let layout = Strided::new(source.layout);
        let contiguous = source.dtype == A::DTYPE && layout.is_contiguous();
        let direct = contiguous.then_some(layout.offset);
        Input { view: source.view(), layout, direct, is_scalar: layout.is_scalar() && direct.is_none() }
    }
}

fn evaluate<A: Acc>(
    call: &Call<'_>,
    function: Pointwise,
    functions: Functions<A>,
    attributes: &[A],
    counts: &[usize],
) -> Result<()> {
    let sources: SmallVec<[Source<'_>; 4]> = call.inputs.iter().map(Source::new).collect::<Result<_>>()?;
    let mut targets: SmallVec<[Target<'_>; 4]> = call.outputs.iter().map(Target::new).collect::<Result<_>>()?;
    let inputs: SmallVec<[Input<'_>; 4]> = sources.iter().map(Input::new::<A>).collect();
    let dtypes = targets.iter().zip(counts).flat_map(|(t, &count)| std::iter::repeat_n(t.dtype, count));
    let dtypes: SmallVec<[DType; 8]> = dtypes.collect();
    let numel = call.outputs[0].layout.shape().numel() / counts[0];
    if numel == 0 {
        return Ok(());
    }
    let read = if function.is_inout() { targets.len() } else { 0 };
    let work = Work { op: call.op, inputs: &inputs, read, dtypes: &dtypes, attributes, functions };
    // Results side by side are a chunk for each row.
    let is_apart = counts.iter().all(|&count| count == 1);
    let alone = 2 * PARALLEL / (inputs.len() + dtypes.len());
    if is_apart && numel < alone {
        let mut bytes: SmallVec<[&mut [u8]; 8]> = targets.iter_mut().map(Target::elements).collect();
        return work.chunk(0, numel, &mut bytes);
    }
    let width = call.inputs.first().and_then(|x| x.layout.shape().dims().last().copied());
    let most = (alone / 4).next_multiple_of(BLOCK);
    let chunk = if is_apart { most } else { width.unwrap_or(1) };
    let mut chunks: Vec<SmallVec<[&mut [u8]; 8]>> = host::with_room(call.op, numel.div_ceil(chunk))?;
    chunks.resize_with(numel.div_ceil(chunk), SmallVec::new);
    for (target, count) in targets.iter_mut().zip(counts) {
        let size = chunk * target.dtype.size();
        let rows = target.elements().chunks_mut(count * size);
        chunks.iter_mut().zip(rows).for_each(|(all, row)| all.extend(row.chunks_mut(size)));
    }
    let run = |(i, bytes): (usize, &mut SmallVec<[&mut [u8]; 8]>)| {
        let start = i * chunk;
        work.chunk(start, chunk.min(numel - start), bytes)
    };
    // All chunks run, so that the error is that of the first failing element for any number of threads.
    let failures = chunks.par_iter_mut().with_min_len((most / chunk).max(1)).enumerate();
    let failures = failures.filter_map(|(i, bytes)| Some((i, run((i, bytes)).err()?)));
    failures.min_by_key(|(i, _)| *i).map_or(Ok(()), |(_, error)| Err(error))
}

/// One call.
struct Work<'a, A: Acc> {
    op: &'static str,
    inputs: &'a [Input<'a>],
    /// The number of inputs that are outputs too.
    read: usize,
    dtypes: &'a [DType],
    attributes: &'a [A],
    functions: Functions<A>,
}

impl<A: Acc> Work<'_, A> {
    /// Elements `start .. start + len`, whose output bytes are `bytes`.
    fn chunk(&self, start: usize, len: usize, bytes: &mut [&mut [u8]]) -> Result<()> {
        let (block, inputs) = (BLOCK.min(len), self.functions.inputs);
        with_scratch((inputs + self.dtypes.len()) * block, |scratch: &mut [A]| {
            let (input_scratch, output_scratch) = scratch.split_at_mut(inputs * block);
            for (k, input) in self.inputs.iter().enumerate().filter(|(_, input)| input.is_scalar) {
                load(input.view, &input.layout, 0, &mut input_scratch[(self.read + k) * block..][..1]);
                let value = input_scratch[(self.read + k) * block];
                input_scratch[(self.read + k) * block..][..block].fill(value);
            }
            for at in (0..len).step_by(block) {
                let n = block.min(len - at);
                self.gather(start + at, at, n, block, bytes, input_scratch);
                self.block(start + at, at, n, block, bytes, input_scratch, output_scratch)?;
            }
            Ok(())
        })
    }

    /// Loads inputs that are not read directly into the scratch buffer.
    fn gather(&self, start: usize, at: usize, n: usize, block: usize, bytes: &[&mut [u8]], scratch: &mut [A]) {
        for k in 0..self.read {
            let view = View { bytes: bytes[k], dtype: self.dtypes[k] };
            load(view, &Strided::line(at, n), 0, &mut scratch[k * block..][..n]);
        }
        for (k, input) in self.inputs.iter().enumerate() {
            if input.direct.is_none() && !input.is_scalar {
                load(input.view, &input.layout, start, &mut scratch[(self.read + k) * block..][..n]);
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn block(
        &self,
        start: usize,
        at: usize,
        n: usize,
        block: usize,
        bytes: &mut [&mut [u8]],
        input_scratch: &[A],
        output_scratch: &mut [A],
    ) -> Result<()> {
        let input = |i: usize| match i.checked_sub(self.read).and_then(|k| self.inputs[k].direct) {
            Some(offset) => &bytemuck::cast_slice(self.inputs[i - self.read].view.bytes)[offset + start..][..n],
            _ => &input_scratch[i * block..][..n],
        };
        let x: SmallVec<[&[A]; 8]> = (0..self.functions.inputs).map(input).collect();
        if let Some(i) = (self.functions.refused)(&x, self.attributes) {
            let values: Vec<String> = x.iter().map(|x| format!("{:?}", x[i])).collect();
            return Err(value_error(self.op, start + i, &values.join(", ")));
        }
        let outputs = bytes.iter_mut().zip(self.dtypes).zip(output_scratch.chunks_mut(block));
        let mut y: SmallVec<[&mut [A]; 8]> = outputs
            .map(|((bytes, &dtype), scratch)| match dtype == A::DTYPE {
                true => &mut bytemuck::cast_slice_mut(bytes)[at..][..n],
                false => &mut scratch[..n],
            })
            .collect();
        (self.functions.eval)(&x, self.attributes, &mut y);
        drop(y);
        for ((bytes, &dtype), scratch) in bytes.iter_mut().zip(self.dtypes).zip(output_scratch.chunks(block)) {
            if dtype != A::DTYPE {
                store(&scratch[..n], dtype, &mut bytes[at * dtype.size()..][..n * dtype.size()]);
            }
        }
        Ok(())
    }
}

/// The first element that fails a function's check.
fn refused<A: Acc, R: Row<A::Number, bool, N, K, M>, const N: usize, const K: usize, const M: usize>(
    x: &[&[A]],
    attributes: &[A],
) -> Option<usize> {
    let attributes = std::array::from_fn(|i| attributes[i].number());
    let check = |i: usize| R::check(std::array::from_fn(|k| x[k][i].number()), attributes);
    // A function without a check accepts any element.
    check(0)?;
    (0..x[0].len()).find(|&i| check(i) == Some(false))
}

/// Evaluates a function, in f32 with the widest vectors of the processor. The bits are the same with any.
fn eval<A: Acc, R: Row<A::Number, bool, N, K, M>, const N: usize, const K: usize, const M: usize>(
    x: &[&[A]],
    attributes: &[A],
    y: &mut [&mut [A]],
) {
    // Functions of other types are compiled once.
    if const { matches!(A::DTYPE, DType::F32) } {
        return in_vectors(
            #[inline(always)]
            || eval_lanes::<A, R, N, K, M>(x, attributes, y),
        );
    }
    eval_lanes::<A, R, N, K, M>(x, attributes, y)
}

/// Evaluates a function for several elements at a time. The compiler vectorises arrays of a fixed length, if no closure that it does not inline
/// takes them through memory: there are loops alone. The last group is padded: a second loop for its elements would double the code.
#[inline(always)]
fn eval_lanes<A: Acc, R: Row<A::Number, bool, N, K, M>, const N: usize, const K: usize, const M: usize>(
    x: &[&[A]],
    attributes: &[A],
    y: &mut [&mut [A]],
) {
    let zero = A::from_i64(0);
    let mut numbers = [zero.number(); K];
    for k in 0..K {
        numbers[k] = attributes[k].number();
    }
    let len = x[0].len();
    let mut at = 0;
    while at < len {
        let mut groups = [[zero; LANES]; N];
        for k in 0..N {
            groups[k] = group(&x[k][at..]);
        }
        let mut results = [[zero; LANES]; M];
        for i in 0..LANES {
            let mut elements = [zero.number(); N];
            for k in 0..N {
                elements[k] = groups[k][i].number();
            }
            let result = R::eval(elements, numbers);
            for k in 0..M {
                results[k][i] = A::back(result[k]);
            }
        }
        for k in 0..M {
            store_group(results[k], &mut y[k][at..]);
        }
        at += LANES;
    }
}

/// The first elements, and copies of the last one if there are too few.
#[inline(always)]
fn group<A: Copy>(elements: &[A]) -> [A; LANES] {
    match elements.first_chunk() {
        Some(group) => *group,
        None => {
            let mut group = [elements[elements.len() - 1]; LANES];
            group[..elements.len()].copy_from_slice(elements);
            group
        }
    }
}

/// Stores as many results as there is room for.
#[inline(always)]
fn store_group<A: Copy>(results: [A; LANES], elements: &mut [A]) {
    match elements.first_chunk_mut() {
        Some(group) => *group = results,
        None => elements.copy_from_slice(&results[..elements.len()]),
    }
}

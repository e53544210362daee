//! Rows of the pointwise table: every row compiled once for f32, f64 and i64, over blocks that fit the first cache.

use crate::access::{Acc, BLOCK, PARALLEL, Source, Strided, Target, View, load, store, with_scratch};
use isograd_core::backend::value_error;
use isograd_core::pointwise::{Pointwise, Row, Visitor};
use isograd_core::{Call, DType, Error, Result};
use rayon::prelude::*;
use smallvec::SmallVec;

pub fn run(call: &Call<'_>, row: Pointwise) -> Result<()> {
    let dtypes = || call.inputs.iter().chain(call.outputs).map(|o| o.dtype);
    let unsupported =
        || Error::unsupported(call.op, format!("`{}` does not run on {}", row.name(), call.outputs[0].dtype));
    if dtypes().any(|d| d == DType::F64) {
        let attributes = call.floats;
        row.visit_real::<f64, _>(Run::<f64> { call, row, attributes }).ok_or_else(unsupported)?
    } else if dtypes().any(DType::is_float) {
        let attributes: SmallVec<[f32; 4]> = call.floats.iter().map(|&v| v as f32).collect();
        row.visit_real::<f32, _>(Run::<f32> { call, row, attributes: &attributes }).ok_or_else(unsupported)?
    } else {
        row.visit_integer(Run::<i64> { call, row, attributes: call.ints }).ok_or_else(unsupported)?
    }
}

/// Elements that are evaluated together.
const LANES: usize = 16;

/// One call, once its row is known as a type.
struct Run<'a, A> {
    call: &'a Call<'a>,
    row: Pointwise,
    attributes: &'a [A],
}

/// An input as the blocks read it.
struct Input<'a> {
    view: View<'a>,
    layout: Strided,
    /// Elements lie side by side in the arithmetic's own type, from here on.
    direct: Option<usize>,
    /// All elements are the same one.
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

impl<A: Acc> Visitor<A::Number, bool> for Run<'_, A> {
    type Output = Result<()>;

    fn visit<R: Row<A::Number, bool, N, K, M>, const N: usize, const K: usize, const M: usize>(self) -> Result<()> {
        let Run { call, row, attributes } = self;
        let sources: SmallVec<[Source<'_>; 4]> = call.inputs.iter().map(Source::new).collect::<Result<_>>()?;
        let mut targets: SmallVec<[Target<'_>; 4]> = call.outputs.iter().map(Target::new).collect::<Result<_>>()?;
        let inputs: SmallVec<[Input<'_>; 4]> = sources.iter().map(Input::new::<A>).collect();
        let dtypes: SmallVec<[DType; 4]> = targets.iter().map(|t| t.dtype).collect();
        let numel = call.outputs[0].layout.shape().numel();
        if numel == 0 {
            return Ok(());
        }
        let work = Work::<A, N, K, M> {
            op: call.op,
            inputs: &inputs,
            read: if row.is_inout() { M } else { 0 },
            dtypes: &dtypes,
            attributes: std::array::from_fn(|i| attributes[i].number()),
        };
        if numel < PARALLEL {
            let mut bytes: SmallVec<[&mut [u8]; 4]> = targets.iter_mut().map(Target::elements).collect();
            return work.chunk::<R>(0, numel, &mut bytes);
        }
        let chunk = 16 * BLOCK;
        let mut chunks: Vec<SmallVec<[&mut [u8]; 4]>> = Vec::new();
        chunks.resize_with(numel.div_ceil(chunk), SmallVec::new);
        for target in &mut targets {
            let size = target.dtype.size();
            chunks.iter_mut().zip(target.elements().chunks_mut(chunk * size)).for_each(|(all, one)| all.push(one));
        }
        let run = |(i, bytes): (usize, &mut SmallVec<[&mut [u8]; 4]>)| {
            let start = i * chunk;
            work.chunk::<R>(start, chunk.min(numel - start), bytes)
        };
        // All chunks run, so that the error is that of the first failing element on any number of threads.
        chunks.par_iter_mut().enumerate().map(run).collect::<Vec<_>>().into_iter().collect()
    }
}

struct Work<'a, A: Acc, const N: usize, const K: usize, const M: usize> {
    op: &'static str,
    inputs: &'a [Input<'a>],
    /// How many of the row's inputs are its outputs.
    read: usize,
    dtypes: &'a [DType],
    attributes: [A::Number; K],
}

impl<A: Acc, const N: usize, const K: usize, const M: usize> Work<'_, A, N, K, M> {
    /// Elements `start .. start + len`, whose output bytes are `bytes`.
    fn chunk<R: Row<A::Number, bool, N, K, M>>(&self, start: usize, len: usize, bytes: &mut [&mut [u8]]) -> Result<()> {
        let block = BLOCK.min(len);
        with_scratch((N + M) * block, |scratch: &mut [A]| {
            let (input_scratch, output_scratch) = scratch.split_at_mut(N * block);
            for (k, input) in self.inputs.iter().enumerate().filter(|(_, input)| input.is_scalar) {
                load(input.view, &input.layout, 0, &mut input_scratch[(self.read + k) * block..][..1]);
                let value = input_scratch[(self.read + k) * block];
                input_scratch[(self.read + k) * block..][..block].fill(value);
            }
            for at in (0..len).step_by(block) {
                let n = block.min(len - at);
                self.gather(start + at, at, n, block, bytes, input_scratch);
                self.block::<R>(start + at, at, n, block, bytes, input_scratch, output_scratch)?;
            }
            Ok(())
        })
    }

    /// Brings what is not read directly into the scratch buffer.
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
    fn block<R: Row<A::Number, bool, N, K, M>>(
        &self,
        start: usize,
        at: usize,
        n: usize,
        block: usize,
        bytes: &mut [&mut [u8]],
        input_scratch: &[A],
        output_scratch: &mut [A],
    ) -> Result<()> {
        let x: [&[A]; N] =
            std::array::from_fn(|i| match i.checked_sub(self.read).and_then(|k| self.inputs[k].direct) {
                Some(offset) => &bytemuck::cast_slice(self.inputs[i - self.read].view.bytes)[offset + start..][..n],
                _ => &input_scratch[i * block..][..n],
            });
        if R::check(std::array::from_fn(|i| x[i][0].number()), self.attributes).is_some() {
            self.check::<R>(start, &x)?;
        }
        let mut outputs = bytes.iter_mut().zip(self.dtypes).zip(output_scratch.chunks_mut(block));
        let y: [&mut [A]; M] = std::array::from_fn(|_| match outputs.next() {
            Some(((bytes, &dtype), _)) if dtype == A::DTYPE => &mut bytemuck::cast_slice_mut(bytes)[at..][..n],
            Some((_, scratch)) => &mut scratch[..n],
            None => &mut [],
        });
        eval::<A, R, N, K, M>(&x, self.attributes, y);
        for ((bytes, &dtype), scratch) in bytes.iter_mut().zip(self.dtypes).zip(output_scratch.chunks(block)) {
            if dtype != A::DTYPE {
                store(&scratch[..n], dtype, &mut bytes[at * dtype.size()..][..n * dtype.size()]);
            }
        }
        Ok(())
    }

    /// Finds the first element that the row does not accept.
    fn check<R: Row<A::Number, bool, N, K, M>>(&self, start: usize, x: &[&[A]; N]) -> Result<()> {
        let accepts = |i: usize| R::check(std::array::from_fn(|k| x[k][i].number()), self.attributes).unwrap_or(true);
        match (0..x[0].len()).find(|&i| !accepts(i)) {
            None => Ok(()),
            Some(i) => {
                let values: Vec<String> = x.iter().map(|x| format!("{:?}", x[i])).collect();
                Err(value_error(self.op, start + i, &values.join(", ")))
            }
        }
    }
}

/// Evaluates a row, several elements at a time: arrays of a fixed length are what the compiler turns into vectors.
#[inline(always)]
fn eval<A: Acc, R: Row<A::Number, bool, N, K, M>, const N: usize, const K: usize, const M: usize>(
    x: &[&[A]; N],
    attributes: [A::Number; K],
    mut y: [&mut [A]; M],
) {
    let groups = x.map(|x| x.as_chunks::<LANES>());
    let mut targets = y.each_mut().map(|y| y.as_chunks_mut::<LANES>());
    for group in 0..groups[0].0.len() {
        let x: [[A; LANES]; N] = std::array::from_fn(|k| groups[k].0[group]);
        let mut results = [[A::from_i64(0); LANES]; M];
        for i in 0..LANES {
            let result = R::eval(std::array::from_fn(|k| x[k][i].number()), attributes);
            results.iter_mut().zip(result).for_each(|(y, value)| y[i] = A::back(value));
        }
        targets.iter_mut().zip(results).for_each(|(y, result)| y.0[group] = result);
    }
    for i in 0..groups[0].1.len() {
        let result = R::eval(std::array::from_fn(|k| groups[k].1[i].number()), attributes);
        targets.iter_mut().zip(result).for_each(|(y, value)| y.1[i] = A::back(value));
    }
}

//! Gather and scatter.

use crate::access::{Acc, Source, Target, for_runs, load, store, with_acc, with_bits};
use bytemuck::Pod;
use isograd_core::backend::Scatter;
use isograd_core::{Call, DType, Error, Layout, Result};

/// An index tensor together with the tensor that it points into.
struct Places<'a> {
    op: &'static str,
    index: &'a Source<'a>,
    /// The layout of what is read from or written to at an index.
    layout: &'a Layout,
    dim: usize,
}

impl Places<'_> {
    /// Calls `f(number, position)` for every element of the index: where it points, as a position in the buffer.
    fn each(&self, mut f: impl FnMut(usize, usize)) -> Result<()> {
        let shape = self.index.layout.shape();
        let (row, last) = (shape[shape.rank() - 1], shape.rank() - 1);
        let extent = self.layout.shape()[self.dim];
        let (strides, along) = (self.layout.strides(), self.layout.strides()[self.dim]);
        // Without the indexed dimension, a number's position follows from where it stands in the index.
        let others = self.layout.narrow(self.dim, 0, 0, 1);
        let step = if self.dim == last { 0 } else { strides[last] };
        let mut indices = vec![0i64; row];
        for start in (0..shape.numel()).step_by(row.max(1)) {
            load(self.index.view(), self.index.layout, start, &mut indices);
            let mut base = others.offset();
            let mut rest = start / row.max(1);
            for d in (0..last).rev() {
                let at = rest % shape[d];
                rest /= shape[d];
                base += if d == self.dim { 0 } else { at * strides[d] };
            }
            for (j, &index) in indices.iter().enumerate() {
                if index < 0 || index as usize >= extent {
                    let message = format!("element {} of the index is {index}, expected 0..{extent}", start + j);
                    return Err(Error::index(self.op, message));
                }
                f(start + j, base + index as usize * along + j * step);
            }
        }
        Ok(())
    }
}

pub fn gather(call: &Call<'_>) -> Result<()> {
    let (x, index) = (Source::new(&call.inputs[0])?, Source::new(&call.inputs[1])?);
    let mut y = Target::new(&call.outputs[0])?;
    let places = Places { op: call.op, index: &index, layout: x.layout, dim: call.ints[0] as usize };
    with_bits!(x.dtype, gather_bits(&places, &x.bytes, y.elements()))
}

fn gather_bits<T: Pod>(places: &Places<'_>, x: &[u8], y: &mut [u8]) -> Result<()> {
    let (x, y): (&[T], &mut [T]) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y));
    places.each(|i, position| y[i] = x[position])
}

pub fn scatter(call: &Call<'_>, mode: Scatter) -> Result<()> {
    let (index, source) = (Source::new(&call.inputs[0])?, Source::new(&call.inputs[1])?);
    let mut y = Target::new(&call.outputs[0])?;
    let places = Places { op: call.op, index: &index, layout: call.outputs[0].layout, dim: call.ints[0] as usize };
    // All indices are looked at before anything is written.
    places.each(|_, _| {})?;
    match mode {
        Scatter::Assign => with_bits!(y.dtype, assign(&places, &source, &mut y)),
        Scatter::Add => with_acc!(y.dtype, add(&places, &source, &mut y)),
    }
}

fn assign<T: Pod>(places: &Places<'_>, source: &Source<'_>, y: &mut Target<'_>) -> Result<()> {
    let from: &[T] = bytemuck::cast_slice(&source.bytes);
    let mut values: Vec<T> = Vec::with_capacity(source.layout.shape().numel());
    for_runs(source.layout, 0, source.layout.shape().numel(), |_, position, stride, n| {
        values.extend((0..n).map(|i| from[position + i * stride]));
    });
    let to: &mut [T] = bytemuck::cast_slice_mut(&mut y.bytes);
    places.each(|i, position| to[position] = values[i])
}

/// Adds in the accumulation type and rounds once.
fn add<A: Acc>(places: &Places<'_>, source: &Source<'_>, y: &mut Target<'_>) -> Result<()> {
    let mut values = vec![A::from_i64(0); source.layout.shape().numel()];
    load(source.view(), source.layout, 0, &mut values);
    let dtype: DType = y.dtype;
    if dtype == A::DTYPE {
        return sum(places, &values, bytemuck::cast_slice_mut(&mut y.bytes));
    }
    let mut wide = vec![A::from_i64(0); y.layout.shape().numel()];
    load(crate::access::View { bytes: &y.bytes, dtype }, y.layout, 0, &mut wide);
    sum(places, &values, &mut wide)?;
    store(&wide, dtype, y.elements());
    Ok(())
}

fn sum<A: Acc>(places: &Places<'_>, values: &[A], to: &mut [A]) -> Result<()> {
    places.each(|i, position| to[position] = A::back(to[position].number() + values[i].number()))
}

//! Convolutions. A thread copies the elements of the windows of some outputs, or of some channels, to columns that fit into its cache,
//! and multiplies them by the weight; groups of few channels have loops of their own. How the work is cut does not depend on the number of
//! threads.

mod direct;

use crate::access::{Acc, Source, Strided, Target, load, load_all, shares, store, store_all, with_bits};
use crate::elementwise::copy::copy_bits;
use crate::matrix::{Factor, multiply_alone};
use crate::memory::{Scratch, scratch};
use crate::vectors::Real;
use isograd_core::fused::Fused;
use isograd_core::ops::conv::Geometry;
use isograd_core::ops::conv::{ConvForward, ConvInput, ConvInputInputs, ConvInputs, ConvWeight, ConvWeightInputs};
use isograd_core::ops::image::window::Windows;
use isograd_core::{Call, DType, Layout, Operand, Result, Shape, host};
use rayon::prelude::*;
use std::ops::{Deref, Range};

/// Elements of the columns of a thread.
const COLUMNS: usize = 1 << 18;
/// Rows of columns that a thread takes if the work is cut by channels.
const ROWS: usize = 128;
/// The fewest tasks, if there are so many.
const TASKS: usize = 8;

/// `y [N, O, ..]` from x, the weight and, where present, the bias.
pub fn forward(call: &Call<'_>, kernel: &ConvForward) -> Result<()> {
    match call.outputs[0].dtype {
        DType::F64 => forward_as::<f64>(call, kernel),
        _ => forward_as::<f32>(call, kernel),
    }
}

/// `dx [N, C, ..]` from dy, the weight and, where present, the bias.
pub fn input(call: &Call<'_>, kernel: &ConvInput) -> Result<()> {
    match call.outputs[0].dtype {
        DType::F64 => input_as::<f64>(call, kernel),
        _ => input_as::<f32>(call, kernel),
    }
}

/// `dw [O, C / G, ..]` from dy and x.
pub fn weight(call: &Call<'_>, kernel: &ConvWeight) -> Result<()> {
    match call.outputs[0].dtype {
        DType::F64 => weight_as::<f64>(call, kernel),
        _ => weight_as::<f32>(call, kernel),
    }
}

/// The elements of an operand in the order of its shape, in the type of the arithmetic.
enum Dense<'a, 's, A> {
    Borrowed(&'s [A]),
    Copied(Scratch<'a, A>),
}

impl<A: Acc> Deref for Dense<'_, '_, A> {
    type Target = [A];

    fn deref(&self) -> &[A] {
        match self {
            Dense::Borrowed(values) => values,
            Dense::Copied(values) => values,
        }
    }
}

fn dense<'a, 's, A: Acc>(call: &Call<'a>, source: &'s Source<'_>) -> Result<Dense<'a, 's, A>> {
    let (layout, numel) = (Strided::new(source.layout), source.layout.shape().numel());
    if source.dtype == A::DTYPE && layout.is_contiguous() {
        return Ok(Dense::Borrowed(&bytemuck::cast_slice(&source.bytes)[layout.offset..][..numel]));
    }
    let mut values = scratch::<A>(call, numel)?;
    load_all(source.view(), &layout, &mut values);
    Ok(Dense::Copied(values))
}

/// The bytes of a result in the order of its shape. [`finish`](Output::finish) puts them in the order of its memory.
struct Output<'a> {
    target: Target<'a>,
    ordered: Option<Scratch<'a, u8>>,
}

impl<'a> Output<'a> {
    fn new(call: &Call<'a>) -> Result<Output<'a>> {
        let target = Target::new(&call.outputs[0])?;
        let bytes = target.layout.shape().numel() * target.dtype.size();
        let ordered = if target.layout.is_contiguous() { None } else { Some(scratch::<u8>(call, bytes)?) };
        Ok(Output { target, ordered })
    }

    fn bytes(&mut self) -> &mut [u8] {
        match &mut self.ordered {
            Some(ordered) => ordered,
            None => self.target.elements(),
        }
    }

    fn finish(mut self) {
        if let Some(ordered) = &self.ordered {
            let (layout, dtype) = (self.target.layout, self.target.dtype);
            let from = Layout::contiguous(layout.shape().clone());
            with_bits!(dtype, copy_bits(ordered, &from, &mut self.target.bytes, layout));
        }
    }
}

/// The number that a bias `[N groups, channels of a group]` has for a channel.
struct Bias<'a> {
    source: Source<'a>,
    layout: Strided,
    groups: usize,
}

impl<'a> Bias<'a> {
    fn new(operand: Option<&Operand<'a>>, groups: usize) -> Result<Option<Bias<'a>>> {
        let Some(operand) = operand else { return Ok(None) };
        let source = Source::new(operand)?;
        let layout = Strided::new(source.layout);
        Ok(Some(Bias { source, layout, groups }))
    }

    fn at<A: Acc>(&self, sample: usize, group: usize, channel: usize) -> A {
        let width = self.source.layout.shape()[1];
        let mut value = [A::from_i64(0)];
        load(self.source.view(), &self.layout, (sample * self.groups + group) * width + channel, &mut value);
        value[0]
    }
}

fn bias_or_zero<A: Acc>(bias: &Option<Bias<'_>>, sample: usize, group: usize, channel: usize) -> A {
    bias.as_ref().map_or(A::from_i64(0), |bias| bias.at(sample, group, channel))
}

/// Windows of some samples: all windows of several samples, or some of one.
#[derive(Clone)]
struct WindowBlock {
    samples: Range<usize>,
    windows: Range<usize>,
}

impl WindowBlock {
    fn count(&self) -> usize {
        self.samples.len() * self.windows.len()
    }
}

/// The windows of these samples in parts of about `most`.
fn parts(op: &'static str, samples: Range<usize>, outputs: usize, most: usize) -> Result<Vec<WindowBlock>> {
    let together = (most / outputs).max(1);
    let length = outputs.div_ceil(outputs.div_ceil(most));
    let mut all = host::with_room(op, samples.len().div_ceil(together) * outputs.div_ceil(length))?;
    for first in samples.clone().step_by(together) {
        for start in (0..outputs).step_by(length) {
            let samples = first..samples.end.min(first + together);
            all.push(WindowBlock { samples, windows: start..outputs.min(start + length) });
        }
    }
    Ok(all)
}

/// Columns and the elements of the input that they are. Those of the padding are not among them.
#[derive(Clone, Copy)]
struct Run {
    column: usize,
    /// The position in the first channel of the first sample.
    position: usize,
    length: usize,
}

/// The runs of each element of the windows of a part, whose samples are `sample` elements apart.
fn runs(op: &'static str, windows: &Windows, part: &WindowBlock, sample: usize) -> Result<Vec<Vec<Run>>> {
    let Windows { input, output, kernel, stride, low, dilation, .. } = *windows;
    let inside = |d: usize, q: usize, k: usize| {
        let at = (q * stride[d] + k * dilation[d]).checked_sub(low[d])?;
        (at < input[d]).then_some(at)
    };
    let lines = part.windows.start / output[2]..part.windows.end.div_ceil(output[2]);
    let mut all = host::with_room(op, windows.window())?;
    for k in 0..windows.window() {
        let [kd, kh, kw] = [k / (kernel[1] * kernel[2]), k / kernel[2] % kernel[1], k % kernel[2]];
        // Windows of a line whose element is not in the padding.
        let shift = kw * dilation[2];
        let first = low[2].saturating_sub(shift).div_ceil(stride[2]);
        let end = (input[2] + low[2]).saturating_sub(shift).div_ceil(stride[2]).min(output[2]);
        let mut runs = host::with_room(op, part.samples.len() * lines.len())?;
        for (s, _) in part.samples.clone().enumerate() {
            for line in lines.clone() {
                let place = inside(0, line / output[1], kd).zip(inside(1, line % output[1], kh));
                let begin = (line * output[2] + first).max(part.windows.start);
                let end = (line * output[2] + end).min(part.windows.end);
                let Some((z, y)) = place.filter(|_| begin < end) else { continue };
                let x = (begin - line * output[2]) * stride[2] + shift - low[2];
                runs.push(Run {
                    column: s * part.windows.len() + begin - part.windows.start,
                    position: s * sample + (z * input[1] + y) * input[2] + x,
                    length: end - begin,
                });
            }
        }
        all.push(runs);
    }
    Ok(all)
}

/// Copies the elements of windows to columns `[channels k, n]`.
fn gather<A: Acc>(columns: &mut [A], x: &[A], n: usize, volume: usize, runs: &[Vec<Run>], stride: usize) {
    for (row, to) in columns.chunks_mut(n).enumerate() {
        let (channel, runs) = (row / runs.len(), &runs[row % runs.len()]);
        if runs.iter().map(|run| run.length).sum::<usize>() < n {
            to.fill(A::from_i64(0));
        }
        for run in runs {
            let (to, from) = (&mut to[run.column..][..run.length], &x[channel * volume + run.position..]);
            match stride {
                1 => to.copy_from_slice(&from[..run.length]),
                _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, &from)| *to = from),
            }
        }
    }
}

/// Adds columns `[channels k, n]` to the elements that they belong to.
fn add<A: Acc>(x: &mut [A], columns: &[A], n: usize, volume: usize, runs: &[Vec<Run>], stride: usize) {
    for (row, from) in columns.chunks(n).enumerate() {
        let (channel, runs) = (row / runs.len(), &runs[row % runs.len()]);
        for run in runs {
            let (from, to) = (&from[run.column..][..run.length], &mut x[channel * volume + run.position..]);
            let plus = |(to, &from): (&mut A, &A)| *to = A::back(to.number() + from.number());
            match stride {
                1 => to.iter_mut().zip(from).for_each(plus),
                _ => to.iter_mut().step_by(stride).zip(from).for_each(plus),
            }
        }
    }
}

/// Calls `f` with elements of `to`, and those of `from` that are `stride` apart.
#[inline(always)]
fn each_pair<A: Acc>(to: &mut [A], from: &[A], stride: usize, mut f: impl FnMut(&mut A, A)) {
    match stride {
        1 => to.iter_mut().zip(from).for_each(|(to, &v)| f(to, v)),
        2 => {
            let (pairs, rest) = from.as_chunks::<2>();
            let (to, last) = to.split_at_mut(pairs.len().min(to.len()));
            to.iter_mut().zip(pairs).for_each(|(to, &[v, _])| f(to, v));
            last.iter_mut().zip(rest).for_each(|(to, &v)| f(to, v));
        }
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, &v)| f(to, v)),
    }
}

fn has_nan<A: Acc>(values: &[A]) -> bool {
    values.iter().fold(false, |found, v| found | v.is_nan())
}

fn forward_as<A: Real>(call: &Call<'_>, kernel: &ConvForward) -> Result<()> {
    let Geometry { groups, channels, outputs, ref windows, .. } = kernel.0;
    let (op, size, per_sample, volume) = (call.op, channels * windows.window(), windows.outputs(), windows.volume());
    let mut target = Output::new(call)?;
    let dtype = target.target.dtype;
    if target.bytes().is_empty() {
        return Ok(());
    }
    let ConvInputs { x, w, bias } = kernel.inputs(call);
    let (x, w) = (Source::new(x)?, Source::new(w)?);
    let (x, w) = (dense::<A>(call, &x)?, dense::<A>(call, &w)?);
    let bias = Bias::new(bias, groups)?;
    if direct::is_direct(&kernel.0, &w) {
        let bias = |sample, group, channel| bias_or_zero(&bias, sample, group, channel);
        return direct::forward(op, &kernel.0, &x, &w, bias, target);
    }
    let parts = parts(op, 0..kernel.0.batch, per_sample, (COLUMNS / size.max(1)).clamp(64, 1024))?;
    let of_sample = parts.iter().take_while(|part| part.samples == parts[0].samples).count();
    let (together, length) = (parts[0].samples.len(), parts[0].windows.len());
    // Channels are cut too if there are few parts.
    let rows = if parts.len() * groups < TASKS { outputs.min(ROWS) } else { outputs };
    let cuts = outputs.div_ceil(rows);
    let number = |row: usize, piece: usize| {
        let (sample, group, output) = (row / (groups * outputs), row / outputs % groups, row % outputs);
        ((sample / together * of_sample + piece) * groups + group) * cuts + output / rows
    };
    let bytes = [per_sample * dtype.size(), length * dtype.size()];
    let tasks = parts.len() * groups * cuts;
    let mut tasks = shares(op, target.bytes(), bytes, tasks, number)?;
    // Parts of as many samples have the same runs, whatever the group.
    let runs_of = |part: &WindowBlock| runs(op, windows, part, groups * channels * volume);
    let shared = if groups > 1 { &parts[..of_sample] } else { &[] };
    let shared = shared.iter().map(runs_of).collect::<Result<Vec<_>>>()?;
    let task = |(i, y): (usize, &mut Vec<&mut [u8]>)| -> Result<()> {
        let (part, group, first) = (&parts[i / cuts / groups], i / cuts % groups, i % cuts * rows);
        let (n, own) = (part.count(), rows.min(outputs - first));
        let own_runs;
        let runs = match shared.get(i / cuts / groups % of_sample) {
            Some(runs) if part.samples.len() == together => runs,
            _ => {
                own_runs = runs_of(part)?;
                &own_runs
            }
        };
        let x = &x[(part.samples.start * groups + group) * channels * volume..];
        let w = &w[(group * outputs + first) * size..][..own * size];
        let mut sums = scratch::<A>(call, own * n)?;
        let begin = |sums: &mut [A]| {
            for (r, sums) in sums.chunks_mut(n).enumerate() {
                for (sample, sums) in part.samples.clone().zip(sums.chunks_mut(part.windows.len())) {
                    sums.fill(bias_or_zero(&bias, sample, group, first + r));
                }
            }
        };
        if size > 0 {
            let mut columns = scratch::<A>(call, size * n)?;
            gather(&mut columns, x, n, volume, runs, windows.stride[2]);
            if bias.is_some() {
                begin(&mut sums);
            }
            let (w, columns) = (Factor { values: w, strides: [size, 1] }, Factor { values: &columns, strides: [n, 1] });
            multiply_alone(&mut sums, [own, n, size], w, columns, bias.is_some());
        }
        // The zeros of the padding add nothing, not even with an infinite weight.
        if size == 0 || kernel.0.has_padding() && has_nan(&sums) {
            begin(&mut sums);
            for (w, sums) in w.chunks(size.max(1)).zip(sums.chunks_mut(n)) {
                each_run(w, runs, volume, |w, run, from| {
                    each_pair(&mut sums[run.column..][..run.length], &x[from..], windows.stride[2], |sum, x| {
                        *sum = A::back(sum.number() + w.number() * x.number());
                    });
                });
            }
        }
        // Pieces are in the order of samples, then of channels.
        let length = part.windows.len();
        for (piece, y) in y.iter_mut().enumerate() {
            store(&sums[piece % own * n + piece / own * length..][..length], dtype, y);
        }
        Ok(())
    };
    tasks.par_iter_mut().enumerate().try_for_each(task)?;
    drop(tasks);
    target.finish();
    Ok(())
}

/// Matrices `[N, rows, columns]` as `[N, columns, rows]`.
fn turned<'a, A: Acc>(call: &Call<'a>, from: &[A], [n, rows, columns]: [usize; 3]) -> Result<Scratch<'a, A>> {
    let layout = Layout::contiguous(Shape::from([n, rows, columns])).transpose(1, 2);
    let mut to = scratch::<A>(call, from.len())?;
    let (bytes, target) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(&mut to));
    with_bits!(A::DTYPE, copy_bits(bytes, &layout, target, &Layout::contiguous(layout.shape().clone())));
    Ok(to)
}

/// Calls `f` with each weight `[channels k]`, its runs, and their positions.
#[inline(always)]
fn each_run<A: Acc>(w: &[A], runs: &[Vec<Run>], volume: usize, mut f: impl FnMut(A, Run, usize)) {
    for (k, &w) in w.iter().enumerate() {
        let from = k / runs.len() * volume;
        runs[k % runs.len()].iter().for_each(|&run| f(w, run, from + run.position));
    }
}

fn input_as<A: Real>(call: &Call<'_>, kernel: &ConvInput) -> Result<()> {
    let Geometry { batch, groups, channels, outputs, ref windows } = kernel.0;
    let (op, per_sample, volume, window) = (call.op, windows.outputs(), windows.volume(), windows.window());
    let mut target = Output::new(call)?;
    let dtype = target.target.dtype;
    if target.bytes().is_empty() {
        return Ok(());
    }
    let ConvInputInputs { g, w, bias } = kernel.inputs(call);
    let (g, w) = (Source::new(g)?, Source::new(w)?);
    let (g, w) = (dense::<A>(call, &g)?, dense::<A>(call, &w)?);
    let bias = Bias::new(bias, groups)?;
    // In f64 the order of products of matrices stays.
    if bias.is_none() && (outputs == 1 || A::DTYPE == DType::F32) && direct::is_direct(&kernel.0, &w) {
        return direct::input(op, &kernel.0, &g, &w, target);
    }
    // The gradients of a channel, `[O, N Q]`.
    let all = batch * per_sample;
    let mut by_channel = scratch::<A>(call, g.len())?;
    let rows = by_channel.par_chunks_mut(all.max(1)).enumerate();
    rows.for_each(|(channel, to)| {
        for (sample, to) in to.chunks_mut(per_sample).enumerate() {
            to.copy_from_slice(&g[(sample * groups * outputs + channel) * per_sample..][..per_sample]);
        }
    });
    let turned = turned(call, &w, [groups, outputs, channels * window])?;
    let together = (256 / per_sample.max(1)).clamp(1, batch);
    let rows = (ROWS / window).clamp(1, channels);
    let cuts = channels.div_ceil(rows);
    let number = |row: usize, piece: usize| (row / groups / together * groups + row % groups) * cuts + piece;
    let bytes = [channels * volume * dtype.size(), rows * volume * dtype.size()];
    let tasks = batch.div_ceil(together) * groups * cuts;
    let mut tasks = shares(op, target.bytes(), bytes, tasks, number)?;
    let task = |(i, dx): (usize, &mut Vec<&mut [u8]>)| -> Result<()> {
        let (start, group, first) = (i / cuts / groups * together, i / cuts % groups, i % cuts * rows);
        let (samples, own) = (start..batch.min(start + together), rows.min(channels - first));
        let mut sums = scratch::<A>(call, samples.len() * own * volume)?;
        for (k, sums) in sums.chunks_mut(volume).enumerate() {
            sums.fill(bias_or_zero(&bias, start + k / own, group, first + k % own));
        }
        let w = Factor { values: &turned[(group * channels + first) * window * outputs..], strides: [outputs, 1] };
        for part in parts(op, samples, per_sample.max(1), (COLUMNS / (own * window)).clamp(64, 4096))? {
            let n = part.count();
            if per_sample == 0 || outputs == 0 {
                continue;
            }
            let mut columns = scratch::<A>(call, own * window * n)?;
            let at = group * outputs * all + part.samples.start * per_sample + part.windows.start;
            let g = Factor { values: &by_channel[at..], strides: [all, 1] };
            multiply_alone(&mut columns, [own * window, n, outputs], w, g, false);
            let runs = runs(op, windows, &part, own * volume)?;
            let to = &mut sums[(part.samples.start - start) * own * volume..];
            add(to, &columns, n, volume, &runs, windows.stride[2]);
        }
        for (dx, sums) in dx.iter_mut().zip(sums.chunks(own * volume)) {
            store(sums, dtype, dx);
        }
        Ok(())
    };
    tasks.par_iter_mut().enumerate().try_for_each(task)?;
    drop(tasks);
    target.finish();
    Ok(())
}

fn weight_as<A: Real>(call: &Call<'_>, kernel: &ConvWeight) -> Result<()> {
    let Geometry { batch, groups, channels, outputs, ref windows } = kernel.0;
    let (op, per_sample, volume, window) = (call.op, windows.outputs(), windows.volume(), windows.window());
    let mut target = Output::new(call)?;
    let dtype = target.target.dtype;
    if target.bytes().is_empty() {
        return Ok(());
    }
    let ConvWeightInputs { g, x } = kernel.inputs(call);
    let (g, x) = (Source::new(g)?, Source::new(x)?);
    let (g, x) = (dense::<A>(call, &g)?, dense::<A>(call, &x)?);
    if A::DTYPE == DType::F32 && batch > 0 && direct::is_direct::<A>(&kernel.0, &[]) {
        let mut sums = scratch::<A>(call, groups * outputs * channels * window)?;
        direct::weight(op, &kernel.0, &g, &x, &mut sums)?;
        if !has_nan(&sums) {
            store_all(&sums, dtype, target.bytes());
            target.finish();
            return Ok(());
        }
    }
    // The gradients of a group and window, `[G, N Q, O / G]`.
    let all = batch * per_sample;
    let mut by_window = scratch::<A>(call, g.len())?;
    let from = Layout::contiguous(Shape::from([batch, groups, outputs, per_sample])).permute(&[1, 0, 3, 2]);
    let (bytes, to) = (bytemuck::cast_slice(&g), bytemuck::cast_slice_mut(&mut by_window));
    with_bits!(A::DTYPE, copy_bits(bytes, &from, to, &Layout::contiguous(from.shape().clone())));
    let rows = (ROWS / window).clamp(1, channels);
    let cuts = channels.div_ceil(rows);
    // Samples are cut too if there are few channels.
    let each = batch.div_ceil(TASKS.div_ceil(groups * cuts)).max(1);
    let of_group = channels * window * outputs;
    let of_each = groups * of_group;
    let mut sums = scratch::<A>(call, batch.div_ceil(each).max(1) * of_each)?;
    let mut pieces: Vec<&mut [A]> = host::with_room(op, sums.len().div_ceil(of_group) * cuts)?;
    pieces.extend(sums.chunks_mut(of_group).flat_map(|of| of.chunks_mut(rows * window * outputs)));
    let task = |(i, sums): (usize, &mut &mut [A])| -> Result<bool> {
        let (start, group, first) = (i / cuts / groups * each, i / cuts % groups, i % cuts * rows);
        let (samples, own) = (start..batch.min(start + each), rows.min(channels - first));
        sums.fill(A::from_i64(0));
        for part in parts(op, samples, per_sample.max(1), (COLUMNS / (own * window)).clamp(64, 4096))? {
            let n = part.count();
            if per_sample == 0 {
                continue;
            }
            let runs = runs(op, windows, &part, groups * channels * volume)?;
            let x = &x[((part.samples.start * groups + group) * channels + first) * volume..];
            let mut columns = scratch::<A>(call, own * window * n)?;
            gather(&mut columns, x, n, volume, &runs, windows.stride[2]);
            let at = (group * all + part.samples.start * per_sample + part.windows.start) * outputs;
            let columns = Factor { values: &columns, strides: [n, 1] };
            let g = Factor { values: &by_window[at..], strides: [outputs, 1] };
            multiply_alone(sums, [own * window, outputs, n], columns, g, true);
        }
        Ok(kernel.0.has_padding() && has_nan(sums))
    };
    let found = pieces.par_iter_mut().enumerate().map(task).collect::<Result<Vec<bool>>>()?;
    drop(pieces);
    let (sums, others) = sums.split_at_mut(of_each);
    for other in others.chunks(of_each) {
        sums.iter_mut().zip(other).for_each(|(sum, v)| *sum = A::back(sum.number() + v.number()));
    }
    // The zeros of the padding add nothing, not even with an infinite gradient.
    if found.contains(&true) {
        let part = WindowBlock { samples: 0..batch, windows: 0..per_sample };
        let runs = runs(op, windows, &part, groups * channels * volume)?;
        for (group, sums) in sums.chunks_mut(of_group).enumerate() {
            let (x, g) = (&x[group * channels * volume..], &by_window[group * all * outputs..]);
            for (row, sums) in sums.chunks_mut(outputs).enumerate() {
                for (o, sum) in sums.iter_mut().enumerate() {
                    let mut total = A::from_i64(0).number();
                    for run in &runs[row % window] {
                        let x = x[row / window * volume + run.position..].iter().step_by(windows.stride[2]);
                        let g = g[run.column * outputs + o..].iter().step_by(outputs);
                        x.zip(g).take(run.length).for_each(|(x, g)| total = total + x.number() * g.number());
                    }
                    *sum = A::back(total);
                }
            }
        }
    }
    let dw = turned(call, sums, [groups, channels * window, outputs])?;
    store_all(&dw, dtype, target.bytes());
    target.finish();
    Ok(())
}

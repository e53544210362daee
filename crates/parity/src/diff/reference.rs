//! What a call should give: by the CPU in f64 from the same inputs, and how far from it a device may be.
//!
//! Primitives run as they are. Of each fused kernel stands here what it must equal, in tensor ops.

use crate::compare::precision;
use isograd_core::backend::{Fused, IndexGradient, IndexReduce, Reduce, RowLoss, Scatter, Total};
use isograd_core::ops::loss::{CrossEntropy, Reduction, Triplet, TripletNegative};
use isograd_core::ops::{AvgPool, Direction, EmbeddingOptions, MaxPool, Rotary, RotaryStyle, Sampling, TieGrad, total};
use isograd_core::pointwise::Pointwise;
use isograd_core::tape::{BackwardOptions, grad_with};
use isograd_core::{Call, DType, Device, Kernel, Layout, Memory, Operand, Result, Rng, RngState, Tensor, enable_grad};

/// What an output should be.
pub struct Expected {
    /// As the CPU computes it in the output's dtype: what the step goes on with.
    pub truth: Tensor,
    /// The exact values.
    pub exact: Vec<f64>,
    /// How far from them an element may be; 0 asks for the exact value, rounded to the dtype.
    pub bounds: Vec<f64>,
}

/// The outputs of a call from its inputs and from what the outputs held before, all contiguous and on the CPU. None where
/// the kernel leaves an output as it was.
pub fn expected(call: &Call<'_>, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Expected>>> {
    let run = |dtype: fn(DType) -> DType| -> Result<Vec<Option<Tensor>>> {
        let of = |all: &[Tensor]| -> Result<Vec<Tensor>> { all.iter().map(|t| convert(t, dtype(t.dtype()))).collect() };
        outputs(call, &of(inputs)?, &of(before)?)
    };
    if is_exact(call.kernel) {
        return run(|dtype| dtype)?.into_iter().map(|y| y.map(to_the_bit).transpose()).collect();
    }
    // Kernels compute in the accumulation dtype, and round once.
    let (near, wide) = (run(DType::acc)?, run(|_| DType::F64)?);
    let companions = companions(call, inputs, before)?;
    let each = near.into_iter().zip(wide).enumerate().map(|(k, pair)| {
        let (Some(near), Some(wide)) = pair else { return Ok(None) };
        if !before[k].dtype().is_float() {
            return to_the_bit(near).map(Some);
        }
        let exact = wide.to_f64_vec()?;
        let companion = companions.as_ref().map(|all| all[k].to_f64_vec()).transpose()?;
        let mut bounds = bounds(call, inputs, &exact, &near.to_f64_vec()?, companion, before[k].dtype());
        if (call.kernel, k) == (Kernel::Fused(Fused::CrossEntropy), 1) {
            // The statistics of a target that is left out are read by nobody.
            let targets = inputs[1].to_f64_vec()?;
            let unread = targets.iter().cycle().zip(&mut bounds).filter(|(t, _)| **t == call.ints[3] as f64);
            unread.for_each(|(_, bound)| *bound = f64::INFINITY);
        }
        Ok(Some(Expected { truth: near.cast(before[k].dtype())?, exact, bounds }))
    });
    each.collect()
}

fn to_the_bit(truth: Tensor) -> Result<Expected> {
    let exact = truth.to_f64_vec()?;
    Ok(Expected { bounds: vec![0.0; exact.len()], truth, exact })
}

/// Floats in another dtype; the rest as it is.
fn convert(t: &Tensor, dtype: DType) -> Result<Tensor> {
    if t.dtype().is_float() { t.cast(dtype) } else { Ok(t.clone()) }
}

/// Kernels that move, choose or draw, whose results are the same bits everywhere.
fn is_exact(kernel: Kernel) -> bool {
    match kernel {
        Kernel::Fill | Kernel::Copy | Kernel::Cast | Kernel::ArgMax | Kernel::ArgMin | Kernel::Gather => true,
        Kernel::Scatter(Scatter::Assign | Scatter::Distinct) | Kernel::Random(_) | Kernel::Sort => true,
        Kernel::Reduce(Reduce::Max | Reduce::Min) => true,
        Kernel::Reduce(_) | Kernel::Scatter(Scatter::Add) | Kernel::Scan(_) => false,
        Kernel::Pointwise(_) | Kernel::Matmul | Kernel::Fused(_) | Kernel::Custom(_) => false,
    }
}

/// `1.5 u_out |r| + max(8 E, c u_acc rho, C u_acc a) + eta` of every element r. E is the CPU's largest error in the
/// accumulation dtype and rho the largest |r|; a is the companion of a sum.
fn bounds(
    call: &Call<'_>,
    inputs: &[Tensor],
    exact: &[f64],
    near: &[f64],
    companion: Option<Vec<f64>>,
    dtype: DType,
) -> Vec<f64> {
    let (u_out, eta) = precision(dtype);
    let u_acc = precision(dtype.acc()).0;
    let largest = |v: &mut dyn Iterator<Item = f64>| v.filter(|v| v.is_finite()).fold(0.0, f64::max);
    let error = largest(&mut near.iter().zip(exact).map(|(y, r)| (y - r).abs()));
    let rho = largest(&mut exact.iter().map(|r| r.abs()));
    // OpenCL allows its functions 16 units in the last place, which are 32 roundings.
    let roundings = if matches!(call.kernel, Kernel::Pointwise(_)) { 40.0 } else { 32.0 };
    let within = f64::max(8.0 * error, roundings * u_acc * rho);
    let rounding = match call.kernel {
        _ if dtype == dtype.acc() => 0.0,
        // It may be rounded twice.
        Kernel::Fused(Fused::MatmulPointwise(_)) => 2.5 * u_out,
        _ => 1.5 * u_out,
    };
    let factor = factor(call, inputs, exact.len(), dtype);
    let of_sum = |i: usize| companion.as_ref().map_or(0.0, |a| factor * u_acc * a[i]);
    exact.iter().enumerate().map(|(i, r)| rounding * r.abs() + within.max(of_sum(i)) + eta).collect()
}

/// C of a sum's class, by its terms.
fn factor(call: &Call<'_>, inputs: &[Tensor], elements: usize, dtype: DType) -> f64 {
    let largest = inputs.iter().map(Tensor::numel).max().unwrap_or(1) as f64;
    match call.kernel {
        Kernel::Matmul | Kernel::Fused(Fused::GemmBias(_) | Fused::MatmulSum | Fused::MatmulPointwise(_)) => {
            let root = (inputs[0].dims().last().copied().unwrap_or(1).max(4) as f64).sqrt();
            if dtype == dtype.acc() { 8.0 + 2.0 * root } else { 32.0 + 8.0 * root }
        }
        Kernel::Reduce(_) => 8.0 + 4.0 * (largest / elements.max(1) as f64 + 1.0).log2(),
        _ => 8.0 + 4.0 * (largest + 1.0).log2(),
    }
}

/// The results of a row in the shape of its first input, none of them summed.
fn row_results(row: Pointwise, inputs: &[Tensor], before: &[Tensor], floats: &[f64]) -> Result<Vec<Tensor>> {
    let empty = Tensor::zeros(inputs[0].shape(), inputs[0].dtype(), inputs[0].device())?;
    primitive(Kernel::Pointwise(row), inputs, &vec![empty; before.len()], &[], floats)
}

/// The sums of absolute values, where a kernel adds.
fn companions(call: &Call<'_>, inputs: &[Tensor], before: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
    if let Kernel::Fused(Fused::PointwiseSum(row)) = call.kernel {
        let wide = inputs.iter().map(|t| convert(t, DType::F64)).collect::<Result<Vec<_>>>()?;
        let sizes = row_results(row, &wide, before, call.floats)?;
        let sizes = sizes.iter().zip(before).map(|(y, before)| y.abs()?.sum_to_size(before.shape()));
        return sizes.collect::<Result<_>>().map(Some);
    }
    if call.kernel == Kernel::Fused(Fused::MatmulSum) {
        let sizes = inputs.iter().map(|t| t.cast(DType::F64)?.abs()).collect::<Result<Vec<_>>>()?;
        return matmul_sum(call, &sizes).map(|sizes| Some(sizes.into()));
    }
    if let Kernel::Fused(Fused::MatmulPointwise(row)) = call.kernel {
        // The row is linear in the product.
        let wide = inputs.iter().map(|t| t.cast(DType::F64)).collect::<Result<Vec<_>>>()?;
        let size = matmul_pointwise(row, &[wide[0].abs()?, wide[1].abs()?, wide[2].clone()], &before[0])?.abs()?;
        return Ok(Some(vec![size]));
    }
    let kernel = match call.kernel {
        Kernel::Fused(Fused::GemmBias(_)) => Kernel::Matmul,
        Kernel::Matmul | Kernel::Reduce(_) | Kernel::Scan(_) | Kernel::Scatter(Scatter::Add) => call.kernel,
        _ => return Ok(None),
    };
    let size = |t: &Tensor| if t.dtype().is_float() { t.cast(DType::F64)?.abs() } else { Ok(t.clone()) };
    let inputs: Vec<Tensor> = inputs.iter().map(size).collect::<Result<_>>()?;
    let before: Vec<Tensor> = before.iter().map(size).collect::<Result<_>>()?;
    let floats: Vec<f64> = call.floats.iter().map(|v| v.abs()).collect();
    let sizes = primitive(kernel, &inputs, &before[..1], call.ints, &floats)?;
    Ok(Some(before.iter().map(|_| sizes[0].clone()).collect()))
}

/// A row of a product, shaped as `like` is, and what stands beside it.
fn matmul_pointwise(row: Pointwise, inputs: &[Tensor], like: &Tensor) -> Result<Tensor> {
    let z = Tensor::zeros(like.shape(), inputs[0].dtype(), inputs[0].device())?;
    let product = inputs[0].matmul(&inputs[1])?;
    Ok(primitive(Kernel::Pointwise(row), &[product, inputs[2].clone()], &[z], &[], &[])?.swap_remove(0))
}

/// A product, and the sums of one of its factors.
fn matmul_sum(call: &Call<'_>, inputs: &[Tensor]) -> Result<[Tensor; 2]> {
    let sums = if call.ints[0] == 0 { inputs[0].sum(-1)? } else { inputs[1].sum(-2)? };
    Ok([inputs[0].matmul(&inputs[1])?, sums])
}

fn outputs(call: &Call<'_>, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let Kernel::Fused(kernel) = call.kernel else {
        let all = primitive(call.kernel, inputs, before, call.ints, call.floats)?;
        return Ok(all.into_iter().map(Some).collect());
    };
    let found = fused(kernel, call, inputs, before)?.into_iter().zip(before);
    found.map(|(y, before)| y.map(|y| y.detach().reshape(before.shape())?.cast(before.dtype())).transpose()).collect()
}

/// A buffer of the CPU.
struct Host {
    memory: Box<dyn Memory>,
    layout: Layout,
    dtype: DType,
}

impl Host {
    fn new(t: &Tensor) -> Result<Host> {
        let bytes = t.to_bytes()?;
        let memory = t.device().backend().allocate(bytes.len())?;
        t.device().backend().upload(&*memory, &bytes)?;
        Ok(Host { memory, layout: Layout::contiguous(t.shape().clone()), dtype: t.dtype() })
    }

    fn operand(&self) -> Operand<'_> {
        Operand { memory: &*self.memory, layout: &self.layout, dtype: self.dtype }
    }

    fn read(&self, cpu: &Device) -> Result<Tensor> {
        let mut bytes = vec![0; self.layout.shape().numel() * self.dtype.size()];
        cpu.backend().download(&*self.memory, 0, &mut bytes)?;
        Tensor::from_bytes(&bytes, self.layout.shape(), self.dtype, cpu)
    }
}

/// Runs a primitive on the CPU.
fn primitive(
    kernel: Kernel,
    inputs: &[Tensor],
    before: &[Tensor],
    ints: &[i64],
    floats: &[f64],
) -> Result<Vec<Tensor>> {
    let cpu = Device::cpu()?;
    let hosts = |all: &[Tensor]| all.iter().map(Host::new).collect::<Result<Vec<_>>>();
    let (read, written) = (hosts(inputs)?, hosts(before)?);
    let (inputs, outputs): (Vec<_>, Vec<_>) =
        (read.iter().map(Host::operand).collect(), written.iter().map(Host::operand).collect());
    cpu.backend().run(&Call { op: "diff", kernel, inputs: &inputs, outputs: &outputs, ints, floats })?;
    written.iter().map(|host| host.read(&cpu)).collect()
}

/// What a fused kernel must equal, in the dtype of its inputs.
fn fused(kernel: Fused, call: &Call<'_>, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let extents = || [0, 1, 2].map(|i| call.ints[i] as usize);
    match kernel {
        Fused::Softmax => {
            let x = inputs[0].reshape(extents())?;
            Ok(vec![Some(if call.ints[3] == 0 { x.softmax(1)? } else { x.log_softmax(1)? })])
        }
        Fused::SoftmaxBackward => {
            let [dy, y, x] = [0, 1, 2].map(|i| inputs[i].reshape(extents()));
            let (dy, y, x) = (dy?, y?, x?);
            let dx = match call.ints[3] {
                0 => y.mul(&dy.sub(&dy.mul(&y)?.sum_keepdim(1)?)?)?,
                _ => dy.sub(&y.exp()?.mul(&dy.sum_keepdim(1)?)?)?,
            };
            let is_masked = y.ne(&y)?.logical_and(&x.eq_scalar(f64::NEG_INFINITY)?)?;
            Ok(vec![Some(is_masked.logical_not()?.where_scalar(&dx, 0.0)?)])
        }
        Fused::Norm => norm(call, inputs),
        Fused::NormBackward => norm_backward(call, inputs),
        Fused::EmbeddingNorm | Fused::EmbeddingNormBackward => {
            let is_forward = kernel == Fused::EmbeddingNorm;
            let (at, mut named) = (!is_forward as usize, inputs[..inputs.len() - 1].to_vec());
            named[at] = named[at].index_select(0, &inputs[inputs.len() - 1])?;
            if is_forward { norm(call, &named) } else { norm_backward(call, &named) }
        }
        Fused::BatchNorm => batch_norm(call, inputs, before),
        Fused::BatchNormBackward => channels_backward(call, inputs, &[0, 2], call.ints[5] != 0),
        Fused::GroupNorm => group_norm(call, inputs, before),
        Fused::GroupNormBackward => channels_backward(call, inputs, &[2, 3], false),
        Fused::CrossEntropy => cross_entropy(call, &inputs[0], &inputs[1], &inputs[2..]),
        Fused::CrossEntropyBackward => {
            let x = inputs[1].leaf()?;
            gradient(&x, &inputs[0], || {
                let y = cross_entropy(call, &x, &inputs[2], &inputs[4..])?.swap_remove(0);
                Ok(y.unwrap_or(x.clone()))
            })
        }
        Fused::RowLoss(kind) => {
            let distances = distances(kind, call, inputs)?;
            Ok(vec![
                Some(row_loss(kind, call, inputs)?),
                Some(Tensor::stack(&distances.iter().collect::<Vec<_>>(), 0)?),
            ])
        }
        Fused::RowLossBackward(kind) => {
            let moving = if kind == RowLoss::Contrastive { 2 } else { 3 };
            let mut x = inputs[1..4].to_vec();
            for x in &mut x[..moving] {
                *x = x.leaf()?;
            }
            enable_grad(|| {
                let losses = row_loss(kind, call, &x)?;
                let dy = inputs[0].mul_scalar(call.floats[3])?.broadcast_to(losses.shape())?;
                let options = BackwardOptions { gradient: Some(dy), ..Default::default() };
                let wanted: Vec<&Tensor> = x[..moving].iter().collect();
                Ok(grad_with(&losses, &wanted, options)?.into_iter().map(Some).collect())
            })
        }
        Fused::Dropout => dropout(call, inputs),
        Fused::IndexReduce(kind) => index_reduce(kind, call, inputs, before),
        Fused::IndexReduceBackward(kind) => index_gradient(kind, inputs).map(|dx| vec![Some(dx)]),
        Fused::Rotary => rotary(call, inputs),
        Fused::SampleLogits => sample_logits(call, inputs),
        Fused::GemmBias(row) => {
            let z = Tensor::zeros(before[0].shape(), inputs[0].dtype(), inputs[0].device())?;
            let z = primitive(Kernel::Matmul, inputs, &[z], &[], call.floats)?;
            let y = primitive(Kernel::Pointwise(row), &z, &z, &[], &[])?;
            Ok([y, z].concat().into_iter().take(before.len()).map(Some).collect())
        }
        Fused::MatmulPointwise(row) => matmul_pointwise(row, inputs, &before[0]).map(|y| vec![Some(y)]),
        Fused::MatmulSum => matmul_sum(call, inputs).map(|found| found.into_iter().map(Some).collect()),
        Fused::Each(row) | Fused::EachNorms(row) => each(row, call, inputs, before),
        Fused::PointwiseTotal(row) => pointwise_total(row, call, inputs),
        Fused::PointwiseSum(row) => {
            let found = row_results(row, inputs, before, call.floats)?;
            found.iter().zip(before).map(|(y, before)| y.sum_to_size(before.shape()).map(Some)).collect()
        }
        Fused::Halves(row) => {
            let half = before[0].narrow(-1, 0, before[0].dims()[before[0].rank() - 1] / 2)?;
            let found = primitive(Kernel::Pointwise(row), inputs, &[half.clone(), half], &[], &[])?;
            Ok(vec![Some(Tensor::concat(&[&found[0], &found[1]], -1)?)])
        }
        Fused::LogSumExp | Fused::Variance => {
            let rank = inputs[0].rank() as isize;
            let axes: Vec<isize> = (rank - call.ints[0] as isize..rank).collect();
            if kernel == Fused::LogSumExp {
                return Ok(
                    [vec![Some(inputs[0].logsumexp(axes.clone())?)], powers(&inputs[0], &axes, before.len())?].concat()
                );
            }
            let count: usize = axes.iter().map(|&d| inputs[0].dims()[d as usize]).product();
            let correction = count as f64 - call.floats[0];
            Ok(vec![Some(inputs[0].var(axes.clone(), correction)?), Some(inputs[0].mean(axes)?)])
        }
        Fused::Moments => moments_of_norm(call, &inputs[0]),
        Fused::ProdBackward => {
            let x = inputs[0].leaf()?;
            let options = BackwardOptions { gradient: Some(inputs[1].clone()), ..Default::default() };
            let found = enable_grad(|| grad_with(&x.prod(-1)?, &[&x], options))?;
            Ok(found.into_iter().map(Some).collect())
        }
        Fused::Positions => {
            let found = inputs[0].nonzero()?;
            Ok(vec![Some(Tensor::stack(&found.iter().collect::<Vec<_>>(), 0)?)])
        }
        Fused::Total(kind) => Ok(vec![Some(total(kind, &inputs.iter().collect::<Vec<_>>())?)]),
        Fused::Unscale => {
            let (targets, found) = before.split_at(before.len() - 1);
            let is_bad = total(Total::NotFinite, &targets.iter().collect::<Vec<_>>())?;
            let found = found[0].maximum(&is_bad.cast(found[0].dtype())?)?;
            let scaled = targets.iter().map(|t| t.div(&inputs[0].cast(t.dtype())?).map(Some));
            scaled.chain([Ok(Some(found))]).collect()
        }
        Fused::MaxPool => {
            let (y, index) = max_pool(call, &inputs[0])?;
            let index = match before.get(1).map(Tensor::dtype) {
                Some(DType::U8) => {
                    mapped(call, &index, three(call, 0), three(call, 2), |at, first, step| (at - first) / step)?
                }
                _ => index,
            };
            Ok(vec![Some(y), Some(index)])
        }
        Fused::MaxPoolBackward => {
            let (planes, input) = (call.ints[0] as usize, three(call, 0));
            let index = match inputs[1].dtype() {
                DType::U8 => {
                    mapped(call, &inputs[1], three(call, 2), input, |number, first, step| first + number * step)?
                }
                _ => inputs[1].cast(DType::I64)?,
            };
            let shape = (planes, three(call, 1).iter().product::<usize>());
            let (index, dy) = (index.reshape(shape)?, inputs[0].reshape(shape)?);
            let zeros = Tensor::zeros((planes, input.iter().product::<usize>()), dy.dtype(), dy.device())?;
            Ok(vec![Some(zeros.scatter_add(1, &index, &dy)?)])
        }
        Fused::AvgPool => Ok(vec![Some(avg_pool(call, &inputs[0])?)]),
        Fused::AvgPoolBackward => {
            let x = before[0].leaf()?;
            gradient(&x, &inputs[0], || avg_pool(call, &x))
        }
    }
}

/// The largest elements, and the logarithms of the sums of powers in units of these, if there is a second result.
fn powers(x: &Tensor, axes: &[isize], results: usize) -> Result<Vec<Option<Tensor>>> {
    if results < 2 {
        return Ok(Vec::new());
    }
    let max = x.amax_keepdim(axes)?;
    let has_numbers = max.ne_scalar(f64::NEG_INFINITY)?;
    let max = has_numbers.where_scalar(&max, 0.0)?;
    let sum = x.sub(&max)?.exp()?.sum_keepdim(axes)?;
    let log = has_numbers.where_scalar(&sum, 1.0)?.log()?;
    Ok(vec![Some(Tensor::stack(&[&max, &log], 0)?.reshape((2, max.numel()))?)])
}

/// What a pooling is told of each dimension: extents, numbers of windows, kernel, stride, padding, dilation.
fn three(call: &Call<'_>, i: usize) -> [usize; 3] {
    [0, 1, 2].map(|d| call.ints[1 + 3 * i + d] as usize)
}

/// The input of a pooling with its channels as one dimension.
fn volumes(call: &Call<'_>, x: &Tensor) -> Result<Tensor> {
    let [depth, height, width] = three(call, 0);
    x.reshape((call.ints[0] as usize, depth, height, width))
}

fn max_pool(call: &Call<'_>, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let x = volumes(call, x)?;
    if call.ints[19] != 0 {
        return x.adaptive_max_pool3d_with_indices(three(call, 1));
    }
    let [output, kernel, stride, padding, dilation] = [1, 2, 3, 4, 5].map(|i| three(call, i));
    let pool = MaxPool { kernel, stride, padding, dilation, ceil_mode: is_cut(call, output) };
    x.max_pool3d_with_indices(pool)
}

fn avg_pool(call: &Call<'_>, x: &Tensor) -> Result<Tensor> {
    let x = volumes(call, x)?;
    if call.ints[19] != 0 {
        return x.adaptive_avg_pool3d(three(call, 1));
    }
    let [output, kernel, stride, padding] = [1, 2, 3, 4].map(|i| three(call, i));
    let divisor_override = (call.ints[20] == 2).then_some(call.floats[0] as i64);
    let count_include_pad = call.ints[20] == 1;
    let ceil_mode = is_cut(call, output);
    x.avg_pool3d(AvgPool { kernel, stride, padding, ceil_mode, count_include_pad, divisor_override })
}

/// Whether a last window ends behind the padding.
fn is_cut(call: &Call<'_>, output: [usize; 3]) -> bool {
    let [input, _, kernel, stride, padding, dilation] = [0, 1, 2, 3, 4, 5].map(|i| three(call, i));
    let end = |d: usize| (output[d] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1;
    (0..3).any(|d| end(d) > input[d] + 2 * padding[d])
}

/// Positions in volumes as numbers within windows, or the reverse: what an index tells by digits of `from` as digits of
/// `to`, `f` of one of these, of where the window begins, and of the step between its elements.
fn mapped(
    call: &Call<'_>,
    index: &Tensor,
    from: [usize; 3],
    to: [usize; 3],
    f: impl Fn(i64, i64, i64) -> i64,
) -> Result<Tensor> {
    let [output, stride, padding, dilation] = [1, 3, 4, 5].map(|i| three(call, i));
    let digits = |v: usize, of: [usize; 3]| [v / of[2] / of[1], v / of[2] % of[1], v % of[2]];
    let one = |(i, &v): (usize, &i64)| {
        let (window, v) = (digits(i % output.iter().product::<usize>(), output), digits(v as usize, from));
        let first = |d: usize| (window[d] * stride[d]) as i64 - padding[d] as i64;
        let found = [0, 1, 2].map(|d| f(v[d] as i64, first(d), dilation[d] as i64));
        (found[0] * to[1] as i64 + found[1]) * to[2] as i64 + found[2]
    };
    let values: Vec<i64> = index.cast(DType::I64)?.to_vec::<i64>()?.iter().enumerate().map(one).collect();
    Tensor::from_vec(values, index.shape(), index.device())
}

/// The gradient of x from that of `f()`, which may have another shape of as many elements.
fn gradient(x: &Tensor, dy: &Tensor, f: impl FnOnce() -> Result<Tensor>) -> Result<Vec<Option<Tensor>>> {
    enable_grad(|| {
        let y = f()?;
        let options = BackwardOptions { gradient: Some(dy.reshape(y.shape())?), ..Default::default() };
        Ok(grad_with(&y, &[x], options)?.into_iter().map(Some).collect())
    })
}

fn row_loss(kind: RowLoss, call: &Call<'_>, x: &[Tensor]) -> Result<Tensor> {
    let (margin, p, eps, reduction) = (call.floats[0], call.floats[1], call.floats[2], Reduction::None);
    let negative = match kind {
        RowLoss::Contrastive => return x[0].contrastive_loss(&x[1], &x[2], margin, reduction),
        RowLoss::Triplet => TripletNegative::FromAnchor,
        RowLoss::NearestTriplet => TripletNegative::Nearest,
    };
    x[0].triplet_loss(&x[1], &x[2], Triplet { margin, p, eps, negative, reduction })
}

fn distances(kind: RowLoss, call: &Call<'_>, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let pairs: &[(usize, usize)] = match kind {
        RowLoss::Contrastive => &[(0, 1)],
        RowLoss::Triplet => &[(0, 1), (0, 2)],
        RowLoss::NearestTriplet => &[(0, 1), (0, 2), (1, 2)],
    };
    let p = call.floats[1];
    let of = |&(a, b): &(usize, usize)| {
        x[a].sub(&x[b])?.add_scalar(call.floats[2])?.abs()?.pow_scalar(p)?.sum(1)?.pow_scalar(1.0 / p)
    };
    pairs.iter().map(of).collect()
}

fn norm(call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let (x, is_centred) = (&inputs[0], call.ints[2] != 0);
    let mean = x.mean_keepdim(1)?;
    let centred = if is_centred { x.sub(&mean)? } else { x.clone() };
    let rstd = centred.square()?.mean_keepdim(1)?.add_scalar(call.floats[0])?.rsqrt()?;
    let mut y = centred.mul(&rstd)?;
    if call.ints[3] != 0 {
        y = y.mul(&inputs[1])?;
    }
    if call.ints[4] != 0 {
        y = y.add(&inputs[1 + call.ints[3] as usize])?;
    }
    // Nobody reads the mean of what is not centred.
    Ok(vec![Some(y), Some(mean).filter(|_| is_centred), Some(rstd)])
}

// dx = rstd (h - mean(h) - xhat mean(h xhat)), h = dy weight
fn norm_backward(call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let flag = |i: usize| call.ints[i] != 0;
    let (is_centred, has_weight, has_bias, wants_dx, wants_parameters) = (flag(2), flag(3), flag(4), flag(5), flag(6));
    let [dy, x] = [&inputs[0], &inputs[1]];
    let (mean, rstd) = (inputs[2].unsqueeze(1)?, inputs[3].unsqueeze(1)?);
    let xhat = if is_centred { x.sub(&mean)? } else { x.clone() }.mul(&rstd)?;
    let mut found = Vec::new();
    if wants_dx {
        let h = if has_weight { dy.mul(&inputs[4])? } else { dy.clone() };
        let along = xhat.mul(&h.mul(&xhat)?.mean_keepdim(1)?)?;
        let h = if is_centred { h.sub(&h.mean_keepdim(1)?)? } else { h };
        found.push(Some(h.sub(&along)?.mul(&rstd)?));
    }
    if wants_parameters && has_weight {
        found.push(Some(dy.mul(&xhat)?.sum(0)?));
    }
    if wants_parameters && has_bias {
        found.push(Some(dy.sum(0)?));
    }
    Ok(found)
}

/// The mean, if it is subtracted, or else 0, and the inverse of the deviation over the last dimensions.
fn moments_of_norm(call: &Call<'_>, x: &Tensor) -> Result<Vec<Option<Tensor>>> {
    let rank = x.rank() as isize;
    let axes: Vec<isize> = (rank - call.ints[0] as isize..rank).collect();
    let mean = x.mean_keepdim(&axes[..])?;
    let mean = if call.ints[1] != 0 { mean } else { mean.zeros_like()? };
    let var = x.sub(&mean)?.square()?.mean_keepdim(&axes[..])?;
    Ok(vec![Some(mean), Some(var.add_scalar(call.floats[0])?.rsqrt()?)])
}

/// Mean and biased variance over some dimensions, which are kept.
fn moments(x: &Tensor, axes: &[isize]) -> Result<(Tensor, Tensor)> {
    let mean = x.mean_keepdim(axes)?;
    let var = x.sub(&mean)?.square()?.mean_keepdim(axes)?;
    Ok((mean, var))
}

/// x normalised, times the weight plus the bias where there are any: those of the channels after `first`.
fn scaled(call: &Call<'_>, parameters: &[Tensor], first: usize, mut y: Tensor) -> Result<Tensor> {
    let shape: Vec<usize> = y.dims()[1..].iter().copied().take(y.rank() - 2).chain([1]).collect();
    let [has_weight, has_bias] = [first, first + 1].map(|i| call.ints[i] != 0);
    if has_weight {
        y = y.mul(&parameters[0].reshape(&*shape)?)?;
    }
    if has_bias {
        y = y.add(&parameters[has_weight as usize].reshape(&*shape)?)?;
    }
    Ok(y)
}

fn batch_norm(call: &Call<'_>, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let [batch, channels, inner] = [0, 1, 2].map(|i| call.ints[i] as usize);
    let x = inputs[0].reshape((batch, channels, inner))?;
    let given = &inputs[inputs.len() - 2..];
    let (mean, var) = match call.ints[5] {
        2 => (given[0].reshape((1, channels, 1))?, given[1].reshape((1, channels, 1))?),
        _ => moments(&x, &[0, 2])?,
    };
    let rstd = var.add_scalar(call.floats[0])?.rsqrt()?;
    let y = scaled(call, &inputs[1..], 3, x.sub(&mean)?.mul(&rstd)?)?;
    let mut found = vec![Some(y), Some(mean.clone()), Some(rstd)];
    if call.ints[5] == 1 {
        let batches = if call.ints[6] != 0 { Some(before[5].add_scalar(1)?) } else { None };
        let momentum = momentum(call, batches.as_ref())?;
        let count = (batch * inner) as f64;
        let var = var.mul_scalar(count / (count - 1.0))?;
        found.extend(updated(&before[3..5], [mean, var], momentum)?);
        found.extend(batches.map(Some));
    }
    Ok(found)
}

fn group_norm(call: &Call<'_>, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let x = inputs[0].reshape([0, 1, 2, 3].map(|i| call.ints[i] as usize))?;
    let (mean, var) = moments(&x, &[2, 3])?;
    let rstd = var.add_scalar(call.floats[0])?.rsqrt()?;
    let y = scaled(call, &inputs[1..], 4, x.sub(&mean)?.mul(&rstd)?)?;
    let mut found = vec![Some(y), Some(mean.clone()), Some(rstd)];
    if call.ints[6] != 0 {
        let momentum = momentum(call, inputs.last())?;
        let count = (call.ints[2] * call.ints[3]) as f64;
        let var = var.mul_scalar(count / (count - 1.0))?;
        found.extend(updated(&before[3..5], [mean.mean(0)?, var.mean(0)?], momentum)?);
    }
    Ok(found)
}

/// The weight of what is new in running statistics: the momentum, if `ints[7]` says that there is one.
fn momentum(call: &Call<'_>, batches: Option<&Tensor>) -> Result<f64> {
    match batches {
        Some(batches) if call.ints[7] == 0 => Ok(1.0 / batches.item()?),
        _ => Ok(call.floats[1]),
    }
}

/// Running statistics with what is new.
fn updated(old: &[Tensor], new: [Tensor; 2], momentum: f64) -> Result<Vec<Option<Tensor>>> {
    let both = old.iter().zip(new);
    let one = |(old, new): (&Tensor, Tensor)| {
        old.mul_scalar(1.0 - momentum)?.add(&new.reshape(old.shape())?.mul_scalar(momentum)?).map(Some)
    };
    both.map(one).collect()
}

// dx = rstd (h - mean(h) - xhat mean(h xhat)), h = dy weight, and rstd h if mean and variance were given
fn channels_backward(
    call: &Call<'_>,
    inputs: &[Tensor],
    axes: &[isize],
    is_given: bool,
) -> Result<Vec<Option<Tensor>>> {
    let rank = if axes[0] == 0 { 3 } else { 4 };
    let shape: Vec<usize> = call.ints[..rank].iter().map(|&v| v as usize).collect();
    let statistics: Vec<usize> = (0..rank).map(|d| if axes.contains(&(d as isize)) { 1 } else { shape[d] }).collect();
    let [has_weight, has_bias] = [rank, rank + 1].map(|i| call.ints[i] != 0);
    let [wants_dx, wants_parameters] = [1, 0].map(|i| call.ints[call.ints.len() - 1 - i] != 0);
    let (dy, x) = (inputs[0].reshape(&*shape)?, inputs[1].reshape(&*shape)?);
    let (mean, rstd) = (inputs[2].reshape(&*statistics)?, inputs[3].reshape(&*statistics)?);
    let xhat = x.sub(&mean)?.mul(&rstd)?;
    let of_channels: Vec<usize> = shape[1..rank - 1].iter().copied().chain([1]).collect();
    let mut found = Vec::new();
    if wants_dx {
        let h = if has_weight { dy.mul(&inputs[4].reshape(&*of_channels)?)? } else { dy.clone() };
        let h = match is_given {
            true => h,
            false => {
                let along = xhat.mul(&h.mul(&xhat)?.mean_keepdim(axes)?)?;
                h.sub(&h.mean_keepdim(axes)?)?.sub(&along)?
            }
        };
        found.push(Some(h.mul(&rstd)?));
    }
    let (first, last) = (0, rank as isize - 1);
    if wants_parameters && has_weight {
        found.push(Some(dy.mul(&xhat)?.sum([first, last])?));
    }
    if wants_parameters && has_bias {
        found.push(Some(dy.sum([first, last])?));
    }
    Ok(found)
}

/// The loss, the statistics `[2, outer, inner]` and, if the loss is reduced, its divisor.
fn cross_entropy(call: &Call<'_>, x: &Tensor, target: &Tensor, numbers: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let [outer, classes, inner] = [0, 1, 2].map(|i| call.ints[i] as usize);
    let (x, target) = (x.reshape((outer, classes, inner))?, target.reshape((outer, inner))?);
    let (ignored, has_weight, has_bytes, form) = (call.ints[3], call.ints[4] != 0, call.ints[5] != 0, call.ints[6]);
    let weight = numbers.first().filter(|_| has_weight).cloned();
    let token_bytes = numbers.get(has_weight as usize).filter(|_| has_bytes).cloned();
    let options = CrossEntropy {
        weight: weight.clone(),
        ignore_index: Some(ignored),
        label_smoothing: call.floats[0],
        reduction: [Reduction::None, Reduction::Sum, Reduction::Mean][form as usize],
        token_bytes: token_bytes.clone(),
    };
    let is_logarithm = call.ints[7] != 0;
    let mut y = if is_logarithm { x.nll_loss(&target, &options)? } else { x.cross_entropy_with(&target, &options)? };
    if form == 1 {
        y = y.div_scalar(call.floats[1])?;
    }
    let x = x.detach();
    let statistics = || {
        let max = x.amax_keepdim(1)?;
        let logarithm = x.sub(&max)?.exp()?.sum_keepdim(1)?.log()?;
        Tensor::stack(&[&max, &logarithm], 0)
    };
    // Of logarithms there are none.
    let mut found = vec![Some(y), if is_logarithm { None } else { Some(statistics()?) }];
    if form == 1 {
        found.push(Some(Tensor::full((), call.floats[1], x.dtype(), x.device())?));
    } else if form == 2 {
        let counted = target.ne_scalar(ignored)?;
        let counts = match token_bytes.or(weight) {
            Some(numbers) => {
                let index = counted.where_scalar(&target, 0)?.reshape(target.numel())?;
                numbers.cast(x.dtype())?.index_select(0, &index)?.reshape(target.shape())?
            }
            None => Tensor::ones(target.shape(), x.dtype(), x.device())?,
        };
        found.push(Some(counted.where_scalar(&counts, 0.0)?.sum(..)?));
    }
    Ok(found)
}

/// Rows joined by index, and how many there were of each, or, of each element, how many have the largest, and the first.
fn index_reduce(
    kind: IndexReduce,
    call: &Call<'_>,
    inputs: &[Tensor],
    before: &[Tensor],
) -> Result<Vec<Option<Tensor>>> {
    let (index, x, nodes) = (inputs[0].narrow(1, 0, 1)?.squeeze(1)?, &inputs[1], before[0].dims()[0]);
    let ones = Tensor::ones(index.shape(), DType::I32, index.device())?;
    let counts = Tensor::zeros(nodes, DType::I32, index.device())?.index_add(0, &index, &ones, 1)?;
    let found = match kind {
        IndexReduce::Max => {
            let (y, first) = x.scatter_max(&index, Some(nodes), TieGrad::First)?;
            let is_best = x.eq(&y.index_select(0, &index)?)?.cast(DType::I32)?;
            let ties = Tensor::zeros(y.shape(), DType::I32, index.device())?.index_add(0, &index, &is_best, 1)?;
            vec![y, ties, first]
        }
        _ => {
            let table = before[0].leaf()?;
            let padding_idx = Some(call.ints[0]).filter(|&padding| padding >= 0);
            let options = EmbeddingOptions { padding_idx, scale_grad_by_freq: kind == IndexReduce::Mean };
            let sums = gradient(&table, x, || table.embedding(&index, options))?;
            sums.into_iter().flatten().chain([counts]).collect()
        }
    };
    Ok(found.into_iter().take(before.len()).map(Some).collect())
}

fn index_gradient(kind: IndexGradient, inputs: &[Tensor]) -> Result<Tensor> {
    let (dy, index) = (&inputs[0], &inputs[1]);
    let of_rows = |t: &Tensor| t.index_select(0, index);
    match kind {
        IndexGradient::Mean => of_rows(dy)?.div(&of_rows(&inputs[2].cast(dy.dtype())?)?),
        IndexGradient::Even => {
            let is_best = inputs[3].eq(&of_rows(&inputs[4])?)?;
            of_rows(dy)?.div(&of_rows(&inputs[2].cast(dy.dtype())?)?)?.mul(&is_best.cast(dy.dtype())?)
        }
        IndexGradient::First => {
            let rows = Tensor::arange(index.numel(), index.device())?.unsqueeze(1)?;
            of_rows(&inputs[2])?.eq(&rows)?.where_scalar(&of_rows(dy)?, 0.0)
        }
    }
}

fn rotary(call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let (xs, rest) = inputs.split_at(call.ints[3] as usize);
    let options = Rotary {
        style: if call.ints[0] != 0 { RotaryStyle::Interleaved } else { RotaryStyle::Half },
        direction: if call.ints[1] > 0 { Direction::Forward } else { Direction::Inverse },
        rotary_dim: Some(call.ints[2] as usize),
        positions: rest.get(2).cloned(),
    };
    let (y, z) = xs[0].apply_rotary_embedding(&xs[xs.len() - 1], &rest[0], &rest[1], &options)?;
    Ok([y, z].into_iter().take(xs.len()).map(Some).collect())
}

fn sample_logits(call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let sampling = Sampling {
        temperature: std::f64::consts::LOG2_E / call.floats[0],
        top_k: call.ints[3] as usize,
        top_p: 1.0 - call.ints[4] as f64 / 16_777_216.0,
        num_samples: call.outputs[0].layout.shape()[1],
    };
    Ok(vec![Some(inputs[0].sample_logits(&sampling, &rng(call, inputs)?)?)])
}

/// The generator from which a call draws.
fn rng(call: &Call<'_>, inputs: &[Tensor]) -> Result<Rng> {
    let base = inputs.get(1).map_or(Ok(vec![0; 3]), Tensor::to_vec::<i64>)?;
    let [seed, offset, stream] = [0, 1, 2].map(|i| call.ints[i].wrapping_add(base[i]) as u64);
    Ok(Rng::from_state(RngState { seed, offset, stream }))
}

fn dropout(call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let (x, rng) = (&inputs[0], rng(call, inputs)?);
    let mask = Tensor::bernoulli(x.shape(), call.ints[3] as f64 / 4_294_967_296.0, x.device(), &rng)?;
    Ok(vec![Some(x.mul(&mask.cast(x.dtype())?)?.mul_scalar(call.floats[0])?)])
}

/// The sum of a row's results over a divisor.
fn pointwise_total(row: Pointwise, call: &Call<'_>, inputs: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let shape = inputs[0].shape();
    let first = inputs.len() - call.ints[0] as usize;
    let number = |t: &Tensor| t.reshape(())?.broadcast_to(shape);
    let expanded = inputs.iter().enumerate().map(|(i, t)| if i < first { Ok(t.clone()) } else { number(t) });
    let expanded = expanded.collect::<Result<Vec<_>>>()?;
    let (attributes, divisor) = call.floats.split_at(row.attributes());
    let y = primitive(Kernel::Pointwise(row), &expanded, &[inputs[0].zeros_like()?], &[], attributes)?;
    Ok(vec![Some(y[0].sum(..)?.div_scalar(divisor[0])?)])
}

/// A row over one set of tensors after the other.
fn each(row: Pointwise, call: &Call<'_>, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let [shared, numbers, kept] = [0, 1, 2].map(|i| call.ints[i] as usize);
    let written = row.outputs() - kept;
    let (own, shared) = inputs.split_at(inputs.len() - shared);
    let each = row.inputs() - written - shared.len();
    let sets = before.len().checked_div(written).unwrap_or(own.len() / each.max(1));
    let (mut found, mut norms) = (Vec::new(), Vec::new());
    for set in 0..sets {
        let own = &own[set * each..][..each];
        let (read, numbers) = own.split_at(own.len() - numbers);
        let targets = [&before[set * written..][..written], &read[..kept]].concat();
        let shape = targets[0].shape();
        let numbers = numbers.iter().chain(shared).map(|t| t.reshape(())?.broadcast_to(shape));
        let inputs = read[kept..].iter().map(|t| t.reshape(shape)).chain(numbers).collect::<Result<Vec<_>>>()?;
        let mut after = primitive(Kernel::Pointwise(row), &inputs, &targets, &[], call.floats)?;
        norms.extend(after.split_off(written).iter().map(|t| t.l2_norm(..)).collect::<Result<Vec<_>>>()?);
        found.extend(after.into_iter().map(Some));
    }
    if kept > 0 {
        let norms = Tensor::stack(&norms.iter().collect::<Vec<_>>(), 0)?;
        found.push(Some(norms.reshape((sets, kept))?));
    }
    Ok(found)
}

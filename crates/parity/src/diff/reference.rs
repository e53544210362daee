//! The expected outputs of a call: computed by the CPU in f64 from the same inputs, with bounds for the error of a device.
//!
//! Primitives run as they are. A fused op is computed by its composite.

use crate::compare::precision;
use isograd_core::backend::{Reduce, Scatter};
use isograd_core::fused::{FusedCall, Sum};
use isograd_core::{Call, DType, Device, Kernel, Layout, Memory, Operand, Result, Tensor, no_autocast};

/// An expected output.
pub struct Expected {
    /// The CPU's result in the output's dtype. The step continues with it.
    pub truth: Tensor,
    /// The exact values.
    pub exact: Vec<f64>,
    /// The bound of each element's error. 0 requires the exact value, rounded to the dtype.
    pub bounds: Vec<f64>,
}

/// The expected outputs of a call, from its inputs and the outputs' previous values, all contiguous and on the CPU. `None` for an
/// output that the kernel does not change.
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
        if let Some(is_read) = fused(call).map(|fused| fused.is_read(inputs, k)).transpose()?.flatten() {
            let unread = is_read.to_vec::<bool>()?.into_iter().zip(&mut bounds).filter(|(is_read, _)| !is_read);
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

/// Converts floats to another dtype. Other tensors are unchanged.
fn convert(t: &Tensor, dtype: DType) -> Result<Tensor> {
    if t.dtype().is_float() { t.cast(dtype) } else { Ok(t.clone()) }
}

/// Kernels that move, select or draw. Their results have the same bits on all devices.
fn is_exact(kernel: Kernel<'_>) -> bool {
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
    // OpenCL allows errors of 16 units in the last place for its functions, which are 32 roundings.
    let roundings = if matches!(call.kernel, Kernel::Pointwise(_)) { 40.0 } else { 32.0 };
    let within = f64::max(8.0 * error, roundings * u_acc * rho);
    let rounding = match fused(call).map_or(1, |fused| fused.roundings()) {
        _ if dtype == dtype.acc() => 0.0,
        times => (times as f64 + 0.5) * u_out,
    };
    let factor = factor(call, inputs, exact.len(), dtype);
    let of_sum = |i: usize| companion.as_ref().map_or(0.0, |a| factor * u_acc * a[i]);
    exact.iter().enumerate().map(|(i, r)| rounding * r.abs() + within.max(of_sum(i)) + eta).collect()
}

/// C of a sum's class, from its number of terms.
fn factor(call: &Call<'_>, inputs: &[Tensor], elements: usize, dtype: DType) -> f64 {
    let largest = inputs.iter().map(Tensor::numel).max().unwrap_or(1) as f64;
    let is_product = matches!(call.kernel, Kernel::Matmul) || fused(call).is_some_and(|f| f.sum() == Sum::Product);
    match call.kernel {
        _ if is_product => {
            let root = (inputs[0].dims().last().copied().unwrap_or(1).max(4) as f64).sqrt();
            if dtype == dtype.acc() { 8.0 + 2.0 * root } else { 32.0 + 8.0 * root }
        }
        Kernel::Reduce(_) => 8.0 + 4.0 * (largest / elements.max(1) as f64 + 1.0).log2(),
        _ => 8.0 + 4.0 * (largest + 1.0).log2(),
    }
}

/// The fused op of a call.
fn fused<'a>(call: &Call<'a>) -> Option<FusedCall<'a>> {
    if let Kernel::Fused(fused) = call.kernel { Some(fused) } else { None }
}

/// The sums of absolute values, for a kernel that adds.
fn companions(call: &Call<'_>, inputs: &[Tensor], before: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
    match call.kernel {
        Kernel::Fused(fused) => {
            let wide = |all: &[Tensor]| all.iter().map(|t| convert(t, DType::F64)).collect::<Result<Vec<_>>>();
            let (inputs, before) = (wide(inputs)?, wide(before)?);
            return no_autocast(|| fused.companions(&inputs, &before));
        }
        Kernel::Matmul | Kernel::Reduce(_) | Kernel::Scan(_) | Kernel::Scatter(Scatter::Add) => {}
        _ => return Ok(None),
    }
    let size = |t: &Tensor| if t.dtype().is_float() { t.cast(DType::F64)?.abs() } else { Ok(t.clone()) };
    let inputs: Vec<Tensor> = inputs.iter().map(size).collect::<Result<_>>()?;
    let before: Vec<Tensor> = before.iter().map(size).collect::<Result<_>>()?;
    let floats: Vec<f64> = call.floats.iter().map(|v| v.abs()).collect();
    let sizes = primitive(call.kernel, &inputs, &before[..1], call.ints, &floats)?;
    Ok(Some(before.iter().map(|_| sizes[0].clone()).collect()))
}

fn outputs(call: &Call<'_>, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let Some(fused) = fused(call) else {
        let all = primitive(call.kernel, inputs, before, call.ints, call.floats)?;
        return Ok(all.into_iter().map(Some).collect());
    };
    let found = no_autocast(|| fused.composite(inputs, before))?;
    let like = |y: Tensor, before: &Tensor| y.detach().reshape(before.shape())?.cast(before.dtype());
    found.into_iter().zip(before).map(|(y, before)| y.map(|y| like(y, before)).transpose()).collect()
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
    kernel: Kernel<'_>,
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

//! Normalisation of rows, and of rows of a table by index.
//!
//! Its constants were tuned on an H100.

use crate::driver::Address;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::operands::{start_of, start_or, starts, starts_or, variant};
use crate::launch::rows::{Kept, columns, rows};
use crate::memory::status::Check;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, in_any_order, zeros};
use crate::ops::indexing::index::check;
use crate::program::source::{Variant, word};
use isograd_core::fused::Fused;
use isograd_core::ops::indexing::embedding::{
    EmbeddingNorm, EmbeddingNormBackward, EmbeddingNormBackwardInputs, EmbeddingNormInputs,
};
use isograd_core::ops::normalization::norm::{
    NormBackwardInputs, NormBackwardOutputs, NormInputs, NormOutputs, RowNorm, RowNormBackward,
};
use isograd_core::ops::{Activation, Approximate};
use isograd_core::{Call, DType, Operand, Result};

/// Threads per multiprocessor for whose column sums it has registers.
const RESIDENT: usize = 512;
/// The most terms that are added one after the other; longer sums are split.
const TERMS: usize = 4096;

pub const FAMILY: Family = Family {
    launchers: &[
        Launcher::of::<RowNorm>(),
        Launcher::of::<EmbeddingNorm>(),
        Launcher::of::<RowNormBackward>(),
        Launcher::of::<EmbeddingNormBackward>(),
    ],
    examples: EXAMPLES,
};

impl FusedLaunch for RowNorm {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        norm(gpu, call.op, self, self.inputs(call), self.outputs(call), None)
    }
}

impl FusedLaunch for EmbeddingNorm {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let EmbeddingNormInputs { table, weight, index } = self.inputs(call);
        let inputs = NormInputs { x: table, residual: None, weight, bias: None };
        norm(gpu, call.op, &self.0, inputs, self.outputs(call), Some(index))
    }
}

impl FusedLaunch for RowNormBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        norm_backward(gpu, &self.0, self.inputs(call), self.outputs(call), None)
    }
}

impl FusedLaunch for EmbeddingNormBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let EmbeddingNormBackwardInputs { dy, table, mean, rstd, weight, index } = self.inputs(call);
        let inputs = NormBackwardInputs { dy, x: table, mean, rstd, weight, bias: None, added: None };
        norm_backward(gpu, &self.0, inputs, self.outputs(call), Some(index))
    }
}

/// The program of a norm of rows like `x`, whose parameters have the dtype `p`.
fn norm_variant(
    file: &'static str,
    norm: &RowNorm,
    x: &Operand<'_>,
    p: DType,
    [has_weight, has_bias]: [bool; 2],
) -> Variant {
    let flags = [("CENTERED", norm.is_centred), ("WEIGHT", has_weight), ("BIAS", has_bias)];
    variant(file, x).define("P", p).flags(flags)
}

/// The dtype of the parameters of a norm, or of their gradients; `other` without parameters.
pub fn dtype_of_parameters<const N: usize>(parameters: [Option<&Operand<'_>>; N], other: DType) -> DType {
    parameters.into_iter().flatten().next().map_or(other, |p| p.dtype)
}

/// Adds the words in which parameters are read, if rows and addresses allow these.
fn with_pieces(variant: Variant, x: DType, p: DType, extent: usize, addresses: &[Address]) -> Variant {
    let vector = 16 / x.size();
    let bytes = (vector * p.size()).min(16);
    let is_aligned = extent.is_multiple_of(vector) && addresses.iter().all(|a| a.is_multiple_of(bytes as u64));
    let is_read_so = is_aligned && has_words(&variant, x);
    variant.optional("PIECE", is_read_so.then(|| word(bytes)))
}

/// Adds the dtype of x and y, and of their gradients, if it is not that of the rows that are normalised.
fn with_low(variant: Variant, low: DType, rows: DType) -> Variant {
    if low == rows {
        return variant;
    }
    let vector = if has_words(&variant, rows) { 16 / rows.size() } else { 1 };
    variant.define("LOW", low).define("LOW_WORD", word(vector * low.size()))
}

/// True if rows of a dtype are read in words, not element by element.
fn has_words(variant: &Variant, rows: DType) -> bool {
    variant.defines.contains(&("VECTOR", (16 / rows.size()).into()))
}

/// The place of elements of a smaller dtype among words of the rows' dtype.
fn in_rows(address: Address, low: DType, rows: DType) -> Address {
    address * (rows.size() / low.size()) as Address
}

/// Adds an index that names rows of `x`, which is written before the number of rows.
fn indexed(
    variant: Variant,
    arguments: Arguments,
    index: Option<&Operand<'_>>,
    x: &Operand<'_>,
) -> Result<(Variant, Arguments)> {
    let Some(index) = index else { return Ok((variant, arguments)) };
    Ok((variant.define("INDEX", index.dtype), arguments.pointer(start_of(index)?).int(x.layout.shape()[0])))
}

/// `index` names the rows of x, if there is one.
fn norm(
    gpu: &Gpu,
    op: &'static str,
    norm: &RowNorm,
    NormInputs { x, residual, weight, bias }: NormInputs<&Operand<'_>>,
    NormOutputs { y, mean, rstd, sum }: NormOutputs<&Operand<'_>>,
    index: Option<&Operand<'_>>,
) -> Result<()> {
    let (count, extent) = (norm.rows, norm.length);
    // The rows that are normalised: x, or its sum with the residual.
    let normalised = sum.unwrap_or(y);
    let (dtype, p) = (normalised.dtype, dtype_of_parameters([weight, bias], x.dtype));
    let variant = norm_variant("normalization/norm.c", norm, normalised, p, [weight.is_some(), bias.is_some()]);
    let from = start_of(x)?;
    let ([to, mean, rstd], [weight, bias]) = (starts([y, mean, rstd])?, starts_or([weight, bias], from)?);
    let arguments = Arguments::new().pointers([from, weight, bias, to, mean, rstd]);
    let (variant, mut arguments) = indexed(variant, arguments, index, x)?;
    let mut moved = [from, to].map(|address| in_rows(address, x.dtype, dtype)).to_vec();
    if let (Some(residual), Some(sum)) = (residual, sum) {
        let sums = starts([residual, sum])?;
        moved.extend(sums);
        arguments = arguments.pointers(sums);
    }
    let variant = variant.flag("RESIDUAL", residual.is_some());
    let variant = match norm.activation.row() {
        Some(row) => variant.define("ACTIVATION", row.name()).flag("NEAR", x.dtype.size() == 2).calling(row),
        None => variant,
    };
    let arguments = arguments.numbers([count, extent, 1, 1]).float(norm.eps, dtype.acc());
    let kept = Kept { is_whole: index.is_some(), ..Kept::normalised(dtype, extent) };
    let (variant, geometry) = rows(gpu, variant, dtype, count, extent, &moved, kept);
    let variant = with_low(with_pieces(variant, dtype, p, extent, &[weight, bias]), x.dtype, dtype);
    let Some(index) = index else {
        return gpu.launch(variant, "norm", geometry, &arguments.pointer(from));
    };
    let extent = x.layout.shape()[0];
    let slot = gpu.status(op, Check::Index(extent))?;
    gpu.launch(variant, "norm", geometry, &arguments.pointer(slot.address))?;
    check(gpu, op, slot, (index, 1), extent)
}

/// As many groups as run together go through all rows, and each leaves its sums of the parameters' gradients.
fn norm_backward(
    gpu: &Gpu,
    norm: &RowNorm,
    NormBackwardInputs { dy, x, mean, rstd, weight, bias, added }: NormBackwardInputs<&Operand<'_>>,
    NormBackwardOutputs { low, dx, weight: dweight, bias: dbias }: NormBackwardOutputs<&Operand<'_>>,
    index: Option<&Operand<'_>>,
) -> Result<()> {
    let (count, extent) = (norm.rows, norm.length);
    let (are_wanted, has_bias) = (dweight.is_some() || dbias.is_some(), bias.is_some() || dbias.is_some());
    let p = dtype_of_parameters([weight, bias, dweight, dbias], x.dtype);
    // A table has other rows than dy.
    let rows_like = if index.is_some() { dy } else { x };
    let variant = norm_variant("normalization/norm_backward.c", norm, rows_like, p, [weight.is_some(), has_bias]);
    let joining = Variant { file: "normalization/norm_join.c", ..variant.clone() };
    let program = match norm.activation.slope() {
        Some((row, reads_result)) => variant
            .define("SLOPE", row.name())
            .flags([("OF_RESULT", reads_result), ("NEAR", x.dtype.size() == 2)])
            .calling(row),
        None => variant.flag("ADDED", added.is_some()),
    };
    let program = program.flags([("DX", dx.is_some()), ("PARAMETERS", are_wanted)]);
    let [g, from, mean, rstd] = starts([dy, x, mean, rstd])?;
    let [weight, dx_place, dweight, dbias] = starts_or([weight, dx, dweight, dbias], g)?;
    let (bias_place, low_place) = (start_or(bias, weight)?, start_or(low, g)?);
    let added_place = added.map(start_of).transpose()?;
    let lows = [g, low_place].map(|address| in_rows(address, dy.dtype, x.dtype));
    let written = if dx.is_some() { dx_place } else { from };
    let moved = [lows[0], lows[1], from, written, added_place.unwrap_or(from)];
    let (program, mut geometry) = rows(gpu, program, x.dtype, count, extent, &moved, Kept::COLUMNS);
    let together = (RESIDENT / geometry.threads).max(1);
    // They run together if each has its share of the registers.
    let has_share = program.defines.iter().any(|(name, _)| *name == "AT_ONCE");
    let program = program.optional("AT_ONCE", (!has_share).then_some(together));
    let resident = gpu.driver().limits().units * together;
    geometry.groups[0] = geometry.groups[0].min(resident.max(count.div_ceil(TERMS)));
    let parts = geometry.groups[0];
    let bytes = if are_wanted { parts * extent * x.dtype.acc().size() } else { 0 };
    let (weights, biases) = (gpu.scratch(bytes)?, gpu.scratch(bytes)?);
    let sums = [weights.address, biases.address];
    let arguments = Arguments::new().pointers([g, from, mean, rstd, weight, dx_place, sums[0], sums[1]]);
    let (program, mut arguments) = indexed(program, arguments, index, x)?;
    if norm.activation != Activation::Identity {
        arguments = arguments.pointer(bias_place);
    }
    if let Some(added) = added_place {
        arguments = arguments.pointer(added);
    }
    if dy.dtype != x.dtype {
        arguments = arguments.pointer(low_place);
    }
    let arguments = arguments.numbers([count, extent]);
    let program = with_low(with_pieces(program, x.dtype, p, extent, &[weight, bias_place]), dy.dtype, x.dtype);
    gpu.launch(program, "norm_backward", geometry, &arguments)?;
    match are_wanted {
        true => join_parts(gpu, joining, sums, [dweight, dbias], parts, extent, has_bias),
        false => Ok(()),
    }
}

/// Joins parts `[parts, extent]` of the gradients of a weight and a bias.
pub fn join_parts(
    gpu: &Gpu,
    variant: Variant,
    sums: [Address; 2],
    [dweight, dbias]: [Address; 2],
    parts: usize,
    extent: usize,
    has_bias: bool,
) -> Result<()> {
    let (variant, geometry) = columns(gpu, variant, extent, if has_bias { 2 } else { 1 });
    let arguments = Arguments::new().pointers([sums[0], sums[1], dweight, dbias]).numbers([parts, extent]);
    gpu.launch(variant, "norm_join", geometry, &arguments)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| {
        differentiate(d, t, &[&[4096, 1024], &[1024], &[1024]], |x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 0.0))
    },
    |d, t| {
        in_any_order(d, || {
            differentiate(d, t, &[&[4096, 1024], &[1024]], |x| {
                x[0].embedding_rmsnorm(&zeros(x[0].device(), DType::I64, &[4096])?, Some(&x[1]), 0.0)
            })
        })
    },
    |d, t| differentiate(d, t, &[&[64, 50257]], |x| x[0].layer_norm(1, None, None, 0.0)),
    |d, t| {
        differentiate(d, t, &[&[4096, 1024], &[1024], &[1024]], |x| {
            x[0].layer_norm_activation(1, Some(&x[1]), Some(&x[2]), 0.0, Activation::Gelu(Approximate::None))
        })
    },
    |d, t| {
        differentiate(d, t, &[&[64, 65536], &[65536], &[65536]], |x| {
            x[0].layer_norm_activation(1, Some(&x[1]), Some(&x[2]), 0.0, Activation::Relu)
        })
    },
    |d, t| {
        differentiate(d, t, &[&[4096, 1024], &[4096, 1024], &[1024], &[1024]], |x| {
            let (y, s) = x[0].residual_layer_norm(&x[1], 1, Some(&x[2]), Some(&x[3]), 0.0)?;
            y.add(&s)
        })
    },
    |d, t| {
        // The sum in f32.
        differentiate(d, t, &[&[4096, 1024], &[4096, 1024], &[1024], &[1024]], |x| {
            let [residual, weight, bias] = [1, 2, 3].map(|i| x[i].cast(x[i].dtype().acc()));
            let (y, s) = x[0].residual_layer_norm(&residual?, 1, Some(&weight?), Some(&bias?), 0.0)?;
            y.add(&s.cast(y.dtype())?)
        })
    },
    |d, t| {
        differentiate(d, t, &[&[64, 50257], &[64, 50257]], |x| {
            let (y, s) = x[0].residual_layer_norm(&x[1], 1, None, None, 0.0)?;
            y.add(&s)
        })
    },
    |d, t| {
        differentiate(d, t, &[&[64, 65536], &[65536], &[65536]], |x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 0.0))
    },
];
